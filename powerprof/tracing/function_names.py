"""Which functions of a process a pattern means, and which of them must not be probed.

A return probe replaces the return address on the stack. That breaks code that looks at return addresses itself:
setjmp (a later longjmp leads nowhere), Go (its runtime moves stacks and refuses unknown addresses), and fragments
that are jumped to rather than called, where no return address lies at the stack pointer at all.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from powerprof.errors import DataError, UsageError
from powerprof.stacks.debuginfo import read_debug
from powerprof.stacks.demangle import demangle
from powerprof.stacks.elf import PF_X, SHT_DYNSYM, SHT_SYMTAB, Elf, Section, read_elf, section_bytes
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.opening import Opened
from powerprof.stacks.store import TableStore, open_module
from powerprof.stacks.symtab import SymbolTable

MAX_PATTERN = 256
MAX_SYMBOLS = 8_000_000
_STT_FUNC, _STT_GNU_IFUNC = 2, 10
_SYMBOL = struct.Struct("<IBBHQQ")
_MODULE_PATTERN = re.compile(r"([^:]+):(?!:)(.+)", re.DOTALL)
# They are jumped to, return twice, or are entered without a return address.
_NEVER = re.compile(
    r"_*(?:sig)?setjmp|_*longjmp(?:_chk)?|_*siglongjmp|(?:get|set|swap|make)context|__start_context|_*vfork|_*clone3?|"
    r"_start|_init|_fini|_dl_start_user|_dl_runtime_\w+|_dl_tlsdesc_\w+|__restore_rt|__morestack"
)
_FRAGMENT = re.compile(r"\.cold(?:\.\d+)*$|\.unlikely(?:\.\d+)*$")


@dataclass(frozen=True)
class Function:
    """One function of one file. `offset` is its place in the file, `vaddr` its link-time address.

    `stepped`: its first instruction is none that the kernel emulates, so that a probe needs a second trap.
    """

    name: str
    module: str
    vaddr: int
    offset: int
    stepped: bool


@dataclass(frozen=True)
class ModuleFunctions:
    """The functions of one mapped file that a pattern means. `throws`: the file can throw C++ exceptions."""

    mapping: Mapping
    functions: tuple[Function, ...]
    throws: bool


@dataclass(frozen=True)
class Found:
    """What a pattern means in one process. `refused`: (function, reason); `elsewhere`: other files' matches."""

    modules: tuple[ModuleFunctions, ...]
    refused: tuple[tuple[str, str], ...]
    elsewhere: dict[str, int]

    @property
    def count(self) -> int:
        """How many functions are to be probed."""
        return sum(len(module.functions) for module in self.modules)


def split_pattern(pattern: str) -> tuple[str | None, str]:
    """(module glob or None, function glob) of `handle_slave*` or `libc.so*:mem*`; `ns::name` is a function.

    Raises UsageError for a pattern that cannot mean anything.
    """
    text = pattern.strip()
    if not text or len(text) > MAX_PATTERN or not text.isprintable():
        raise UsageError("--functions: not a pattern of function names", "--functions 'handle_slave*'")
    match = _MODULE_PATTERN.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def bare(name: str) -> str:
    """A demangled name without its parameters: what a person types. `operator()` keeps its own parentheses."""
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


def matches(pattern: str, raw: str) -> bool:
    """Whether a glob means a symbol: by its own name, its readable one, or that without parameters."""
    if fnmatchcase(raw, pattern):
        return True
    readable = demangle(raw) if raw.startswith("_") else raw
    return readable != raw and (fnmatchcase(readable, pattern) or fnmatchcase(bare(readable), pattern))


def find_functions(image: ProcessImage, pattern: str, store: TableStore) -> Found:
    """The functions that a pattern means in a process: in its executable, or in the modules that it names.

    Raises UsageError for an impossible pattern.
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
            names = (mapping.module, mapping.module.split(".so")[0])
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
                elf = read_elf(opened.fd, mapping.path)
                found, rejected = _of_module(image, mapping, elf, glob, store)
            except DataError as error:
                if wanted:
                    refused.append((mapping.module, error.reason))
                continue
            throws = _throws(elf)
        if not wanted:
            if found:
                elsewhere[mapping.module] = len(found)
            continue
        refused += rejected
        if found:
            modules.append(ModuleFunctions(mapping, tuple(found), throws))
    return Found(tuple(modules), tuple(refused), elsewhere)


def _of_module(
    image: ProcessImage, mapping: Mapping, elf: Elf, glob: str, store: TableStore
) -> tuple[list[Function], list[tuple[str, str]]]:
    candidates: dict[int, str] = {}
    refused: dict[str, str] = {}
    own, indirect = _own_symbols(elf)
    tables = store.tables(image, mapping)
    known = [] if isinstance(tables, str) else [tables.symbols]
    if not isinstance(tables, str) and store.reads_files:
        debug = read_debug(store, image, mapping, (tables.unwind.low, tables.unwind.high), inline=False).symbols
        known += [debug] if debug is not None else []
    for vaddr, raw in (*(pair for table in known for pair in _entries(table)), *own):
        if vaddr not in candidates and matches(glob, raw):
            candidates[vaddr] = raw
    go = elf.section(".gopclntab") or elf.section(".go.buildinfo")
    functions = []
    for vaddr, raw in sorted(candidates.items()):
        offset = _file_offset(elf, vaddr)
        why = _why_not(raw, vaddr in indirect, offset, elf, vaddr)
        if go is not None:
            why = "a Go function: its runtime does not survive return probes"
        name = demangle(raw)
        if why is not None:
            refused.setdefault(name, why)
        elif offset is not None:
            functions.append(Function(name, mapping.module, vaddr, offset, is_stepped(elf.read(offset, 2))))
    return functions, list(refused.items())


def _why_not(raw: str, indirect: bool, offset: int | None, elf: Elf, vaddr: int) -> str | None:
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
    """Whether an instruction is none that arch/x86/kernel/uprobes.c emulates: push, nop, jmp, call, jcc."""
    first, second = code[0], code[1]
    push = 0x50 <= first <= 0x57 or (first == 0x41 and 0x50 <= second <= 0x57)
    nop = first == 0x90 or (first == 0x66 and second == 0x90) or (first == 0x0F and second == 0x1F)
    jump = first in (0xE8, 0xE9, 0xEB) or 0x70 <= first <= 0x7F or (first == 0x0F and 0x80 <= second <= 0x8F)
    return not (push or nop or jump)


def _file_offset(elf: Elf, vaddr: int) -> int | None:
    for segment in elf.loads():
        if segment.flags & PF_X and segment.vaddr <= vaddr < segment.vaddr + segment.file_bytes:
            return segment.offset + vaddr - segment.vaddr
    return None


def _entries(table: SymbolTable) -> Iterator[tuple[int, str]]:
    """(link-time address, name) of every symbol."""
    count = len(table.starts) // 8
    starts = struct.unpack(f"<{count}Q", table.starts)
    offsets = struct.unpack(f"<{count}I", table.offsets)
    for start, offset in zip(starts, offsets, strict=True):
        end = table.names.find(b"\0", offset)
        yield start, table.names[offset:end].decode("utf-8", "replace")


def _own_symbols(elf: Elf) -> tuple[list[tuple[int, str]], set[int]]:
    """All names of the file's functions, aliases too, and the addresses of those that are IFUNCs."""
    found: list[tuple[int, str]] = []
    indirect: set[int] = set()
    for section in elf.sections:
        if section.kind not in (SHT_SYMTAB, SHT_DYNSYM) or not section.size or section.entry_bytes != _SYMBOL.size:
            continue
        if section.link >= len(elf.sections) or section.size // _SYMBOL.size > MAX_SYMBOLS:
            raise DataError(elf.path, "damaged symbol table")
        strings = section_bytes(elf, elf.sections[section.link])
        for name, value in _functions(elf, section, strings, indirect):
            found.append((value, name))
    return found, indirect


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


def _throws(elf: Elf) -> bool:
    for section in elf.sections:
        if section.kind == SHT_DYNSYM and 0 < section.link < len(elf.sections):
            return b"\0__cxa_throw\0" in section_bytes(elf, elf.sections[section.link])
    return False


def refuse_too_many(found: Sequence[Found], pattern: str, limit: int) -> None:
    """Raises UsageError where there is nothing to probe, or more than a person can mean."""
    total = sum(one.count for one in found)
    if total > limit:
        example = next(module.functions[0] for one in found for module in one.modules)
        stem = bare(example.name)[:40]
        raise UsageError(
            f"--functions '{pattern}' means {total:,} functions; more than {limit:,} would slow the process down",
            f"narrow the pattern, for example '{stem}*', or raise --max-functions",
        )
    if total:
        return
    refused = next((why for one in found for why in one.refused), None)
    if refused is not None:
        raise UsageError(f"--functions '{pattern}': {refused[0]} cannot be probed ({refused[1]})")
    others = {name: count for one in found for name, count in one.elsewhere.items()}
    hint = "powerprof attribute --on-cpu shows the functions that run"
    if others:
        name, count = max(others.items(), key=lambda item: item[1])
        plain = split_pattern(pattern)[1]
        hint = f"{name} has {count:,} such functions: --functions '{name}:{plain}'"
    raise UsageError(f"--functions '{pattern}' means no function of the process that has a symbol", hint)
