# SPDX-License-Identifier: Apache-2.0
"""One process's unwind tables in one drgn program, and the walk over saved bytes.

Drgn unwinds from an object named `struct pt_regs` whose bytes alone matter, and reads memory by a callback: the saved
stack, and nothing else. The modules are `extra` ones, whose load address is what their address range says.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import Machine
from powerprof.stacks.store import TableStore
from powerprof.stacks.tables import UnwindTable, elf_image, sealed_file

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


def load() -> None:
    """Load drgn, for forks to find it."""
    import drgn  # noqa: F401


class Walker:
    """Unwinds stacks of one process image. Tables are read when a walk first meets their module."""

    def __init__(self, image: ProcessImage, store: TableStore, machine: Machine) -> None:
        import drgn

        self.image = image
        self._machine = machine
        self._store = store
        self._modules: dict[int, _Module] = {}
        self.loading_s = 0.0
        self._stack = b""
        self._sp = 0
        self._reads: list[tuple[int, bytes]] = []
        self._fault: int | None = None
        self._fault_error: type[Exception] = drgn.FaultError
        self._program = drgn.Program(drgn.Platform(drgn.Architecture[machine.drgn]))
        self._program.add_memory_segment(0, (1 << 64) - 1, self._read, False)
        byte = self._program.int_type("unsigned char", 1, False)
        size = machine.register_bytes
        member = drgn.TypeMember(self._program.array_type(byte, size), "data")
        self._pt_regs = self._program.struct_type("pt_regs", size, (member,))
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
            # Two mappings of one file may be told apart only by their addresses.
            module = self._program.extra_module(f"{mapping.path}@{mapping.start:x}", id=mapping.start, create=True)
            # The range sets the bias when the file is added; afterwards only the mapping itself is the module's.
            module.address_range = (table.low + bias, table.high + bias)
            module.try_file(mapping.path, fd=sealed_file(elf_image(table), mapping.module), force=True)
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
        registers = self._machine.unsigned(registers)
        pcs: list[int] = []
        exact: list[bool] = []
        why: str | None = None
        complete = False
        try:
            trace = self._program.stack_trace(self._object.from_bytes_(self._program, self._pt_regs, registers))
        except self._drgn_errors as error:
            # A damaged unwind table: the innermost pc needs none.
            ip = self._machine.words(registers)[self._machine.ip]
            text = str(error).partition("\n")[0] or "damaged unwind table"
            reason = text.replace(_MEMORY_FILE, "").replace(" (deleted)", "")
            return Unwound((ip,), False, f"cannot be unwound ({reason[:200]})", (True,))
        last: Mapping | None = None
        for frame in trace:
            pc = _pc(frame)
            if not pc:
                break
            interrupted = bool(frame.interrupted)
            at = pc if interrupted else pc - 1
            mapping = self.image.mapping_at(at)
            if mapping is None:
                why = f"address {pc:#x} is in no executable mapping"
                if pcs:
                    break
            pcs.append(pc)
            exact.append(interrupted)
            if mapping is None:
                break
            last = mapping
            if self._module(mapping).is_bottom(at):
                complete = True
                break
        if not complete and why is None:
            why = self._why(last, len(pcs))
        elif not complete and last is not None and self._module(last).why_not:
            why = f"{why} after {last.module}: {self._module(last).why_not}"
        return Unwound(tuple(pcs), complete, None if complete else why, tuple(exact))

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
