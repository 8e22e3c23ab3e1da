# SPDX-License-Identifier: Apache-2.0
"""Find the places to probe in PostgreSQL, the messages that report a statement there, and the place of texts.

Every process calls pgstat_report_activity(state, text) when it begins a message of its client, with the statement's
text, and again when it is done, without one. The function is exported, so a stripped server has it in .dynsym; its
callers are not. A caller is recognised by its next actions: the code after the call's return address is followed, by
both ways of a branch, to the first mark that only one message has. The text is also in an exported variable,
debug_query_string.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from powerprof.measure.procfs import list_children
from powerprof.stacks.effects import LONGEST_BYTES, branch_target, decode_instructions
from powerprof.stacks.elf import Elf
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import X86_64
from powerprof.stacks.symtab import SymbolTable, read_symbols
from powerprof.system.errors import CapabilityError
from powerprof.system.reader_process import Unreadable, shared
from powerprof.tracing.bpf.shared_numbers import Message
from powerprof.tracing.function_calls import MOST_SEGMENT_BYTES, find_call_returns
from powerprof.tracing.statement_places import Dispatch, TextPlace, find_probe_offsets, open_program, skip_landing_mark
from powerprof.tracing.symbols import find_file_offset, find_variable_address, is_stepped

# The layout of a Dispatch whose statements are reported by activity.bpf.h.
POSTGRESQL_LAYOUT = 2
_REPORT = "pgstat_report_activity"
_FETCH, _AT_FETCH = "PortalRunFetch", "uprobe__fetch"
_TEXT, _CLIENT = "debug_query_string", "MyProcPort"
_ENTRY, _LIMIT = "MyBEEntry", "pgstat_track_activity_query_size"
_ACTIVITY_FROM_12 = 248
_MOST_REPORT_BYTES, _MOST_CHECKED, _MOST_LIMIT = 4096, 8, 1 << 20
RUNNING = (2, 3)  # STATE_RUNNING of BackendState, and since PostgreSQL 18
_WAITS_FOR = "my_wait_event_info"  # since PostgreSQL 14
_LONGEST_TEXT = 1023
_MOST_STEPS = 400
_MOST_SITES = 200
_REMEDY = "restart the server after an upgrade"


# Arguments of set_ps_display after the report (postgres.c, since 7.4), and the first exported function called.
_TITLES = {b"PARSE\0": Message.PARSE, b"BIND\0": Message.BIND}
_CALLS = {"pg_parse_query": Message.WHOLE, "CreateDestReceiver": Message.EXECUTE}
# Worker processes report the statement's text of their leader.
_WORKERS = ("ParallelQueryMain", "parallel_vacuum_main", "_bt_parallel_build_main", "_brin_parallel_build_main",
            "_gin_parallel_build_main")  # fmt: skip
# The statement is a whole one even if it answers like an Execute.
_WHOLE = ("exec_replication_command",)
_EXTENDED = frozenset((Message.PARSE, Message.BIND, Message.EXECUTE))


def find_dispatch(image: ProcessImage) -> Dispatch:
    """Return the places to probe, and the meaning of return addresses.

    Raises CapabilityError if the function is missing.
    """
    with open_program(image, _REMEDY) as (elf, mapping):
        return _find_dispatch(elf, mapping)


def _find_dispatch(elf: Elf, mapping: Mapping) -> Dispatch:
    symbols = read_symbols(elf)
    vaddr = min((start for start, _ in symbols.ranges_of([_REPORT])), default=None)
    offset = None if vaddr is None else find_file_offset(elf, vaddr)
    if vaddr is None or offset is None:
        raise CapabilityError(
            f"{mapping.module} has no symbol of {_REPORT}, where statements begin",
            "a build that exports its functions, as PostgreSQL's own makefiles do",
        )
    offset = skip_landing_mark(elf, offset)
    sites = classify_report_sites(elf, symbols, vaddr)
    text_at, event_at = find_variable_address(elf, _TEXT), find_variable_address(elf, _WAITS_FOR)
    return Dispatch(
        mapping=mapping,
        symbol=_REPORT,
        offset=offset,
        layout=POSTGRESQL_LAYOUT,
        waits_offset=None,
        stepped=is_stepped(elf.read(offset, 2)),
        sites={mapping.in_memory(site): int(kind) for site, kind in sites.items()},
        is_sure=set(sites.values()) >= _EXTENDED,
        version=find_version(elf),
        text_address=None if text_at is None else mapping.in_memory(text_at),
        event_address=None if event_at is None else mapping.in_memory(event_at),
        within=find_probe_offsets(
            elf, {_AT_FETCH: min((start for start, _ in symbols.ranges_of([_FETCH])), default=None)}
        ),
    )


def find_text(image: ProcessImage) -> TextPlace:
    """Return the place of statement texts. Raises CapabilityError if the program does not show it."""
    with open_program(image, _REMEDY) as (elf, mapping):
        return _find_text(elf, mapping, image.pid)


def _find_text(elf: Elf, mapping: Mapping, pid: int) -> TextPlace:
    text, client, entry, limit = (find_variable_address(elf, name) for name in (_TEXT, _CLIENT, _ENTRY, _LIMIT))
    if text is None:
        raise CapabilityError(
            f"{mapping.module} has no symbol of {_TEXT}, where statements are",
            "a build that exports its variables, as PostgreSQL's own makefiles do",
        )
    at_client = 0 if client is None else mapping.in_memory(client)
    version = find_version(elf)
    place = TextPlace(mapping.in_memory(text), at_client, version=version)
    activity = find_activity_offset(elf)
    if entry is None or limit is None or activity is None:
        return place
    at_entry = mapping.in_memory(entry)
    size = _check_activity(pid, at_entry, activity, mapping.in_memory(limit))
    if not size:
        return place
    running = RUNNING[major_of(version) >= 18]
    return replace(place, entry=at_entry, activity=activity, limit=size, running=running)


def major_of(version: str | None) -> int:
    """Return the first number of a version; 0 if it is unknown."""
    number = re.match(r"\d+", version or "")
    return int(number[0]) if number else 0


def find_activity_offset(elf: Elf) -> int | None:
    """Return the offset of a process's last text in its row of pg_stat_activity; None if the program hides it.

    It is st_activity_raw of PgBackendStatus: pgstat_report_activity ends that text with a zero byte. The fields before
    it have been the same since PostgreSQL 12, and other machines have the same sizes.
    """
    if elf.machine is not X86_64:
        return _ACTIVITY_FROM_12
    starts = read_symbols(elf).ranges_of([_REPORT])
    start, end = min(starts, default=(0, 0))
    offset = find_file_offset(elf, start)
    if offset is None:
        return None
    code = elf.read(offset, min(end - start, _MOST_REPORT_BYTES, elf.size - offset))
    base, at = "", 0
    for _, _, words, operands in decode_instructions(code, start, len(code)):
        moved = operands if words[-1] == "mov" else ""
        stored = re.fullmatch(r"byte ptr \[(\w+)(?: \+ \w+)?\], 0", moved)
        if stored is not None and stored[1] == base:
            return at
        loaded = re.fullmatch(r"(\w+), qword ptr \[r\w+ \+ (0x[0-9a-f]+|\d+)\]", moved)
        base, at = (loaded[1], int(loaded[2], 0)) if loaded is not None else ("", 0)
    return None


def _check_activity(pid: int, entry: int, activity: int, limit: int) -> int:
    """Return the bytes of each text in pg_stat_activity; 0 if the texts of the server's processes are elsewhere.

    The texts of all processes follow each other, and end with a zero byte.
    """
    try:
        size = int.from_bytes(shared().memory(pid, [(limit, 4)])[0], "little")
        places = set()
        for child in list_children(pid)[:_MOST_CHECKED]:
            row = _read_pointer(child, entry)
            if row and (text := _read_pointer(child, row + activity)):
                places.add(text)
                if not 1 < size <= _MOST_LIMIT or shared().memory(child, [(text + size - 1, 1)])[0] != b"\0":
                    return 0
    except Unreadable:
        return 0
    first = min(places, default=0)
    return size if places and all((place - first) % size == 0 for place in places) else 0


def _read_pointer(pid: int, address: int) -> int:
    return int.from_bytes(shared().memory(pid, [(address, 8)])[0], "little")


_VERSION = re.compile(rb"PostgreSQL (\d{1,3}[.a-z0-9]{1,10})[^\0]{0,100} on [^\0]+, compiled by ")


def find_version(elf: Elf) -> str | None:
    """Return the version in a program of PostgreSQL: the beginning of the text that version() returns."""
    for segment in elf.loads():
        if segment.file_bytes > MOST_SEGMENT_BYTES:
            continue
        found = _VERSION.search(elf.read(segment.offset, segment.file_bytes))
        if found:
            return found[1].decode()
    return None


def read_running_texts(pids: Sequence[int], address: int) -> dict[int, str]:
    """Return the texts that processes execute now, by pid.

    Processes without one, or that delay the reader, are left out.
    """
    texts: dict[int, str] = {}
    for pid in pids:
        with suppress(Unreadable):
            pointer = int.from_bytes(shared().memory(pid, [(address, 8)])[0], "little")
            text = shared().memory(pid, [(pointer, _LONGEST_TEXT)])[0] if 0 < pointer < 1 << 63 else b""
            if text[:1] != b"\0" and text:
                texts[pid] = text.partition(b"\0")[0].decode("utf-8", "replace")
    return texts


def classify_report_sites(elf: Elf, symbols: SymbolTable, report: int) -> dict[int, Message]:
    """Return the message that calls `report` by link-time return address.

    If Parse, Bind and Execute are not all found, every site that could be one of them is UNSURE. All other sites are
    WHOLE.
    """
    known = {Message.WORKER: symbols.ranges_of(_WORKERS), Message.WHOLE: symbols.ranges_of(_WHOLE)}
    marks = {start: kind for name, kind in _CALLS.items() for start, _ in symbols.ranges_of([name])}
    sites: dict[int, Message] = {}
    others: dict[int, Message] = {}
    for site in [place for place, _ in find_call_returns(elf, (report,))][:_MOST_SITES]:
        inside = [kind for kind, ranges in known.items() if any(start <= site < end for start, end in ranges)]
        if inside:
            sites[site] = inside[0]
        else:
            others[site] = _find_next_mark(elf, site, marks) or Message.WHOLE
    if not set(others.values()) >= _EXTENDED:
        others = dict.fromkeys(others, Message.UNSURE)
    return sites | others


def _find_next_mark(elf: Elf, site: int, calls: dict[int, Message]) -> Message | None:
    """Return the mark reached from an address by the fewest instructions, or None if none is near."""
    left, seen = deque([site]), {site}
    for _ in range(_MOST_STEPS):
        if not left:
            return None
        at = left.popleft()
        decoded = _decode_instruction(elf, at)
        if decoded is None:
            continue
        size, word, operands = decoded
        ways: list[int | None] = [at + size]
        if word == "lea" and (kind := _TITLES.get(_read_pointed_bytes(elf, at + size, operands))) is not None:
            return kind
        to = branch_target(operands)
        if word == "call" and to in calls:
            return calls[to]
        if word.startswith("j"):
            ways = [to, *(ways if word != "jmp" else [])]
        elif word in ("ret", "hlt", "ud2"):
            ways = []
        for way in ways:
            if way is not None and way not in seen:
                seen.add(way)
                left.append(way)
    return None


def _decode_instruction(elf: Elf, vaddr: int) -> tuple[int, str, str] | None:
    offset = find_file_offset(elf, vaddr)
    if offset is None:
        return None
    code = elf.read(offset, min(LONGEST_BYTES, elf.size - offset))
    for _, size, words, operands in decode_instructions(code, vaddr, 1):
        return size, words[-1], operands
    return None


def _read_pointed_bytes(elf: Elf, following: int, operands: str) -> bytes:
    """Return the bytes that `lea register, [rip + distance]` points to, at most as many as a title has."""
    match = re.search(r"\[rip ([+-]) (0x[0-9a-f]+|\d+)\]", operands)
    if not match:
        return b""
    address = following + int(match[2], 0) * (1 if match[1] == "+" else -1)
    for segment in elf.loads():
        if segment.vaddr <= address < segment.vaddr + segment.file_bytes:
            offset = segment.offset + address - segment.vaddr
            data = elf.read(offset, min(6, elf.size - offset))
            return data[: data.find(b"\0") + 1]
    return b""
