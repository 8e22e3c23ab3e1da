# SPDX-License-Identifier: Apache-2.0
"""The way of `powerprof queries`: find the server, trace a window, join and price it, add stacks, plans, a workload."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from powerprof.database.base import Login
from powerprof.energy.request import DEFAULT_REQUEST, EnergyRequest
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.progress import announce
from powerprof.model.records import Note
from powerprof.model.statements import limit_texts
from powerprof.model.text import Say
from powerprof.queries.client_texts import add_plans, choose_texts, explain_left_out, list_missing_plans
from powerprof.queries.join import StatementNames
from powerprof.queries.pricing import build_record
from powerprof.queries.probes import Probes
from powerprof.queries.records import Queries
from powerprof.queries.samples import Samples
from powerprof.queries.statement_stacks import add_stacks
from powerprof.queries.target import TracedServer, find_reader, find_server
from powerprof.queries.windows import TracedWindow
from powerprof.queries.workload_file import format_workload
from powerprof.system.errors import CapabilityError, PowerprofError, UnknownNameError, UsageError
from powerprof.tracing.bpf.mapped_files import UnfitFileError
from powerprof.tracing.profile import SAMPLE_HZ

# Methods in the order of trial.
_METHODS = {"auto": ("probes", "samples"), "probes": ("probes",), "samples": ("samples",)}
_MAX_EXPLAINED, _MAX_SAVED = 5, 20


class QueriesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of the command line; see `powerprof queries --help`."""

    pid: str | None
    only: bool = False
    server_url: str | None = None
    socket: Path | None = None
    defaults_file: Path | None = None
    duration_s: float = 10.0
    energy: EnergyRequest = DEFAULT_REQUEST
    method: str = "auto"
    stacks: bool = False
    stacks_hz: int = SAMPLE_HZ
    explain: bool = False
    explain_as: Path | None = None
    workload: Path | None = None
    max_cost: float | None = None


class QueriesResult(msgspec.Struct, frozen=True):
    """A record, and the text of workload.toml on request."""

    record: Queries
    workload: str | None


def run(request: QueriesRequest, say: Say, consent: Callable[[str], None]) -> QueriesResult:
    """Answer the request. Raise UsageError, CapabilityError, PowerprofError.

    `consent` is called before texts of clients are used with their values. It raises without consent.
    """
    with limit_texts() as texts:
        result = _run(request, say, consent)
    record = msgspec.structs.replace(result.record, notes=[*result.record.notes, *texts.notes()])
    return QueriesResult(record, result.workload)


def _run(request: QueriesRequest, say: Say, consent: Callable[[str], None]) -> QueriesResult:
    if request.method not in _METHODS:
        raise UnknownNameError(f"--method {request.method} is not a choice", request.method, _METHODS)
    server = find_server(
        request.pid, request.server_url, request.socket, request.defaults_file, only=request.only, say=say
    )
    reader = _check_values(request, server, consent)
    record, traced = measure(request, server, say)
    chosen = choose_texts(traced.texts, record.statements, _MAX_SAVED, server.family)
    left_out = explain_left_out(traced.texts, record.statements[:_MAX_SAVED], chosen, server.family)
    if reader is not None:
        say("running EXPLAIN")
        statements, plan_notes = add_plans(record.statements, chosen[:_MAX_EXPLAINED], reader, request.explain_as)
        record = msgspec.structs.replace(
            record, statements=statements, notes=[*record.notes, *plan_notes, *list_missing_plans(left_out)]
        )
    if request.workload is None:
        return QueriesResult(record, None)
    return QueriesResult(
        record, format_workload(request.workload.name, server.label, chosen, record.connections_count, left_out)
    )


def measure(request: QueriesRequest, server: TracedServer, say: Say) -> tuple[Queries, TracedWindow]:
    """Return the record of one window, with stacks on request. Raise UsageError, CapabilityError, PowerprofError."""
    with WindowEnergy(request.energy) as energy:
        traced = _trace(request, server, energy, say)
        record = build_record(server, traced.measured, energy)
    if traced.stacks is not None and traced.trace is not None:
        say("naming the functions")
        ids = ((use.id, use.tid) for use in traced.trace.uses)
        name_of = StatementNames(traced.texts, server.family, ids, traced.measured.known).name
        statements, modules, notes = add_stacks(record.statements, traced.stacks, name_of, server.family)
        record = msgspec.structs.replace(record, statements=statements, modules=modules, notes=[*record.notes, *notes])
    return record, traced


def _check_values(request: QueriesRequest, server: TracedServer, consent: Callable[[str], None]) -> Login | None:
    """Return the login for plans, None if none are requested. Call `consent` if values of clients are used.

    Raises UsageError or PowerprofError if values of clients are unavailable.
    """
    reader = None
    if server.family == "postgresql" and request.workload is not None:
        raise UsageError(
            "--save-workload is for MariaDB and MySQL: texts of PostgreSQL often have parameters without their values",
            "write the statements into a workload (docs/how-to/write-a-workload.md)",
        )
    if request.explain and server.family == "postgresql":
        reader = find_reader(server, request.explain_as)
        consent(
            f"About to run EXPLAIN on up to {_MAX_EXPLAINED} statements of clients, with a parameter for each string, "
            f"as {reader.text}"
        )
    elif request.explain:
        if server.login is None:
            raise PowerprofError("--explain: the server refuses this user", "name an account with --defaults-file")
        reader = server.login
        by = "" if request.explain_as else ", by a temporary account with SELECT only"
        consent(f"About to run EXPLAIN on up to {_MAX_EXPLAINED} statements of clients, with their values{by}")
    if request.workload is not None:
        consent(f"About to write the statements of clients, with their values, to {request.workload}")
    return reader


def _trace(request: QueriesRequest, server: TracedServer, energy: WindowEnergy, say: Say) -> TracedWindow:
    """Return a window of the first method that works. Raise the errors of all methods if none does."""
    errors: list[PowerprofError] = []
    costs: list[Note] = []
    reasons: list[Note] = []
    may_choose = request.method == "auto" and not request.stacks and request.max_cost is not None
    for method in _METHODS[request.method]:
        if method == "samples" and request.stacks:
            raise next(
                iter(errors), UsageError("--stacks needs the statement of each moment", "leave out --method samples")
            )
        try:
            if method == "samples":
                traced: TracedWindow | None = _sample(request, server, energy, say)
            else:
                traced = _probe(request, server, energy, say, costs if may_choose else None)
            if traced is not None:
                return traced._replace(
                    measured=replace(traced.measured, notes=[*reasons, *costs, *traced.measured.notes])
                )
        except PowerprofError as error:
            may_fall_back = isinstance(error, CapabilityError | UnfitFileError)
            if isinstance(error, UsageError) or not (errors or costs or may_fall_back):
                raise
            errors.append(error)
            if isinstance(error, UnfitFileError):
                reasons.append(Note("probes_unfit", {"reason": error.message}))
    if costs:  # Probes work, and samples do not.
        traced = _probe(request, server, energy, say)
        assert traced is not None  # noqa: S101  without a trial
        return traced
    if len(errors) == 1:
        raise errors[0]
    raise CapabilityError(
        "; the fallback failed: ".join(dict.fromkeys(error.message for error in errors)),
        next((error.hint for error in reversed(errors) if error.hint), None),
    ) from errors[0]


def _probe(
    request: QueriesRequest, server: TracedServer, energy: WindowEnergy, say: Say, costs: list[Note] | None = None
) -> TracedWindow | None:
    """Trace one window with probes.

    With `costs`, try the probes first. If they use too much of the server's CPU time, add a note and return None.
    """
    say("loading the tracer")
    with Probes(server, stacks=request.stacks, stacks_hz=request.stacks_hz) as probes:
        bound = request.max_cost
        if costs is not None and bound is not None:
            trial = probes.trial()
            if not trial.are_slices_enough(bound, request.duration_s):
                each_us = 1e6 * trial.took_s / max(trial.statements_count, 1)
                rate_hz, percent = trial.statements_count / trial.window_s, trial.percent
                costs.append(
                    Note(
                        "probes_costly",
                        {"percent": percent, "each_us": each_us, "rate_hz": rate_hz, "bound": 100 * bound},
                    )
                )
                say(f"probes take {trial.percent:.1f} % of the server: samples instead (--method probes insists)")
                return None
        announce(say, f"tracing the statements of {server.label}", request.duration_s)
        return probes.trace_window(request.duration_s, energy, bound)


def _sample(request: QueriesRequest, server: TracedServer, energy: WindowEnergy, say: Say) -> TracedWindow:
    """Sample one window."""
    say("loading the sampler")
    with Samples(server) as sampler:
        announce(say, f"sampling {server.label}", request.duration_s)
        return sampler.trace_window(request.duration_s, energy)
