# SPDX-License-Identifier: Apache-2.0
"""A traced window of a condition, all of its servers at once, and whose wake-ups they were."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from powerprof import __version__
from powerprof.diagnosis.rules_replication import role_of
from powerprof.experiment.measure.observers import CaseObservers
from powerprof.experiment.records import Arm, Block, TraceSummary
from powerprof.measure.procfs import children_cpu_s, own_peak_bytes
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import OpenWindow
from powerprof.model.records import Cause, Conservation, Estimate, ProcessTime, ServerExits, ToolCost, Window
from powerprof.statistics import BLOCKS, rate_interval
from powerprof.system import programs
from powerprof.system.errors import Interrupted, PowerprofError
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.energy.windows import WindowEnergy
    from powerprof.experiment.bench.servers import Bench
    from powerprof.model.attribution import Wakeup
    from powerprof.tracing.idle import TracedWindow


# A storm that was active for less than this in the traced window is not what the other windows measured.
RAGED_PERCENT = 50.0
_ATTEMPTS = 3
_FRAMES = 10  # of a stack that is named

# Server, thread, whether it is one of replication.
Key = tuple[str, str, bool]


def trace_condition(
    bench: Bench, case: Case, arm: Arm, duration_s: float, say: Callable[[str], None], rate_hz: float | None = None
) -> TraceSummary:
    """Trace every server of `case` for so long, while its statements are asked at `rate_hz`, or its clients are idle.

    Loads that know no rate (mariadb-slap, commands) are left out: the servers are traced without clients. Where a storm
    was to rage and did not, it is traced again. Raises CapabilityError, PowerprofError.
    """
    return repeated_until_raging(lambda: _traced(bench, case, arm, duration_s, say, rate_hz), case.name, say)


def repeated_until_raging(trace: Callable[[], TraceSummary], name: str, say: Callable[[str], None]) -> TraceSummary:
    """The first window in which the storm was active, or has none to rage; the last of three where none did.

    A storm that cannot be started is tried once more: there are servers that back off from it.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        window = trace()
        storm = window.storm
        if storm is None or storm.raged_percent >= RAGED_PERCENT or (attempt > 1 and not storm.began):
            break
        if attempt < _ATTEMPTS:
            say(f"{name}: the storm was active {storm.raged_percent:.0f} % of the traced window: traced again")
    return window


def _traced(
    bench: Bench, case: Case, arm: Arm, duration_s: float, say: Callable[[str], None], rate_hz: float | None
) -> TraceSummary:
    import os

    from powerprof.attribution import attribute
    from powerprof.attribution.requests import AttributeRequest
    from powerprof.system.processes import Target

    bench.enter(case)
    members = {name: server.pid for name, server in bench.members(case).items() if server.pid is not None}

    def names() -> Mapping[int, str]:
        names: dict[int, str] = {}
        for server in bench.members(case).values():
            names.update(server.thread_names())
        return names

    pids = tuple(members.values())
    label = ", ".join(f"{name} ({pid})" for name, pid in members.items())
    with CaseObservers(bench, case) as beside, load_at(bench, case, rate_hz):
        beside.start()
        taken = attribute.trace_target(
            Target(pids, label, roots=pids), AttributeRequest(duration_s=duration_s), names, say
        )
        _, storm = beside.finish(os.cpu_count() or 1)
    bench.leave(case)
    say(f"unwinding {case.name}")
    return TraceSummary(arm=arm, members=members, attribution=attribute.analyse(taken), storm=storm)


@contextmanager
def load_at(bench: Bench, case: Case, rate_hz: float | None) -> Iterator[None]:
    """The condition's clients at work, or silent where they are to be, for as long as the context lasts."""
    from powerprof.experiment.loads import LoadOrder, start_load
    from powerprof.experiment.loads.sysbench import GatedLoad, is_possible

    context = bench.context(case)
    if case.load.is_silent:
        held = start_load(case, context, LoadOrder())
        try:
            yield
        finally:
            held.kill()
    elif case.load.kind == "statements" and rate_hz and is_possible():
        with GatedLoad(case.load, case.load_statements(), context, rate_hz, seed=1) as load:
            load.open()
            yield
    else:
        yield


def role(row: Wakeup) -> str | None:
    """The part that the row's thread plays in replication; None for none."""
    return role_of(row.thread.server_name, [frame.label for frame in row.stack])


def by_thread(window: TraceSummary) -> Counter[Key]:
    """Idle exits by (server, thread, of replication), most first."""
    counts: Counter[Key] = Counter()
    for row in window.attribution.wakeups:
        counts[_key(window, row)] += row.count
    return counts


def _key(window: TraceSummary, row: Wakeup) -> Key:
    server = next((name for name, pid in window.members.items() if pid == row.thread.pid), "?")
    part = role(row)
    label = row.thread.label
    if part is None and row.thread.server_name is None and any("handle_one_connection" in f.label for f in row.stack):
        label = "connections"
    return server, part or label, part is not None


def top_stack(window: TraceSummary, key: Key) -> list[str]:
    """The stack that most idle exits of these threads were blamed on, innermost first."""
    rows = [row for row in window.attribution.wakeups if row.stack and _key(window, row) == key]
    return [frame.label.partition("(")[0] for frame in rows[0].stack[:_FRAMES]] if rows else []


def replication_percent(a: TraceSummary, b: TraceSummary) -> float | None:
    """Of the idle exits/s that B has more than A: how many are blamed on threads of replication."""

    def rates(window: TraceSummary) -> tuple[float, float]:
        seconds = window.attribution.window_s
        counts = by_thread(window)
        own = sum(count for (_, _, of), count in counts.items() if of)
        return sum(counts.values()) / seconds, own / seconds

    (all_a, own_a), (all_b, own_b) = rates(a), rates(b)
    return 100.0 * (own_b - own_a) / (all_b - all_a) if all_b > all_a else None


# The traced window of a phase: what ended its idle periods, and what powerprof itself cost.


@dataclass
class PhaseTrace:
    """The causes of a phase's traced window; empty where none was measured."""

    causes: list[Cause] = field(default_factory=list)
    conservation: Conservation | None = None
    window_s: float | None = None
    server_exits: ServerExits | None = None


@dataclass
class ToolTally:
    """powerprof's own cost, summed over windows."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    exits: int = 0
    traced_s: float = 0.0
    bpf_s: float | None = 0.0
    lost: int = 0
    cpus: int = 1

    def add(self, window: Window) -> None:
        """A window without tracing."""
        self.cpu_s += next((group.cpu_s for group in window.processes if group.name == "powerprof"), 0.0)
        self.wall_s += window.window_s or 0.0
        self.cpus = window.cpus or 1

    def record(self) -> ToolCost:
        """The sums as a run has them."""
        traced = self.traced_s > 0
        return ToolCost(
            version=__version__,
            cpu_s=self.cpu_s,
            wakeups_hz=self.exits / self.traced_s if traced else None,
            cpu_percent=100.0 * self.cpu_s / self.wall_s / self.cpus if self.wall_s else None,
            bpf_s=self.bpf_s if traced else None,
            lost_count=self.lost if traced else None,
            memory_bytes=own_peak_bytes(),
        )


def trace_phase(
    traced: PhaseTrace,
    duration_s: float,
    server_names: Mapping[int, str],
    tool: ToolTally,
    server_pid: int | None = None,
) -> None:
    """Trace one window into `traced`. `server_names`: what the server calls its threads, by thread; `server_pid`: its
    process, where that is on this host.

    Raises CapabilityError where this host cannot; Interrupted after a window that was cut short, which is kept.
    """
    from powerprof.attribution import blame
    from powerprof.attribution import causes as idle
    from powerprof.system.tasks import look_up, switches_of
    from powerprof.tracing.idle import TraceWindow, trace_exits
    from powerprof.tracing.symbols import interrupt_names

    with trace_exits() as tracer, TraceWindow(tracer) as opened:
        before, began_s = switches_of(server_pid) if server_pid else {}, time.monotonic()
        window = opened.measure(duration_s)
        after, counted_s = switches_of(server_pid) if server_pid else {}, time.monotonic() - began_s
    exits = window.trace.causes
    ended_by = idle.classify_exits(exits, window.state_names)
    rows = (
        idle.group_causes(
            exits,
            ended_by,
            window.window_s,
            look_up,
            functions=window.trace.addresses,
            interrupts=interrupt_names(),
            server_names=server_names,
            own_pid=os.getpid(),
            c0_ns=blame.sum_c0_ns(exits, window.trace.ran),
        )
        if len(exits)
        else []
    )
    tool.exits += sum(row.count for row in rows if row.process == "powerprof")
    tool.traced_s += window.window_s
    tool.lost += window.trace.lost_count
    spent = window.trace.run_time_s
    tool.bpf_s = None if spent is None or tool.bpf_s is None else tool.bpf_s + spent
    traced.causes = rows
    traced.conservation = idle.build_conservation(
        exits, ended_by, window.trace.lost_count, window.edges, window.stat_idle_percent
    )
    traced.window_s = window.window_s
    if server_pid is not None:
        count = sum(row.count for row in rows if row.pid == server_pid)
        woken = {tid: (total - before.get(tid, 0)) / counted_s for tid, total in after.items()}
        traced.server_exits = _with_wakings(_server_exits(count, window, server_pid), woken, server_names)
    if window.interrupted:
        raise Interrupted("interrupted")


def _with_wakings(exits: ServerExits, woken_hz: Mapping[int, float], names: Mapping[int, str]) -> ServerExits:
    """The kernel's own count of the sleeps of the server's threads: it holds where no CPU idles, too."""
    from powerprof.system.tasks import look_up

    if not woken_hz:
        return exits
    tid, most_hz = max(woken_hz.items(), key=lambda item: item[1])
    name = names.get(tid) or look_up(tid).comm
    return replace(
        exits,
        wakings_hz=sum(woken_hz.values()),
        most_woken=name.removeprefix("thread/") if most_hz else None,
        most_woken_hz=most_hz if most_hz else None,
    )


def _server_exits(count: int, window: TracedWindow, server_pid: int) -> ServerExits:
    """How often the server ended an idle period, `count` times in all; when, by the sample of single periods."""
    import numpy as np

    from powerprof.attribution.causes import blamed_threads
    from powerprof.system.tasks import look_up

    sample = window.trace.sample
    tids, tgids = blamed_threads(sample)
    # Of a thread that was woken for another CPU the program knows no process.
    others = {int(tid) for tid in np.unique(tids[tgids == 0])}
    own = {tid for tid in others if tid and look_up(tid).pid == server_pid}
    at = sample["exit_ns"][((tgids == server_pid) | np.isin(tids, list(own))) & (sample["exit_ns"] > 0)]
    start = min(edge.start_ns for edge in window.edges.values())
    end = max(edge.end_ns for edge in window.edges.values())
    counts, _ = np.histogram(at, bins=BLOCKS, range=(start, end))
    scale = count / int(counts.sum()) if counts.sum() else 0.0
    blocks = [scale * int(value) for value in counts]
    known = rate_interval(count, blocks, window.window_s)
    hz = Estimate(mean=count / window.window_s, low=known.low, high=known.high)
    return ServerExits(count=count, window_s=window.window_s, wakeups_hz=hz, blocks_count=blocks)


# Windows in which a command runs, once or as often as fits, from its start to its end.

# A window of fewer seconds says more of its edges than of the command.
_MOST_EXECUTIONS = 10_000
_STDERR_BYTES = 4096
# What a shell says of a command that a signal ended.
_SIGNALLED = 128


@dataclass
class Command:
    """A command and how often it runs in a window of its own (found by the first execution)."""

    argv: tuple[str, ...]
    may_fail: bool
    executions_count: int = 1
    leftovers_count: int = field(default=0)


def fit(command: Command, window_s: float) -> None:
    """Execute once, and see how many executions are to be in a window of at least `window_s`.

    Raises PowerprofError where it cannot be started, or fails.
    """
    _, elapsed_s = _execute(command, OpenWindow())
    command.executions_count = max(1, min(_MOST_EXECUTIONS, math.ceil(window_s / max(elapsed_s, 1e-4))))


def measure_executions(
    command: Command, pair: int, arm: Arm, dropped: bool, energy: WindowEnergy, residency_source: str
) -> Block:
    """One window with all its executions. Raises PowerprofError where one of them cannot be started, or fails."""
    groups = {"powerprof": [os.getpid()]}
    with WindowMeter(meters=energy.meters, groups=groups, residency_source=residency_source) as meter:
        codes = []
        meter.open_window()
        before_s = children_cpu_s()
        for _ in range(command.executions_count):
            code, _elapsed_s = _execute(command, meter.running)
            codes.append(code)
        cpu_s = children_cpu_s() - before_s
        window = energy.complete(meter.close_window())
    return Block(
        pair=pair,
        arm=arm,
        dropped=dropped,
        attempts_count=1,
        queries=None,
        offered_hz=None,
        window=_with_command(window, cpu_s),
        client_cpu_s=cpu_s,
        executions_count=len(codes),
        exit_codes=sorted(set(codes)),
    )


def _with_command(window: Window, cpu_s: float) -> Window:
    wall_s = (window.window_s or 0.0) * window.cpus
    group = ProcessTime(name="command", cpu_s=cpu_s, percent=100 * cpu_s / wall_s if wall_s else None)
    return msgspec.structs.replace(window, processes=[group, *window.processes])


def _execute(command: Command, running: OpenWindow) -> tuple[int, float]:
    """Its exit code, as a shell says it, and how long it took; what it left running is ended. `running`: its window."""
    with tempfile.TemporaryFile() as stderr:
        start_s = time.monotonic()
        process = programs.start_typed(command.argv, stderr=stderr)
        try:
            _wait(process, running)
        except Interrupted:
            programs.end_session(process)
            raise
        elapsed_s = time.monotonic() - start_s
        command.leftovers_count += programs.end_session(process)
        code = process.returncode if process.returncode >= 0 else _SIGNALLED - process.returncode
        if code and not command.may_fail:
            raise PowerprofError(_failure(command.argv[0], code, stderr), "--allow-failure measures it nevertheless")
    return code, elapsed_s


def _wait(process: subprocess.Popen[bytes], running: OpenWindow) -> None:
    """Until it ends, asleep in the kernel: Popen.wait with a time-out would wake the CPU twenty times a second."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            running.wait(math.inf, handle)
        finally:
            os.close(handle)
    process.wait()


def _failure(name: str, code: int, stderr: IO[bytes]) -> str:
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_BYTES))
    lines = stderr.read(_STDERR_BYTES).decode("utf-8", "replace").strip().splitlines()
    last = f": {lines[-1].strip()[:300]}" if lines else ""
    return f"{name} ended with exit code {code}{last}"


def exit_codes(blocks: Sequence[Block]) -> list[int]:
    """All exit codes that were seen."""
    return sorted({code for block in blocks for code in block.exit_codes})
