# SPDX-License-Identifier: Apache-2.0
"""The options of the servers of an experiment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from powerprof.cli.options import ServerOptions, server_binary, workload_folders
from powerprof.cli.parameters import existing_folder, flag, group, option, readable_file
from powerprof.system.errors import UsageError

if TYPE_CHECKING:
    from powerprof.database.clients.base import Server
    from powerprof.database.products.builds import ServerBuild
    from powerprof.experiment.bench_data import BenchOptions

_MAX_CPU = 1 << 16


@dataclass(frozen=True, kw_only=True)
class BenchChoice:
    """The workload folders, and the place of their servers."""

    HEADING: ClassVar[str] = "Where the workloads are found and where their servers run"

    workloads: list[Path] | None = workload_folders()
    server: ServerOptions = group(ServerOptions)
    server_binary: Path | None = server_binary()
    server_basedir: Path | None = option(
        "--server-basedir", "DIR", "Where that server keeps its files.", convert=existing_folder
    )
    network_namespaces: bool = flag("--network-namespaces", "One network namespace per server of a topology (root).")
    server_build: str | None = option("--server-build", "NAME", "A fetched server to run (powerprof servers).")
    server_cpus: str | None = option(
        "--server-cpus", "LIST", "CPUs of private servers: 0-1,4, or by name or role: router=0,host=1-2."
    )
    client_cpus: str | None = option("--client-cpus", "LIST", "CPUs of the client, such as 2-3.")
    world_sql: Path | None = option(
        "--world-sql", "FILE", "The official world.sql instead of generated data.", convert=readable_file
    )
    trust: bool = flag("--trust", "Let the workload run code of its author here; remembered for its content.")

    @property
    def folders(self) -> list[Path]:
        """Other folders of workloads."""
        return self.workloads or []

    @contextmanager
    def open(self) -> Iterator[BenchOptions]:
        """Yield the options of the bench, connected to an existing server if one was named. Raises UsageError."""
        from powerprof.experiment.bench_data import BenchOptions

        own, members = cpu_sets(self.server_cpus, "--server-cpus")
        with _given(self) as server:
            yield BenchOptions(
                given=server,
                server_cpus=own,
                member_cpus=members,
                client_cpus=cpu_list(self.client_cpus, "--client-cpus"),
                world_sql=self.world_sql,
                server_binary=self.server_binary,
                server_build=_build(self),
                server_basedir=self.server_basedir,
                network_namespaces=self.network_namespaces,
                trust=self.trust,
            )


@contextmanager
def _given(bench: BenchChoice) -> Iterator[Server | None]:
    url, socket, defaults_file = bench.server.server, bench.server.socket, bench.server.defaults_file
    if url is None and socket is None and defaults_file is None:
        yield None
        return
    private = (bench.server_binary, bench.server_basedir, bench.server_build, bench.server_cpus, bench.world_sql)
    if any(part is not None for part in private) or bench.network_namespaces:
        raise UsageError(
            "--server-binary, --server-basedir, --server-build, --server-cpus, --network-namespaces and --world-sql "
            "are for a private server",
            "leave out --server, --socket and --defaults-file",
        )
    from powerprof.database.clients.given import given_server

    with given_server(url, socket=socket, defaults_file=defaults_file) as server:
        yield server


def _build(bench: BenchChoice) -> ServerBuild | None:
    if bench.server_build is None:
        return None
    from powerprof.database.fetched import historical

    if bench.server_binary is not None or bench.server_basedir is not None:
        raise UsageError("--server-binary or --server-basedir and --server-build name two servers", "use one of them")
    try:
        return historical.load_build(bench.server_build)
    except UsageError as error:
        raise UsageError(f"--server-build: {error.message}", error.hint) from error


def cpu_sets(text: str | None, option: str) -> tuple[tuple[int, ...] | None, dict[str, tuple[int, ...]]]:
    """Return the CPUs of all servers (`0-1,4`), and of servers by name or role (`router=0,host-a=1-2,4`).

    Raises UsageError.
    """
    if text is None or "=" not in text:
        return cpu_list(text, option), {}
    lists: dict[str, list[str]] = {}
    for part in text.split(","):
        name, equals, rest = part.partition("=")
        name = name.strip() if equals else next(reversed(lists), "")
        if not name or (equals and name in lists):
            raise UsageError(f"{option} {text} is not a list of CPUs by server", "such as router=0,host-a=1-2,host-b=3")
        lists.setdefault(name, []).append(rest if equals else part)
    return None, {name: cpu_list(",".join(parts), f"{option} {name}=") or () for name, parts in lists.items()}


def cpu_list(text: str | None, option: str) -> tuple[int, ...] | None:
    """Return `0-1,4` as numbers. Raises UsageError for another format, and for CPUs that are not usable here."""
    if text is None:
        return None
    numbers: set[int] = set()
    try:
        for part in text.split(","):
            low, dash, high = part.strip().partition("-")
            first, last = int(low), int(high if dash else low)
            if first > last or not part.isascii():
                raise ValueError(part)
            if last > _MAX_CPU:
                raise UsageError(f"{option} {text}: there is no CPU {last}", "such as 0-1,4")
            numbers |= set(range(first, last + 1))
    except ValueError:
        raise UsageError(f"{option} {text} is not a list of CPUs", "such as 0-1,4") from None
    usable = os.sched_getaffinity(0)
    if not numbers or not numbers <= usable:
        raise UsageError(f"{option} {text}: not all are usable here", f"usable: {','.join(map(str, sorted(usable)))}")
    return tuple(sorted(numbers))
