# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof syscalls`: calls by kind, files by bytes, and waits for locks."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from powerprof.attribution.offcpu import FileRow, LockWaits, SyscallProfile, SyscallRow
from powerprof.model import text
from powerprof.report.document import Document, Part, Section, Sentence, Shown, View
from powerprof.report.layouts import named_rows
from powerprof.report.offcpu import DEFAULT_TOP, list_costs, thread_name
from powerprof.report.table import Line, Table, TableRow, Words, field_lines, figure_columns, word_columns

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def answer_of(profile: SyscallProfile) -> str:
    """Return the rate of system calls, and the bytes to and from files."""
    who = profile.label or "the target"
    files = [row for row in profile.files if row.kind == "file"]
    written, read = (
        _byte_rate(sum(getattr(row, name) for row in files), profile.window_s) for name in ("write_bytes", "read_bytes")
    )
    made = f"{who} made {profile.calls_count / profile.window_s:,.0f} system calls/s in {profile.window_s:.1f} s"
    if not any(row.write_bytes or row.read_bytes for row in files):
        return f"{made}; it did not read or write a file."
    return f"{made}; it wrote {written} to files and read {read}."


def _byte_rate(count: float, seconds: float) -> str:
    """Return bytes per second with three significant digits."""
    rate = count / seconds
    factor, unit = next(((factor, unit) for factor, unit in _UNITS if rate >= factor), _UNITS[-1])
    return f"{rate / factor:.3g} {unit}/s"


def calls_table(profile: SyscallProfile, top: int) -> Table:
    """Return one row per kind of call, over all threads."""
    by_kind: dict[str, list[SyscallRow]] = defaultdict(list)
    for row in profile.calls:
        by_kind[f"{row.name} {row.operation}".rstrip()].append(row)
    kinds = sorted(by_kind.items(), key=lambda kind: (-sum(row.count for row in kind[1]), kind[0]))
    rows = []
    for name, kind_rows in kinds[:top]:
        count = sum(row.count for row in kind_rows)
        failed = sum(row.errors_count for row in kind_rows)
        rows.append(
            [
                text.number(count / profile.window_s, 1),
                text.number(failed / profile.window_s, 1),
                text.number(sum(row.total_ms for row in kind_rows) / count, 3),
                text.number(max(row.longest_ms for row in kind_rows), 3),
                str(len(kind_rows)),
                name,
            ]
        )
    headings = ("calls/s", "failed/s", "mean ms", "longest ms", "threads", "call")
    return _draw(headings, rows, "calls", len(kinds) - len(rows))


def files_table(profile: SyscallProfile, folder: str, top: int) -> Table:
    """Return one row per file and thread. Sockets and pipes have one row per kind."""
    files = [row for row in profile.files if row.kind == "file"]
    rows = []
    for row in files[:top]:
        name = f"{row.path.removeprefix(f'{folder}/')} ← {thread_name(row.thread, row.tid)}"
        rows.append([*_file_cells([getattr(row, field) for field in _FIGURES], profile.window_s), name])
    for kind in ("socket", "pipe", "other"):
        if kind_rows := [row for row in profile.files if row.kind == kind]:
            sums = [sum(getattr(row, field) for row in kind_rows) for field in _FIGURES]
            name = f"({text.plural(len({row.path for row in kind_rows}), kind)})"
            rows.append([*_file_cells(sums, profile.window_s), name])
    headings = ("written", "writes/s", "read", "reads/s", "syncs/s", "file ← thread")
    return _draw(headings, rows, "files", max(0, len(files) - top))


def _common_folder(paths: Sequence[str]) -> str:
    """Return the common folder of all absolute paths; empty if it is the root."""
    absolute = [path for path in paths if path.startswith("/")]
    common = os.path.commonpath([os.path.dirname(path) for path in absolute]) if absolute else ""  # noqa: PTH120
    return common.rstrip("/")


_FIGURES = ("write_bytes", "writes_count", "read_bytes", "reads_count", "syncs_count")


def _file_cells(sums: Sequence[int], window_s: float) -> list[str]:
    written, writes, read, reads, syncs = sums
    each = [text.number(count / window_s, 1) for count in (writes, reads, syncs)]
    return [_byte_rate(written, window_s), each[0], _byte_rate(read, window_s), each[1], each[2]]


def locks_table(profile: SyscallProfile, top: int) -> Table:
    """Return one row per thread that waited for locks and conditions."""
    rows = [
        [
            text.number(row.waits_count / profile.window_s, 1),
            text.number(row.total_ms / row.waits_count, 3),
            text.number(row.longest_ms, 3),
            f"{text.number(row.total_ms / profile.window_s / 10, 1)} %",
            thread_name(row.thread, row.tid),
        ]
        for row in profile.lock_waits[:top]
    ]
    headings = ("waits/s", "mean ms", "longest ms", "of the time", "thread waiting for locks and conditions (futex)")
    return _draw(headings, rows, "threads", len(profile.lock_waits) - len(rows))


def _draw(headings: Sequence[str], rows: Sequence[Sequence[str]], label: str, left_count: int) -> Table:
    """Return a table of figures in text; the last column has names from outside."""
    columns = [*figure_columns(**{heading: heading for heading in headings[:-1]}), *word_columns(headings[-1])]
    cells = [
        {heading: Words(cell, ours=heading != headings[-1]) for heading, cell in zip(headings, row, strict=True)}
        for row in rows
    ]
    return Table(columns, [TableRow(row) for row in cells], label, left_count=left_count)


def document(profile: SyscallProfile, view: View) -> Document:
    """Return the report of system calls."""
    return Document(
        views=("top",),
        record=profile,
        answer=answer_of(profile),
        parts=partial(_list_parts, profile, view.top or DEFAULT_TOP),
        rows=partial(_list_rows, profile),
        setup=(("Host", "/host"),),
        derived=view.extras.derived,
    )


def _list_rows(profile: SyscallProfile) -> Iterator[Line]:
    """Yield one line per call, per file and per thread that waits for locks, each kind with a head."""
    yield from field_lines(profile.calls, SyscallRow.__struct_fields__)
    yield []
    yield from field_lines(profile.files, FileRow.__struct_fields__)
    yield []
    yield from field_lines(profile.lock_waits, LockWaits.__struct_fields__)


def _list_parts(profile: SyscallProfile, top: int) -> Iterator[Part]:
    calls = Shown(calls_table(profile, top), named_rows, what="calls", names=False)
    yield Section("Calls", [calls], name="calls")
    folder = _common_folder([row.path for row in profile.files if row.kind == "file"])
    files = Shown(files_table(profile, folder, top), named_rows, what="files", names=False)
    yield Section("Files", [Sentence(f"Files in {folder}:" if folder else ""), files], name="files")
    locks = Shown(locks_table(profile, top), named_rows, what="threads", names=False)
    yield Section("Waits for locks", [locks], name="locks")
    waiting = ", ".join(f"{count} in {name}" for name, count in list(profile.waiting_count.items())[:6])
    checks = [
        Sentence(f"Calls still running at the end of the window: {waiting}." if waiting else ""),
        Sentence(f"Lost {profile.lost_count:,}."),
        *list_costs(profile),
    ]
    yield Section("Completeness", checks, name="checks")
