# SPDX-License-Identifier: Apache-2.0
"""The loop behind `queries --watch`: window after window of one server's statements, also over its restart."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from powerprof.energy.windows import WindowEnergy
from powerprof.live.intervals import POINTS, ServedStatement, ServedStatements
from powerprof.measure.procfs import process_cpu_ns
from powerprof.model import text
from powerprof.model.records import Window
from powerprof.model.text import Say
from powerprof.queries.pricing import build_record
from powerprof.queries.probes import COSTLY_PERCENT, Probes, ProbeTrial
from powerprof.queries.records import Method, Queries, Statement
from powerprof.queries.samples import Samples
from powerprof.queries.session import QueriesRequest
from powerprof.queries.target import TracedServer, find_server
from powerprof.statements.text import NormalText, limit_texts
from powerprof.system import signals
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.files import printable
from powerprof.system.processes import list_tcp_ports, may_be_forged, name_of

_LOOK_EVERY_S = 1.0
StatementKey = tuple[str, str | None]


class StatementMonitor(Closeable):
    """Measures window after window while its context is open.

    The server is found by what the request names. Where that is a process id and the process ends, so does the
    watching; by a name, a socket or an address it is waited for. Raises UsageError, CapabilityError, PowerprofError.
    """

    def __init__(self, request: QueriesRequest, say: Say) -> None:
        self._request, self._say = request, say
        self._probes: Probes | None = None
        self._energy = WindowEnergy(request.energy)
        try:
            self._server = self._reached()
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
        """The one that is watched now."""
        return self._server

    def _reached(self) -> TracedServer:
        asked = self._request
        return find_server(asked.pid, asked.server_url, asked.socket, asked.defaults_file)

    def intervals(self) -> Iterator[Queries | None]:
        """One window after the other, until an interrupt, which is raised; None while the server is away."""
        while True:
            yield self.next()

    def next(self) -> Queries | None:
        """The next window, or None where the server ended in it or has not come back. Raises Interrupted."""
        if self._probes is None and not self._found_again():
            time.sleep(min(_LOOK_EVERY_S, self._request.duration_s))
            return None
        assert self._probes is not None  # noqa: S101  found again
        with limit_texts() as texts:
            made = self._window(self._probes)
        return None if made is None else msgspec.structs.replace(made, notes=[*made.notes, *texts.notes()])

    def _window(self, probes: Probes) -> Queries | None:
        try:
            taken = probes.trace_window(self._request.duration_s, self._energy)
        except PowerprofError:
            if self._is_there():
                raise
            taken = None
        if taken is not None and taken.measured.interrupted:
            raise signals.interruption()
        if taken is None or taken.measured.process_cpu_s is None:
            self._lose()
            return None
        return build_record(self._server, taken.measured, self._energy)

    def _is_there(self) -> bool:
        return process_cpu_ns(self._server.pid) is not None

    def _lose(self) -> None:
        """The process has ended. Raises PowerprofError where it was given by its number."""
        if self._probes is not None:
            self._probes.close()
        self._probes = None
        asked = self._request
        if asked.pid is not None and asked.pid.isdigit():
            raise PowerprofError(
                f"{self._server.label} has ended", "name it by --pid mysqld or --socket: then it is waited for"
            )

    def _found_again(self) -> bool:
        try:
            self._server = self._reached()
            self._probes = Probes(self._server, again=True)
        except CapabilityError:
            raise
        except (PowerprofError, UsageError):  # not there yet, or no longer
            return False
        return True


@dataclass(frozen=True)
class StatementTrend:
    """A statement of the newest window with its shares before, in percent of one CPU; 0 where it was not seen."""

    statement: Statement
    cpu_percent: float
    before: tuple[float, ...]


class StatementHistory:
    """Windows as they come."""

    def __init__(self, points: int = POINTS) -> None:
        self.windows: deque[Queries] = deque(maxlen=points)
        self._shares: deque[dict[StatementKey, float]] = deque(maxlen=points)
        self.is_away = False

    def add(self, window: Queries | None) -> None:
        """One more; None where the server was away."""
        self.is_away = window is None
        if window is not None:
            self.windows.append(window)
            self._shares.append(
                {_key(statement): 100.0 * statement.c0_s / window.window_s for statement in window.statements}
            )

    @property
    def last(self) -> Queries | None:
        """The newest."""
        return self.windows[-1] if self.windows else None

    def series(self, value: Callable[[Queries], float | None]) -> list[float | None]:
        """One figure of each window."""
        return [value(window) for window in self.windows]

    def lines(self) -> list[StatementTrend]:
        """Every statement of the newest window, the most CPU time first."""
        newest = self.last
        if newest is None:
            return []
        return [
            StatementTrend(
                statement,
                100.0 * statement.c0_s / newest.window_s,
                tuple(shares.get(_key(statement), 0.0) for shares in self._shares),
            )
            for statement in newest.statements
        ]


def _key(statement: Statement) -> StatementKey:
    return statement.text, statement.schema_name


# Where the probes were too expensive they are tried again after so long, or when the server does half of what a trial
# has to see to tell (ProbeTrial.is_costly).
_AGAIN_S, _QUIET = 600.0, 0.05
# Of a statement, where the kernel does not let us time the programs (it asks for CAP_SYS_ADMIN) and too few statements
# were traced while it did: what docs/dev/queries.md has of a busy server. It chooses between the ways, and is shown
# nowhere.
_USUAL_S, _ENOUGH = 5e-6, 50
_MOST_TEXT, _MOST_SERVER = 120, 80


class ServedServer(Closeable):
    """One server's statements, interval after interval. It outlives the server, which is looked for again by its name
    or its socket.

    Raises UsageError, CapabilityError, PowerprofError where there is none at first.
    """

    def __init__(self, name: str, *, ask: bool = True) -> None:
        """`name`: a process id or name, or the path of a socket. `ask`: the server is asked for what its memory does
        not show."""
        self._name, self._ask = name, ask
        self._way: Probes | Samples | None = None
        self._only_samples, self._try_again_s, self._each_s = False, 0.0, _USUAL_S
        self.trouble, self._label = "", ""
        try:
            self._server = self._reached()
            self._label = self._labelled()
            self._attach()
        except PowerprofError as error:
            # A process of any account may have the name while the server is away: the server is looked for again.
            if may_be_forged(name):
                self._lose(error)
            elif isinstance(error, UsageError):
                # The words are those of another option.
                raise UsageError(error.message.replace("--pid", "--statements", 1), error.hint) from None
            else:
                raise

    def close(self) -> None:
        if self._way is not None:
            self._way.close()
        self._way = None

    def begin(self) -> None:
        """An interval is near. Where the server is away, or cannot be traced now, it has no statements."""
        self._is_on = False
        try:
            if self._way is None:
                self._server = self._reached()
                self._label = self._label or self._labelled()
                self._attach()
            assert self._way is not None  # noqa: S101  opened
            self._way.ready()
            for part in self._way.parts:
                part.begin()
            self._is_on = True
        except PowerprofError as error:
            self._lose(error)

    def end(self) -> None:
        """It ends."""
        if self._way is None or not self._is_on:
            return
        try:
            for part in reversed(self._way.parts):
                part.end()
        except PowerprofError as error:
            self._lose(error)

    def collect(self, window: Window, energy: WindowEnergy) -> ServedStatements:
        """What the statements used; `window` is the host in the interval."""
        if self._way is None or not self._is_on:
            return ServedStatements(server=self._label or printable(self._name)[:_MOST_SERVER])
        try:
            with limit_texts():
                measured = self._way.finish_window(energy.complete(window)).measured
                if measured.process_cpu_s is None:
                    raise PowerprofError(f"{self._server.label} has ended", "start it again: it is found by its name")
                # Energy and C0 are the whole interval's, of which what naming and blaming take was not traced.
                whole = replace(measured, window_s=window.window_s or measured.window_s)
                record = build_record(self._server, whole, energy)
        except PowerprofError as error:
            self._lose(error)
            return ServedStatements(server=self._label or printable(self._name)[:_MOST_SERVER])
        self.trouble = ""
        cost_s = measured.cost_s if measured.bpf_s is not None else measured.seen_count * self._each_s
        self._choose(
            measured.method, ProbeTrial(measured.window_s, record.server_c0_s, cost_s or 0.0, measured.seen_count)
        )
        return _served(self._label, record, measured.window_s, measured.bpf_s)

    def _reached(self) -> TracedServer:
        is_path = self._name.startswith("/")
        found = find_server(None if is_path else self._name, None, Path(self._name) if is_path else None, None)
        return found if self._ask else replace(found, login=None)

    def _labelled(self) -> str:
        """As the server is called in the other series where it has a port, else by what it was named by."""
        pid = self._server.pid
        program, ports = name_of(pid) or self._server.label, list_tcp_ports(pid)
        where = str(min(ports)) if ports else self._name
        return text.shorten(printable(program if where == program else f"{program}:{where}"), _MOST_SERVER)

    def _attach(self) -> None:
        """By probes, where they can be placed and are cheap now. Raises CapabilityError, PowerprofError."""
        if not self._only_samples and time.monotonic() >= self._try_again_s:
            try:
                probes = Probes(self._server, again=True)
            except CapabilityError:
                self._only_samples = True
            else:
                self._way = probes
                trial = probes.trial()
                if trial.statements_count >= _ENOUGH and trial.took_s > 0:
                    self._each_s = trial.took_s / trial.statements_count
                if not trial.is_costly:
                    return
                self._postpone()
        try:
            self._way = Samples(self._server)
        except CapabilityError as error:
            if self._only_samples:
                raise
            # The budget holds all day: no statements rather than costly ones.
            raise PowerprofError(
                f"probes cost more than {COSTLY_PERCENT:g} % of the server, and samples: {error.message}", error.hint
            ) from error

    def _choose(self, method: Method, seen: ProbeTrial) -> None:
        """The way of the next interval, which opens it where it is another."""
        if method == "probes" and seen.is_costly:
            self._postpone()
        if method == "probes" or self._only_samples:
            return
        if seen.server_s < _QUIET * seen.window_s or time.monotonic() >= self._try_again_s:
            self._try_again_s = 0.0
            self.close()

    def _postpone(self) -> None:
        """No probes for a while."""
        self._try_again_s = time.monotonic() + _AGAIN_S
        self.close()

    def _lose(self, error: PowerprofError) -> None:
        """No statements of this interval; the next begins with a look for the server."""
        self.trouble = error.message
        self._is_on = False
        self.close()


def _served(server: str, record: Queries, traced_s: float, bpf_s: float | None) -> ServedStatements:
    every = [*record.statements, *record.background, record.connections]
    has_wakeups = record.method == "probes"
    return ServedStatements(
        server=server,
        method=record.method,
        window_s=traced_s,
        c0_s=record.server_c0_s,
        wakeups_count=sum(part.wakeups_count or 0 for part in every) if has_wakeups else None,
        joules=record.joules,
        kind=record.kind if record.joules is not None and record.energy_split is not None else None,
        statements=tuple(map(_row, record.statements)),
        bpf_s=bpf_s,
    )


def _row(statement: Statement) -> ServedStatement:
    return ServedStatement(
        id=statement.id,
        text=format_label(statement.text),
        schema=text.shorten(printable(statement.schema_name or ""), _MOST_TEXT),
        c0_s=statement.c0_s,
        wakeups_count=statement.wakeups_count or 0,
        joules=statement.joules or 0.0,
    )


def format_label(original: NormalText) -> str:
    """A text without values as a label: one line, printable, of bounded length."""
    return text.shorten(printable(re.sub(r"\s+", " ", original)), _MOST_TEXT)
