# SPDX-License-Identifier: Apache-2.0
"""The statements of one server in a monitor's intervals, for `export`: by probes while they are cheap, else samples."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

from powerprof.energy.windows import WindowEnergy
from powerprof.live.intervals import ServedStatement, ServedStatements
from powerprof.model import text
from powerprof.model.records import Window
from powerprof.queries.pricing import build_record
from powerprof.queries.probes import COSTLY_PERCENT, Probes, ProbeTrial
from powerprof.queries.records import Method, Queries, Statement
from powerprof.queries.samples import Samples
from powerprof.queries.target import TracedServer, find_server
from powerprof.statements.text import NormalText, limit_texts
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.files import printable
from powerprof.system.processes import may_be_forged, name_of, tcp_ports

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
        program, ports = name_of(pid) or self._server.label, tcp_ports(pid)
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
        text=label_text(statement.text),
        schema=text.shorten(printable(statement.schema_name or ""), _MOST_TEXT),
        c0_s=statement.c0_s,
        wakeups_count=statement.wakeups_count or 0,
        joules=statement.joules or 0.0,
    )


def label_text(original: NormalText) -> str:
    """A text without values as a label: one line, printable, of bounded length."""
    return text.shorten(printable(re.sub(r"\s+", " ", original)), _MOST_TEXT)
