# SPDX-License-Identifier: Apache-2.0
"""From what the command line names to a record: reach the server, trace a window, join, price."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from powerprof.energy.windows import WindowEnergy
from powerprof.errors import CapabilityError, PowerprofError, UsageError
from powerprof.queries.history import remember
from powerprof.queries.join import naming
from powerprof.queries.probing import Probes, Taken
from powerprof.queries.reach import Reach, reach
from powerprof.queries.record import record_of
from powerprof.queries.records import Queries
from powerprof.queries.samples import samples, with_plans
from powerprof.queries.sampling import Samples
from powerprof.queries.stacks import with_stacks
from powerprof.queries.workload import workload_toml
from powerprof.statements.normal import bounded
from powerprof.text import Say

# In the order in which they are tried.
_WAYS = {
    "auto": ("probes", "samples", "history"),
    "probes": ("probes",),
    "samples": ("samples", "history"),
    "history": ("history",),
}
METHODS = tuple(_WAYS)
_EXPLAINED, _SAVED = 5, 20


@dataclass(frozen=True, kw_only=True)
class QueriesRequest:
    """What the command line asks for; see `powerprof queries --help`."""

    pid: str | None
    server_url: str | None = None
    socket: Path | None = None
    defaults_file: Path | None = None
    duration_s: float = 10.0
    energy_source: str = "auto"
    meter_log: Path | None = None
    ask_password: Callable[[str], str] | None = None
    method: str = "auto"
    enable_consumers: bool = False
    stacks: bool = False
    explain: bool = False
    explain_as: Path | None = None
    workload: str | None = None


@dataclass(frozen=True)
class QueriesResult:
    """A record, and the workload.toml that was asked for."""

    record: Queries
    workload: str | None


def run(request: QueriesRequest, say: Say, consent: Callable[[str], None]) -> QueriesResult:
    """Answer the request. Raises UsageError, CapabilityError, PowerprofError.

    `consent` is told before texts of clients are used with their values, and before a setting of the server is
    changed; it raises where that is not agreed to.
    """
    with bounded() as texts:
        result = _run(request, say, consent)
    noted = msgspec.structs.replace(result.record, notes=[*result.record.notes, *texts.notes()])
    return QueriesResult(noted, result.workload)


def _run(request: QueriesRequest, say: Say, consent: Callable[[str], None]) -> QueriesResult:
    if request.method not in METHODS:
        raise UsageError(f"--method {request.method} is no choice", f"one of {', '.join(METHODS)}")
    server = reach(request.pid, request.server_url, request.socket, request.defaults_file, request.ask_password)
    if server.family == "postgresql":
        _check_postgresql(request)
    if request.explain:
        if server.login is None:
            raise PowerprofError(
                "--explain: the server does not let this user in", "name an account with --defaults-file"
            )
        by = "" if request.explain_as else ", by an account with SELECT only that is made for it and dropped"
        consent(f"EXPLAIN is going to be run for up to {_EXPLAINED} statements of clients, with their values{by}")
    if request.workload is not None:
        consent(f"statements of clients are going to be written to a file, with their values: {request.workload}")
    with WindowEnergy(request.energy_source, request.meter_log) as energy:
        taken = _take(request, server, energy, say, consent)
        record = record_of(server, taken.measured, energy)
    if taken.sampled is not None and taken.trace is not None:
        say("naming the functions")
        met = ((use.id, use.tid) for use in taken.trace.uses)
        named = naming(taken.texts, server.family, met, taken.measured.known)
        statements, modules, said = with_stacks(record.statements, taken.sampled, named, server.family)
        record = msgspec.structs.replace(record, statements=statements, modules=modules, notes=[*record.notes, *said])
    chosen = samples(taken.texts, record.statements, _SAVED)
    if request.explain and server.login is not None:
        say("asking for plans")
        statements, untold = with_plans(record.statements, chosen[:_EXPLAINED], server.login, request.explain_as)
        record = msgspec.structs.replace(record, statements=statements, notes=[*record.notes, *untold])
    if request.workload is None:
        return QueriesResult(record, None)
    return QueriesResult(record, workload_toml(request.workload, server.label, chosen, record.connections_count))


def _check_postgresql(request: QueriesRequest) -> None:
    """Raises UsageError for what needs more than PostgreSQL's processes tell."""
    if request.method == "history" or request.enable_consumers:
        raise UsageError("PostgreSQL keeps no history of its statements to sample by", "--method samples needs none")
    if request.explain or request.workload is not None:
        raise UsageError(
            "--explain and --save-workload are for MariaDB and MySQL", "EXPLAIN the statements of the table in psql"
        )


def _take(
    request: QueriesRequest, server: Reach, energy: WindowEnergy, say: Say, consent: Callable[[str], None]
) -> Taken:
    """By the first way that can of those that are asked for, else why none can."""
    refused: list[PowerprofError] = []
    for way in _WAYS[request.method]:
        if way == "history" and server.family == "postgresql":
            continue
        _check_way(request, way, refused)
        try:
            return _by(way, request, server, energy, say, consent)
        except PowerprofError as error:
            if isinstance(error, UsageError) or not (refused or isinstance(error, CapabilityError)):
                raise
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    raise CapabilityError(
        "; nor without: ".join(error.message for error in refused),
        next((error.hint for error in reversed(refused) if error.hint), None),
    ) from refused[0]


def _check_way(request: QueriesRequest, way: str, refused: Sequence[PowerprofError]) -> None:
    """Raises what was refused before, or UsageError, where a way tells less than is asked for."""
    if way != "probes" and request.stacks:
        raise next(
            iter(refused), UsageError("--stacks needs the statement of each moment", "leave out --method samples")
        )
    if way == "history" and (request.explain or request.workload is not None):
        raise next(
            iter(refused),
            UsageError(
                "--explain and --save-workload need statements as clients sent them: the server's history has digests",
                "leave out --method history",
            ),
        )


def _by(
    way: str, request: QueriesRequest, server: Reach, energy: WindowEnergy, say: Say, consent: Callable[[str], None]
) -> Taken:
    if way == "probes":
        say("loading the tracer")
        with Probes(server, stacks=request.stacks) as probes:
            say(f"tracing the statements of {server.label} for {request.duration_s:g} s")
            return probes.window(request.duration_s, energy)
    if way == "samples":
        say("loading the sampler")
        with Samples(server) as sampler:
            say(f"sampling {server.label} for {request.duration_s:g} s")
            return Taken(*sampler.window(request.duration_s, energy))
    return Taken(remember(server, request.duration_s, energy, say, consent, enable=request.enable_consumers))
