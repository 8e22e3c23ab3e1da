# SPDX-License-Identifier: Apache-2.0
"""The unwind tables of one process in a drgn program, and the walk over saved bytes.

Drgn unwinds from an object of a type named `struct pt_regs`, of which only the bytes matter. A callback gives it the
saved stack and no other memory. The modules are `extra` ones: their address range determines their load address.
"""

from __future__ import annotations

import time
import weakref
from bisect import bisect_right
from typing import Any

import msgspec

from powerprof.stacks.drgn_library import load_drgn
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import Machine
from powerprof.stacks.store import TableStore
from powerprof.stacks.uncovered import Caller, CodeUnwinder
from powerprof.stacks.unwind_tables import UnwindTable, build_elf_image, create_sealed_file

MAX_FRAMES = 1024
# The prefix of a sealed memory file in drgn's messages.
_MEMORY_FILE = "/memfd:"


class Unwound(msgspec.Struct, frozen=True):
    """The frames of a stack, innermost first. `exact[i]`: the pc is an interrupted one and not a return address.

    `complete`: the walk reached the start of the thread or program; else `reason` is why it stopped.
    """

    pcs: tuple[int, ...]
    complete: bool
    reason: str | None
    exact: tuple[bool, ...]


class _Module(msgspec.Struct, frozen=True):
    table: UnwindTable | None
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    why_not: str | None

    def is_bottom(self, address: int) -> bool:
        at = bisect_right(self.starts, address) - 1
        return at >= 0 and address < self.ends[at]


class _WalkFrames(msgspec.Struct):
    """The frames of a walk so far, and the reason why it stopped."""

    pcs: list[int] = msgspec.field(default_factory=list)
    exact: list[bool] = msgspec.field(default_factory=list)
    last: Mapping | None = None
    complete: bool = False
    why: str | None = None

    def add(self, pc: int, exact: bool, mapping: Mapping | None) -> None:
        self.pcs.append(pc)
        self.exact.append(exact)
        self.last = mapping or self.last


class Walker:
    """Unwinds stacks of one process image. A module's table is read when a walk first needs it."""

    def __init__(self, image: ProcessImage, store: TableStore, machine: Machine) -> None:
        load_drgn()
        import drgn

        self.image = image
        self._machine = machine
        self._store = store
        self._uncovered = CodeUnwinder(image, store, machine)
        self._modules: dict[int, _Module] = {}
        self.loading_s = 0.0
        # The size of the tables that drgn holds.
        self.held_bytes = 0
        self._stack = b""
        self._sp = 0
        self._reads: list[tuple[int, bytes]] = []
        self._fault: int | None = None
        self._fault_error: type[Exception] = drgn.FaultError
        self._program = drgn.Program(drgn.Platform(drgn.Architecture[machine.drgn]))
        # A weak reference: with a cycle drgn's tables would stay until the garbage collector runs.
        read = weakref.WeakMethod(self._read)

        def read_saved(address: int, count: int, offset: int, physical: bool) -> bytes:
            saved = read()
            return b"" if saved is None else saved(address, count, offset, physical)

        self._program.add_memory_segment(0, (1 << 64) - 1, read_saved, False)
        # Without members, because the program would hold them and they would hold the program.
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
            # The first fault is the reason. Later ones come from drgn's frame pointers, which can point anywhere.
            if self._fault is None:
                self._fault = address
            raise self._fault_error("not copied", address)
        data = self._stack[at : at + count]
        self._reads.append((at, data))
        return self._strip_signature(data) if self._machine.link is not None else data

    def _strip_signature(self, data: bytes) -> bytes:
        """Return a saved return address without its signature (pointer authentication); other data unchanged."""
        if len(data) != 8:
            return data
        value = int.from_bytes(data, "little")
        address = value & self._machine.address_mask
        if value == address or self.image.mapping_at(address) is None:
            return data
        return address.to_bytes(8, "little")

    def _find_module(self, mapping: Mapping) -> _Module:
        module = self._modules.get(mapping.start)
        if module is None:
            began_s = time.thread_time()
            module = self._modules[mapping.start] = self._load(mapping)
            self.loading_s += time.thread_time() - began_s
        return module

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
            # Two mappings of one file may differ only by address.
            module = self._program.extra_module(f"{mapping.path}@{mapping.start:x}", id=mapping.start, create=True)
            # The range determines the bias when the file is added. Afterwards only the mapping itself is the module's.
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
        """Return the frames of one stack and the words of it that were read."""
        while True:
            modules_count = len(self._modules)
            result = self._walk_once(registers, sp, stack)
            # A module that was first met in this walk had no table then, so frame pointers may have misled the walk.
            if len(self._modules) == modules_count:
                return result, tuple(self._reads)

    def _walk_once(self, registers: bytes, sp: int, stack: bytes) -> Unwound:
        self._stack, self._sp, self._reads, self._fault = stack, sp, [], None
        self._uncovered.begin()
        frames = _WalkFrames()
        frame: Caller | None = Caller(self._machine.by_name(self._machine.strip_signatures(registers)), True)
        while frame is not None and len(frames.pcs) < MAX_FRAMES:
            mapping = self._next_mapping(frames, frame.registers.get("pc", 0), frame.exact)
            if mapping is None:
                break
            if self._is_covered(mapping, frame.registers["pc"] - (not frame.exact)):
                frame = self._step_by_tables(frames, frame)
            else:
                frame = self._step_by_code(frames, frame)
        return self._finish(frames)

    def _next_mapping(self, frames: _WalkFrames, pc: int, exact: bool) -> Mapping | None:
        """Return the mapping of the next frame. The innermost frame is kept even outside of any mapping."""
        if not pc:
            return None
        mapping = self.image.mapping_at(pc if exact else pc - 1)
        if mapping is None:
            frames.why = f"address {pc:#x} is in no executable mapping"
            if not frames.pcs:
                frames.add(pc, exact, None)
        return mapping

    def _is_covered(self, mapping: Mapping, at: int) -> bool:
        module = self._find_module(mapping)
        return module.table is not None and module.table.covers(at - (mapping.bias or 0))

    def _step_by_code(self, frames: _WalkFrames, frame: Caller) -> Caller | None:
        """Add a frame that no table covers, and return the frame above it."""
        pc = frame.registers["pc"]
        at = pc if frame.exact else pc - 1
        mapping = self.image.mapping_at(at)
        frames.add(pc, frame.exact, mapping)
        if mapping is not None and self._find_module(mapping).is_bottom(at):
            frames.complete = True
            return None
        above = self._uncovered.caller(pc, frame.exact, frame.registers, self._read_word)
        if isinstance(above, Caller):
            return above
        frames.complete = above is None
        frames.why = (
            above if above is not None and mapping is not None and not self._find_module(mapping).why_not else None
        )
        return None

    def _step_by_tables(self, frames: _WalkFrames, frame: Caller) -> Caller | None:
        """Add the frames from this one on, and return the first frame above that no table covers."""
        # Drgn takes the innermost pc as exact. For a call it is moved one byte back, as drgn does for later frames.
        back = 0 if frame.exact else 1
        packed = self._machine.pack_names({**frame.registers, "pc": frame.registers["pc"] - back})
        try:
            trace = self._program.stack_trace(self._object.from_bytes_(self._program, self._pt_regs, packed))
        except self._drgn_errors as error:
            # With a damaged unwind table only the innermost pc is known.
            frames.add(frame.registers["pc"], frame.exact, None)
            text = str(error).partition("\n")[0] or "damaged unwind table"
            reason = text.replace(_MEMORY_FILE, "").replace(" (deleted)", "")
            frames.why = f"cannot be unwound ({reason[:200]})"
            return None
        for index, above in enumerate(trace):
            pc = _find_pc(above)
            exact = bool(above.interrupted)
            if index == 0:
                pc, exact = pc + back, frame.exact
            mapping = self._next_mapping(frames, pc, exact)
            if mapping is None:
                return None
            at = pc if exact else pc - 1
            if index and not self._is_covered(mapping, at):
                return Caller({**above.registers(), "pc": pc}, exact)
            frames.add(pc, exact, mapping)
            if self._find_module(mapping).is_bottom(at):
                frames.complete = True
                return None
        return None

    def _finish(self, frames: _WalkFrames) -> Unwound:
        last = frames.last
        why = frames.why
        if not frames.complete and why is None:
            why = self._explain_stop(last, len(frames.pcs))
        elif not frames.complete and last is not None and self._find_module(last).why_not:
            why = f"{why} after {last.module}: {self._find_module(last).why_not}"
        return Unwound(tuple(frames.pcs), frames.complete, None if frames.complete else why, tuple(frames.exact))

    def _read_word(self, address: int) -> int | None:
        """Return a word of the copied stack, as drgn reads it; None if it was not copied."""
        try:
            return int.from_bytes(self._read(address, 8, 0, False), "little")
        except self._fault_error:
            return None

    def _explain_stop(self, last: Mapping | None, frames: int) -> str:
        if last is None:
            return "no program counter"
        module = self._find_module(last)
        if frames >= MAX_FRAMES:
            return f"more than {MAX_FRAMES:,} frames"
        if module.why_not:
            return f"{last.module}: {module.why_not}"
        if self._fault is not None and self._fault >= self._sp + len(self._stack):
            return f"the copied stack ends after {len(self._stack):,} bytes"
        if self._fault is not None:
            return f"a frame of {last.module} points below the stack"
        return f"the unwind table of {last.module} leads no further"


def _find_pc(frame: Any) -> int:
    try:
        return int(frame.pc)
    except LookupError:
        return 0
