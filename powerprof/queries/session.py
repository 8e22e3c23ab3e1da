# SPDX-License-Identifier: Apache-2.0
"""From what the command line names to a record: reach the server, trace a window, join, price."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from powerprof.energy.domains import DEFAULT_REQUEST, EnergyRequest
from powerprof.energy.windows import WindowEnergy
from powerprof.model.records import Note, Notes
from powerprof.model.text import Say
from powerprof.queries.client_texts import (
    add_plans,
    choose_texts,
    explain_left_out,
    format_workload,
    list_missing_plans,
)
from powerprof.queries.join import make_namer
from powerprof.queries.pricing import build_record
from powerprof.queries.probes import Probes, ProbeTrial, TracedWindow
from powerprof.queries.records import Queries, SampledStack, Statement
from powerprof.queries.samples import Samples
from powerprof.queries.target import TracedServer, find_server
from powerprof.statements.text import Family, limit_texts, make_key
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.tracing.captures import OnCpuCapture
from powerprof.tracing.profile import PathNames

# Pure: samples that were taken beside the probes → the call paths of each statement.

INCOMPLETE, OTHERS = "[incomplete]", "[other paths]"
_STATEMENTS, _PATHS = 20, 400


def add_stacks(
    statements: Sequence[Statement],
    capture: OnCpuCapture,
    name_of: Callable[[int, int], tuple[str, str | None]],
    family: Family = "mysql",
) -> tuple[list[Statement], dict[str, str], Notes]:
    """The statements, those with most samples with their paths; the files of frames; and the notes on them."""
    paths = PathNames(capture)
    counters: dict[tuple[str, str | None], Counter[tuple[str, ...]]] = defaultdict(Counter)
    modules: dict[str, str] = {}
    for row in capture.rows:
        if row.what:
            text, schema = name_of(row.what, row.tid)
            frames, state = paths.of(row)
            labels = []
            for frame in reversed(frames):
                # The suffix is flamegraph.pl's for the kernel's functions.
                labels.append(f"{frame.label}_[k]" if frame.kernel else frame.label)
                modules[labels[-1]] = frame.module
            if state not in ("complete", "kernel"):
                labels.insert(0, INCOMPLETE)
            counters[make_key(text, family), schema][tuple(labels)] += row.count
    most = dict(sorted(counters.items(), key=lambda pair: -pair[1].total())[:_STATEMENTS])
    with_paths = [
        msgspec.structs.replace(statement, stacks=_largest(most[name]))
        if (name := (make_key(statement.text, family), statement.schema_name)) in most and not statement.began_before
        else statement
        for statement in statements
    ]
    used = {label for statement in with_paths for stack in statement.stacks for label in stack.frames}
    inside = sum(counter.total() for counter in counters.values())
    note = (
        f"{capture.target_count:,} samples of the server, {inside:,} of them in statements; each CPU was woken for "
        f"them {1e3 / (capture.period_ms or 1.0):.0f} times a second, which wake-ups and joules contain"
    )
    return (
        with_paths,
        {label: file for label, file in modules.items() if label in used},
        [note, *capture.notes, *paths.notes],
    )


def _largest(paths: Counter[tuple[str, ...]]) -> list[SampledStack]:
    rows = sorted(paths.items(), key=lambda stack: (-stack[1], stack[0]))
    rest = sum(count for _, count in rows[_PATHS:])
    stacks = [SampledStack(list(frames), count) for frames, count in rows[:_PATHS]]
    return [*stacks, SampledStack([OTHERS], rest)] if rest else stacks


# In the order in which they are tried.
_WAYS = {"auto": ("probes", "samples"), "probes": ("probes",), "samples": ("samples",)}
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
    energy: EnergyRequest = DEFAULT_REQUEST
    method: str = "auto"
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

    `consent` is called before texts of clients are used with their values; it raises where that is not agreed to.
    """
    with limit_texts() as texts:
        result = _run(request, say, consent)
    noted = msgspec.structs.replace(result.record, notes=[*result.record.notes, *texts.notes()])
    return QueriesResult(noted, result.workload)


def _run(request: QueriesRequest, say: Say, consent: Callable[[str], None]) -> QueriesResult:
    if request.method == "history":
        raise UsageError("--method history is no more", "--method samples, which needs no account")
    if request.method not in METHODS:
        raise UsageError(f"--method {request.method} is no choice", f"one of {', '.join(METHODS)}")
    server = find_server(request.pid, request.server_url, request.socket, request.defaults_file)
    if server.family == "postgresql":
        _check_postgresql(request)
    if request.explain:
        if server.login is None:
            raise PowerprofError(
                "--explain: the server does not let this user in", "name an account with --defaults-file"
            )
        by = "" if request.explain_as else ", by an account with SELECT only that is made for it and dropped"
        consent(f"About to run EXPLAIN on up to {_EXPLAINED} statements of clients, with their values{by}")
    if request.workload is not None:
        consent(f"About to write the statements of clients, with their values, to {request.workload}")
    with WindowEnergy(request.energy) as energy:
        taken = _take(request, server, energy, say)
        record = build_record(server, taken.measured, energy)
    if taken.sampled is not None and taken.trace is not None:
        say("naming the functions")
        met = ((use.id, use.tid) for use in taken.trace.uses)
        named = make_namer(taken.texts, server.family, met, taken.measured.known)
        statements, modules, stack_notes = add_stacks(record.statements, taken.sampled, named, server.family)
        record = msgspec.structs.replace(
            record, statements=statements, modules=modules, notes=[*record.notes, *stack_notes]
        )
    chosen = choose_texts(taken.texts, record.statements, _SAVED)
    others = explain_left_out(taken.texts, record.statements[:_SAVED], chosen)
    if request.explain and server.login is not None:
        say("asking for plans")
        statements, plan_notes = add_plans(record.statements, chosen[:_EXPLAINED], server.login, request.explain_as)
        record = msgspec.structs.replace(
            record, statements=statements, notes=[*record.notes, *plan_notes, *list_missing_plans(others)]
        )
    if request.workload is None:
        return QueriesResult(record, None)
    return QueriesResult(
        record, format_workload(request.workload, server.label, chosen, record.connections_count, others)
    )


def _too_costly(trial: ProbeTrial) -> Note:
    each_us = 1e6 * trial.took_s / max(trial.statements_count, 1)
    rate_hz = trial.statements_count / trial.window_s
    return Note("probes_costly", {"percent": trial.percent, "each_us": each_us, "rate_hz": rate_hz})


def _check_postgresql(request: QueriesRequest) -> None:
    """Raises UsageError for what needs more than PostgreSQL's processes tell."""
    if request.explain or request.workload is not None:
        raise UsageError(
            "--explain and --save-workload are for MariaDB and MySQL", "EXPLAIN the statements of the table in psql"
        )


def _take(request: QueriesRequest, server: TracedServer, energy: WindowEnergy, say: Say) -> TracedWindow:
    """By the first way that can of those that are asked for, else why none can."""
    refused: list[PowerprofError] = []
    costly: list[Note] = []
    may_choose = request.method == "auto" and not request.stacks
    for way in _WAYS[request.method]:
        if way == "samples" and request.stacks:
            raise next(
                iter(refused), UsageError("--stacks needs the statement of each moment", "leave out --method samples")
            )
        try:
            taken = _by(way, request, server, energy, say, costly if may_choose and way == "probes" else None)
            if taken is not None:
                measured = replace(taken.measured, notes=[*costly, *taken.measured.notes])
                return taken._replace(measured=measured)
        except PowerprofError as error:
            if isinstance(error, UsageError) or not (refused or costly or isinstance(error, CapabilityError)):
                raise
            refused.append(error)
    if costly:  # and samples cannot be had
        taken = _by("probes", request, server, energy, say)
        assert taken is not None  # noqa: S101  nothing was asked of it
        return taken
    if len(refused) == 1:
        raise refused[0]
    raise CapabilityError(
        "; the fallback failed: ".join(error.message for error in refused),
        next((error.hint for error in reversed(refused) if error.hint), None),
    ) from refused[0]


def _by(
    way: str,
    request: QueriesRequest,
    server: TracedServer,
    energy: WindowEnergy,
    say: Say,
    costly: list[Note] | None = None,
) -> TracedWindow | None:
    """One window. `costly`: the probes are tried before, and where they take too much of the server there is none, and
    a note of it here."""
    if way == "probes":
        say("loading the tracer")
        with Probes(server, stacks=request.stacks) as probes:
            if costly is not None and (trial := probes.trial()).is_costly:
                costly.append(_too_costly(trial))
                say(f"probes take {trial.percent:.1f} % of the server: samples instead (--method probes insists)")
                return None
            say(f"tracing the statements of {server.label} for {request.duration_s:g} s")
            return probes.window(request.duration_s, energy)
    say("loading the sampler")
    with Samples(server) as sampler:
        say(f"sampling {server.label} for {request.duration_s:g} s")
        return sampler.window(request.duration_s, energy)
