# SPDX-License-Identifier: Apache-2.0
"""Stacks by their sites, and Python functions in the place of the C function that runs them."""

from __future__ import annotations

from typing import Any

from powerprof.attribution.sites import Call, NamedStack, SiteStacks, StackMemo, merge_calls, split_runs
from powerprof.model.attribution import StackFrame
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.interpreter import PythonFrame
from powerprof.stacks.registers import X86_64
from powerprof.stacks.store import TableStore
from powerprof.tracing.bpf.shared_numbers import CODE_NEWBORN, CODE_WORKER, StackKind
from powerprof.tracing.idle_data import SavedSite, SleepingStack
from tests.unit.attribution.captures import PID, capture, exits, own_timer

LOOP = "_PyEval_EvalFrameDefault"


def calls(*names: str) -> list[Call]:
    return [
        (at, (StackFrame(function=name, module="python3", address=f"{at:#x}"),)) for at, name in enumerate(names, 1)
    ]


def frame(name: str, *, begins: bool = False, is_shim: bool = False) -> PythonFrame:
    return PythonFrame(1, 0x1000, 0x2000, name, f"/srv/{name}.py", 7, begins, is_shim)


def names(merged: list[Call] | None) -> list[str] | None:
    return None if merged is None else [one.label for _, frames in merged for one in frames]


def test_each_interpreter_loop_is_replaced_by_its_functions() -> None:
    stack = calls("nanosleep", "time_sleep", LOOP, "gen_iternext", f"{LOOP}.cold", "thread_run", "clone3")
    expected = [
        "nanosleep",
        "time_sleep",
        "a (a.py:7)",
        "b (b.py:7)",
        "gen_iternext",
        "c (c.py:7)",
        "thread_run",
        "clone3",
    ]
    first = [frame("a"), frame("b", begins=True), frame("c", begins=True)]
    assert names(merge_calls(stack, split_runs(first, whole=True), complete=True)) == expected
    shim = frame("", begins=True, is_shim=True)
    later = [frame("a"), frame("b"), shim, frame("c"), shim]
    assert names(merge_calls(stack, split_runs(later, whole=True), complete=True)) == expected


def test_inconsistent_chain_is_left_out() -> None:
    chain = [frame("a", begins=True), frame("b", begins=True)]
    assert merge_calls(calls("x", LOOP, "clone3"), split_runs(chain, whole=True), complete=True) is None
    assert merge_calls(calls("x", LOOP, LOOP, LOOP, "clone3"), split_runs(chain, whole=True), complete=True) is None


def test_truncated_chain_or_stack_is_merged() -> None:
    chain = [frame("a", begins=True), frame("b", begins=True)]
    assert names(merge_calls(calls("x", LOOP), split_runs(chain, whole=True), complete=False)) == [
        "x",
        "a (a.py:7)",
        "b (b.py:7)",
    ]
    cut = split_runs(chain[:1], whole=False)
    assert names(merge_calls(calls("x", LOOP, LOOP, "y"), cut, complete=True)) == ["x", "a (a.py:7)", LOOP, "y"]


def test_unnamed_python_frame_has_its_address() -> None:
    unknown = PythonFrame(1, 0x1000, 0x2000 | 1 << 56, begins=True)
    assert names(merge_calls(calls(LOOP), split_runs([unknown], whole=True), complete=True)) == ["[Python] 0x2000"]


def test_shim_keeps_the_loop_frame() -> None:
    shim = frame("", begins=True, is_shim=True)
    assert names(merge_calls(calls("x", LOOP, "clone3"), split_runs([shim], whole=True), complete=True)) == [
        "x",
        LOOP,
        "clone3",
    ]
    assert names(merge_calls([], split_runs([frame("a", begins=True)], whole=True), complete=False)) == ["a (a.py:7)"]


# Code of a JIT compiler, which has no file: its frame pointers are followed.
CODE, SP = 0x10000, 0x7000
REGISTERS = X86_64.pack({"ip": CODE + 0x10, "sp": SP, "bp": SP + 0x10})
STACK = b"".join(
    word.to_bytes(8, "little")
    for word in (1, 2, SP + 0x20, CODE + 0x100, SP + 0x40, CODE + 0x200, 5, 6, 0, CODE + 0x300, 7, 8)
)
KEY = (101, CODE + 0x10, SP, 0x999)


def image(start: int = CODE, **more: Any) -> ProcessImage:
    mapping = Mapping(start=start, end=start + 0x1000, offset=0, path="", device="00:00", inode=0)
    return ProcessImage(pid=PID, started_ticks=1, executable="/usr/bin/js", mappings=(mapping,), **more)


def site(**more: Any) -> SavedSite:
    values = {"at_ns": 1, "pid": PID, "tid": 101, "kind": StackKind.SLEEPER, "ip": KEY[1], "sp": SP, "code": KEY[3]}
    return SavedSite(**({"registers": REGISTERS, "stack": STACK} | values | more))


def stacks_of(**more: Any) -> SiteStacks:
    values = {"images": [image()], "sites": [site()]} | more
    return SiteStacks(capture(exits(own_timer(101)), **values), TableStore(use_cache=False, downloads=False))


def outcomes(stacks: SiteStacks) -> tuple[int, int, int, int]:
    tally = stacks.tally
    return tally.captured, tally.complete, tally.truncated, tally.failed


def test_stack_of_a_site() -> None:
    stacks = stacks_of()
    found = stacks.find(StackKind.SLEEPER, PID, KEY)
    assert found.pcs == (CODE + 0x10, CODE + 0x100, CODE + 0x200, CODE + 0x300)
    assert (found.complete, found.captured) == (False, True) and outcomes(stacks) == (1, 0, 1, 0)
    assert stacks.find(StackKind.SLEEPER, PID, KEY) is found and outcomes(stacks) == (1, 0, 1, 0)
    assert [frame.address for frame in found.frames] == [f"{pc:#x}" for pc in found.pcs]


def test_longest_walk_wins_if_the_program_is_unknown() -> None:
    """The process executed another program. Only with a known start of its stack is its image known."""
    later = image(0x80000, space=SP + 0x1000)
    for images in ([image(space=SP + 0x2000), later], [later, image(space=SP + 0x2000)]):
        assert len(stacks_of(images=images).find(StackKind.SLEEPER, PID, KEY).pcs) == 4
        known = stacks_of(images=images, sites=[site(space=later.space)])
        assert known.find(StackKind.SLEEPER, PID, KEY).pcs == (CODE + 0x10,)


def test_stack_without_bytes_failed_and_is_not_truncated() -> None:
    stacks = stacks_of(sites=[])
    found = stacks.find(StackKind.SLEEPER, PID, KEY)
    assert (found.pcs, found.complete, found.captured) == ((CODE + 0x10,), False, False)
    assert outcomes(stacks) == (0, 0, 0, 1)
    gone = stacks_of(images=[], sites=[])
    assert gone.find(StackKind.SLEEPER, PID, KEY).reason == "the process is gone"
    assert outcomes(gone) == (0, 0, 0, 1)


def test_first_instruction_of_a_thread_is_a_whole_stack() -> None:
    stacks = stacks_of()
    found = stacks.find(StackKind.SLEEPER, PID, (101, CODE + 0x10, SP, CODE_NEWBORN))
    assert (found.pcs, found.complete) == ((CODE + 0x10,), True) and outcomes(stacks) == (1, 1, 0, 0)
    worker = stacks.find(StackKind.SLEEPER, PID, (101, 0, 0, CODE_WORKER))
    assert worker.frames == () and outcomes(stacks) == (1, 1, 0, 0)


def test_sleeper_before_the_window_has_its_later_registers() -> None:
    registers = site(kind=StackKind.REGISTERS, stack=b"", code=0)
    asleep = SleepingStack(PID, 101, KEY[1], SP, STACK)
    stacks = stacks_of(sites=[registers], sleeping=[asleep])
    assert len(stacks.find(StackKind.SLEEPER, PID, (*KEY[:3], 0)).pcs) == 4
    assert len(stacks_of(sites=[registers]).find(StackKind.SLEEPER, PID, (*KEY[:3], 0)).pcs) == 1


def test_threads_that_sleep_at_one_place_share_its_bytes() -> None:
    stacks = stacks_of()
    assert len(stacks.find(StackKind.SLEEPER, PID, (102, *KEY[1:])).pcs) == 4
    assert not stacks.find(StackKind.SLEEPER, PID, (102, KEY[1], SP + 8, KEY[3])).captured


def test_least_recently_used_stacks_are_evicted() -> None:
    memo = StackMemo(most=2)
    stack = NamedStack((1,), (), True, None)
    first, second, third = ((0, PID, 1, (tid, 1, 2, 3)) for tid in (1, 2, 3))
    memo.put(first, stack)
    memo.put(second, stack)
    assert memo.get(first) == stack
    memo.put(third, stack)
    assert (memo.get(first), memo.get(second), memo.get(third)) == (stack, None, stack)


def test_notes_count_the_reasons_of_cut_stacks() -> None:
    stacks = stacks_of(sites=[])
    for tid in (101, 102, 103):
        stacks.find(StackKind.SLEEPER, PID, (tid, *KEY[1:]))
    assert stacks.notes()[-1] == "3 stacks cut short: its bytes were not copied (3)"
    names = stacks.export_names()
    assert [(named.tid, named.captured, named.frames) for named in names.sites] == [
        (101, False, [0]),
        (102, False, [0]),
        (103, False, [0]),
    ]
    restored = stacks_of(sites=[], named=names)
    assert restored.find(StackKind.SLEEPER, PID, KEY) == stacks.find(StackKind.SLEEPER, PID, KEY)
    assert outcomes(restored) == (0, 0, 0, 3)
