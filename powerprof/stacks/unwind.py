# SPDX-License-Identifier: Apache-2.0
"""Saved registers and stack bytes → return addresses, offline, each distinct stack once."""

from __future__ import annotations

import time
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import STACK_LIMIT_BYTES, Machine, SavedStack, machine_of, this_machine
from powerprof.stacks.store import TableStore
from powerprof.stacks.uncovered import Caller, CodeUnwinder
from powerprof.stacks.unwind_tables import UnwindTable, build_elf_image, create_sealed_file
from powerprof.system.errors import DataError

# One process's unwind tables in one drgn program, and the walk over saved bytes.
#
# Drgn unwinds from an object named `struct pt_regs` whose bytes alone matter, and reads memory by a callback: the saved
# stack, and nothing else. The modules are `extra` ones, whose load address is what their address range says.

MAX_FRAMES = 1024
# How drgn names a sealed memory file.
_MEMORY_FILE = "/memfd:"


@dataclass(frozen=True)
class Unwound:
    """The frames of a stack, innermost first. `exact[i]` tells an interrupted pc from a return address.

    `complete` where the walk reached the start of the thread or program; else `reason` says why it stopped.
    """

    pcs: tuple[int, ...]
    complete: bool
    reason: str | None
    exact: tuple[bool, ...]


@dataclass(frozen=True)
class _Module:
    table: UnwindTable | None
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    why_not: str | None

    def is_bottom(self, address: int) -> bool:
        at = bisect_right(self.starts, address) - 1
        return at >= 0 and address < self.ends[at]


@dataclass
class _FramesFound:
    """The frames of a walk so far, and why it stopped."""

    pcs: list[int] = field(default_factory=list)
    exact: list[bool] = field(default_factory=list)
    last: Mapping | None = None
    complete: bool = False
    why: str | None = None

    def add(self, pc: int, exact: bool, mapping: Mapping | None) -> None:
        """One frame more."""
        self.pcs.append(pc)
        self.exact.append(exact)
        self.last = mapping or self.last


def load_drgn() -> None:
    """Load drgn, for forks to find it."""
    import drgn  # noqa: F401


class Walker:
    """Unwinds stacks of one process image. Tables are read when a walk first meets their module."""

    def __init__(self, image: ProcessImage, store: TableStore, machine: Machine) -> None:
        import drgn

        self.image = image
        self._machine = machine
        self._store = store
        self._uncovered = CodeUnwinder(image, store, machine)
        self._modules: dict[int, _Module] = {}
        self.loading_s = 0.0
        # Of the tables that drgn was given.
        self.held_bytes = 0
        self._stack = b""
        self._sp = 0
        self._reads: list[tuple[int, bytes]] = []
        self._fault: int | None = None
        self._fault_error: type[Exception] = drgn.FaultError
        self._program = drgn.Program(drgn.Platform(drgn.Architecture[machine.drgn]))
        # Weakly: drgn would hold us as we hold it, and its tables would stay until cycles are collected.
        read = weakref.WeakMethod(self._read)

        def read_saved(address: int, count: int, offset: int, physical: bool) -> bytes:
            saved = read()
            return b"" if saved is None else saved(address, count, offset, physical)

        self._program.add_memory_segment(0, (1 << 64) - 1, read_saved, False)
        # Without members: the program holds those, and they hold it.
        self._pt_regs = self._program.struct_type("pt_regs", machine.register_bytes, ())
        self._object = drgn.Object
        self._drgn_errors: tuple[type[Exception], ...] = (
            drgn.FaultError,
            drgn.BadDataError,
            LookupError,
            ValueError,
            OSError,
            OverflowError,
        )

    def _read(self, address: int, count: int, _offset: int, _physical: bool) -> bytes:
        at = address - self._sp
        if at < 0 or at + count > len(self._stack):
            # The first is why the walk went astray; what drgn then tries by frame pointers may lie anywhere.
            self._fault = address if self._fault is None else self._fault
            raise self._fault_error("not copied", address)
        data = self._stack[at : at + count]
        self._reads.append((at, data))
        return self._unsigned(data) if self._machine.link is not None else data

    def _unsigned(self, data: bytes) -> bytes:
        """A saved return address without its signature (pointer authentication); anything else as it is."""
        if len(data) != 8:
            return data
        value = int.from_bytes(data, "little")
        address = value & self._machine.address_mask
        if value == address or self.image.mapping_at(address) is None:
            return data
        return address.to_bytes(8, "little")

    def load_all(self) -> tuple[str, ...]:
        """Read every module's table; returns `module: reason` of those that have none."""
        for mapping in self.image.mappings:
            self._module(mapping)
        return tuple(
            f"{mapping.module}: {self._modules[mapping.start].why_not}"
            for mapping in self.image.mappings
            if mapping.inode and self._modules[mapping.start].why_not
        )

    def _module(self, mapping: Mapping) -> _Module:
        known = self._modules.get(mapping.start)
        if known is None:
            began_s = time.thread_time()
            known = self._modules[mapping.start] = self._load(mapping)
            self.loading_s += time.thread_time() - began_s
        return known

    def _load(self, mapping: Mapping) -> _Module:
        table = self._store.unwind_table(self.image, mapping)
        if isinstance(table, str):
            return _Module(None, (), (), table)
        bias = mapping.bias or 0
        bottoms = tuple((low + bias, high + bias) for low, high in table.bottoms)
        starts, ends = tuple(low for low, _ in bottoms), tuple(high for _, high in bottoms)
        if table.missing:
            return _Module(None, starts, ends, table.missing)
        try:
            # Two mappings of one file may differ only by their addresses.
            module = self._program.extra_module(f"{mapping.path}@{mapping.start:x}", id=mapping.start, create=True)
            # The range sets the bias when the file is added; afterwards only the mapping itself is the module's.
            module.address_range = (table.low + bias, table.high + bias)
            file = build_elf_image(table)
            self.held_bytes += len(file)
            module.try_file(mapping.path, fd=create_sealed_file(file, mapping.module), force=True)
            module.address_ranges = [(mapping.start, mapping.end)]
            if module.loaded_file_bias != bias:
                return _Module(None, starts, ends, "its unwind table was refused")
        except self._drgn_errors as error:
            return _Module(None, starts, ends, f"its unwind table was refused ({error})")
        return _Module(table, starts, ends, None)

    def walk(self, registers: bytes, sp: int, stack: bytes) -> tuple[Unwound, tuple[tuple[int, bytes], ...]]:
        """One stack and the words of it that were read."""
        while True:
            known = len(self._modules)
            result = self._walk_once(registers, sp, stack)
            # A module met for the first time had no table in that walk: frame pointers may have led it astray.
            if len(self._modules) == known:
                return result, tuple(self._reads)

    def _walk_once(self, registers: bytes, sp: int, stack: bytes) -> Unwound:
        self._stack, self._sp, self._reads, self._fault = stack, sp, [], None
        self._uncovered.begin()
        found = _FramesFound()
        frame: Caller | None = Caller(self._machine.by_name(self._machine.unsigned(registers)), True)
        while frame is not None and len(found.pcs) < MAX_FRAMES:
            mapping = self._place(found, frame.registers.get("pc", 0), frame.exact)
            if mapping is None:
                break
            if self._is_covered(mapping, frame.registers["pc"] - (not frame.exact)):
                frame = self._by_tables(found, frame)
            else:
                frame = self._by_code(found, frame)
        return self._ended(found)

    def _place(self, found: _FramesFound, pc: int, exact: bool) -> Mapping | None:
        """The mapping of a frame to come; the innermost is kept wherever it lies."""
        if not pc:
            return None
        mapping = self.image.mapping_at(pc if exact else pc - 1)
        if mapping is None:
            found.why = f"address {pc:#x} is in no executable mapping"
            if not found.pcs:
                found.add(pc, exact, None)
        return mapping

    def _is_covered(self, mapping: Mapping, at: int) -> bool:
        module = self._module(mapping)
        return module.table is not None and module.table.covers(at - (mapping.bias or 0))

    def _by_code(self, found: _FramesFound, frame: Caller) -> Caller | None:
        """A frame that no table covers, and the one above it."""
        pc = frame.registers["pc"]
        at = pc if frame.exact else pc - 1
        mapping = self.image.mapping_at(at)
        found.add(pc, frame.exact, mapping)
        if mapping is not None and self._module(mapping).is_bottom(at):
            found.complete = True
            return None
        above = self._uncovered.caller(pc, frame.exact, frame.registers, self._word)
        if isinstance(above, Caller):
            return above
        found.complete = above is None
        found.why = above if above is not None and mapping is not None and not self._module(mapping).why_not else None
        return None

    def _by_tables(self, found: _FramesFound, frame: Caller) -> Caller | None:
        """The frames from this one on, up to the first that no table covers."""
        # Drgn takes the innermost pc for exact: that of a call is looked up one byte before, as it does further up.
        back = 0 if frame.exact else 1
        packed = self._machine.pack_names({**frame.registers, "pc": frame.registers["pc"] - back})
        try:
            trace = self._program.stack_trace(self._object.from_bytes_(self._program, self._pt_regs, packed))
        except self._drgn_errors as error:
            # A damaged unwind table: the innermost pc needs none.
            found.add(frame.registers["pc"], frame.exact, None)
            text = str(error).partition("\n")[0] or "damaged unwind table"
            reason = text.replace(_MEMORY_FILE, "").replace(" (deleted)", "")
            found.why = f"cannot be unwound ({reason[:200]})"
            return None
        for index, above in enumerate(trace):
            pc = _pc(above)
            exact = bool(above.interrupted)
            if index == 0:
                pc, exact = pc + back, frame.exact
            mapping = self._place(found, pc, exact)
            if mapping is None:
                return None
            at = pc if exact else pc - 1
            if index and not self._is_covered(mapping, at):
                return Caller({**above.registers(), "pc": pc}, exact)
            found.add(pc, exact, mapping)
            if self._module(mapping).is_bottom(at):
                found.complete = True
                return None
        return None

    def _ended(self, found: _FramesFound) -> Unwound:
        last = found.last
        why = found.why
        if not found.complete and why is None:
            why = self._why(last, len(found.pcs))
        elif not found.complete and last is not None and self._module(last).why_not:
            why = f"{why} after {last.module}: {self._module(last).why_not}"
        return Unwound(tuple(found.pcs), found.complete, None if found.complete else why, tuple(found.exact))

    def _word(self, address: int) -> int | None:
        """A word of the copied stack, as drgn reads it; None where it was not copied."""
        try:
            return int.from_bytes(self._read(address, 8, 0, False), "little")
        except self._fault_error:
            return None

    def _why(self, last: Mapping | None, frames: int) -> str:
        if last is None:
            return "no program counter"
        module = self._module(last)
        if frames >= MAX_FRAMES:
            return f"more than {MAX_FRAMES:,} frames"
        if module.why_not:
            return f"{last.module}: {module.why_not}"
        if self._fault is not None and self._fault >= self._sp + len(self._stack):
            return f"the copied stack ends after {len(self._stack):,} bytes"
        if self._fault is not None:
            return f"a frame of {last.module} points below the stack"
        return f"the unwind table of {last.module} leads no further"


def _pc(frame: Any) -> int:
    try:
        return int(frame.pc)
    except LookupError:
        return 0


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
