# SPDX-License-Identifier: Apache-2.0
"""Options of private servers and workloads in experiments: programs, folders and CPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from powerprof.cli.parameters import EXPERT_HEADING, existing_folder, flag, group, option, readable_file
from powerprof.cli.targets import OWN_SERVER, OptionalServerOptions
from powerprof.system.errors import PowerprofError, UsageError

if TYPE_CHECKING:
    from powerprof.database.base import Server
    from powerprof.database.builds import ServerBuild
    from powerprof.experiment.bench_options import BenchOptions


def _check_program(text: str) -> Path:
    from powerprof.database.builds import check_program

    try:
        check_program(Path(text), "mariadbd, mysqld or postgres")
    except PowerprofError as error:
        raise PowerprofError(f"--server-binary: {error.message}", error.hint) from error
    return Path(text)


class PrivateServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The program of private servers."""

    HEADING: ClassVar[str] = "Private server"

    server_binary: Path | None = option(
        "--server-binary",
        "FILE",
        "Start this mariadbd, mysqld or postgres.",
        convert=_check_program,
        excludes=OWN_SERVER,
    )
    server_build: str | None = option(
        "--server-build",
        "NAME",
        "Start this fetched server (servers lists them), or the installed mysql or postgresql.",
        excludes=(*OWN_SERVER, "--server-binary"),
    )

    def load_build(self) -> ServerBuild | None:
        """Return the fetched server of --server-build, if any. Raises UsageError, PowerprofError."""
        if self.server_build is None:
            return None
        from powerprof.database import catalogue, products

        if self.server_build in products.FAMILIES:
            return products.find_program(self.server_build, None)
        try:
            return catalogue.load_build(self.server_build)
        except UsageError as error:
            error.message = f"--server-build: {error.message}"
            raise


def workload_folders() -> Any:
    """Return the field of --workloads."""
    text = "Additional directory with workloads; repeatable."
    return option("--workloads", "DIR", text, convert=existing_folder, is_repeatable=True)


_MAX_CPU = 1 << 16


class BenchChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The workload folders, and the place of their servers."""

    HEADING: ClassVar[str] = "Workloads and placement"

    workloads: list[Path] | None = workload_folders()
    server: OptionalServerOptions = group(OptionalServerOptions)
    program: PrivateServerOptions = group(PrivateServerOptions)
    network_namespaces: bool = flag(
        "--network-namespaces",
        "One network namespace per server of a topology (as root).",
        heading=EXPERT_HEADING,
        excludes=OWN_SERVER,
    )
    server_cpus: str | None = option(
        "--server-cpus",
        "LIST",
        "CPUs of private servers: 0-1,4, or per name or role: router=0,host=1-2.",
        heading=EXPERT_HEADING,
        excludes=OWN_SERVER,
    )
    client_cpus: str | None = option(
        "--client-cpus", "LIST", "CPUs of the client, such as 2-3.", heading=EXPERT_HEADING
    )
    world_sql: Path | None = option(
        "--world-sql",
        "FILE",
        "Load the official world.sql instead of generated data.",
        convert=readable_file,
        heading=EXPERT_HEADING,
        excludes=OWN_SERVER,
    )
    trust: bool = flag(
        "--trust",
        "Allow the workload to run its own programs; remembered until its files change.",
        heading=EXPERT_HEADING,
    )

    @property
    def folders(self) -> list[Path]:
        """Other folders of workloads."""
        return self.workloads or []

    @contextmanager
    def open(self) -> Iterator[BenchOptions]:
        """Yield the options of the bench, connected to an existing server if one was named. Raises UsageError."""
        from powerprof.experiment.bench_options import BenchOptions

        own, members = cpu_sets(self.server_cpus, "--server-cpus")
        with _connect(self) as server:
            yield BenchOptions(
                given=server,
                server_cpus=own,
                member_cpus=members,
                client_cpus=cpu_list(self.client_cpus, "--client-cpus"),
                world_sql=self.world_sql,
                server_binary=self.program.server_binary,
                server_build=self.program.load_build(),
                network_namespaces=self.network_namespaces,
                trust=self.trust,
            )


@contextmanager
def _connect(bench: BenchChoice) -> Iterator[Server | None]:
    existing = bench.server
    if not existing.is_given:
        yield None
        return
    from powerprof.database.given import given_server
    from powerprof.database.postgres_wire import WORKLOAD_OPTIONS
    from powerprof.database.products import FAMILIES

    with given_server(existing.server, existing.socket, existing.defaults_file, families=FAMILIES) as server:
        if server.login.family == "postgresql":
            server.login = server.login.with_session_options(WORKLOAD_OPTIONS)
        yield server


def cpu_sets(text: str | None, word: str) -> tuple[tuple[int, ...] | None, dict[str, tuple[int, ...]]]:
    """Return the CPUs of all servers (`0-1,4`), and of servers by name or role (`router=0,host-a=1-2,4`).

    Raises UsageError.
    """
    if text is None or "=" not in text:
        return cpu_list(text, word), {}
    lists: dict[str, list[str]] = {}
    for part in text.split(","):
        name, equals, rest = part.partition("=")
        name = name.strip() if equals else next(reversed(lists), "")
        if not name or (equals and name in lists):
            raise UsageError(f"{word} {text} is not a list of CPUs per server", "such as router=0,host-a=1-2,host-b=3")
        lists.setdefault(name, []).append(rest if equals else part)
    return None, {name: cpu_list(",".join(parts), f"{word} {name}=") or () for name, parts in lists.items()}


def cpu_list(text: str | None, word: str) -> tuple[int, ...] | None:
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
                raise UsageError(f"{word} {text}: CPU {last} does not exist", "such as 0-1,4")
            numbers |= set(range(first, last + 1))
    except ValueError:
        raise UsageError(f"{word} {text} is not a list of CPUs", "such as 0-1,4") from None
    usable = os.sched_getaffinity(0)
    if not numbers or not numbers <= usable:
        raise UsageError(f"{word} {text}: some are not usable here", f"usable: {','.join(map(str, sorted(usable)))}")
    return tuple(sorted(numbers))
