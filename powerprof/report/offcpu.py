# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof offcpu`: sleeping threads, and the threads that wake them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from powerprof.attribution.offcpu import OffCpuProfile, OffCpuThread, SyscallProfile, WakerRow
from powerprof.model import text
from powerprof.report import labels
from powerprof.report.document import NOT_TERMINAL, TERMINAL, Document, Part, Section, Sentence, Shown, View
from powerprof.report.layouts import named_rows
from powerprof.report.table import (
    Cell,
    Column,
    Line,
    Path,
    Places,
    Table,
    TableRow,
    Words,
    field_lines,
    figure_columns,
    word_columns,
)
from powerprof.system.tasks import OUTSIDE

DEFAULT_TOP = 20
_INTERRUPT = "an interrupt (a timer or a device)"


def thread_name(thread: str | None, tid: int) -> str:
    """Return a thread's name without the server's prefix, and its id."""
    return f"{(thread or 'thread').removeprefix('thread/')} {tid}"


def waker_name(row: WakerRow, pids: Sequence[int]) -> str:
    """Return the waker in a sentence. Threads of one name in a process are not distinguished."""
    if not row.waker_tid:
        return _INTERRUPT
    return f"{row.waker_comm}{_elsewhere(row, pids)}"


def _elsewhere(row: WakerRow, pids: Sequence[int]) -> str:
    if row.waker_pid in pids:
        return ""
    return f" (process {row.waker_pid})" if row.waker_pid < OUTSIDE else " (outside this pid namespace)"


def threads_table(profile: OffCpuProfile, top: int) -> Table:
    """Return one row per thread that slept or waited for a CPU."""
    places, rows = Places(profile), []
    awake = [row for row in profile.threads if row.sleeps_hz or row.wait_max_ms]
    number_of = {id(row): number for number, row in enumerate(profile.threads)}
    for row in awake[:top]:
        at = f"/threads/{number_of[id(row)]}"
        cells: dict[str, Cell] = {
            "sleeps": places.figure(f"{at}/sleeps_hz", 1),
            "mean": places.figure(f"{at}/sleep_mean_ms", 3),
            "longest": places.figure(f"{at}/sleep_max_ms", 3),
            "wait": places.figure(f"{at}/wait_mean_ms", 3),
            "longest_wait": places.figure(f"{at}/wait_max_ms", 3),
            "thread": Words(thread_name(row.thread, row.tid)),
            "states": Words(_states_text(row), ours=True),
        }
        rows.append(TableRow(cells))
    headings = {"sleeps": "sleeps/s", "mean": "mean ms", "longest": "longest ms", "wait": "wait ms"}
    columns = [
        *figure_columns(**headings, longest_wait="longest wait ms"),
        *word_columns("thread"),
        Column("states", left=True, beside="thread", forms=TERMINAL),
        Column("states", "states", left=True, forms=NOT_TERMINAL),
    ]
    return Table(columns, rows, "threads", left_count=len(awake) - len(rows))


def _states_text(row: OffCpuThread) -> str:
    states = [
        f"{state.state} {text.number(state.sleep_ms, 0)} ms in {text.plural(state.sleeps_count, 'sleep')}"
        for state in row.states or ()
    ]
    if row.preempted_count and row.preempted_ms is not None:
        states.append(f"preempted {text.plural(row.preempted_count, 'time')} for {text.number(row.preempted_ms, 1)} ms")
    return "; ".join(states)


def wakers_table(profile: OffCpuProfile, top: int) -> Table:
    """Return how often each waker woke a thread, and from where."""
    places, rows = Places(profile), []
    for index, row in enumerate(profile.wakers[:top]):
        number = f" {row.waker_tid}" if row.waker_tid < OUTSIDE else ""
        waker = f"{row.waker_comm}{number}{_elsewhere(row, profile.pids)}" if row.waker_tid else _INTERRUPT
        cells: dict[str, Cell] = {
            "rate": places.figure(f"/wakers/{index}/rate_hz", 1),
            "percent": places.figure(f"/wakers/{index}/percent", 1),
            "waker": Words(f"{thread_name(row.thread, row.tid)} ← {waker}"),
        }
        if row.stack:
            cells["path"] = Path([frame.function or frame.text for frame in row.stack], complete=True)
        rows.append(TableRow(cells))
    columns = [
        *figure_columns(rate="wakings/s", percent="%"),
        *word_columns(waker="thread ← waker"),
        Column("path", "stack", left=True, beside="waker"),
    ]
    return Table(columns, rows, "wakers", left_count=len(profile.wakers) - len(rows))


def _main_waker(profile: OffCpuProfile) -> str:
    """Return the most frequent waker."""
    by_waker: dict[str, float] = {}
    for row in profile.wakers:
        by_waker[waker_name(row, profile.pids)] = by_waker.get(waker_name(row, profile.pids), 0.0) + row.percent
    if not by_waker:
        return ""
    name, percent = max(by_waker.items(), key=lambda item: item[1])
    return f"; {text.number(percent, 0)} % of its wakings are by {name}"


def _describe_cost(profile: OffCpuProfile | SyscallProfile) -> str:
    """Return the CPU time of powerprof in the window as a sentence."""
    return labels.describe_cost(profile.bound, profile.tool_cpu_s, profile.window_s, profile.label)


def answer_of(profile: OffCpuProfile) -> str:
    """Return how often the target slept, and its most frequent waker."""
    count = profile.sleeps_count
    slept = "was traced for" if count is None else f"slept {text.plural(count, 'time')} in"
    return f"{profile.label or 'the target'} {slept} {text.number(profile.window_s, 1)} s{_main_waker(profile)}."


def document(profile: OffCpuProfile, view: View) -> Document:
    """Return the report of sleeping threads and their wakers."""
    return Document(
        views=("top",),
        record=profile,
        answer=answer_of(profile),
        parts=partial(_list_parts, profile, view.top or DEFAULT_TOP),
        rows=partial(_list_rows, profile),
        setup=(("Host", "/host"),),
        derived=view.extras.derived,
    )


def _list_parts(profile: OffCpuProfile, top: int) -> Iterator[Part]:
    still = sum(not (row.sleeps_hz or row.wait_max_ms) for row in profile.threads)
    asleep = f"{text.plural(still, 'more thread')} did not sleep in the window." if still else ""
    threads = Shown(threads_table(profile, top), named_rows, what="threads", names=False)
    yield Section("Threads", [threads, Sentence(asleep)], name="threads")
    if profile.wakings_count is not None and profile.wakings_window_s is not None:
        woken = text.plural(profile.wakings_count, "time")
        count = Sentence(f"Woken {woken} in {text.number(profile.wakings_window_s, 1)} s.")
        wakers = Shown(wakers_table(profile, top), named_rows, "wakeups", what="wakers", names=False)
        yield Section("Wakers", [count, wakers], name="wakers")
    lost = f"Lost {profile.lost_count:,}. Tracing wakes CPUs: no energy figure comes from this window."
    yield Section("Completeness", [Sentence(lost), *list_costs(profile)], name="checks")


def list_costs(profile: OffCpuProfile | SyscallProfile) -> list[Sentence]:
    """Return the cost of a trace, and its limitations."""
    limits = f"{'; '.join(profile.limits)}." if profile.limits else ""
    return [Sentence(_describe_cost(profile)), Sentence(limits, "Limitations")]


def _list_rows(profile: OffCpuProfile) -> Iterator[Line]:
    """Yield one line per thread, then one per waker."""
    head, *lines = field_lines(profile.threads, [name for name in OffCpuThread.__struct_fields__ if name != "states"])
    yield [*head, "states"]
    yield from ([*line, _states_text(row) or None] for line, row in zip(lines, profile.threads, strict=True))
    yield []
    names = [name for name in WakerRow.__struct_fields__ if name != "stack"]
    yield [*names, "stack"]
    for row in profile.wakers:
        stack = " < ".join(frame.function or frame.text for frame in row.stack)
        yield [*(getattr(row, name) for name in names), stack or None]
