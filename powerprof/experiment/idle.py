# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of an idle database server: baseline, server, silent clients, baseline again.

Every phase is measured in repeated windows without tracing. One more traced window finds the causes of wake-ups.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerprof.database import connections, products
from powerprof.database.base import Server
from powerprof.database.connections import IdleConnections, check_connections
from powerprof.database.given import GivenServer, build_login
from powerprof.database.preparation import check_room
from powerprof.database.private_server import PrivateServer
from powerprof.database.sandbox import find_server_account
from powerprof.energy.request import DEFAULT_REQUEST, EnergyRequest
from powerprof.energy.windows import WindowEnergy
from powerprof.experiment import phases
from powerprof.experiment.ending import Ending
from powerprof.experiment.phase_trace import PhaseTrace, ToolTally, trace_phase
from powerprof.experiment.phases import split_phase_energy
from powerprof.experiment.server_load import SETTLED_SHARE, LoadMeter
from powerprof.measure.clock import format_now
from powerprof.measure.procfs import family_cpu_ns
from powerprof.measure.progress import Countdown, join_parts
from powerprof.measure.sampling import WindowInterrupted, WindowMeter
from powerprof.measure.window import Meters, wait_and_read
from powerprof.model.records import IdleOptions, IdleRun, Phase, ServerInfo, Window
from powerprof.model.text import Say, approximate_time, number
from powerprof.system import paths, signals
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.next_steps import command_line
from powerprof.system.processes import name_of

if TYPE_CHECKING:
    from powerprof.database.builds import ServerBuild


# InnoDB's start-up work (buffer pool load, purge, first checkpoint) takes less than this on an empty server.
SETTLE_S = 2.0
# After this long the rate of a few timers per second is known to about 0.2/s.
_COUNTED_S = 16.0
# With --quick: 11 windows and three traced ones are 27 s, the server's start and the compilation of probes some 15 s.
QUICK_WINDOW_S = 1.5
QUICK_REPEAT = 3
SETTLE_AT_MOST_S = 15.0
_SETTLE_STEP_S = 1.0
# Start and settling of the server, and compilation of the probes.
_READY_S = 15.0


class IdlePlan(msgspec.Struct, frozen=True):
    """The plan of an idle run: a private server unless a URL, socket or option file names another.

    `trace` adds traced windows. `quick` adds a note that windows are few and short.
    """

    clients: int
    duration_s: float
    repeat: int
    trace: bool = True
    residency_source: str = "cpuidle"
    energy: EnergyRequest = DEFAULT_REQUEST
    server_binary: Path | None = None
    server_build: ServerBuild | None = None
    server_url: str | None = None
    socket: Path | None = None
    defaults_file: Path | None = None
    settle_s: float = SETTLE_S
    quick: bool = False

    @property
    def server_traced_s(self) -> float:
        """The length of the count of the server's idle exits, in a phase with or without clients."""
        return max(self.duration_s, min(self.repeat * self.duration_s, _COUNTED_S))

    @property
    def phases_count(self) -> int:
        """The number of phases, without the final baseline."""
        return 1 + (not self.given) + bool(self.clients)

    @property
    def last_repeat(self) -> int:
        """The number of windows of the final baseline; 0 for a server of the user."""
        return 0 if self.given else max(2, self.repeat // 2)

    @property
    def seconds(self) -> float:
        """The approximate duration in s."""
        windows = self.phases_count * self.repeat + self.last_repeat
        traced_s = (not self.given) * self.duration_s + (1 + bool(self.clients)) * self.server_traced_s
        return windows * self.duration_s + self.trace * traced_s + _READY_S

    @property
    def description(self) -> str:
        """The phases and the duration, to be printed at the start."""
        windows = f"{self.phases_count} phases of {self.repeat} windows of {self.duration_s:g} s"
        last = f", and {self.last_repeat} of the last baseline" if self.last_repeat else ""
        return f"{windows}{last}: {approximate_time(self.seconds)}"

    @property
    def given(self) -> bool:
        """Whether the server is the user's."""
        return any(part is not None for part in (self.server_url, self.socket, self.defaults_file))


class _Measured(msgspec.Struct):
    """One phase during its measurement. An interrupt keeps its windows."""

    name: str
    windows: list[Window] = msgspec.field(default_factory=list)
    traced: PhaseTrace = msgspec.field(default_factory=PhaseTrace)

    def format_so_far(self) -> str:
        """Return the mean rate of the windows; empty without one."""
        rates = [window.wakeups_hz for window in self.windows if window.wakeups_hz is not None]
        return f"{number(sum(rates) / len(rates), 1)} wake-ups/s so far" if rates else ""

    def add_partial(self, window: Window, complete: Callable[[Window], Window], duration_s: float) -> None:
        """Add the window that a signal cut short, unless it is short next to whole windows of the same weight."""
        if window.window_s and (not self.windows or window.window_s >= duration_s / 2):
            self.windows.append(complete(window))

    def phase(self) -> Phase:
        traced = self.traced
        return phases.combine_windows(
            self.name,
            self.windows,
            causes=traced.causes,
            conservation=traced.conservation,
            traced_window_s=traced.window_s,
            server_exits=traced.server_exits,
        )


class IdleExperiment:
    """The phases of an idle run. An interrupt keeps all measured windows."""

    def __init__(
        self,
        plan: IdlePlan,
        *,
        server: Callable[[], AbstractContextManager[Server]],
        meters: Meters | None,
        complete: Callable[[Window], Window],
        say: Say,
    ) -> None:
        """Keep the plan.

        `server()` opens the server. `complete` adds computed figures (the energy estimate) to a window.
        """
        self._plan = plan
        self._open_server = server
        self._meters = meters
        self._complete = complete
        self._say = say
        self._progress, self._left_s = Countdown(say, plan.seconds), plan.seconds
        self._tool = ToolTally()
        self._server: ServerInfo | None = None
        self._notes: list[str] = []
        self._measured: list[_Measured] = []
        self._load: LoadMeter | None = None
        self._started_at = format_now()

    def run(self) -> IdleRun:
        """Measure all phases.

        A signal or an error after the first window ends them early and marks the run. Afterwards signals are held
        until the run is saved (`signals.release`).
        """
        ending = Ending()
        with ending.keeping(lambda: any(measured.windows for measured in self._measured)):
            self._measure()
        signals.hold()
        return self._record(ending)

    def _measure(self) -> None:
        plan = self._plan
        self._say(plan.description)
        if plan.quick:
            self._notes.append(
                f"--quick: {plan.repeat} windows of {plan.duration_s:g} s per phase; for narrower intervals, "
                f"leave it out"
            )
        if plan.given:
            self._notes.append("a given server: no baseline without the server")
        else:
            self._phase("baseline", None, plan.repeat)
        with self._open_server() as server:
            self._server = ServerInfo(version=server.version, private=server.private, pid=server.pid)
            if plan.given and plan.clients:
                check_connections(server, plan.clients)
            if plan.given:
                self._require_idle(server)
            else:
                self._settle(server)
            self._left_s -= _READY_S
            self._phase("server", server, plan.repeat)
            if plan.clients:
                self._progress(f"connecting {plan.clients} clients")
                with IdleConnections(server, plan.clients) as held:
                    wait_and_read((), min(1.0, plan.settle_s))
                    self._phase("clients", server, plan.repeat)
                    lost = held.lost_count()
                    if lost:
                        self._notes.append(f"{lost} of {plan.clients} connections were closed by the server")
        if not plan.given:
            wait_and_read((), min(1.0, plan.settle_s))
            self._phase("baseline-after", None, plan.last_repeat, trace=False)

    def _require_idle(self, server: Server) -> None:
        """Raise PowerprofError with the load of a given server and the command for it, unless the server is idle."""
        self._load = LoadMeter(server)
        load = self._load.measure()
        if load.is_idle:
            return
        if server.pid is not None:
            hint = command_line("attribute --pid {}", server.pid)
        else:
            hint = command_line("diagnose", same_target=True)
        raise PowerprofError(f"this server is not idle: {load}", f"see what wakes it: {hint}")

    def _settle(self, server: Server) -> None:
        """Wait until the server uses hardly any CPU, up to SETTLE_AT_MOST_S."""
        wait_and_read((), self._plan.settle_s)
        started = time.monotonic()
        used = _read_cpu_ns(server)
        while used is not None and time.monotonic() - started < SETTLE_AT_MOST_S:
            time.sleep(_SETTLE_STEP_S)
            now = _read_cpu_ns(server)
            if now is None or now - used < SETTLED_SHARE * _SETTLE_STEP_S * 1e9:
                return
            used = now
        if used is not None:
            self._notes.append(f"the private server was still working {SETTLE_AT_MOST_S:g} s after its start")

    def _phase(self, name: str, server: Server | None, repeat: int, *, trace: bool | None = None) -> None:
        plan = self._plan
        groups: dict[str, list[int]] = {"powerprof": [os.getpid()]}
        if server is not None and server.pid:
            groups[name_of(server.pid) or "server"] = list(server.list_processes())
        measured = _Measured(name)
        self._measured.append(measured)
        try:
            life = server.life if isinstance(server, GivenServer) else None
            source = plan.residency_source
            with WindowMeter(meters=self._meters, groups=groups, residency_source=source, life=life) as meter:
                if self._load is not None:
                    self._load.restart()

                def announce(text: str) -> None:
                    self._announce(join_parts(text, measured.format_so_far()), plan.duration_s)

                for window in meter.repeat(repeat, plan.duration_s, name, announce):
                    # A window in which the server ended is not one of the server.
                    if server is not None and server.pid is not None:
                        server.check()
                    if self._load is not None:
                        self._load.add(window.window_s or plan.duration_s)
                    measured.windows.append(self._add(window))
        except WindowInterrupted as error:
            measured.add_partial(error.partial, self._add, plan.duration_s)
            raise
        if plan.trace if trace is None else trace:
            # This count is the answer, so the server is traced for longer than one window.
            traced_s = plan.duration_s if server is None else plan.server_traced_s
            self._announce(join_parts(f"{name}: tracing wake-ups", measured.format_so_far()), traced_s)
            # Read the names before the window: the query itself would wake the server.
            names = server.thread_names() if server is not None else {}
            try:
                trace_phase(measured.traced, traced_s, names, self._tool, server)
            except CapabilityError as error:
                note = f"causes unknown: {error.message}" + (f" ({error.hint})" if error.hint else "")
                if note not in self._notes:
                    self._notes.append(note)
            if server is not None:
                server.check()

    def _announce(self, text: str, seconds: float) -> None:
        """Print the line of the next part of the plan, which takes `seconds`."""
        self._progress.part(text, self._left_s)
        self._left_s -= seconds

    def _add(self, window: Window) -> Window:
        self._tool.add(window)
        return self._complete(window)

    def _record(self, ending: Ending) -> IdleRun:
        from powerprof.host.describe import host_record

        measured_phases = [measured.phase() for measured in self._measured if measured.windows]
        by_name = {phase.name: phase for phase in measured_phases}
        order = [name for name in ("baseline", "server", "clients") if name in by_name]
        pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
        meters = phases.find_run_meters(measured_phases)
        drift = []
        if "baseline" in by_name and "baseline-after" in by_name:
            drift = phases.compare_phases(by_name["baseline"], by_name["baseline-after"], meters)
        return IdleRun(
            command="idle",
            started_at=self._started_at,
            host=host_record(),
            tool=self._tool.record(),
            phases=measured_phases,
            deltas=[delta for a, b in pairs for delta in phases.compare_phases(by_name[a], by_name[b], meters)],
            server=self._server,
            options=IdleOptions(
                clients_count=self._plan.clients,
                duration_s=self._plan.duration_s,
                repeat_count=self._plan.repeat,
                residency_source=self._plan.residency_source,
                sysfs=str(paths.sysfs()),
            ),
            drift=drift,
            statements_hz=None if self._load is None else self._load.statements_hz,
            notes=[*self._notes, *phases.note_unmetered(measured_phases, meters)],
            ended=ending.ended,
        )


def _read_cpu_ns(server: Server) -> int | None:
    """Return the CPU time of a server with its processes; None if it is unknown."""
    return None if server.pid is None else family_cpu_ns(server.pid)


def _server(plan: IdlePlan) -> Callable[[], AbstractContextManager[Server]]:
    """Return a function that opens the server. Check before the baseline what could prevent its start."""
    if plan.given:
        login = build_login(plan.server_url, plan.socket, plan.defaults_file)
        if plan.clients:
            connections.raise_open_files(plan.clients)
        # A look would be a wake-up of an idle host: a stop is seen after each window, an end at once.
        return lambda: GivenServer(login, math.inf)
    build = plan.server_build or products.find_program("mysql", plan.server_binary)
    account = find_server_account()
    connections.check_threads(plan.clients, server_uid=account[0] if account else os.geteuid())
    connections.raise_open_files(plan.clients)
    check_room()
    return lambda: PrivateServer(connections=max(1, plan.clients), build=build)


def measure_idle(plan: IdlePlan, say: Say) -> IdleRun:
    """Run the experiment on this host. Raise PowerprofError if nothing could be measured."""
    connections.check_clients(plan.clients)
    server = _server(plan)
    with WindowEnergy(plan.energy) as energy:
        experiment = IdleExperiment(plan, server=server, meters=energy.meters, complete=energy.complete, say=say)
        run = experiment.run()
        meters = phases.find_run_meters(run.phases)
        baseline = next((phase for phase in run.phases if phase.name == "baseline"), None)
        split = [
            split_phase_energy(phase, energy, meters, None if phase.name.startswith("baseline") else baseline)
            for phase in run.phases
        ]
    return msgspec.structs.replace(run, phases=split, energy_source=energy.source)
