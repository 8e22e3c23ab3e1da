# SPDX-License-Identifier: Apache-2.0
"""`powerprof syscalls` for a terminal: calls by kind, files by bytes, and waits for locks."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence

from powerprof.attribution.syscalls import FileRow, SyscallProfile, SyscallRow
from powerprof.model import text
from powerprof.report.labels import texts
from powerprof.report.offcpu import name_of

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def lines(profile: SyscallProfile, width: int = text.DEFAULT_WIDTH, *, top: int = 20) -> list[str]:
    """The whole report."""
    printed = [*text.wrap(_headline(profile), width), ""]
    printed += _calls(profile, width, top)
    printed += _files(profile, width, top)
    printed += _waits(profile, width, top)
    if profile.waiting_count:
        waiting = ", ".join(f"{count} in {name}" for name, count in list(profile.waiting_count.items())[:6])
        printed += text.wrap(f"Calls that had not ended when the window did: {waiting}.", width)
    bpf = "" if profile.bpf_s is None else f", {text.number(1e3 * profile.bpf_s / profile.window_s, 2)} ms/s in BPF"
    cost = "unknown" if profile.tool_cpu_s is None else f"{1e3 * profile.tool_cpu_s:.0f} ms of CPU time{bpf}"
    footer = [f"Lost {profile.lost_count:,}. powerprof itself: {cost}."]
    footer += [f"Limits: {'; '.join(profile.limits)}."] if profile.limits else []
    footer += [f"Note: {note}." for note in texts(profile.notes)]
    if profile.interrupted:
        footer.append("Interrupted: this is what was counted until then.")
    return [*printed, *(line for word in footer for line in text.wrap(word, width))]


def _headline(profile: SyscallProfile) -> str:
    who = profile.label or "the target"
    files = [row for row in profile.files if row.kind == "file"]
    written, read = (_rate(sum(values), profile.window_s) for values in _bytes(files))
    made = f"{who} made {profile.calls_count / profile.window_s:,.0f} system calls/s in {profile.window_s:.1f} s"
    if not any(row.write_bytes or row.read_bytes for row in files):
        return f"{made}; it wrote and read no file."
    return f"{made}; of files it wrote {written} and read {read}."


def _bytes(rows: Sequence[FileRow]) -> tuple[list[int], list[int]]:
    return [row.write_bytes for row in rows], [row.read_bytes for row in rows]


def _rate(count: float, seconds: float) -> str:
    """Bytes a second in three significant digits."""
    rate = count / seconds
    factor, unit = next(((factor, unit) for factor, unit in _UNITS if rate >= factor), _UNITS[-1])
    return f"{rate / factor:.3g} {unit}/s"


def _more(rows: int, top: int, what: str) -> list[str]:
    return [f"{rows - top} more {what} (--top N, or --json)"] if rows > top else []


def _calls(profile: SyscallProfile, width: int, top: int) -> list[str]:
    """A line a kind of call, over all threads."""
    by_kind: dict[str, list[SyscallRow]] = defaultdict(list)
    for row in profile.calls:
        by_kind[f"{row.name} {row.operation}".rstrip()].append(row)
    kinds = sorted(by_kind.items(), key=lambda kind: (-sum(row.count for row in kind[1]), kind[0]))
    rows = [["calls/s", "failed/s", "mean ms", "longest ms", "threads", "call"]]
    for name, own in kinds[:top]:
        count = sum(row.count for row in own)
        rows.append(
            [
                text.number(count / profile.window_s, 1),
                text.number(sum(row.errors_count for row in own) / profile.window_s, 1),
                text.number(sum(row.total_ms for row in own) / count, 3),
                text.number(max(row.longest_ms for row in own), 3),
                str(len(own)),
                name,
            ]
        )
    return [*_aligned(rows, width), *_more(len(kinds), top, "calls"), ""]


def _files(profile: SyscallProfile, width: int, top: int) -> list[str]:
    """A line a file and thread; sockets and pipes are one line a kind."""
    files = [row for row in profile.files if row.kind == "file"]
    folder = _common_folder([row.path for row in files])
    rows = [["written", "writes/s", "read", "reads/s", "syncs/s", "file ← thread"]]
    for row in files[:top]:
        path = row.path.removeprefix(f"{folder}/")
        rows.append([*_file(row, profile.window_s), f"{path} ← {name_of(row.thread, row.tid)}"])
    for kind in ("socket", "pipe", "other"):
        if own := [row for row in profile.files if row.kind == kind]:
            sums = [sum(getattr(row, name) for row in own) for name in _FIGURES]
            rows.append([*_shown(sums, profile.window_s), f"({text.plural(len({row.path for row in own}), kind)})"])
    if len(rows) == 1:
        return []
    heading = text.wrap(f"Files in {folder}:", width) if folder else []
    return [*heading, *_aligned(rows, width), *_more(len(files), top, "rows"), ""]


def _common_folder(paths: Sequence[str]) -> str:
    """The folder that all absolute paths have in common; empty where that says nothing."""
    absolute = [path for path in paths if path.startswith("/")]
    common = os.path.commonpath([os.path.dirname(path) for path in absolute]) if absolute else ""  # noqa: PTH120
    return common.rstrip("/")


_FIGURES = ("write_bytes", "writes_count", "read_bytes", "reads_count", "syncs_count")


def _file(row: FileRow, window_s: float) -> list[str]:
    return _shown([getattr(row, name) for name in _FIGURES], window_s)


def _shown(sums: Sequence[int], window_s: float) -> list[str]:
    written, writes, read, reads, syncs = sums
    each = [text.number(count / window_s, 1) for count in (writes, reads, syncs)]
    return [_rate(written, window_s), each[0], _rate(read, window_s), each[1], each[2]]


def _waits(profile: SyscallProfile, width: int, top: int) -> list[str]:
    if not profile.lock_waits:
        return []
    rows = [["waits/s", "mean ms", "longest ms", "of the time", "waits for locks and conditions (futex) of"]]
    for row in profile.lock_waits[:top]:
        rows.append(
            [
                text.number(row.waits_count / profile.window_s, 1),
                text.number(row.total_ms / row.waits_count, 3),
                text.number(row.longest_ms, 3),
                f"{text.number(row.total_ms / profile.window_s / 10, 1)} %",
                name_of(row.thread, row.tid),
            ]
        )
    return [*_aligned(rows, width), *_more(len(profile.lock_waits), top, "threads"), ""]


def _aligned(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Figures flush right, the name that ends each line cut at the width."""
    heads = text.columns([row[:-1] for row in rows], left=0)
    return [text.shorten(f"{head}  {row[-1]}", width) for head, row in zip(heads, rows, strict=True)]
