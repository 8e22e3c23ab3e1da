"""The options that say where an experiment's servers run."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.errors import UsageError

if TYPE_CHECKING:
    from powerprof.experiment.bench.servers import BenchOptions

_MOST_CPUS = 1 << 16

Workloads = Annotated[
    list[Path] | None, typer.Option("--workloads", metavar="DIR", help="Also look for workloads here; repeatable.")
]
WorldSql = Annotated[
    Path | None, typer.Option("--world-sql", metavar="FILE", help="The official world.sql instead of generated data.")
]
ServerBinary = Annotated[
    Path | None, typer.Option("--server-binary", metavar="FILE", help="Another mariadbd or mysqld to run.")
]
ServerBuild = Annotated[
    str | None, typer.Option("--server-build", metavar="NAME", help="A fetched server to run (powerprof servers).")
]
Attribute = Annotated[
    float | None,
    typer.Option("--attribute", metavar="S", min=0.5, max=3600, help="Afterwards trace each server for S seconds."),
]
ServerBasedir = Annotated[
    Path | None, typer.Option("--server-basedir", metavar="DIR", help="Where that server keeps its files.")
]
NetworkNamespaces = Annotated[
    bool, typer.Option("--network-namespaces", help="A network of its own for every server of a topology (root).")
]
ServerCpus = Annotated[
    str | None, typer.Option("--server-cpus", metavar="LIST", help="CPUs of the private server, such as 0-1,4.")
]
ClientCpus = Annotated[
    str | None, typer.Option("--client-cpus", metavar="LIST", help="CPUs of the client, such as 2-3.")
]


def cpu_list(text: str | None, option: str) -> tuple[int, ...] | None:
    """`0-1,4` as numbers. Raises UsageError for what is no list, and for CPUs that are not usable here."""
    if text is None:
        return None
    found: set[int] = set()
    try:
        for part in text.split(","):
            low, dash, high = part.strip().partition("-")
            first, last = int(low), int(high if dash else low)
            if last > _MOST_CPUS:
                raise UsageError(f"{option} {text}: there is no CPU {last}", "such as 0-1,4")
            found |= set(range(first, last + 1))
    except ValueError:
        raise UsageError(f"{option} {text} is no list of CPUs", "such as 0-1,4") from None
    usable = os.sched_getaffinity(0)
    if not found or not found <= usable:
        raise UsageError(f"{option} {text}: not all are usable here", f"usable: {','.join(map(str, sorted(usable)))}")
    return tuple(sorted(found))


def bench_options(
    stack: ExitStack,
    *,
    url: str | None,
    socket: Path | None,
    defaults_file: Path | None,
    world_sql: Path | None,
    server_binary: Path | None,
    server_cpus: str | None,
    client_cpus: str | None,
    server_build: str | None = None,
    server_basedir: Path | None = None,
    network_namespaces: bool = False,
) -> BenchOptions:
    """Where the servers run; a given one is connected to on `stack`. Raises UsageError for what does not fit."""
    from powerprof.experiment.bench.servers import BenchOptions

    given = None
    if url is not None or socket is not None or defaults_file is not None:
        if any(part is not None for part in (server_binary, server_basedir, server_build, server_cpus, world_sql)):
            raise UsageError(
                "--server-binary, --server-build, --server-cpus and --world-sql are for a private server",
                "leave out --server, --socket and --defaults-file",
            )
        from powerprof.database.client import connect_given

        given = stack.enter_context(connect_given(url, socket=socket, defaults_file=defaults_file))
    build = None
    if server_build is not None:
        from powerprof.database import historical

        if server_binary is not None:
            raise UsageError("--server-binary and --server-build name two servers", "use one of them")
        build = historical.build(server_build)
    return BenchOptions(
        given=given,
        server_cpus=cpu_list(server_cpus, "--server-cpus"),
        client_cpus=cpu_list(client_cpus, "--client-cpus"),
        world_sql=world_sql,
        server_binary=server_binary,
        server_build=build,
        server_basedir=server_basedir,
        network_namespaces=network_namespaces,
    )
