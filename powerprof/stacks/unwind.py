# SPDX-License-Identifier: Apache-2.0
"""Saved registers and stack bytes → return addresses, offline, each distinct stack once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from powerprof.errors import DataError
from powerprof.stacks.image import ProcessImage
from powerprof.stacks.registers import STACK_LIMIT_BYTES, Machine, SavedStack, machine_of, this_machine
from powerprof.stacks.store import TableStore
from powerprof.stacks.walker import Unwound, Walker

_MEMO_LIMIT = 20_000
_VARIANTS = 8
# What walkers hold at once: drgn keeps a copy of each module's table, the C library's once for each process.
_TABLES_BYTES = 16 << 20
# What a walker without any table costs.
_WALKER_BYTES = 64 << 10
_DEAR_WALK_S = 0.02


@dataclass(frozen=True)
class UnwindCounts:
    """What became of the stacks: captured = complete + truncated + failed; `walked` were not seen before."""

    captured: int = 0
    complete: int = 0
    truncated: int = 0
    failed: int = 0
    walked: int = 0


@dataclass(frozen=True)
class _WalkSeen:
    """A walk and the stack words that it read: another stack with the same words unwinds the same."""

    reads: tuple[tuple[int, bytes], ...]
    size: int
    result: Unwound


# Walks of one process by the registers that steer them.
_Memo = dict[tuple[int, ...], list[_WalkSeen]]


class Unwinder:
    """Unwinds the stacks of any number of processes and counts what became of them.

    `store` finds unwind tables; the default reads the processes' files and the user's cache. The tables of the
    processes that were walked longest ago are dropped beyond `tables_bytes`: they are read again where one comes back.
    """

    def __init__(self, store: TableStore | None = None, tables_bytes: int = _TABLES_BYTES) -> None:
        self.store = store or TableStore()
        self._tables_bytes = tables_bytes
        # The image is held beside its walker: an identity may be given again once its object is gone.
        self._walkers: OrderedDict[int, tuple[ProcessImage, Walker, _Memo]] = OrderedDict()
        self._captured = self._complete = self._truncated = self._failed = self._walked = 0

    @property
    def counts(self) -> UnwindCounts:
        """The counters now."""
        return UnwindCounts(self._captured, self._complete, self._truncated, self._failed, self._walked)

    def prepare(self, image: ProcessImage) -> tuple[str, ...]:
        """Read every module's unwind table now, while the process lives; returns what could not be read and why."""
        unread = self._walker(image, this_machine())[0].load_all()
        self._drop_oldest()
        return unread

    def unwind(self, image: ProcessImage, saved: SavedStack) -> Unwound:
        """The return addresses of one saved stack. Raises DataError where the registers are of another machine."""
        machine = machine_of(saved.registers)
        values = machine.words(saved.registers)
        stack = saved.stack[:STACK_LIMIT_BYTES]
        walker, memo = self._walker(image, machine)
        key = machine.steady(values)
        result = self._remembered(memo.get(key, ()), stack)
        if result is None:
            result, reads = self._walk(walker, image.pid, saved.registers, values, machine, stack)
            self._walked += 1
            self._drop_oldest()
            if len(memo) >= _MEMO_LIMIT:
                memo.clear()
            variants = memo.setdefault(key, [])
            if len(variants) < _VARIANTS:
                variants.append(_WalkSeen(reads, len(stack), result))
        self._captured += 1
        if result.complete:
            self._complete += 1
        elif len(result.pcs) > 1:
            self._truncated += 1
        else:
            self._failed += 1
        return result

    def _walk(
        self, walker: Walker, pid: int, registers: bytes, values: tuple[int, ...], machine: Machine, stack: bytes
    ) -> tuple[Unwound, tuple[tuple[int, bytes], ...]]:
        """Walks take 50 µs. Those that take much longer were made to, by their unwind table: they are paid for."""
        with self.store.budget.meter(pid) as meter:
            try:
                meter.take(0, "unwind table")
            except DataError as error:
                return Unwound((values[machine.ip],), False, error.reason, (True,)), ()
            began_s, loading_s = time.thread_time(), walker.loading_s
            frames = walker.walk(registers, values[machine.sp], stack)
            took_s = time.thread_time() - began_s - (walker.loading_s - loading_s)
            meter.charge_only(took_s if took_s > _DEAR_WALK_S else 0.0)
        return frames

    @staticmethod
    def _remembered(walks: Iterable[_WalkSeen], stack: bytes) -> Unwound | None:
        for seen in walks:
            # A walk that wanted bytes beyond its copy may get further in a longer one.
            if (seen.result.complete or seen.size == len(stack)) and all(
                stack[at : at + len(data)] == data for at, data in seen.reads
            ):
                return seen.result
        return None

    def _walker(self, image: ProcessImage, machine: Machine) -> tuple[Walker, _Memo]:
        """Of an image, and its walks."""
        known = self._walkers.get(id(image))
        if known is None:
            same = next((entry for entry in self._walkers.values() if entry[0] == image), None)
            walker, memo = same[1:] if same else (Walker(image, self.store, machine), _Memo())
            known = self._walkers[id(image)] = (image, walker, memo)
        self._walkers.move_to_end(id(image))
        return known[1:]

    def _drop_oldest(self) -> None:
        """The one that was used last stays, however large its tables are."""
        held = sum(walker.held_bytes + _WALKER_BYTES for _, walker, _ in self._walkers.values())
        while held > self._tables_bytes and len(self._walkers) > 1:
            _, (_, walker, _) = self._walkers.popitem(last=False)
            held -= walker.held_bytes + _WALKER_BYTES


def unwind(image: ProcessImage, registers: bytes, sp: int, stack: bytes, store: TableStore | None = None) -> Unwound:
    """One stack: `stack` are the bytes from `sp` up. See `Unwinder` for many."""
    walker = Walker(image, store or TableStore(), machine_of(registers))
    return walker.walk(registers, sp, stack[:STACK_LIMIT_BYTES])[0]
