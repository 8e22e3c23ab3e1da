# SPDX-License-Identifier: Apache-2.0
"""One cure: what is meant, consent, the remedy in turns, and everything as before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from powerprof import __version__
from powerprof.cure import judge
from powerprof.cure.judge import predict_change
from powerprof.cure.latencies import LatencyRise, LatencyWatch, StatementLatencies, WindowLatencies
from powerprof.cure.records import Arm, Cure, CureBlock, CurePrediction, CureVerdict
from powerprof.cure.remedies import CureRequest, PlannedChange, plan_change
from powerprof.cure.replicas import OUR_STATEMENTS, ReplicaSampler, lag_fields
from powerprof.cure.threads import resolve_target
from powerprof.energy.windows import WindowEnergy
from powerprof.experiment.plan import block_order
from powerprof.experiment.verdict import half_width_percent
from powerprof.measure.procfs import own_peak_bytes
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import WindowPart, run_window
from powerprof.model.attribution import TargetInfo
from powerprof.model.records import EnergySource, Notes, ToolCost, Window
from powerprof.model.text import Say, count_down
from powerprof.reversible.changed import ChangedSettings
from powerprof.reversible.journal import Journal, is_same_value
from powerprof.reversible.kinds import kept_text
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, Interrupted, PowerprofError
from powerprof.system.processes import Target, name_of
from powerprof.system.tasks import list_threads, read_switches

if TYPE_CHECKING:
    from powerprof.tracing.idle import WindowTracer
    from powerprof.tracing.idle_stacks import WindowStacks


# Windows over one process: wake-ups by the kernel's own count, and idle exits by the trace where this host can.

Array = npt.NDArray[Any]


class SwitchCounter(WindowPart):
    """How often each thread of a process gave up its CPU to wait, between the edges."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: Mapping[int, int] = {}
        self._after: Mapping[int, int] = {}
        self._began_s = self._ended_s = 0.0

    def begin(self) -> None:
        self._before, self._began_s = read_switches(self._pid), time.monotonic()

    def end(self) -> None:
        self._after, self._ended_s = read_switches(self._pid), time.monotonic()

    @property
    def counted_s(self) -> float:
        """How long was counted."""
        return self._ended_s - self._began_s

    def counts(self) -> dict[int, int]:
        """Of every thread that was there at the end; what one that ended did is unknown."""
        return {tid: count - self._before.get(tid, 0) for tid, count in self._after.items()}


@dataclass(frozen=True)
class CureWindow:
    """One window, and the signal that ended it early."""

    block: CureBlock
    tool_cpu_s: float
    interrupted: Interrupted | None
    took: WindowLatencies | None = None


class CureWindows(Closeable):
    """Measures windows with one tracer, whose programs run in both arms alike. `untraced` is why there is none."""

    def __init__(
        self,
        target: Target,
        tid: int | None,
        energy: WindowEnergy,
        statements: StatementLatencies | None = None,
        replica: ReplicaSampler | None = None,
    ) -> None:
        self._target, self._tid, self._energy, self._statements = target, tid, energy, statements
        self._replica = replica
        self._counter = SwitchCounter(target.pids[0])
        self._stack = ExitStack()
        self._traced: tuple[WindowTracer, WindowStacks] | None = None
        self._meter: WindowMeter | None = None
        self.untraced: str | None = None

    def _open(self) -> None:
        from powerprof.tracing.idle import WindowTracer, trace_stacks

        try:
            tracer, looks = self._stack.enter_context(trace_stacks(self._target))
            self._traced = self._stack.enter_context(WindowTracer(tracer, self._energy.meters)), looks
        except CapabilityError as error:
            self.untraced = error.message
            self._meter = self._stack.enter_context(WindowMeter(meters=self._energy.meters))

    def close(self) -> None:
        self._stack.close()

    def measure(self, duration_s: float, pair: int, arm: Arm) -> CureWindow:
        """One window. Raises PowerprofError where a counter cannot be read."""
        counter = self._counter
        probed = (
            *(() if self._statements is None else self._statements.parts),
            *(() if self._replica is None else self._replica.parts),
        )
        if self._traced is None:
            assert self._meter is not None  # noqa: S101  the other of the two
            passed = run_window(duration_s, *self._meter.parts, counter, *probed)
            window = self._energy.complete(self._meter.collect(passed))
            took = self._took()
            return CureWindow(self._block(pair, arm, window, took), passed.tool_cpu_s, passed.interrupted, took)
        opened, looks = self._traced
        passed = run_window(duration_s, *opened.parts, counter, *probed)
        taken, stacks = opened.collect(passed), looks.collect()
        window = self._energy.complete(taken.residency)
        counted = not stacks.loaded_count and not stacks.uncounted_count
        wakings = sum(site.count for site in stacks.wakings if site.tid == self._tid) if counted else None
        took = self._took()
        block = self._block(
            pair,
            arm,
            window,
            took,
            traced_wakings_count=wakings if self._tid is not None else None,
            traced_s=(stacks.counted_to_ns - stacks.counted_from_ns) / 1e9,
            **self._exits(taken.trace.causes, taken.trace.lost_count),
        )
        return CureWindow(block, passed.tool_cpu_s, passed.interrupted, took)

    @property
    def _ours(self) -> int | None:
        """The thread of a replica that answers us."""
        return None if self._replica is None else self._replica.own_tid

    def _took(self) -> WindowLatencies | None:
        asked = None if self._ours is None else OUR_STATEMENTS
        return None if self._statements is None else self._statements.collect(asked)

    def _exits(self, causes: Array, lost_count: int) -> dict[str, int | None]:
        """The idle exits of the thread and of its process; unknown where some were lost."""
        from powerprof.attribution.causes import blamed_threads

        if lost_count:
            return {}
        tids, tgids = blamed_threads(causes)
        of_target = (tgids == self._target.pids[0]) | np.isin(tids, list(self._counter.counts()))
        of_target &= tids != (self._ours or -1)
        thread = None if self._tid is None else int(causes["count"][tids == self._tid].sum())
        return {"thread_exits_count": thread, "target_exits_count": int(causes["count"][of_target].sum())}

    def _block(self, pair: int, arm: Arm, window: Window, took: WindowLatencies | None, **traced: Any) -> CureBlock:
        if took is not None:
            traced |= {
                "statements_count": sum(took.statements.values()),
                "statements_s": took.window_s,
                "latency_ms": took.statements_ms,
                "commits_count": sum(took.commits.values()),
                "commit_latency_ms": took.commits_ms,
            }
        traced |= lag_fields(None if self._replica is None else self._replica.collect())
        counts = {tid: count for tid, count in self._counter.counts().items() if tid != self._ours}
        return CureBlock(
            pair=pair,
            arm=arm,
            window=window,
            counted_s=self._counter.counted_s,
            thread_wakings_count=None if self._tid is None else counts.get(self._tid),
            target_wakings_count=sum(counts.values()),
            **traced,
        )


# A sleep that began under the other value ends by it. 0.5 s are five of the longest periods that servers poll with
# often enough to be worth a cure.
_SETTLE_S = 0.5
_FOUR = 4

# Told what is going to be changed, for how long, and what it is predicted to save; raises where that is not agreed to.
Consent = Callable[[PlannedChange, Target, float, CurePrediction | None], None]


@dataclass
class _Tried:
    """What the turns gave."""

    blocks: list[CureBlock] = field(default_factory=list)
    tool_cpu_s: float = 0.0
    interrupted: bool = False
    untraced: str | None = None
    unprobed: str | None = None
    unasked: str | None = None
    hurt: LatencyRise | None = None
    notes: list[str] = field(default_factory=list)


def run_cure(request: CureRequest, consent: Consent, say: Say) -> Cure:
    """Try the remedy and judge it. Everything is as before when it returns or raises.

    Raises UsageError, CapabilityError, PowerprofError, and what `consent` raises.
    """
    from powerprof.host.describe import host_record
    from powerprof.measure.clock import format_now

    target = resolve_target(request.pid)
    pid = target.pids[0]
    chosen = plan_change(pid, request)
    predicted = predict_change(chosen, target, request, say)
    lasts_s = 2 * request.most_pairs * (request.window_s + _SETTLE_S)
    consent(chosen, target, lasts_s, predicted)
    say = count_down(say, lasts_s)
    started_at = format_now()
    with WindowEnergy(request.energy) as energy:
        tried = _Tried()
        with Journal([chosen.held]) as journal:
            try:
                _in_turns(chosen, target, request, energy, tried, journal, say)
            except PowerprofError as error:  # Without a record the error has the note.
                error.hint = "; ".join(filter(None, [error.hint, _kept_copies(chosen)]))
                raise
            tried.notes += filter(None, [_kept_copies(chosen)])
            after = chosen.setting.read()
            journal.settled = after in (None, chosen.before)
        source = energy.source
    return _record(request, target, chosen, tried, after, started_at, source, host_record(), predicted)


def _in_turns(
    chosen: PlannedChange,
    target: Target,
    request: CureRequest,
    energy: WindowEnergy,
    tried: _Tried,
    journal: Journal,
    say: Say,
) -> None:
    say("changing it and putting it back once, to see that both can be done")
    with _changed(chosen, journal) as once:
        changed_to = once.since[0]
    thread = chosen.remedy.thread
    watch = None if is_same_value(chosen.before, chosen.setting.value) else LatencyWatch(request.max_p95_percent)
    with (
        StatementLatencies(target.pids[0]) as statements,
        ReplicaSampler(target.pids[0], request) as replica,
        CureWindows(target, None if thread is None else thread.tid, energy, statements, replica) as windows,
    ):
        tried.untraced, tried.unprobed, tried.unasked = windows.untraced, statements.why_not, replica.why_not
        done, more = 0, request.pairs
        while more:
            order = _order(done, more, request.seed)
            done += more
            for arm, blocks in groupby(order, key=lambda each: each[1]):
                each = list(blocks)
                if arm == "before":
                    _measure(windows, each, chosen, chosen.before, 2 * done, request, tried, say, watch)
                else:
                    with _changed(chosen, journal):
                        _measure(windows, each, chosen, changed_to, 2 * done, request, tried, say, watch)
                if tried.interrupted or tried.hurt is not None:
                    return
            more = _more(chosen, request, tried, done)


def _order(first: int, pairs: int, seed: int) -> list[tuple[int, Arm]]:
    """So many pairs more, each window with its pair's number."""
    names: dict[str, Arm] = {"a": "before", "b": "cured"}
    order = block_order(pairs, seed + first)
    return [(number, names[arm]) for number, pair in enumerate(order, first) for arm in pair]


def _more(chosen: PlannedChange, request: CureRequest, tried: _Tried, done: int) -> int:
    """How many pairs more `--precision` needs now: fours, so that the blocks stay balanced; 0 where it is reached, or
    would need too many."""
    wanted = request.precision_percent
    if wanted is None:
        return 0
    metrics = judge.judge_blocks(tried.blocks, chosen.primary, request.seed)
    width = half_width_percent(metrics[0]) if metrics and metrics[0].name == chosen.primary else None
    if width is not None and width <= wanted:
        tried.notes.append(f"±{width:.2g} % reached after {done} pairs")
        return 0
    if done + _FOUR > request.most_pairs:
        interval = "unknown" if width is None else f"±{width:.2g} %"
        needed = "" if width is None else f"; about {round(done * (width / wanted) ** 2)} pairs would do"
        tried.notes.append(f"±{wanted:g} % was not reached in {done} pairs: the interval is {interval}{needed}")
        return 0
    return _FOUR


def _measure(
    windows: CureWindows,
    blocks: Sequence[tuple[int, Arm]],
    chosen: PlannedChange,
    expected: str | None,
    count: int,
    request: CureRequest,
    tried: _Tried,
    say: Say,
    watch: LatencyWatch | None,
) -> None:
    """Windows of one arm that follow one another."""
    if run_window(_SETTLE_S).interrupted is not None:
        tried.interrupted = True
        return
    for pair, arm in blocks:
        say(f"{arm}: window {len(tried.blocks) + 1} of {count}, {request.window_s:g} s")
        measured = windows.measure(request.window_s, pair, arm)
        tried.tool_cpu_s += measured.tool_cpu_s
        if measured.interrupted is not None:
            tried.interrupted = True  # a window that was cut short is in no pair
            return
        _check_value(chosen, expected)
        tried.blocks.append(measured.block)
        if watch is not None and (hurt := watch.add(arm, measured.took)) is not None:
            tried.hurt = hurt
            return


def _check_value(chosen: PlannedChange, expected: str | None) -> None:
    """That the value was ours over the window. Raises PowerprofError."""
    now = chosen.setting.read()
    if now is None:
        raise _gone(chosen)
    if expected is not None and now != expected:
        raise PowerprofError(
            f"{chosen.remedy.name} was set to {now} by somebody else meanwhile, and is left so: it was {chosen.before} "
            "before",
            "agree with them who tries what",
        )


def _gone(chosen: PlannedChange) -> PowerprofError:
    if chosen.remedy.thread is not None:
        return PowerprofError(
            f"{chosen.remedy.name} is gone: its thread has ended", "choose a thread that lives as long as its server"
        )
    return PowerprofError(
        f"{chosen.remedy.name} is gone with what had it: it ended, or was started again, in the middle",
        "try again when it stays up",
    )


@contextmanager
def _changed(chosen: PlannedChange, journal: Journal) -> Iterator[ChangedSettings]:
    """Change the setting for the block. Raise PowerprofError if it cannot be changed or put back."""
    counted = nullcontext() if chosen.connections is None else chosen.connections.counted()
    with counted, ChangedSettings([chosen.setting], journal, [chosen.before]) as changed:
        yield changed
    if changed.notes:
        raise PowerprofError(changed.notes[0], "read the value now, and set the one that you want")


def _kept_copies(chosen: PlannedChange) -> str:
    """Return a sentence about the connections that keep the value; empty if there are none."""
    if chosen.connections is None:
        return ""
    try:
        found = chosen.connections.still_open()
    except PowerprofError:
        found = None
    return kept_text(chosen.remedy.name, chosen.setting.value, found)


def _record(
    request: CureRequest,
    target: Target,
    chosen: PlannedChange,
    tried: _Tried,
    after: str | None,
    started_at: str,
    source: EnergySource,
    host: dict[str, object],
    predicted: CurePrediction | None,
) -> Cure:
    pid = target.pids[0]
    wall_s = sum(block.window.window_s or 0.0 for block in tried.blocks)
    cpus = max((block.window.cpus for block in tried.blocks), default=1) or 1
    return Cure(
        id=None,
        started_at=started_at,
        target=TargetInfo(
            pid=pid,
            executable=name_of(pid),
            build_id=None,
            label=target.label,
            pids=[pid],
            threads_count=len(list_threads(pid)) or None,
        ),
        remedy=chosen.remedy,
        window_s=request.window_s,
        blocks_count=len(tried.blocks),
        order=[block.arm for block in tried.blocks],
        metrics=judge.judge_blocks(tried.blocks, chosen.primary, request.seed),
        verdict=CureVerdict(
            metric=chosen.primary,
            max_p95_percent=request.max_p95_percent,
            hurts=None if tried.hurt is None else tried.hurt.what,
            hurts_from_ms=None if tried.hurt is None else tried.hurt.before_ms,
            hurts_to_ms=None if tried.hurt is None else tried.hurt.cured_ms,
        ),
        latency=_latency(tried),
        replication=_replication(tried),
        predicted=predicted,
        reverted=None if after is None else after == chosen.before,
        read_back=after,
        blocks=tried.blocks,
        host=host,
        tool=ToolCost(
            version=__version__,
            cpu_s=tried.tool_cpu_s,
            wakeups_hz=None,
            cpu_percent=100.0 * tried.tool_cpu_s / wall_s / cpus if wall_s else None,
            memory_bytes=own_peak_bytes(),
        ),
        energy_source=source,
        notes=_notes(chosen, tried),
        interrupted=tried.interrupted,
    )


def _latency(tried: _Tried) -> str:
    """Whether latency was measured, and of how many statements."""
    if tried.unprobed is not None:
        return f"not measured: {tried.unprobed}"
    counts = [block.statements_count or 0 for block in tried.blocks]
    if not sum(counts):
        return "not measured: no statement was sent to the server in the windows"
    return f"of {sum(counts)} statements in {len(counts)} windows"


def _replication(tried: _Tried) -> str:
    """Whether a replica's lag was measured, how, and whether it stood still."""
    looks = sum(block.replica_looks_count or 0 for block in tried.blocks)
    if not looks:
        return f"not measured: {tried.unasked or 'no window was measured'}"
    sources = sorted({block.replica_delay_source for block in tried.blocks if block.replica_delay_source})
    asked = f"by the replica's own report, in {looks} looks of {len(tried.blocks)} windows"
    measured = f"{asked}; delay: {', '.join(sources)}" if sources else asked
    stopped = sum(block.replica_stopped_count or 0 for block in tried.blocks)
    return f"{measured}; in {stopped} of them its SQL thread did not run" if stopped else measured


def _notes(chosen: PlannedChange, tried: _Tried) -> Notes:
    notes: list[str] = list(tried.notes)
    if tried.untraced is not None:
        notes.append(f"not traced, so whose idle exits they are is unknown: {tried.untraced}")
    if is_same_value(chosen.before, chosen.setting.value):
        notes.append("the value tried is the one that was set: nothing was changed")
    for block in tried.blocks:
        notes += [note for note in block.window.notes if isinstance(note, str) and note not in notes]
    return notes
