# SPDX-License-Identifier: Apache-2.0
"""From addresses to frames: the function that covers an address, never the nearest."""

from __future__ import annotations

from typing import Any

import msgspec

from powerprof.model.attribution import is_generated
from powerprof.stacks.debuginfo import read_debug
from powerprof.stacks.demangle import demangle
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.inline import InlineReader
from powerprof.stacks.perf_map import NO_PERF_MAP, PerfMap, read_perf_map
from powerprof.stacks.runtimes import runtime_of, translate_name
from powerprof.stacks.store import ModuleTables, TableStore
from powerprof.stacks.symtab import SymbolTable
from powerprof.stacks.walker import Unwound
from powerprof.system.errors import DataError

# The kernel's frame between a signal handler and the interrupted function.
SIGNAL = "[signal]"


class Frame(msgspec.Struct, frozen=True):
    """One function of a stack.

    `address` is the pc in the process, `vaddr` its link-time address in the file. `function_start` is the link-time
    start of the function by its symbol or the unwind table; `offset` is the distance of the pc from it. `function` is
    None if no symbol covers the pc.
    """

    function: str | None
    module: str
    address: int
    offset: int | None
    function_start: int | None
    inlined: bool = False
    source: str | None = None
    vaddr: int | None = None

    @property
    def label(self) -> str:
        """The function's name, else `module+0x…` with the function's start, else with the pc.

        Generated code without names is its module.
        """
        if self.function is not None:
            return self.function
        if is_generated(self.module):
            return self.module
        place = self.function_start if self.function_start is not None else self.vaddr
        return f"{self.module}+{place:#x}" if place is not None else f"{self.module} {self.address:#x}"


class _NamedModule(msgspec.Struct, frozen=True):
    bias: int
    tables: ModuleTables
    debug: SymbolTable | None
    inline: InlineReader | None
    starts: Any
    ends: Any

    def fde_start(self, vaddr: int) -> int | None:
        at = int(self.starts.searchsorted(vaddr, "right")) - 1
        return int(self.starts[at]) if at >= 0 and vaddr < int(self.ends[at]) else None


class Symbolizer:
    """Names the addresses of one process, each once. A file is opened when an address first falls into it.

    `inline` False leaves out inlined calls and source lines.
    """

    def __init__(self, image: ProcessImage, store: TableStore | None = None, *, inline: bool = True) -> None:
        self.image = image
        self.store = store or TableStore()
        self._inline = inline
        self._perf_map: PerfMap | None = None
        self._runtime = runtime_of(image)
        self._modules: dict[int, _NamedModule | str] = {}
        self._frames: dict[tuple[int, bool], tuple[Frame, ...]] = {}
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Files that could not be read as `module: reason`, each once."""
        return tuple(self._notes)

    def frames(self, pc: int, exact: bool = True) -> tuple[Frame, ...]:
        """Return the frames of one address, innermost inlined call first; at least one.

        With `exact` False the address is a return address, and the call is before it.
        """
        key = (pc, exact)
        if key not in self._frames:
            self._frames[key] = self._resolve(pc, pc if exact else pc - 1)
        return self._frames[key]

    def stack(self, unwound: Unwound) -> tuple[Frame, ...]:
        """Return all frames of a stack, innermost first."""
        # The frame below an exact pc is the kernel's signal frame, whose own pc has no function.
        signals = (*unwound.exact, False)[1:]
        return tuple(
            frame
            for pc, exact, signal in zip(unwound.pcs, unwound.exact, signals, strict=True)
            for frame in ((self._make_signal_frame(pc),) if signal else self.frames(pc, exact))
        )

    def _make_signal_frame(self, pc: int) -> Frame:
        mapping = self.image.mapping_at(pc)
        return Frame(SIGNAL, mapping.module if mapping is not None else "[unmapped]", pc, None, None)

    def _resolve(self, pc: int, at: int) -> tuple[Frame, ...]:
        mapping = self.image.mapping_at(at)
        if mapping is None:
            return (Frame(None, "[unmapped]", pc, None, None),)
        module = self._find_module(mapping)
        if isinstance(module, str):
            return (self._resolve_without_file(mapping, pc, at),)
        vaddr = at - module.bias
        hit = module.tables.symbols.lookup(vaddr)
        if module.debug is not None:
            # The debug file's full table has local functions; .dynsym has only exported ones.
            hit = module.debug.lookup(vaddr) or hit
        name, start = (self._translate_symbol(hit[0]), hit[1]) if hit else (None, module.fde_start(vaddr))
        own = pc - module.bias
        offset = own - start if start is not None else None
        levels = module.inline.levels(vaddr) if module.inline else ()
        if module.inline is not None and module.inline.note is not None:
            self._notes[f"{mapping.module}: {module.inline.note}"] = None
        source = levels[-1].source if levels else None
        named = self.image.module_of(mapping)
        inner = tuple(
            Frame(level.name, named, pc, None, None, True, level.source, own) for level in levels[:-1] if level.inlined
        )
        return (*inner, Frame(name, named, pc, offset, start, False, source, own))

    def _translate_symbol(self, symbol: str) -> str:
        runtime = self._runtime
        return runtime.interpreting if runtime and symbol in runtime.interpreter else demangle(symbol)

    def _resolve_without_file(self, mapping: Mapping, pc: int, at: int) -> Frame:
        vaddr = pc - mapping.bias if mapping.bias is not None else None
        if not mapping.is_file:
            if self._perf_map is None:
                self._perf_map = self._read_perf_map()
                self._notes.update(dict.fromkeys(self._perf_map.notes))
            hit = self._perf_map.lookup(at)
            if hit is not None:
                name, source = translate_name(self._runtime, hit[0])
                return Frame(name, f"perf-{self.image.pid}.map", pc, pc - hit[1], hit[1], source=source, vaddr=pc)
            if self._runtime is not None and not mapping.path.startswith("["):
                return Frame(None, self._runtime.code, pc, None, None, vaddr=pc)
        if vaddr is None:
            vaddr = pc - mapping.start + mapping.offset
        return Frame(None, self.image.module_of(mapping), pc, None, None, vaddr=vaddr)

    def _read_perf_map(self) -> PerfMap:
        with self.store.budget.meter(self.image.pid) as meter:
            try:
                meter.take(0, "perf map")
            except DataError as error:
                self._notes[f"perf map: {error.reason}"] = None
                return NO_PERF_MAP
            return read_perf_map(self.image)

    def _find_module(self, mapping: Mapping) -> _NamedModule | str:
        module = self._modules.get(mapping.start)
        if module is None:
            module = self._modules[mapping.start] = self._load(mapping)
            if isinstance(module, str) and mapping.inode:
                self._notes[f"{self.image.module_of(mapping)}: {module}"] = None
        return module

    def _load(self, mapping: Mapping) -> _NamedModule | str:
        import numpy as np

        tables = self.store.tables(self.image, mapping)
        if isinstance(tables, str):
            return tables
        if mapping.bias is None:
            return mapping.note or "its place in memory is not known"
        table = tables.unwind
        debug, inline = tables.debug, None
        if mapping.inode:
            info = read_debug(self.store, self.image, mapping, inline=self._inline)
            debug, inline = info.symbols or debug, info.inline
            self._notes.update(dict.fromkeys(f"{self.image.module_of(mapping)}: {note}" for note in info.notes))
        return _NamedModule(
            mapping.bias, tables, debug, inline, np.frombuffer(table.starts, "<u8"), np.frombuffer(table.ends, "<u8")
        )
