# SPDX-License-Identifier: Apache-2.0
"""From saved registers and stack bytes to return addresses, offline; each distinct stack is unwound once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from powerprof.stacks.image import ProcessImage, is_same_code
from powerprof.stacks.registers import STACK_LIMIT_BYTES, Machine, SavedStack, machine_of
from powerprof.stacks.store import TableStore
from powerprof.stacks.walker import Unwound, Walker
from powerprof.system.errors import DataError

_MEMO_LIMIT = 20_000
_VARIANTS = 8
# Limit of all tables in memory: drgn keeps a copy of each module's table, the C library's once per process.
_TABLES_BYTES = 16 << 20
# Memory of a walker without any table.
_WALKER_BYTES = 64 << 10
_SLOW_WALK_S = 0.02


class _WalkSeen(msgspec.Struct, frozen=True):
    """A walk and the stack words that it read. Another stack with the same words has the same frames."""

    reads: tuple[tuple[int, bytes], ...]
    size: int
    result: Unwound


# Walks of one process by the registers on which they depend.
_Memo = dict[tuple[int, ...], list[_WalkSeen]]


class Unwinder:
    """Unwinds the stacks of any number of processes.

    `store` finds unwind tables; by default it reads the processes' files and the user's cache. Beyond `tables_bytes`
    the least recently used processes' tables are evicted. `walks_count` counts the stacks that were not seen before.
    """

    def __init__(self, store: TableStore | None = None, tables_bytes: int = _TABLES_BYTES) -> None:
        self.store = store or TableStore()
        self.walks_count = 0
        self._tables_bytes = tables_bytes
        # The image is stored next to its walker: the id of a deleted object can be used again.
        self._walkers: OrderedDict[int, tuple[ProcessImage, Walker, _Memo]] = OrderedDict()

    def unwind(self, image: ProcessImage, saved: SavedStack) -> Unwound:
        """Return the frames of one saved stack. Raises DataError if the registers are of another machine."""
        machine = machine_of(saved.registers)
        values = machine.words(saved.registers)
        stack = saved.stack[:STACK_LIMIT_BYTES]
        walker, memo = self._find_walker(image, machine)
        key = machine.stable(values)
        result = self._find_walk(memo.get(key, ()), stack)
        if result is None:
            result, reads = self._walk(walker, image.pid, saved.registers, values, machine, stack)
            self.walks_count += 1
            self._evict_oldest_walkers()
            if len(memo) >= _MEMO_LIMIT:
                memo.clear()
            variants = memo.setdefault(key, [])
            if len(variants) < _VARIANTS:
                variants.append(_WalkSeen(reads, len(stack), result))
        return result

    def _walk(
        self, walker: Walker, pid: int, registers: bytes, values: tuple[int, ...], machine: Machine, stack: bytes
    ) -> tuple[Unwound, tuple[tuple[int, bytes], ...]]:
        """Walk a stack. Walks take 50 µs; the time of much slower ones, made so by their tables, is charged."""
        with self.store.budget.meter(pid) as meter:
            try:
                meter.take(0, "unwind table")
            except DataError as error:
                return Unwound((values[machine.ip],), False, error.reason, (True,)), ()
            began_s, loading_s = time.thread_time(), walker.loading_s
            frames = walker.walk(registers, values[machine.sp], stack)
            took_s = time.thread_time() - began_s - (walker.loading_s - loading_s)
            meter.charge_only(took_s if took_s > _SLOW_WALK_S else 0.0)
        return frames

    @staticmethod
    def _find_walk(walks: Iterable[_WalkSeen], stack: bytes) -> Unwound | None:
        for seen in walks:
            # A walk that stopped at the end of its copy may get further in a longer one.
            if (seen.result.complete or seen.size == len(stack)) and all(
                stack[at : at + len(data)] == data for at, data in seen.reads
            ):
                return seen.result
        return None

    def _find_walker(self, image: ProcessImage, machine: Machine) -> tuple[Walker, _Memo]:
        """Return the walker of an image, and its walks."""
        entry = self._walkers.get(id(image))
        if entry is None:
            # A forked process has its parent's mappings, and a server may start hundreds of workers.
            same = (entry[1:] for entry in self._walkers.values() if is_same_code(entry[0], image))
            walker, memo = next(same, None) or (Walker(image, self.store, machine), _Memo())
            entry = self._walkers[id(image)] = (image, walker, memo)
        self._walkers.move_to_end(id(image))
        return entry[1:]

    def _evict_oldest_walkers(self) -> None:
        """Evict the least recently used walkers. The last one stays, whatever the size of its tables."""
        held = sum(walker.held_bytes + _WALKER_BYTES for walker in {walker for _, walker, _ in self._walkers.values()})
        while held > self._tables_bytes and len(self._walkers) > 1:
            _, (_, walker, _) = self._walkers.popitem(last=False)
            if all(walker is not other for _, other, _ in self._walkers.values()):
                held -= walker.held_bytes + _WALKER_BYTES
