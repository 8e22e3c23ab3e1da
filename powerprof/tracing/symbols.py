# SPDX-License-Identifier: Apache-2.0
"""Find the functions that match a pattern.

A return probe replaces the return address on the stack. That breaks code that looks at return addresses itself: setjmp
(a later longjmp fails), Go (its runtime moves stacks and refuses unknown addresses), and fragments that are jumped to
and have no return address. If an exception can pass, the exits of a function are probed instead.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import msgspec

from powerprof.stacks.debuginfo import read_debug
from powerprof.stacks.demangle import demangle
from powerprof.stacks.elf import PF_X, PT_TLS, SHT_DYNSYM, SHT_SYMTAB, Elf, Section, read_elf, section_bytes
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import AARCH64
from powerprof.stacks.store import TableStore, open_module
from powerprof.stacks.symtab import SymbolTable
from powerprof.system.errors import DataError, UsageError
from powerprof.system.foreign_data import reading
from powerprof.system.next_steps import command_line
from powerprof.system.reader_process import Opened

MAX_SYMBOLS = 8_000_000
_STT_OBJECT, _STT_FUNC, _STT_TLS, _STT_GNU_IFUNC = 1, 2, 6, 10
_SYMBOL = struct.Struct("<IBBHQQ")


def iterate_symbols(table: SymbolTable) -> Iterator[tuple[int, str]]:
    """Yield (link-time address, name) of every symbol."""
    for index, start in enumerate(struct.unpack(f"<{table.count}Q", table.starts)):
        yield start, table.name_at(index)


def read_function_symbols(elf: Elf) -> tuple[list[tuple[int, str]], set[int]]:
    """Return (address, name) of all functions of a file, aliases too, and the addresses of IFUNCs."""
    symbols: list[tuple[int, str]] = []
    indirect: set[int] = set()
    for section, strings in _tables(elf):
        for name, value in _functions(elf, section, strings, indirect):
            symbols.append((value, name))
    return symbols, indirect


def find_variable_address(elf: Elf, name: str) -> int | None:
    """Return the link-time address of a variable, or None if the file does not contain it."""
    return _value(elf, name, _STT_OBJECT)


def find_thread_offset(elf: Elf, name: str) -> int | None:
    """Return the offset of a thread-local variable from the thread pointer, or None if the file does not contain it.

    On x86-64 it is before the pointer, on arm64 after two words ("ELF Handling For Thread-Local Storage", variants II
    and I).
    """
    value = _value(elf, name, _STT_TLS)
    block = next((segment for segment in elf.segments if segment.kind == PT_TLS), None)
    if value is None or block is None:
        return None
    align = max(block.align, 1)
    if elf.machine is AARCH64:
        return value + (16 + align - 1) // align * align
    return value - (block.memory_bytes + align - 1) // align * align


def _value(elf: Elf, name: str, kind: int) -> int | None:
    wanted = name.encode() + b"\0"
    for section, strings in _tables(elf):
        data = section_bytes(elf, section)
        for name_at, info, _other, index, value, _ in _SYMBOL.iter_unpack(data[: len(data) // 24 * 24]):
            if info & 15 == kind and index and strings[name_at : name_at + len(wanted)] == wanted:
                return int(value)
    return None


def _tables(elf: Elf) -> Iterator[tuple[Section, bytes]]:
    """Yield each symbol table with its names. Raises DataError if one is damaged."""
    for section in elf.sections:
        if section.kind not in (SHT_SYMTAB, SHT_DYNSYM) or not section.size or section.entry_bytes != _SYMBOL.size:
            continue
        if section.link >= len(elf.sections) or section.size // _SYMBOL.size > MAX_SYMBOLS:
            raise DataError(elf.path, "damaged symbol table")
        yield section, section_bytes(elf, elf.sections[section.link])


def _functions(elf: Elf, section: Section, strings: bytes, indirect: set[int]) -> Iterator[tuple[str, int]]:
    data = section_bytes(elf, section)
    for name_at, info, _other, index, value, size in _SYMBOL.iter_unpack(data[: len(data) // 24 * 24]):
        kind = info & 15
        if kind not in (_STT_FUNC, _STT_GNU_IFUNC) or not index or not size or name_at >= len(strings):
            continue
        if kind == _STT_GNU_IFUNC:
            indirect.add(value)
        end = strings.find(b"\0", name_at)
        raw = strings[name_at:end].decode("utf-8", "replace") if end > name_at else ""
        if raw:
            yield raw.partition("@")[0] or raw, value


MAX_PATTERN = 256
_MODULE_PATTERN = re.compile(r"([^:]+):(?!:)(.+)", re.DOTALL)
# These functions are jumped to, return twice, or are entered without a return address.
_NEVER = re.compile(
    r"_*(?:sig)?setjmp|_*longjmp(?:_chk)?|_*siglongjmp|(?:get|set|swap|make)context|__start_context|_*vfork|_*clone3?|"
    r"_start|_init|_fini|_dl_start_user|_dl_runtime_\w+|_dl_tlsdesc_\w+|__restore_rt|__morestack"
)
_FRAGMENT = re.compile(r"\.cold(?:\.\d+)*$|\.unlikely(?:\.\d+)*$")


class Function(msgspec.Struct, frozen=True):
    """One function of one file. `offset` is its place in the file, `vaddr` its link-time address.

    `stepped`: the kernel does not emulate its first instruction, so a probe needs a second trap. `symbol`: a name that
    the file itself gives to it alone (None if only a debug file knows the name, or two functions have it). `has_name`:
    a function without a name is one of the unwind information, and may be a part of a function that is jumped to.
    """

    name: str
    module: str
    vaddr: int
    offset: int
    stepped: bool
    symbol: str | None
    size_bytes: int
    has_name: bool = True


class ModuleFunctions(msgspec.Struct, frozen=True):
    """The functions of one mapped file that match a pattern. `starts`: the start addresses of all its functions."""

    mapping: Mapping
    functions: tuple[Function, ...]
    starts: frozenset[int]


class MatchedFunctions(msgspec.Struct, frozen=True):
    """The functions that match a pattern in one process.

    `refused`: (function, reason); `elsewhere`: matches in other files.
    """

    modules: tuple[ModuleFunctions, ...]
    refused: tuple[tuple[str, str], ...]
    elsewhere: dict[str, int]

    @property
    def count(self) -> int:
        """The number of functions to probe."""
        return sum(len(module.functions) for module in self.modules)


def split_pattern(pattern: str) -> tuple[str | None, str]:
    """Return (module glob or None, function glob) of `handle_slave*` or `libc.so*:mem*`; `ns::name` is a function.

    Raises UsageError for an invalid pattern.
    """
    text = pattern.strip()
    if not text or len(text) > MAX_PATTERN or not text.isprintable():
        raise UsageError("not a pattern of function names", command_line("functions 'handle_slave*'", same_target=True))
    match = _MODULE_PATTERN.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def strip_parameters(name: str) -> str:
    """Return a demangled name without its parameters, as people type it. `operator()` keeps its own parentheses."""
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        if name[at] == ")":
            depth += 1
        elif name[at] == "(":
            depth -= 1
            if not depth:
                head = name[:at]
                return name if not head or head.endswith(("operator", "::", " ")) else head
    return name


def matches_symbol(pattern: str, raw: str) -> bool:
    """Return whether a glob matches a symbol: its own name, the readable one, or that without parameters."""
    if fnmatchcase(raw, pattern):
        return True
    readable = demangle(raw) if raw.startswith("_") else raw
    return readable != raw and (fnmatchcase(readable, pattern) or fnmatchcase(strip_parameters(readable), pattern))


def find_functions(image: ProcessImage, pattern: str, store: TableStore) -> MatchedFunctions:
    """Return the functions that match a pattern in a process: in its executable, or in the modules that it names.

    Raises UsageError for an invalid pattern.
    """
    module_glob, glob = split_pattern(pattern)
    modules: list[ModuleFunctions] = []
    refused: list[tuple[str, str]] = []
    elsewhere: dict[str, int] = {}
    seen = set()
    for mapping in image.mappings:
        key = (mapping.device, mapping.inode, mapping.path)
        if not mapping.inode or mapping.bias is None or key in seen:
            continue
        seen.add(key)
        if module_glob is None:
            wanted = mapping.path == image.executable
        else:
            names = (image.module_of(mapping), mapping.module, mapping.module.split(".so")[0])
            wanted = any(fnmatchcase(name, module_glob) for name in names)
        if module_glob is not None and not wanted:
            continue
        opened = open_module(image, mapping)
        if not isinstance(opened, Opened):
            if wanted:
                refused.append((mapping.module, opened))
            continue
        with opened:
            try:
                with reading(mapping.path):
                    elf = read_elf(opened.fd, mapping.path)
                    functions, rejected, starts = _of_module(image, mapping, elf, glob, store)
            except DataError as error:
                if wanted:
                    refused.append((mapping.module, error.reason))
                continue
        if not wanted:
            if functions:
                elsewhere[mapping.module] = len(functions)
            continue
        refused += rejected
        if functions:
            modules.append(ModuleFunctions(mapping, tuple(functions), starts))
    return MatchedFunctions(tuple(modules), tuple(refused), elsewhere)


def _of_module(
    image: ProcessImage, mapping: Mapping, elf: Elf, glob: str, store: TableStore
) -> tuple[list[Function], list[tuple[str, str]], frozenset[int]]:
    candidates: dict[int, str] = {}
    refused: dict[str, str] = {}
    own, indirect = read_function_symbols(elf)
    tables = store.tables(image, mapping)
    known = [] if isinstance(tables, str) else [tables.symbols]
    if not isinstance(tables, str):
        debug = read_debug(store, image, mapping, inline=False).symbols
        known += [debug] if debug is not None else []
    starts: set[int] = set()
    for vaddr, raw in (*(pair for table in known for pair in iterate_symbols(table)), *own):
        if vaddr not in candidates and matches_symbol(glob, raw):
            candidates[vaddr] = raw
        if not _FRAGMENT.search(raw):
            starts.add(vaddr)
    go = elf.section(".gopclntab") or elf.section(".go.buildinfo")
    functions = []
    bearers: dict[str, set[int]] = {}
    for vaddr, raw in own:
        bearers.setdefault(raw, set()).add(vaddr)
    names = {vaddr: raw for vaddr, raw in reversed(own) if len(bearers[raw]) == 1 and matches_symbol(glob, raw)}
    for vaddr, raw in sorted(candidates.items()):
        offset = find_file_offset(elf, vaddr)
        why = why_not(raw, vaddr in indirect, offset, elf, vaddr)
        if is_copied(image, mapping, vaddr):
            why = COPIED
        if go is not None:
            why = GO
        name = demangle(raw)
        if why is not None:
            refused.setdefault(name, why)
        elif offset is not None:
            stepped = is_stepped(elf.read(offset, 2))
            size = max(table.size_at(vaddr) for table in known) if known else 0
            functions.append(Function(name, mapping.module, vaddr, offset, stepped, names.get(vaddr), size))
    return functions, list(refused.items()), frozenset(starts)


GO = "a Go function: its runtime does not survive return probes"
COPIED = "the process has copied its code to memory without a file (huge pages), where the kernel places no probes"


def is_copied(image: ProcessImage, mapping: Mapping, vaddr: int) -> bool:
    """Return whether the process executes a copy of the function at a link-time address."""
    place = image.mapping_at(mapping.in_memory(vaddr))
    return place is not None and place.is_copy


def why_not(raw: str, indirect: bool, offset: int | None, elf: Elf, vaddr: int) -> str | None:
    """Return the reason why a function cannot be probed; None if it can."""
    if indirect:
        return "an IFUNC: only its choice of an implementation would be counted; name the implementation"
    if _FRAGMENT.search(raw):
        return "a fragment that is jumped to, not called"
    if _NEVER.fullmatch(raw):
        return "it returns in a way that return probes break"
    if offset is None:
        return "not in the file's code"
    if any(
        section.vaddr <= vaddr < section.vaddr + section.size
        for section in elf.sections
        if section.name.startswith((".plt", ".iplt"))
    ):
        return "an entry of the PLT: name the function itself"
    return None


def is_stepped(code: bytes) -> bool:
    """Return whether arch/x86/kernel/uprobes.c does not emulate an instruction: all but push, nop, jmp, call, jcc."""
    first, second = code[0], code[1]
    push = 0x50 <= first <= 0x57 or (first == 0x41 and 0x50 <= second <= 0x57)
    nop = first == 0x90 or (first == 0x66 and second == 0x90) or (first == 0x0F and second == 0x1F)
    jump = first in (0xE8, 0xE9, 0xEB) or 0x70 <= first <= 0x7F or (first == 0x0F and 0x80 <= second <= 0x8F)
    return not (push or nop or jump)


def find_file_offset(elf: Elf, vaddr: int) -> int | None:
    """Return the file offset of code at a link-time address, or None if there is no code."""
    for segment in elf.loads():
        if segment.flags & PF_X and segment.vaddr <= vaddr < segment.vaddr + segment.file_bytes:
            return segment.offset + vaddr - segment.vaddr
    return None


def refuse_too_many(of_modules: Sequence[MatchedFunctions], pattern: str, limit: int) -> None:
    """Raise UsageError if there is no function to probe, or more than `limit`."""
    total = sum(each.count for each in of_modules)
    if total > limit:
        example = next(module.functions[0] for each in of_modules for module in each.modules)
        stem = strip_parameters(example.name)[:40]
        raise UsageError(
            f"'{pattern}' means {total:,} functions; more than {limit:,} would slow the process down",
            f"narrow the pattern, for example '{stem}*', or raise --max-functions",
        )
    if total:
        return
    refused = next((why for each in of_modules for why in each.refused), None)
    if refused is not None:
        name = "" if refused[0] == pattern.strip() else f": {refused[0]}"
        raise UsageError(
            f"'{pattern}'{name} cannot be probed ({refused[1]})",
            f"use samples: {command_line('profile', same_target=True)}",
        )
    others = {name: count for each in of_modules for name, count in each.elsewhere.items()}
    hint = f"to see the functions that run: {command_line('profile', same_target=True)}"
    if others:
        name, count = max(others.items(), key=lambda item: item[1])
        plain = split_pattern(pattern)[1]
        hint = f"{name} has {count:,} such functions: '{name}:{plain}'"
    raise UsageError(f"'{pattern}' means no function of the process that has a symbol", hint)
