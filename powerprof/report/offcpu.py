# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof offcpu` and `powerprof syscalls`: sleeping threads, their wakers, calls, files and locks."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence

from powerprof.attribution.offcpu import OffCpuProfile, OffCpuThread, SyscallProfile, SyscallRow, WakerRow
from powerprof.model import text
from powerprof.report.labels import word_notes
from powerprof.report.table import Line, align_rows, field_lines, hidden_line

# Sleeping threads and their wakers.

_INTERRUPT = "an interrupt (a timer or a device)"


def thread_name(thread: str | None, tid: int) -> str:
    """Return a thread's name without the server's prefix, and its id."""
    return f"{(thread or 'thread').removeprefix('thread/')} {tid}"


def waker_name(row: WakerRow, pids: Sequence[int]) -> str:
    """Return the waker in a sentence. Threads of one name in a process are not distinguished."""
    if not row.waker_tid:
        return _INTERRUPT
    return row.waker_comm if row.waker_pid in pids else f"{row.waker_comm} (process {row.waker_pid})"


def waker_lines(rows: Sequence[WakerRow], pids: Sequence[int], width: int) -> list[str]:
    """Return how often each waker woke a thread, and from where. `pids` belong to the target."""
    cells = [["wakings/s", "%", "thread ← waker and stack"]]
    for row in rows:
        elsewhere = "" if row.waker_pid in pids else f" (process {row.waker_pid})"
        waker = f"{row.waker_comm} {row.waker_tid}{elsewhere}" if row.waker_tid else _INTERRUPT
        name = f"{thread_name(row.thread, row.tid)} ← {waker}"
        cells.append([text.number(row.rate_hz, 1), text.number(row.percent, 1), name])
    entries, indent = text.name_rows(cells, width)
    lines = list(entries[0])
    for row, entry in zip(rows, entries[1:], strict=True):
        path = " ← ".join(frame.function or frame.text for frame in row.stack)
        lines += [*entry, *(text.wrap(path, width, " " * indent)[:6] if path else [])]
    return lines


def _thread_lines(rows: Sequence[OffCpuThread], width: int) -> list[str]:
    cells = [["sleeps/s", "mean ms", "longest", "wait ms", "longest", "thread"]]
    for row in rows:
        figures = (row.sleep_mean_ms, row.sleep_max_ms, row.wait_mean_ms, row.wait_max_ms)
        shown = [text.number(figure, 3) for figure in figures]
        cells.append([text.number(row.sleeps_hz, 1), *shown, thread_name(row.thread, row.tid)])
    entries, _ = text.name_rows(cells, width)
    lines = list(entries[0])
    for row, entry in zip(rows, entries[1:], strict=True):
        lines += [*entry, *_state_lines(row, width)]
    return lines


def _state_lines(row: OffCpuThread, width: int) -> list[str]:
    states = [
        f"{state.state} {text.number(state.sleep_ms, 0)} ms in {text.plural(state.sleeps_count, 'sleep')}"
        for state in row.states or ()
    ]
    if row.preempted_count and row.preempted_ms is not None:
        states.append(f"preempted {text.plural(row.preempted_count, 'time')} for {text.number(row.preempted_ms, 1)} ms")
    return text.wrap("; ".join(states), width, " " * 10) if states else []


def _main_waker(profile: OffCpuProfile) -> str:
    """Return the most frequent waker."""
    by_waker: dict[str, float] = {}
    for row in profile.wakers:
        by_waker[waker_name(row, profile.pids)] = by_waker.get(waker_name(row, profile.pids), 0.0) + row.percent
    if not by_waker:
        return ""
    name, percent = max(by_waker.items(), key=lambda item: item[1])
    return f"; {text.number(percent, 0)} % of its wakings are by {name}"


def _own_cost(profile: OffCpuProfile | SyscallProfile) -> str:
    if profile.tool_cpu_s is None:
        return "powerprof itself: unknown."
    bpf = "" if profile.bpf_s is None else f", {text.number(1e3 * profile.bpf_s / profile.window_s, 2)} ms/s in BPF"
    return f"powerprof itself: {text.number(1e3 * profile.tool_cpu_s, 0)} ms of CPU time{bpf}."


def render_terminal(profile: OffCpuProfile, width: int = text.DEFAULT_WIDTH, *, top: int = 20) -> list[str]:
    """Return the report of sleeping threads and their wakers."""
    who = profile.label or "the target"
    count = profile.sleeps_count
    slept = "was traced for" if count is None else f"slept {text.plural(count, 'time')} in"
    head = f"{who} {slept} {text.number(profile.window_s, 1)} s{_main_waker(profile)}."
    printed = [*text.wrap(head, width), ""]
    threads = [row for row in profile.threads if row.sleeps_hz or row.wait_max_ms]
    printed += _thread_lines(threads[:top], width) if count is not None or threads else []
    printed += hidden_line(len(threads) - top, "threads")
    if still := len(profile.threads) - len(threads):
        printed.append(f"{text.plural(still, 'more thread')} did not sleep in the window.")
    printed += [""] if count is not None else []
    if profile.wakings_count is not None and profile.wakings_window_s is not None:
        woken = text.plural(profile.wakings_count, "time")
        printed += [*text.wrap(f"Woken {woken} in {text.number(profile.wakings_window_s, 1)} s.", width), ""]
        printed += waker_lines(profile.wakers[:top], profile.pids, width)
        printed += [*hidden_line(len(profile.wakers) - top, "rows"), ""]
    footer = [f"Lost {profile.lost_count:,}. Tracing wakes CPUs: no energy figure comes from this window."]
    return [*printed, *_footer(profile, width, [*footer, _own_cost(profile)])]


def _footer(profile: OffCpuProfile | SyscallProfile, width: int, sentences: Sequence[str]) -> list[str]:
    limits = [f"Limitations: {'; '.join(profile.limits)}."] if profile.limits else []
    notes = [f"Note: {note}." for note in word_notes(profile.notes)]
    ended = ["Interrupted: partial results."] if profile.interrupted else []
    return [line for sentence in (*sentences, *limits, *notes, *ended) for line in text.wrap(sentence, width)]


def render_csv(record: OffCpuProfile) -> Iterator[Line]:
    """Yield one line per thread. The states of the kernel are in the JSON only."""
    return field_lines(record.threads, [name for name in OffCpuThread.__struct_fields__ if name != "states"])


# `powerprof syscalls`: calls by kind, files by bytes, and waits for locks.

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def render_syscalls_terminal(profile: SyscallProfile, width: int = text.DEFAULT_WIDTH, *, top: int = 20) -> list[str]:
    """Return the report of system calls."""
    printed = [*text.wrap(_syscall_headline(profile), width), ""]
    printed += _call_lines(profile, width, top)
    printed += _file_lines(profile, width, top)
    printed += _lock_lines(profile, width, top)
    if profile.waiting_count:
        waiting = ", ".join(f"{count} in {name}" for name, count in list(profile.waiting_count.items())[:6])
        printed += text.wrap(f"Calls still running at the end of the window: {waiting}.", width)
    return [*printed, *_footer(profile, width, [f"Lost {profile.lost_count:,}. {_own_cost(profile)}"])]


def _syscall_headline(profile: SyscallProfile) -> str:
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


def _call_lines(profile: SyscallProfile, width: int, top: int) -> list[str]:
    """Return one line per kind of call, over all threads."""
    by_kind: dict[str, list[SyscallRow]] = defaultdict(list)
    for row in profile.calls:
        by_kind[f"{row.name} {row.operation}".rstrip()].append(row)
    kinds = sorted(by_kind.items(), key=lambda kind: (-sum(row.count for row in kind[1]), kind[0]))
    rows = [["calls/s", "failed/s", "mean ms", "longest ms", "threads", "call"]]
    for name, kind_rows in kinds[:top]:
        count = sum(row.count for row in kind_rows)
        rows.append(
            [
                text.number(count / profile.window_s, 1),
                text.number(sum(row.errors_count for row in kind_rows) / profile.window_s, 1),
                text.number(sum(row.total_ms for row in kind_rows) / count, 3),
                text.number(max(row.longest_ms for row in kind_rows), 3),
                str(len(kind_rows)),
                name,
            ]
        )
    return [*align_rows(rows, width), *hidden_line(len(kinds) - top, "calls"), ""]


def _file_lines(profile: SyscallProfile, width: int, top: int) -> list[str]:
    """Return one line per file and thread. Sockets and pipes have one line per kind."""
    files = [row for row in profile.files if row.kind == "file"]
    folder = _common_folder([row.path for row in files])
    rows = [["written", "writes/s", "read", "reads/s", "syncs/s", "file ← thread"]]
    for row in files[:top]:
        path = row.path.removeprefix(f"{folder}/")
        figures = _file_cells([getattr(row, name) for name in _FIGURES], profile.window_s)
        rows.append([*figures, f"{path} ← {thread_name(row.thread, row.tid)}"])
    for kind in ("socket", "pipe", "other"):
        if kind_rows := [row for row in profile.files if row.kind == kind]:
            sums = [sum(getattr(row, name) for row in kind_rows) for name in _FIGURES]
            rows.append(
                [*_file_cells(sums, profile.window_s), f"({text.plural(len({row.path for row in kind_rows}), kind)})"]
            )
    if len(rows) == 1:
        return []
    heading = text.wrap(f"Files in {folder}:", width) if folder else []
    return [*heading, *align_rows(rows, width), *hidden_line(len(files) - top, "rows"), ""]


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


def _lock_lines(profile: SyscallProfile, width: int, top: int) -> list[str]:
    if not profile.lock_waits:
        return []
    rows = [["waits/s", "mean ms", "longest ms", "of the time", "thread waiting for locks and conditions (futex)"]]
    for row in profile.lock_waits[:top]:
        rows.append(
            [
                text.number(row.waits_count / profile.window_s, 1),
                text.number(row.total_ms / row.waits_count, 3),
                text.number(row.longest_ms, 3),
                f"{text.number(row.total_ms / profile.window_s / 10, 1)} %",
                thread_name(row.thread, row.tid),
            ]
        )
    return [*align_rows(rows, width), *hidden_line(len(profile.lock_waits) - top, "threads"), ""]


def render_syscalls_csv(record: SyscallProfile) -> Iterator[Line]:
    """Yield one line per thread and kind of call."""
    return field_lines(record.calls, SyscallRow.__struct_fields__)
