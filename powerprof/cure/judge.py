# SPDX-License-Identifier: Apache-2.0
"""Pure: from the windows of a cure to metrics with intervals and verdicts."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from powerprof.cure.records import CureBlock, CurePrediction
from powerprof.cure.remedies import CureRequest, PlannedChange
from powerprof.cure.threads import SlackChoice
from powerprof.diagnosis.collect import compute_timers_hz, list_thread_wakeups
from powerprof.diagnosis.thread_pace import predict_slack
from powerprof.energy.domains import host_energy, host_meters
from powerprof.experiment import verdict
from powerprof.experiment.metrics import Compared
from powerprof.experiment.records import Metric
from powerprof.measure.procfs import read_timer_interrupts
from powerprof.model.records import Figures, Kind
from powerprof.model.text import Say
from powerprof.system import files, paths, signals
from powerprof.system.errors import CapabilityError
from powerprof.system.files import whole
from powerprof.system.processes import Target

# Of cures that change nothing one in two hundred has a word about its wake-ups, and one in a hundred about the rest:
# what is claimed here is going to be kept for good.
CURE_LEVEL = 0.995


_Seconds = Callable[[CureBlock], float | None]


@dataclass(frozen=True)
class _Quantity:
    """What a window says; None where it does not. `step_of` is by how much the least change moves it."""

    name: str
    unit: str
    of: Callable[[CureBlock], float | None]
    kind: Kind = "measured"
    source: str | None = None
    step_of: Callable[[CureBlock], float] | None = None


def _rate(count: int | None, seconds: float | None) -> float | None:
    return None if count is None or not seconds else count / seconds


def _counted(name: str, of: Callable[[CureBlock], int | None], seconds: _Seconds) -> _Quantity:
    """A count as a rate over the stretch in which it was counted."""
    return _Quantity(name, "1/s", lambda b: _rate(of(b), seconds(b)), step_of=lambda b: 1 / (seconds(b) or b.counted_s))


def _switched_s(block: CureBlock) -> float:
    return block.counted_s


def _traced_s(block: CureBlock) -> float | None:
    return block.traced_s


def _window_s(block: CureBlock) -> float | None:
    return block.window.window_s


_OF_COUNTS = (
    _counted("thread_wakings_hz", lambda b: b.thread_wakings_count, _switched_s),
    _counted("thread_wakings_traced_hz", lambda b: b.traced_wakings_count, _traced_s),
    _counted("thread_idle_exits_hz", lambda b: b.thread_exits_count, _window_s),
    _counted("target_wakings_hz", lambda b: b.target_wakings_count, _switched_s),
    _counted("target_idle_exits_hz", lambda b: b.target_exits_count, _window_s),
    _Quantity("host_idle_exits_hz", "1/s", lambda b: b.window.wakeups_hz),
    _Quantity("c0_percent", "%", lambda b: b.window.c0_percent),
    _counted("statements_hz", lambda b: b.statements_count or None, lambda b: b.statements_s),
    _Quantity("latency_p50_ms", "ms", lambda b: None if b.latency_ms is None else b.latency_ms.p50),
    _Quantity("latency_p95_ms", "ms", lambda b: None if b.latency_ms is None else b.latency_ms.p95),
    _Quantity("commit_p50_ms", "ms", lambda b: None if b.commit_latency_ms is None else b.commit_latency_ms.p50),
    _Quantity("commit_p95_ms", "ms", lambda b: None if b.commit_latency_ms is None else b.commit_latency_ms.p95),
    _Quantity("replica_lag_s", "s", lambda b: b.replica_lag_s, step_of=lambda b: 1 / (b.replica_looks_count or 1)),
    _Quantity("replica_backlog_bytes", "B", lambda b: b.replica_backlog_bytes),
    _Quantity("replica_delay_ms", "ms", lambda b: b.replica_delay_ms),
)


def complete_pairs(blocks: Sequence[CureBlock]) -> list[tuple[CureBlock, CureBlock]]:
    """The complete pairs, as (before, cured), in the order of time."""
    by_pair: dict[int, dict[str, CureBlock]] = {}
    for block in blocks:
        by_pair.setdefault(block.pair, {})[block.arm] = block
    return [(both["before"], both["cured"]) for _, both in sorted(by_pair.items()) if len(both) == 2]


def judge_blocks(blocks: Sequence[CureBlock], primary: str, seed: int) -> list[Metric]:
    """Every metric over the complete pairs, the primary first; the others' verdicts are a family's. Empty without a
    pair."""
    pairs = complete_pairs(blocks)
    compared = [_compared(quantity, pairs) for quantity in (*_OF_COUNTS, _watts(blocks))] if pairs else []
    return verdict.judge_metrics(compared, primary, seed, level=CURE_LEVEL)


def _compared(quantity: _Quantity, pairs: Sequence[tuple[CureBlock, CureBlock]]) -> Compared:
    a, b = (
        Figures(
            name=quantity.name,
            unit=quantity.unit,
            kind=quantity.kind,
            source=quantity.source,
            values=[quantity.of(block) for block in side],
        )
        for side in zip(*pairs, strict=True)
    )
    return Compared(a, b, quantity.step_of(pairs[0][0]) if quantity.step_of is not None else None)


def _watts(blocks: Sequence[CureBlock]) -> _Quantity:
    """The host's power, by one set of meters over all windows."""
    meters = host_meters([block.window.energy for block in blocks])
    return _Quantity(
        "watts",
        "W",
        lambda b: None if meters is None else host_energy(b.window.energy, meters).watts,
        "estimated" if meters is None or meters.kind is None else meters.kind,
        None if meters is None else meters.source,
    )


# What a remedy is going to save, from a window before anything is changed.

_LONGEST_S = 5.0
# futex (asm-generic/unistd.h and syscall_64.tbl); a wait by the wall clock has FUTEX_CLOCK_REALTIME (linux/futex.h).
_FUTEX = {"x86_64": "202", "aarch64": "98"}
_WALL_CLOCK = 256
_TRIES = 20


@dataclass
class _Ticks:
    """Timer interrupts of one CPU a second, by the kernel's count: idle or not. None: unknown."""

    rate_hz: float | None = None


@contextmanager
def _ticks() -> Iterator[_Ticks]:
    counted, before, began_s = _Ticks(), read_timer_interrupts(), time.monotonic()
    yield counted
    after, passed_s = read_timer_interrupts(), time.monotonic() - began_s
    if before is not None and after is not None and passed_s > 0:
        counted.rate_hz = (after - before) / passed_s / (os.cpu_count() or 1)


def waits_by_wall_clock(pid: int, tid: int) -> bool | None:
    """By which clock a thread that waits on a futex does so; None where it was not seen waiting on one."""
    place = paths.procfs() / str(pid) / "task" / str(tid) / "syscall"
    for _ in range(_TRIES):
        words = (files.try_text(place) or "").split()
        if len(words) > 3 and words[0] == _FUTEX.get(platform.machine()):
            try:
                return bool(int(words[2], 16) & _WALL_CLOCK)
            except ValueError:
                return None
        time.sleep(0.002)
    return None


def predict_change(plan: PlannedChange, target: Target, request: CureRequest, say: Say) -> CurePrediction | None:
    """Of timer slack; None where it is not known whether the thread's waits react to it, and for variables.

    Raises PowerprofError where the process has gone.
    """
    thread = plan.remedy.thread
    if not isinstance(request.choice, SlackChoice) or thread is None:
        return None
    from powerprof.attribution import attribute
    from powerprof.attribution.requests import AttributeRequest

    try:
        with _ticks() as ticks:
            taken = attribute.trace_target(
                target, AttributeRequest(duration_s=min(request.window_s, _LONGEST_S)), dict, say
            )
        attribution = attribute.analyse(taken)
        if attribution.interrupted:
            raise signals.interruption()
    except CapabilityError:
        return None  # the windows say why nothing is traced
    finally:
        signals.release()  # signals wait from the end of a window: nothing is to be saved of this one
    rows = [row for row in list_thread_wakeups(attribution) if row.tid == thread.tid]
    own_hz = sum(row.rate_hz for row in rows if row.origin == "own_timer")
    own_wakings_hz = max(own_hz, sum(row.wakings_hz or 0.0 for row in rows if row.origin == "own_timer"))
    cpus = attribution.cpus or 1
    others_hz = max(0.0, (compute_timers_hz(attribution) or 0.0) - own_hz / cpus)
    interrupts_hz = max(0.0, (ticks.rate_hz or 0.0) - own_wakings_hz / cpus)
    by_wall_clock = waits_by_wall_clock(target.pids[0], thread.tid)
    one = predict_slack(rows, request.choice.slack_ns, others_hz, whole(plan.before) or 0, by_wall_clock, interrupts_hz)
    if one is None:
        return None
    return CurePrediction(now_hz=one.now_hz, then_hz=one.then_hz, most_hz=one.most_hz, is_bound=one.is_bound)
