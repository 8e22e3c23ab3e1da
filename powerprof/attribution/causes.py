# SPDX-License-Identifier: Apache-2.0
"""The causes of idle exits: the mechanism that ended each one, and the thread that ran because of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from powerprof.measure.idle_counters import is_polling
from powerprof.model.records import Cause, Conservation, Mechanism
from powerprof.statistics.counts import BLOCKS
from powerprof.system.tasks import Task
from powerprof.tracing.bpf.shared_numbers import IDLE_LIFE, Flag, WakeEvidence, WakerContext
from powerprof.tracing.captures import Array, CpuEdge, count_reference_exits
from powerprof.tracing.idle_data import SOFTIRQS

MECHANISMS: tuple[Mechanism, ...] = ("unknown", "timer", "device", "ipi", "no_ipi", "tick")
UNKNOWN, TIMER, DEVICE, IPI, NO_IPI, TICK = range(len(MECHANISMS))

_BY_EVIDENCE = {
    WakeEvidence.LOCAL_TIMER: TIMER,
    WakeEvidence.HRTIMER: TIMER,
    WakeEvidence.DEVICE: DEVICE,
    WakeEvidence.RESCHEDULE: IPI,
    WakeEvidence.CALL_FUNCTION: IPI,
    WakeEvidence.IRQ_WORK: IPI,
    WakeEvidence.OTHER_VECTOR: DEVICE,
    WakeEvidence.NO_IPI: NO_IPI,
}


def are_ended_polls(causes: Array, states: Mapping[int, Sequence[str]]) -> Array:
    """Return whether each cause is a poll that reached its time limit: a polling state, no event and no thread.

    poll_idle() (drivers/cpuidle/poll_state.c) gives up after cpuidle_poll_time(), and the governor chooses again.
    """
    is_silent = (causes["evidence"] == WakeEvidence.NONE) & (
        causes["flags"] & (Flag.WAKER | Flag.NO_TASK) == Flag.NO_TASK
    )
    polling = {number for names in states.values() for number, name in enumerate(names) if is_polling(name, "")}
    is_ended: Array = is_silent & np.isin(causes["irq"], list(polling))
    return is_ended


def classify_exits(causes: Array, states: Mapping[int, Sequence[str]] = MappingProxyType({})) -> Array:
    """Return an index into MECHANISMS for each cause (`idle_data.CAUSE`); `states` are each CPU's idle-state names.

    A timer interrupt in which only the scheduler tick ran is a tick. If there is no evidence but the thread was woken
    from another CPU, the flag was set without an interrupt (a polling or MWAITing CPU). A poll that reached its time
    limit counts as a timer: the CPU read its clock.
    """
    table = np.zeros(max(WakeEvidence) + 1, dtype=np.int8)
    for evidence, mechanism in _BY_EVIDENCE.items():
        table[evidence] = mechanism
    ended_by: Array = table[np.minimum(causes["evidence"], max(WakeEvidence))]
    flags = causes["flags"]
    ended_by[(ended_by == TIMER) & (flags & Flag.TICK != 0) & (causes["timer_function"] == 0)] = TICK
    woken = flags & Flag.WAKER != 0
    ended_by[(ended_by == UNKNOWN) & woken & (flags & Flag.REMOTE != 0)] = NO_IPI
    # The thread was woken on this CPU by a timer that was traced although its interrupt was not.
    ended_by[(ended_by == UNKNOWN) & woken & (causes["waker_context"] == WakerContext.TIMER)] = TIMER
    ended_by[(ended_by == UNKNOWN) & are_ended_polls(causes, states)] = TIMER
    return ended_by


def build_conservation(
    causes: Array, ended_by: Array, lost_count: int, edges: Mapping[int, CpuEdge], idle_percent: float | None = None
) -> Conservation:
    """Return the conservation of exits: classified, unknown and lost ones, and the kernel's own count of the window."""
    counts = causes["count"]
    unknown = int(counts[ended_by == UNKNOWN].sum())
    seen = int(counts.sum())
    total = seen + lost_count
    counter, counted = count_reference_exits(edges) or (None, None)
    return Conservation(
        idle_exits_count=total,
        cpuidle_usage_delta_count=counted if counter == "cpuidle" else None,
        classified_count=seen - unknown,
        unknown_count=unknown,
        lost_count=lost_count,
        coverage_percent=100.0 * (seen - unknown) / total if total else None,
        checked_against=counter,
        reference_count=counted,
        idle_percent=idle_percent,
    )


_LEAST_SHARE = 0.8
_LEAST_GAPS = 5


def regular_period_ms(
    count: int, total: int, gaps: int, fitting_gaps: int, fitting_ns: int, fitting_periods: int
) -> float | None:
    """Return the period of a cause, or of several that are shown as one; None if it is irregular.

    A cause is regular if at least four in five of at least five intervals match the period within a tenth. Twice and
    three times the period match too: a wake-up on a running CPU ends no idle period. Of several entries the figures
    are those of the most frequent, which must hold four in five of the `total` exits: the intervals of the others do
    not describe the whole.
    """
    if gaps < _LEAST_GAPS or fitting_gaps < _LEAST_SHARE * gaps or count < _LEAST_SHARE * total:
        return None
    return fitting_ns / fitting_periods / 1e6


def period_ms(entries: Array) -> float | None:
    """Return the period of the most frequent of these entries of `idle_data.CAUSE`, as `regular_period_ms` does."""
    if not len(entries):
        return None
    main = entries[int(np.argmax(entries["count"]))]
    of_gaps = (int(main[name]) for name in ("gaps", "fitting_gaps", "fitting_ns", "fitting_periods"))
    return regular_period_ms(int(main["count"]), int(entries["count"].sum()), *of_gaps)


LookUp = Callable[[int, int | None, str, bool | None], Task]
CauseLabel = tuple[Mechanism, str | None, str, int | None, str | None]
_IPI_NAMES = {
    WakeEvidence.RESCHEDULE: "reschedule",
    WakeEvidence.CALL_FUNCTION: "function call",
    WakeEvidence.IRQ_WORK: "irq work",
}
_KEY = np.dtype(
    [
        ("mechanism", "u1"),
        ("evidence", "u1"),
        ("softirq", "u1"),
        ("poll_ended", "u1"),
        ("irq", "<u4"),
        ("timer", "<u8"),
        ("work", "<u8"),
        ("tid", "<u4"),
        ("tgid", "<u4"),
        ("is_kernel", "?"),
        ("life", "<u4"),
    ]
)


def blamed_threads(exits: Array) -> tuple[Array, Array]:
    """Return thread and process of each exit: the thread that ran, else the one that was woken for another CPU."""
    ran = exits["next_tid"] != 0
    return np.where(ran, exits["next_tid"], exits["woken_tid"]), np.where(ran, exits["next_tgid"], 0)


def count_by_part(at_ns: Array, start_ns: int, end_ns: int, count: int) -> list[float]:
    """Return `count` exits in equal parts of a window, in the proportions of a sample of their times."""
    if end_ns <= start_ns:
        return []
    counts, _ = np.histogram(at_ns, bins=BLOCKS, range=(start_ns, end_ns))
    scale = count / int(counts.sum()) if counts.sum() else 0.0
    return [scale * int(value) for value in counts]


def _keys(exits: Array, ended_by: Array) -> Array:
    keys = np.zeros(len(exits), dtype=_KEY)
    keys["mechanism"] = ended_by
    keys["tid"], keys["tgid"] = blamed_threads(exits)
    flags = np.where(exits["next_tid"] != 0, exits["flags"], 0)
    keys["is_kernel"], keys["life"] = flags & Flag.KERNEL != 0, flags & np.uint32(IDLE_LIFE)
    keys["work"] = exits["work_function"]
    timer = np.isin(ended_by, (TIMER, TICK))
    by_timer = (exits["flags"] & Flag.WAKER != 0) & (exits["waker_context"] == WakerContext.TIMER)
    function = np.where(by_timer, exits["waker_timer_function"], exits["timer_function"])
    keys["timer"] = np.where(timer, function, 0)
    keys["irq"] = np.where(ended_by == DEVICE, exits["irq"], 0)
    keys["evidence"] = np.where(np.isin(ended_by, (IPI, DEVICE)), exits["evidence"], 0)
    keys["poll_ended"] = (
        (ended_by == TIMER) & (exits["evidence"] == WakeEvidence.NONE) & (exits["flags"] & Flag.WAKER == 0)
    )
    keys["softirq"] = np.where((ended_by == UNKNOWN) & (exits["evidence"] == WakeEvidence.SOFTIRQ), exits["irq"] + 1, 0)
    return keys


def _unique_rows(rows: Array) -> tuple[Array, Array]:
    """Return the unique rows in order, and the place of each row; numpy alone takes 30 µs per row of a struct."""
    size, data, places = rows.dtype.itemsize, rows.tobytes(), dict[bytes, int]()
    numbers = [places.setdefault(data[at : at + size], len(places)) for at in range(0, len(data), size)]
    unique, order = np.unique(np.frombuffer(b"".join(places), dtype=rows.dtype), return_inverse=True)
    return unique, order[np.array(numbers, dtype=np.intp)]


def _name(key: Any, functions: Mapping[int, str], interrupts: Mapping[int, str]) -> str | None:
    mechanism = int(key["mechanism"])
    if mechanism == DEVICE:
        if int(key["evidence"]) == WakeEvidence.OTHER_VECTOR:
            return f"vector {int(key['irq']):#x}"
        return interrupts.get(int(key["irq"]), f"irq {int(key['irq'])}")
    if mechanism == IPI:
        return _IPI_NAMES.get(WakeEvidence(int(key["evidence"])))
    if mechanism in (TIMER, TICK) and key["timer"]:
        return functions.get(int(key["timer"]), f"{int(key['timer']):#x}")
    if key["poll_ended"]:
        return "poll_idle's time limit"
    if int(key["softirq"]):
        number = int(key["softirq"]) - 1
        return f"softirq {SOFTIRQS[number] if number < len(SOFTIRQS) else number}"
    return None


def _thread(task: Task, work: int, functions: Mapping[int, str], server_names: Mapping[int, str]) -> str:
    if task.tid in server_names:
        return server_names[task.tid].removeprefix("thread/")
    if task.is_kernel and task.comm.startswith("kworker"):
        # Work items move between workers, so the work function identifies the cause.
        return f"kworker {functions[work]}" if work in functions else "kworker"
    return task.comm


def _names(exits: Array) -> dict[tuple[int, int], str]:
    """Return the latest name of each thread that ran, by thread id and start."""
    latest = exits[np.argsort(exits["last_ns"], kind="stable")]
    lives = (latest["flags"] & np.uint32(IDLE_LIFE)).tolist()
    ran = zip(latest["next_tid"].tolist(), lives, latest["next_comm"].tolist(), strict=True)
    return {(tid, life): comm.decode("utf-8", "replace") for tid, life, comm in ran}


class CauseGroups(msgspec.Struct, frozen=True):
    """Exits grouped by label: mechanism, name, process, pid and thread. `of_exit`: the group of each exit.

    `threads`: thread ids and starts of each group.
    """

    labels: list[CauseLabel]
    threads: list[set[tuple[int, int]]]
    of_exit: Array


def label_exits(
    exits: Array,
    ended_by: Array,
    look_up: LookUp,
    *,
    functions: Mapping[int, str],
    interrupts: Mapping[int, str],
    server_names: Mapping[int, str] | None = None,
    own_pids: Collection[int] = (),
) -> CauseGroups:
    """Group exits (`idle_data.CAUSE`) by mechanism, name and thread; the parameters are those of `group_causes`."""
    unique, index = _unique_rows(_keys(exits, ended_by))
    comms = _names(exits)
    groups: dict[CauseLabel, list[int]] = {}
    threads: dict[CauseLabel, set[tuple[int, int]]] = {}
    for number, key in enumerate(unique):
        tid, life = int(key["tid"]), int(key["life"])
        task = look_up(tid, int(key["tgid"]) or None, comms.get((tid, life), ""), bool(key["is_kernel"]))
        process = "powerprof" if task.pid in own_pids else task.process
        thread = _thread(task, int(key["work"]), functions, server_names or {}) if tid else None
        label: CauseLabel = (
            MECHANISMS[int(key["mechanism"])],
            _name(key, functions, interrupts),
            process,
            None if task.is_kernel else task.pid,
            thread,
        )
        groups.setdefault(label, []).append(number)
        threads.setdefault(label, set()).add((tid, life))
    group_of = np.zeros(len(unique), dtype=np.intp)
    for group, members in enumerate(groups.values()):
        group_of[members] = group
    return CauseGroups(list(groups), [threads[label] for label in groups], group_of[index])


def group_causes(
    exits: Array,
    ended_by: Array,
    window_s: float,
    look_up: LookUp,
    *,
    functions: Mapping[int, str],
    interrupts: Mapping[int, str],
    server_names: Mapping[int, str] | None = None,
    own_pids: Collection[int] = (),
    c0_ns: Array | None = None,
) -> list[Cause]:
    """Group exits (`idle_data.CAUSE`) by mechanism, name and thread, most frequent first; `percent` is of all exits.

    `c0_ns` is the running time of each entry (`blame.sum_c0_ns`). `server_names` maps thread ids to
    performance_schema names. Threads of `own_pids` are named powerprof.
    """
    groups = label_exits(
        exits,
        ended_by,
        look_up,
        functions=functions,
        interrupts=interrupts,
        server_names=server_names,
        own_pids=own_pids,
    )
    causes = []
    total = int(exits["count"].sum())
    for group, (label, only) in enumerate(zip(groups.labels, groups.threads, strict=True)):
        rows = groups.of_exit == group
        count = int(exits["count"][rows].sum())
        mechanism, name, process, pid, thread = label
        causes.append(
            Cause(
                mechanism=mechanism,
                name=name,
                process=process,
                pid=pid,
                thread=thread,
                wakeups_hz=count / window_s,
                percent=100.0 * count / total,
                count=count,
                tid=next(iter(only))[0] if len(only) == 1 and pid is not None else None,
                period_ms=period_ms(exits[rows]) if len(only) == 1 else None,
                c0_ms=None if c0_ns is None else float(c0_ns[rows].sum()) / 1e6,
            )
        )
    return sorted(causes, key=lambda cause: (-cause.count, str(cause.process), str(cause.thread), str(cause.name)))
