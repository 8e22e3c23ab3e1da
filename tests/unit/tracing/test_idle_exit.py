# SPDX-License-Identifier: Apache-2.0
"""The state machine that runs in the kernel, on recorded events, in both orders of handlers and exit event."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.attribution import causes
from powerprof.attribution.causes import IPI, MECHANISMS, NO_IPI, TICK, TIMER, UNKNOWN
from powerprof.tracing import idle_data
from powerprof.tracing.bpf.shared_numbers import Flag, WakeEvidence, WakerContext
from powerprof.tracing.idle_data import IDLE_EXIT, build_cause_keys

from . import machine

EXIT = str(2**32 - 1)


def mechanisms(exits: np.ndarray) -> np.ndarray:
    return causes.classify_exits(build_cause_keys(exits))


@pytest.fixture
def recording() -> list[machine.Event]:
    return machine.recorded(machine.HERE / "hlt-stream.txt")


def whole_periods(events: list[machine.Event]) -> int:
    """Counted the simple way: idle entries of a CPU after its first, if an exit came in between."""
    seen: dict[int, bool] = {}
    count = 0
    for cpu, _, name, arguments in events:
        if name != "idle":
            continue
        if arguments[0] == EXIT:
            if cpu in seen:
                seen[cpu] = True
        else:
            count += seen.get(cpu, False)
            seen[cpu] = False
    return count


@pytest.mark.parametrize("order", ["handlers before the exit event", "handlers after it"])
def test_a_recorded_stream_is_classified_whole_in_either_order(
    library: ctypes.CDLL, recording: list[machine.Event], order: str
) -> None:
    events = recording if order.startswith("handlers before") else machine.with_handlers_after_exit(recording)
    records = machine.Machine(library).run(events)
    assert len(records) == whole_periods(events)
    found = mechanisms(records)
    assert np.count_nonzero(found == UNKNOWN) == 0
    assert np.all(records["exit_ns"] > records["enter_ns"])
    assert np.all(records["next_ns"] > records["exit_ns"])


def test_both_orders_give_the_same_causes(library: ctypes.CDLL, recording: list[machine.Event]) -> None:
    before = machine.Machine(library).run(recording)
    after = machine.Machine(library).run(machine.with_handlers_after_exit(recording))
    key = ["cpu", "enter_ns", "evidence", "timer_function", "next_tid", "waker_tid", "woken_tid", "irq"]
    assert sorted(before[key].tolist()) == sorted(after[key].tolist())


def run(library: ctypes.CDLL, text: str) -> np.ndarray:
    """Records of a hand-written stream on CPU 0 (`cpu ns event arguments…`), opened and closed by idle entries."""
    lines = ["0 100 idle 1", *(line.strip() for line in text.strip().splitlines()), "0 900000 idle 1"]
    events = []
    for line in lines:
        cpu, at, name, *arguments = line.split()
        events.append((int(cpu), int(at) + 10**9, name, tuple(arguments)))
    return machine.Machine(library).run(events)


HLT = """
0 5000 local_timer_entry
0 5100 hrtimer_expire_entry {function}
0 5200 sched_waking 77 0
0 5300 hrtimer_expire_exit
0 5400 idle {exit}
0 5500 sched_switch 0 77
"""
MWAIT = """
0 4900 idle {exit}
0 5000 local_timer_entry
0 5100 hrtimer_expire_entry {function}
0 5200 sched_waking 77 0
0 5300 hrtimer_expire_exit
0 5500 sched_switch 0 77
"""


@pytest.mark.parametrize("stream", [HLT, MWAIT])
def test_a_sleeper_that_armed_a_timer(library: ctypes.CDLL, stream: str) -> None:
    (record,) = run(library, stream.format(function="hrtimer_wakeup", exit=EXIT))
    assert record["evidence"] == WakeEvidence.LOCAL_TIMER
    assert record["timer_function"] == machine.function_address("hrtimer_wakeup")
    assert record["next_tid"] == 77
    assert record["flags"] & Flag.WAKER and record["waker_context"] == WakerContext.TIMER
    assert record["waker_timer_function"] == machine.function_address("hrtimer_wakeup")
    assert mechanisms(np.array([record]))[0] == TIMER


@pytest.mark.parametrize("order", [("4800", "5400"), ("4800", "4700")])
def test_an_exit_with_nothing_but_the_tick(library: ctypes.CDLL, order: tuple[str, str]) -> None:
    handler, leave = order
    lines = sorted(
        [
            f"0 {handler} local_timer_entry",
            f"0 {int(handler) + 10} hrtimer_expire_entry tick_nohz_handler",
            f"0 {int(handler) + 20} hrtimer_expire_exit",
            f"0 {leave} idle {EXIT}",
        ],
        key=lambda line: int(line.split()[1]),
    )
    (record,) = run(library, "\n".join(lines))
    assert record["flags"] & Flag.NO_TASK and record["flags"] & Flag.TICK
    assert mechanisms(np.array([record]))[0] == TICK


# By the name of the case: events on CPUs 0 and 1 (CPU, µs, event), the fields of the record, and its mechanism.
WOKEN = "0 300 sched_switch 0 77"
STREAMS: dict[str, tuple[str, dict[str, int], int]] = {
    "nothing was seen": (f"0 200 idle {EXIT}; {WOKEN}", {"evidence": WakeEvidence.NONE}, UNKNOWN),
    "nothing woke the thread": (f"0 200 idle {EXIT}; {WOKEN} 3", {"flags": Flag.RUNNABLE}, UNKNOWN),
    "a timer has a better name than the tick": (
        "0 50 local_timer_entry; 0 51 hrtimer_expire_entry tick_nohz_handler; 0 52 hrtimer_expire_exit; "
        "0 53 hrtimer_expire_entry hrtimer_wakeup; 0 54 sched_waking 77 0; 0 55 hrtimer_expire_exit; "
        f"0 56 idle {EXIT}; {WOKEN}",
        {"timer_function": machine.function_address("hrtimer_wakeup")},
        TIMER,
    ),
    "another CPU wakes by an IPI": (
        f"1 50 sched_waking 77 4711; 0 51 call_function_single_entry; 0 52 idle {EXIT}; {WOKEN}",
        {"waker_tid": 4711, "waker_cpu": 1, "waker_context": WakerContext.TASK},
        IPI,
    ),
    "another CPU wakes without an IPI": (
        f"1 50 sched_waking 77 4711; 1 51 wake_idle_without_ipi 0; 0 52 idle {EXIT}; {WOKEN}",
        {"evidence": WakeEvidence.NO_IPI, "waker_tid": 4711},
        NO_IPI,
    ),
    "a device wakes through its softirq": (
        "0 50 irq_handler_entry 38; 0 51 irq_handler_exit; 0 52 softirq_entry 3; 0 53 sched_waking 77 0; "
        f"0 54 softirq_exit; 0 56 idle {EXIT}; {WOKEN}",
        {"evidence": WakeEvidence.DEVICE, "irq": 38, "waker_context": WakerContext.SOFTIRQ, "waker_irq": 3},
        MECHANISMS.index("device"),
    ),
    "an interrupt of a busy CPU is the waker, and not its task": (
        "1 40 irq_handler_entry 38; 1 41 sched_waking 77 4711; 1 42 irq_handler_exit; "
        f"0 51 call_function_single_entry; 0 52 idle {EXIT}; {WOKEN}",
        {"waker_context": WakerContext.DEVICE, "waker_irq": 38},
        IPI,
    ),
    "arm64: the tracepoint of an IPI comes from its handler": (
        "1 40 sched_waking 77 4711; 0 50 irq_handler_entry 2; 0 51 ipi_entry; 0 52 irq_handler_exit; "
        f"0 56 idle {EXIT}; {WOKEN}",
        {"evidence": WakeEvidence.RESCHEDULE},
        IPI,
    ),
    "arm64: a timer has an interrupt number": (
        "0 50 irq_handler_entry 11; 0 51 hrtimer_expire_entry tick_nohz_handler; 0 52 hrtimer_expire_exit; "
        f"0 53 irq_handler_exit; 0 56 idle {EXIT}",
        {"evidence": WakeEvidence.LOCAL_TIMER},
        TICK,
    ),
    "a timer follows the handler of a device": (
        "0 50 irq_handler_entry 38; 0 51 irq_handler_exit; 0 52 hrtimer_expire_entry hrtimer_wakeup; "
        f"0 53 hrtimer_expire_exit; 0 56 idle {EXIT}",
        {"evidence": WakeEvidence.DEVICE, "irq": 38},
        MECHANISMS.index("device"),
    ),
}


@pytest.mark.parametrize("case", STREAMS)
def test_evidence_waker_and_mechanism_of_an_exit(library: ctypes.CDLL, case: str) -> None:
    text, fields, mechanism = STREAMS[case]
    (record,) = in_state(library, 1, text.replace("; ", "\n"))
    masks = {"flags": Flag.RUNNABLE | Flag.WAKER | Flag.SITE}
    assert {name: int(record[name]) & masks.get(name, -1) for name in fields} == fields
    assert mechanisms(np.array([record])).tolist() == [mechanism]


@pytest.mark.parametrize(
    ("preempted", "state", "asleep"),
    [(0, 1, True), (0, 2, True), (0, 0, False), (0, 0x80, False), (1, 0, False), (1, 1, False), (1, 2, False)],
)
def test_a_thread_that_is_preempted_or_dead_is_no_sleeper_whatever_state_it_has_set(
    library: ctypes.CDLL, preempted: int, state: int, asleep: bool
) -> None:
    assert bool(library.sleeps(preempted, state)) is asleep


def test_states_of_two_cpus_share_no_pair_of_cache_lines(library: ctypes.CDLL) -> None:
    used = library.gap_offset()
    assert library.state_bytes() - used >= 128
    # Their totals lie in a table that begins at a page.
    assert library.total_bytes() % 128 == 0


def test_the_load_meter_is_told_how_long_the_cpu_idled_whether_its_exit_was_seen_or_not(library: ctypes.CDLL) -> None:
    state = ctypes.create_string_buffer(library.state_bytes())
    period = ctypes.create_string_buffer(library.record_bytes())
    library.enter(state, ctypes.c_uint64(1_000), 0, 1, period)
    library.leave(state, ctypes.c_uint64(5_000))
    library.switch_to(state, ctypes.c_uint64(6_000), 7, ctypes.c_uint64(0), None)
    library.enter(state, ctypes.c_uint64(10_000), 0, 1, period)
    library.switch_to(state, ctypes.c_uint64(10_500), 7, ctypes.c_uint64(0), None)
    assert np.frombuffer(state.raw, dtype=idle_data.CPU_STATE)[0]["idled_ns"] == 4_500


def test_a_poll_that_nothing_ended_came_to_its_own_end(library: ctypes.CDLL) -> None:
    """poll_idle() gives up after a while and the governor chooses again: nobody runs in between."""
    exits = machine.Machine(library).run(
        [(0, 10**9 + at, "idle", (str(state),)) for at, state in [(0, 0), (50_000, EXIT), (51_000, 1), (90_000, EXIT)]]
        + [(0, 10**9 + 91_000, "idle", ("0",))]
    )
    assert exits["state"].tolist() == [0, 1]
    assert (exits["evidence"] == WakeEvidence.NONE).all()
    states = {0: ["POLL", "C1"], 1: ["POLL", "C1"]}
    # What ended C1 without a trace stays unknown.
    assert causes.classify_exits(build_cause_keys(exits), states).tolist() == [TIMER, UNKNOWN]
    assert causes.classify_exits(build_cause_keys(exits)).tolist() == [UNKNOWN, UNKNOWN]


@pytest.fixture
def polling(library: ctypes.CDLL) -> Iterator[None]:
    """State 0 is a poll."""
    library.poll_states(1)
    yield
    library.poll_states(0)


def in_state(library: ctypes.CDLL, state: int, text: str) -> np.ndarray:
    """Records of a hand-written stream (CPU, µs, event) after an idle entry into this state."""
    lines = [f"0 0 idle {state}", *text.strip().splitlines(), "0 900 idle 1"]
    words = [line.split() for line in lines]
    return machine.Machine(library).run(
        [(int(cpu), 10**9 + int(at) * 1000, name, tuple(more)) for cpu, at, name, *more in words]
    )


TICK_AT_10 = "0 10 local_timer_entry\n0 10 hrtimer_expire_entry tick_nohz_handler\n0 11 hrtimer_expire_exit\n"
POLLS = {
    "another CPU sets the flag": (
        f"1 100 sched_waking 77 4711\n1 100 wake_idle_without_ipi 0\n0 101 idle {EXIT}",
        NO_IPI,
    ),
    "the same, unseen": (f"1 100 sched_waking 77 4711\n0 101 idle {EXIT}", NO_IPI),
    "an IPI comes in the end": (
        f"1 100 sched_waking 77 4711\n0 101 call_function_single_entry\n0 101 idle {EXIT}",
        IPI,
    ),
    "a timer wakes its sleeper, and a device follows": (
        "0 100 local_timer_entry\n0 100 hrtimer_expire_entry hrtimer_wakeup\n0 101 sched_waking 77 0\n"
        f"0 102 hrtimer_expire_exit\n0 102 irq_handler_entry 38\n0 103 irq_handler_exit\n0 104 idle {EXIT}",
        TIMER,
    ),
    "a device wakes another CPU's, then another CPU sets the flag": (
        "0 50 irq_handler_entry 38\n0 51 sched_waking 55 0\n0 52 irq_handler_exit\n"
        f"1 100 sched_waking 77 4711\n1 100 wake_idle_without_ipi 0\n0 101 idle {EXIT}",
        NO_IPI,
    ),
}


@pytest.mark.parametrize("case", POLLS)
def test_an_interrupt_does_not_end_a_poll(library: ctypes.CDLL, polling: None, case: str) -> None:
    """A tick early in the poll, which goes on: what ends it comes later."""
    text, expected = POLLS[case]
    (record,) = in_state(library, 0, f"{TICK_AT_10}{text}\n0 110 sched_switch 0 77")
    assert MECHANISMS[mechanisms(np.array([record]))[0]] == MECHANISMS[expected]
    assert record["next_tid"] == 77 and record["flags"] & Flag.WAKER and not record["flags"] & Flag.TICK


@pytest.mark.parametrize(
    "interrupt", ["", "0 60 irq_handler_entry 38\n0 61 sched_waking 55 0\n0 62 irq_handler_exit\n"]
)
def test_a_poll_that_nobody_ended_came_to_its_limit(library: ctypes.CDLL, polling: None, interrupt: str) -> None:
    (record,) = in_state(library, 0, f"{TICK_AT_10}{interrupt}0 200 idle {EXIT}\n0 201 local_timer_entry")
    assert (record["evidence"], record["woken_tid"]) == (WakeEvidence.NONE, 0)
    assert causes.classify_exits(build_cause_keys(np.array([record])), {0: ["POLL", "C1"]}).tolist() == [TIMER]


def test_a_halt_is_ended_by_the_first_interrupt(library: ctypes.CDLL, polling: None) -> None:
    text, _ = POLLS["another CPU sets the flag"]
    (record,) = in_state(library, 1, f"{TICK_AT_10}{text}\n0 110 sched_switch 0 77")
    assert mechanisms(np.array([record])).tolist() == [TICK]


def test_the_time_offline_is_nobody_s_running_time(library: ctypes.CDLL) -> None:
    state, period = (
        ctypes.create_string_buffer(library.state_bytes()),
        ctypes.create_string_buffer(library.record_bytes()),
    )
    for down_ns, next_ns in ((8_000, 8_000), (0, 90_000_000)):
        library.enter(state, ctypes.c_uint64(1_000), 0, 1, period)
        library.leave(state, ctypes.c_uint64(5_000))
        library.switch_to(state, ctypes.c_uint64(5_100), 19, ctypes.c_uint64(0), None)
        if down_ns:
            library.down(state, ctypes.c_uint64(7_000))
            library.down(state, ctypes.c_uint64(down_ns))
        assert library.enter(state, ctypes.c_uint64(90_000_000), 0, 1, period)
        assert np.frombuffer(period.raw, dtype=IDLE_EXIT)["next_ns"] == next_ns


@pytest.mark.parametrize(
    ("waking", "switch", "is_cause"),
    [
        (("5",), "5", True),
        (("5",), "6", False),  # it ran, and was switched out: throttled, or moved
        (("5", "1"), "6", True),  # woken on its way out, before that switch was counted
        (("5", "1"), "5", True),
        (("5", "1"), "7", False),
    ],
)
@pytest.mark.parametrize("age_ns", [0, 50_000_000])
def test_a_waking_is_the_cause_until_the_thread_is_switched_out_again(
    library: ctypes.CDLL, waking: tuple[str, ...], switch: str, is_cause: bool, age_ns: int
) -> None:
    """However long ago it was: by the thread's own switches, no clock."""
    events = [
        (1, 10**9 - age_ns, "sched_waking", ("77", "4711", *waking)),
        (0, 10**9 + 100, "idle", ("1",)),
        (0, 10**9 + 5000, "reschedule_entry", ()),
        (0, 10**9 + 5100, "idle", (EXIT,)),
        (0, 10**9 + 5200, "sched_switch", ("0", "77", switch)),
        (0, 10**9 + 6000, "idle", ("1",)),
    ]
    (record,) = machine.Machine(library).run(sorted(events, key=lambda event: event[1]))
    assert bool(record["flags"] & Flag.WAKER) == is_cause
    assert bool(record["flags"] & Flag.RUNNABLE) != is_cause
    assert record["next_tid"] == 77
    assert build_cause_keys(np.array([record]))["flags"][0] & Flag.RUNNABLE == record["flags"] & Flag.RUNNABLE


# How a thread left the CPU that then idles: it slept and was woken (at once, or on its way out), or it was runnable all
# the time (throttled by a quota, or preempted and moved).
_LIVES = st.lists(
    st.tuples(
        st.sampled_from(["woken", "woken on its way out", "throttled", "moved"]),
        st.integers(1, 5_000_000),  # ns that it ran
        st.integers(1, 5_000_000),  # … and was away
    ),
    min_size=1,
    max_size=20,
)


def life(steps: list[tuple[str, int, int]]) -> tuple[list[machine.Event], list[bool]]:
    """Return a thread's events on CPU 0, which idles while it is away, and whether it was woken each time."""
    events: list[machine.Event] = [(0, 10**9, "idle", ("1",))]
    truth, at = [], 10**9
    for switches, (how, ran_ns, away_ns) in enumerate(steps):
        left_ns, enter_ns, back_ns = at + ran_ns, at + ran_ns + 10, at + ran_ns + 10 + away_ns + 200
        if how == "woken on its way out":
            events.append((1, left_ns, "sched_waking", ("77", "4711", str(switches), "1")))
        events.append((0, enter_ns, "idle", ("1",)))
        if how == "woken":
            events.append((1, back_ns - 100, "sched_waking", ("77", "4711", str(switches + 1))))
        events += [(0, back_ns - 50, "idle", (EXIT,)), (0, back_ns, "sched_switch", ("0", "77", str(switches + 1)))]
        truth.append(how.startswith("woken"))
        at = back_ns
    events.append((0, at + 1, "idle", ("1",)))
    return events, truth


@settings(max_examples=100, deadline=None)
@given(_LIVES)
def test_who_was_throttled_or_moved_was_not_woken(library: ctypes.CDLL, steps: list[tuple[str, int, int]]) -> None:
    """Whatever it did before, and however short it ran since it was woken."""
    events, truth = life(steps)
    records = machine.Machine(library).run(events)
    assert [bool(flags & Flag.WAKER) for flags in records["flags"]] == truth
    assert [not flags & Flag.RUNNABLE for flags in records["flags"]] == truth
    assert not np.any(records["waker_tid"][records["flags"] & Flag.RUNNABLE != 0])


class Busy:
    """A CPU that idled once and runs a task since."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.c = library
        self.state = ctypes.create_string_buffer(library.state_bytes())
        period = ctypes.create_string_buffer(library.record_bytes())
        library.enter(self.state, ctypes.c_uint64(1_000), 0, 1, period)
        library.switch_to(self.state, ctypes.c_uint64(2_000), 7, ctypes.c_uint64(0), None)

    def context(self, *, in_interrupt: bool = False) -> WakerContext:
        return WakerContext(self.c.context(self.state, int(in_interrupt)))


def test_a_softirq_on_a_busy_cpu_is_whose_that_raised_it(library: ctypes.CDLL) -> None:
    """Raised in an IPI without a handler's event, or by the task that sends: the same softirq, another waker."""
    busy = Busy(library)
    for in_interrupt, context in ((1, WakerContext.SOFTIRQ), (0, WakerContext.TASK), (1, WakerContext.SOFTIRQ)):
        library.raise_softirq(busy.state, 3, in_interrupt)
        assert busy.context() == WakerContext.TASK
        library.softirq(busy.state, 3)
        assert busy.context() == context
        # What it raises itself has the same origin.
        library.raise_softirq(busy.state, 5, 0)
        library.softirq_end(busy.state)
        assert busy.context() == WakerContext.TASK
        library.softirq(busy.state, 5)
        assert busy.context() == context
        library.softirq_end(busy.state)


def test_a_thread_that_injects_idle_time_is_what_ran(library: ctypes.CDLL) -> None:
    """It goes idle itself and is switched out without a switch from the idle task: the period ends there."""
    state = ctypes.create_string_buffer(library.state_bytes())
    period = ctypes.create_string_buffer(library.record_bytes())
    library.enter(state, ctypes.c_uint64(1_000), 0, 1, period)
    library.leave(state, ctypes.c_uint64(5_000))
    assert library.context(state, 0) == WakerContext.INTERRUPT
    library.ran(state, ctypes.c_uint64(6_000), 55)
    assert library.context(state, 0) == WakerContext.TASK
    assert library.enter(state, ctypes.c_uint64(10_000), 0, 1, period)
    (record,) = np.frombuffer(period.raw, dtype=IDLE_EXIT)
    assert (record["next_tid"], record["exit_ns"], record["next_ns"]) == (55, 5_000, 10_000)
    assert not record["flags"] & (Flag.WAKER | Flag.RUNNABLE | Flag.NO_TASK)


def test_an_interrupt_that_no_event_shows_is_no_task(library: ctypes.CDLL) -> None:
    assert Busy(library).context(in_interrupt=True) == WakerContext.INTERRUPT


def test_the_thread_of_a_handler_is_woken_by_its_device(library: ctypes.CDLL) -> None:
    """Where handlers are threads the waking comes behind irq_handler_exit."""
    busy = Busy(library)
    for returned, context in ((2, WakerContext.DEVICE), (1, WakerContext.TASK)):
        library.hardirq(busy.state, 38)
        library.hardirq_end(busy.state, returned)
        assert busy.context() == context
        assert busy.context() == WakerContext.TASK


def test_the_period_cut_by_the_start_is_not_reported(library: ctypes.CDLL) -> None:
    events = [(0, 10**9, "idle", (EXIT,)), (0, 10**9 + 10, "sched_switch", ("0", "5")), (0, 10**9 + 20, "idle", ("1",))]
    assert len(machine.Machine(library).run(events)) == 0


def test_the_running_time_that_followed_is_part_of_the_record(library: ctypes.CDLL) -> None:
    (record,) = run(library, HLT.format(function="hrtimer_wakeup", exit=EXIT))
    assert int(record["next_ns"] - record["exit_ns"]) == 900000 - 5400
    assert record["sequence"] == 1
