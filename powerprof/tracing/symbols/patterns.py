# SPDX-License-Identifier: Apache-2.0
"""Which functions of a process a pattern means, and which of them must not be probed.

A return probe replaces the return address on the stack. That breaks code that looks at return addresses itself:
setjmp (a later longjmp leads nowhere), Go (its runtime moves stacks and refuses unknown addresses), and fragments
that are jumped to rather than called, where no return address lies at the stack pointer at all. Where an exception can
pass (`unwinding`), the places that leave a function are probed instead (`stacks.exits`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from powerprof.errors import DataError, UsageError
from powerprof.processes.reader_process import Opened
from powerprof.stacks.debuginfo import read_debug
from powerprof.stacks.demangle import demangle
from powerprof.stacks.elf import PF_X, Elf, read_elf
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.store import TableStore, open_module
from powerprof.tracing.symbols.file_functions import entries, own_symbols
from powerprof.untrusted import reading

MAX_PATTERN = 256
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

    `stepped`: its first instruction is none that the kernel emulates, so that a probe needs a second trap. `symbol`:
    what the file itself calls it and nothing else (None where only a debug file knows it, or two bear the name).
    """

    name: str
    module: str
    vaddr: int
    offset: int
    stepped: bool
    symbol: str | None
    size_bytes: int


@dataclass(frozen=True)
class ModuleFunctions:
    """The functions of one mapped file that a pattern means. `starts`: where functions of the file begin at all."""

    mapping: Mapping
    functions: tuple[Function, ...]
    starts: frozenset[int]


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
        raise UsageError("not a pattern of function names", "powerprof functions 'handle_slave*' --pid mysqld")
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
    return Found(tuple(modules), tuple(refused), elsewhere)


def _of_module(
    image: ProcessImage, mapping: Mapping, elf: Elf, glob: str, store: TableStore
) -> tuple[list[Function], list[tuple[str, str]], frozenset[int]]:
    candidates: dict[int, str] = {}
    refused: dict[str, str] = {}
    own, indirect = own_symbols(elf)
    tables = store.tables(image, mapping)
    known = [] if isinstance(tables, str) else [tables.symbols]
    if not isinstance(tables, str) and store.reads_files:
        debug = read_debug(store, image, mapping, inline=False).symbols
        known += [debug] if debug is not None else []
    starts: set[int] = set()
    for vaddr, raw in (*(pair for table in known for pair in entries(table)), *own):
        if vaddr not in candidates and matches(glob, raw):
            candidates[vaddr] = raw
        if not _FRAGMENT.search(raw):
            starts.add(vaddr)
    go = elf.section(".gopclntab") or elf.section(".go.buildinfo")
    functions = []
    bearers: dict[str, set[int]] = {}
    for vaddr, raw in own:
        bearers.setdefault(raw, set()).add(vaddr)
    names = {vaddr: raw for vaddr, raw in reversed(own) if len(bearers[raw]) == 1 and matches(glob, raw)}
    for vaddr, raw in sorted(candidates.items()):
        offset = file_offset(elf, vaddr)
        why = _why_not(raw, vaddr in indirect, offset, elf, vaddr)
        if go is not None:
            why = "a Go function: its runtime does not survive return probes"
        name = demangle(raw)
        if why is not None:
            refused.setdefault(name, why)
        elif offset is not None:
            stepped = is_stepped(elf.read(offset, 2))
            size = max(table.size_at(vaddr) for table in known) if known else 0
            functions.append(Function(name, mapping.module, vaddr, offset, stepped, names.get(vaddr), size))
    return functions, list(refused.items()), frozenset(starts)


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


def file_offset(elf: Elf, vaddr: int) -> int | None:
    """Where code of a link-time address lies in the file; None for what is no code."""
    for segment in elf.loads():
        if segment.flags & PF_X and segment.vaddr <= vaddr < segment.vaddr + segment.file_bytes:
            return segment.offset + vaddr - segment.vaddr
    return None


def refuse_too_many(of_modules: Sequence[Found], pattern: str, limit: int) -> None:
    """Raises UsageError where there is nothing to probe, or more than a person can mean."""
    total = sum(each.count for each in of_modules)
    if total > limit:
        example = next(module.functions[0] for each in of_modules for module in each.modules)
        stem = bare(example.name)[:40]
        raise UsageError(
            f"'{pattern}' means {total:,} functions; more than {limit:,} would slow the process down",
            f"narrow the pattern, for example '{stem}*', or raise --max-functions",
        )
    if total:
        return
    refused = next((why for each in of_modules for why in each.refused), None)
    if refused is not None:
        raise UsageError(
            f"'{pattern}': {refused[0]} cannot be probed ({refused[1]})", "powerprof profile samples it without probes"
        )
    others = {name: count for each in of_modules for name, count in each.elsewhere.items()}
    hint = "powerprof profile shows the functions that run"
    if others:
        name, count = max(others.items(), key=lambda item: item[1])
        plain = split_pattern(pattern)[1]
        hint = f"{name} has {count:,} such functions: '{name}:{plain}'"
    raise UsageError(f"'{pattern}' means no function of the process that has a symbol", hint)
