# SPDX-License-Identifier: Apache-2.0
"""The statements of one server in window after window, for `queries --watch`, `watch` and `export`.

Both loops find the server again after a restart. `queries --watch` uses probes. `export` uses probes while they are
cheap, and otherwise samples.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from powerprof.diagnosis.evidence import StatementWindow
from powerprof.diagnosis.statement_window import build_window
from powerprof.energy.windows import WindowEnergy
from powerprof.live.identity import identify_server
from powerprof.live.intervals import POINTS, ServedStatement, ServedStatements
from powerprof.measure.target_life import TargetEndedError, raise_ended
from powerprof.model import text
from powerprof.model.records import Window
from powerprof.model.statements import NormalText, limit_texts
from powerprof.model.text import Say
from powerprof.queries.pricing import MeasuredStatements, build_record
from powerprof.queries.probes import COSTLY_PERCENT, Probes, ProbeTrial
from powerprof.queries.records import Method, Queries, Statement
from powerprof.queries.same_statements import StatementKey, key_of
from powerprof.queries.samples import Samples
from powerprof.queries.session import QueriesRequest
from powerprof.queries.target import TracedServer, find_server
from powerprof.system.cgroups import Units
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.foreign_text import printable
from powerprof.system.targets import may_be_forged
from powerprof.system.tasks import has_ended
from powerprof.tracing.bpf.mapped_files import UnfitFileError
from powerprof.tracing.slices import UseClock

# Seconds between two looks for a server that is away.
_LOOK_EVERY_S = 1.0
# Expensive probes are tried again after this time, or if the server's CPU share is below half of the minimum that a
# trial needs for an answer (ProbeTrial.is_costly).
_RETRY_S, _QUIET_SHARE = 600.0, 0.05
# The cost of a traced statement on a busy server, from docs/dev/queries.md. It is used if the kernel does not time the
# programs (CAP_SYS_ADMIN) and the trial saw too few statements. It only decides between probes and samples.
_USUAL_COST_S, _MIN_TRIAL_STATEMENTS = 5e-6, 50
# Probes are removed from a server that used less than this share of a CPU in this number of intervals: an idle MariaDB
# uses 0.02 %.
_REST_SHARE, _REST_AFTER = 0.002, 3
_RESTING = f"not measured while the server uses less than {100 * _REST_SHARE:g} % of a CPU"
_MAX_TEXT, _MAX_SERVER = 120, 80
ALL = "all"
"""The name for every server of the host."""
# Each served server has its own probes, with their own bound of cost.
_MOST_SERVED = 8
# The windows of statements that are joined for a rule: the shortest interval is half a second.
_MOST_WINDOWS = 8


class StatementMonitor(Closeable):
    """A context that measures window after window of one server's statements.

    The monitor waits for a server that is named by program, socket or address. With a process id it ends with the
    process.
    """

    def __init__(self, request: QueriesRequest, say: Say) -> None:
        """Find the server and load the tracer. Raise UsageError, CapabilityError or PowerprofError."""
        self._request = request
        self._probes: Probes | None = None
        self._energy = WindowEnergy(request.energy)
        try:
            self._server = self._find(say)
            say("loading the tracer")
            self._probes = Probes(self._server, again=True)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._probes is not None:
            self._probes.close()
        self._energy.close()

    @property
    def server(self) -> TracedServer:
        """Return the server that is watched now."""
        return self._server

    def _find(self, say: Say = lambda message: None) -> TracedServer:
        request = self._request
        return find_server(
            request.pid, request.server_url, request.socket, request.defaults_file, only=request.only, say=say
        )

    def intervals(self) -> Iterator[Queries | None]:
        """Yield windows until a signal raises Interrupted; None while the server is away."""
        while True:
            yield self.next()

    def next(self) -> Queries | None:
        """Return the next window, or None if the server ended in it or is away.

        Raises:
            Interrupted: A signal arrived.
            PowerprofError: The process that was named by its id has ended.
        """
        if self._probes is None and not self._find_again():
            time.sleep(min(_LOOK_EVERY_S, self._request.duration_s))
            return None
        assert self._probes is not None  # noqa: S101  found again
        with limit_texts() as texts:
            record = self._measure(self._probes)
        return None if record is None else msgspec.structs.replace(record, notes=[*record.notes, *texts.notes()])

    def _measure(self, probes: Probes) -> Queries | None:
        try:
            measured = probes.trace_window(self._request.duration_s, self._energy, self._request.max_cost).measured
            if measured.ended is not None:
                raise_ended(measured.ended)
        except TargetEndedError as error:
            self._drop_server(error)
            return None
        return build_record(self._server, measured, self._energy)

    def _drop_server(self, error: TargetEndedError) -> None:
        """Close the probes of the server that ended or stopped. Raise if the process was named by its id."""
        if self._probes is not None:
            self._probes.close()
        self._probes = None
        pid = self._request.pid
        if pid is not None and pid.isdigit():
            error.hint = "name it by --pid mysqld or --socket: powerprof then waits for it"
            raise error

    def _find_again(self) -> bool:
        try:
            self._server = self._find()
            self._probes = Probes(self._server, again=True)
        except CapabilityError:
            raise
        except (PowerprofError, UsageError):  # not started yet, or ended again
            return False
        return True


class StatementTrend(msgspec.Struct, frozen=True):
    """A statement of the newest window with its CPU shares, in percent of one CPU; 0 in windows without it."""

    statement: Statement
    cpu_percent: float
    before: tuple[float, ...]


class StatementHistory:
    """The newest `POINTS` windows, the newest last."""

    def __init__(self) -> None:
        self.windows: deque[Queries] = deque(maxlen=POINTS)
        self._shares: deque[dict[StatementKey, float]] = deque(maxlen=POINTS)
        self.is_away = False

    def add(self, window: Queries | None) -> None:
        """Add a window; None if the server was away."""
        self.is_away = window is None
        if window is not None:
            self.windows.append(window)
            self._shares.append(
                {
                    key_of(statement, window.server.family): 100.0 * statement.c0_s / window.window_s
                    for statement in window.statements
                }
            )

    @property
    def last(self) -> Queries | None:
        """Return the newest window."""
        return self.windows[-1] if self.windows else None

    def series(self, value: Callable[[Queries], float | None]) -> list[float | None]:
        """Return one figure per window."""
        return [value(window) for window in self.windows]

    def lines(self) -> list[StatementTrend]:
        """Return the statements of the newest window with their trends, the most CPU time first."""
        newest = self.last
        if newest is None:
            return []
        return [
            StatementTrend(
                statement,
                100.0 * statement.c0_s / newest.window_s,
                tuple(shares.get(key_of(statement, newest.server.family), 0.0) for shares in self._shares),
            )
            for statement in newest.statements
        ]


class ServedServer(Closeable):
    """The statements of one server in interval after interval, for `watch` and `export`.

    The server may end: it is found again by its name or its socket.

    Attributes:
        trouble: The reason for an interval without statements, or an empty string.
        windows: The newest windows, for rules of `diagnose`.
        pid: The process of the server that was found last; None if none was found.
    """

    def __init__(self, name: str, *, ask: bool = True, is_patient: bool = False, rests: bool = False) -> None:
        """Find the server and attach to it.

        Args:
            name: A process id or name, or the path of a socket.
            ask: Whether to query the server for data that its memory does not show.
            is_patient: Whether to try again in each interval if the server cannot be traced now.
            rests: Whether to remove the probes while the server hardly runs.

        Raises:
            UsageError: The name is wrong.
            CapabilityError: Neither probes nor samples are possible here.
            PowerprofError: There is no such server.
        """
        self._name, self._ask, self._rests = name, ask, rests
        self._host: dict[str, Any] | None = None
        self._use: UseClock | None = None
        self._quiet_count = 0
        self.is_resting = False
        self._method: Probes | Samples | None = None
        self._only_samples, self._retry_s, self._statement_cost_s = False, 0.0, _USUAL_COST_S
        self.trouble, self._label = "", ""
        self.windows: deque[StatementWindow] = deque(maxlen=_MOST_WINDOWS)
        self.pid: int | None = None
        try:
            self._server = self._find()
            self._label = identify_server(self._server.pid, Units()).name
            self._attach()
        except PowerprofError as error:
            # While the server is away, a process of any account may have its name. So it is looked for again.
            if may_be_forged(name) or (is_patient and not isinstance(error, CapabilityError)):
                self._drop_server(error)
            elif isinstance(error, UsageError):
                # The message names the option of another command.
                raise UsageError(error.message.replace("--pid", "--statements", 1), error.hint) from None
            else:
                raise

    def close(self) -> None:
        if self._method is not None:
            self._method.close()
        self._method = None

    def follow(self, name: str) -> None:
        """Measure another process from the next interval on, if the present one has ended."""
        self._name = name

    def begin(self) -> None:
        """Begin an interval. It has no statements if the server is away, hardly runs, or cannot be traced now."""
        self._is_on = False
        self.is_resting = self._rests and self._method is not None and self._is_quiet()
        if self.is_resting and self._method is not None:
            self._method.pause()
            self.trouble = _RESTING
            return
        try:
            if self._method is None:
                self._server = self._find()
                self._label = self._label or identify_server(self._server.pid, Units()).name
                self._attach()
            assert self._method is not None  # noqa: S101  attached
            self._method.ready()
            for part in self._method.parts:
                part.begin()
            self._is_on = True
        except PowerprofError as error:
            self._drop_server(error)

    def _is_quiet(self) -> bool:
        """Return whether the server hardly ran in the last intervals."""
        if has_ended(self._server.pid):
            self._use = None
            return False
        if self._use is None:
            # A single process has no members to look for.
            target = self._server.target
            self._use = UseClock(replace(target, roots=()) if self._server.family == "mysql" else target)
            self._quiet_count = 0
            self._used_s, self._read_s = self._use.read_s(), time.monotonic()
            return False
        used_s, now_s = self._use.read_s(), time.monotonic()
        is_quiet = used_s - self._used_s < _REST_SHARE * (now_s - self._read_s)
        self._used_s, self._read_s = used_s, now_s
        self._quiet_count = self._quiet_count + 1 if is_quiet else 0
        return self._quiet_count >= _REST_AFTER

    def end(self) -> None:
        """End the interval."""
        if self._method is None or not self._is_on:
            return
        try:
            for part in reversed(self._method.parts):
                part.end()
        except PowerprofError as error:
            self._drop_server(error)

    def collect(self, window: Window, energy: WindowEnergy) -> ServedStatements:
        """Return the statements of the interval. `window` is the host's."""
        if self._method is None or not self._is_on:
            return self._make_empty()
        try:
            with limit_texts():
                measured = self._method.finish_window(energy.complete(window)).measured
                if measured.process_cpu_s is None or has_ended(self._server.pid):
                    raise PowerprofError(
                        f"{self._server.label} has ended", "start it again: powerprof finds it by its name"
                    )
                # Energy and C0 cover the whole interval, of which the time for naming and blaming was not traced.
                whole = replace(measured, window_s=window.window_s or measured.window_s)
                record = build_record(self._server, whole, energy, self._host)
                self._host = record.host
        except PowerprofError as error:
            self._drop_server(error)
            return self._make_empty()
        self.trouble = ""
        cost_s = measured.cost_s if measured.bpf_s is not None else measured.seen_count * self._statement_cost_s
        self._choose_method(
            measured.method, ProbeTrial(measured.window_s, record.server_c0_s, cost_s or 0.0, measured.seen_count)
        )
        return _build_served(self._label, record, measured)

    def _make_empty(self) -> ServedStatements:
        return ServedStatements(server=self._label or printable(self._name)[:_MAX_SERVER])

    def _find(self) -> TracedServer:
        is_path = self._name.startswith("/")
        server = find_server(None if is_path else self._name, None, Path(self._name) if is_path else None, None)
        self.pid = server.pid
        return server if self._ask else replace(server, login=None)

    def _attach(self) -> None:
        """Attach probes if they can be placed and are cheap now, or else samples.

        Raise CapabilityError or PowerprofError if neither works.
        """
        if not self._only_samples and time.monotonic() >= self._retry_s:
            try:
                probes = Probes(self._server, again=True)
            except CapabilityError:
                self._only_samples = True
            else:
                self._method = probes
                if self._are_cheap(probes):
                    return
                self._postpone_probes()
        try:
            self._method = Samples(self._server)
        except CapabilityError as error:
            if self._only_samples:
                raise
            # The bound on the cost matters more than the statements.
            raise PowerprofError(
                f"probes cost more than {COSTLY_PERCENT:g} % of the server, and samples failed: {error.message}",
                error.hint,
            ) from error

    def _are_cheap(self, probes: Probes) -> bool:
        """Return whether probes can be placed safely and are cheap now."""
        try:
            trial = probes.trial()
        except UnfitFileError:
            return False
        if trial.statements_count >= _MIN_TRIAL_STATEMENTS and trial.took_s > 0:
            self._statement_cost_s = trial.took_s / trial.statements_count
        return not trial.is_costly

    def _choose_method(self, method: Method, interval: ProbeTrial) -> None:
        """Close the method if the next interval should use the other one."""
        if method == "probes" and interval.is_costly:
            self._postpone_probes()
        if method == "probes" or self._only_samples:
            return
        if interval.server_s < _QUIET_SHARE * interval.window_s or time.monotonic() >= self._retry_s:
            self._retry_s = 0.0
            self.close()

    def _postpone_probes(self) -> None:
        self._retry_s = time.monotonic() + _RETRY_S
        self.close()

    def _drop_server(self, error: PowerprofError) -> None:
        """Give up this interval. The next one begins with a search for the server."""
        self.trouble = error.message
        self._is_on = False
        self.close()


class ServedServers(Closeable):
    """The statements of several servers of this host.

    Attributes:
        servers: The servers by their names, or by process id with `all`.
    """

    def __init__(self, names: Sequence[str], *, ask: bool = True) -> None:
        """Find the named servers and attach to them. Raise as `ServedServer` does."""
        self._ask, self._follows_all = ask, ALL in names
        self.servers: dict[str, ServedServer] = {}
        try:
            for name in names:
                if name != ALL:
                    self.servers[name] = ServedServer(name, ask=ask)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for served in self.servers.values():
            served.close()
        self.servers.clear()

    def find(self, pids: Iterable[int]) -> None:
        """With `all`, serve these servers from now on, at most `_MOST_SERVED`."""
        if not self._follows_all:
            return
        wanted = [str(pid) for pid in pids]
        for name in [name for name in self.servers if name.isdigit() and name not in wanted]:
            self.servers.pop(name).close()
        named = {served.pid for served in self.servers.values()}
        for name in wanted:
            if int(name) in named or len(self.servers) >= _MOST_SERVED:
                continue
            # A server that ended since it was listed is not served.
            with suppress(PowerprofError):
                self.servers[name] = ServedServer(name, ask=self._ask, is_patient=True)


def _build_served(server: str, record: Queries, measured: MeasuredStatements) -> ServedStatements:
    parts = [*record.statements, *record.background, record.connections]
    return ServedStatements(
        server=server,
        method=record.method,
        window_s=measured.window_s,
        c0_s=record.server_c0_s,
        wakeups_count=sum(part.wakeups_count or 0 for part in parts) if record.method == "probes" else None,
        joules=record.joules,
        kind=record.kind if record.joules is not None and record.energy_split is not None else None,
        statements=tuple(
            ServedStatement(
                id=statement.id,
                text=format_label(statement.text),
                schema=text.shorten(printable(statement.schema_name or ""), _MAX_TEXT),
                c0_s=statement.c0_s,
                wakeups_count=statement.wakeups_count or 0,
                joules=statement.joules or 0.0,
            )
            for statement in record.statements
        ),
        bpf_s=measured.bpf_s,
        calls_count=record.calls_count,
        by_cost=build_window(record),
    )


def format_label(original: NormalText) -> str:
    """Return a text without values as a label: one printable line of bounded length."""
    return text.shorten(printable(re.sub(r"\s+", " ", original)), _MAX_TEXT)
