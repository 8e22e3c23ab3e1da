# SPDX-License-Identifier: Apache-2.0
"""Stacks by their sites."""

from __future__ import annotations

from typing import Any

from powerprof.attribution.sites import NamedStack, SiteStacks, StackMemo
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import X86_64
from powerprof.stacks.store import TableStore
from powerprof.tracing.bpf.shared_numbers import CODE_NEWBORN, CODE_WORKER, StackKind
from powerprof.tracing.idle_data import SavedSite, SleepingStack
from tests.unit.attribution.captures import PID, capture, exits, own_timer

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
