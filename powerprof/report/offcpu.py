# SPDX-License-Identifier: Apache-2.0
"""`powerprof offcpu` for a terminal: threads by their sleeps, then who woke them."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.attribution.offcpu import OffCpuProfile, OffCpuThread, SleepsProfile, WakerRow, WakersProfile
from powerprof.attribution.offcpu import convert_old_record as as_profile
from powerprof.model import text
from powerprof.report.labels import texts

# Threads that sleep and who wakes them, as lines of a terminal name them.

_INTERRUPT = "an interrupt (a timer or a device)"


def name_of(thread: str | None, tid: int) -> str:
    """A thread by its name, without the server's prefix, and its id."""
    return f"{(thread or 'thread').removeprefix('thread/')} {tid}"


def waker_of(row: WakerRow, pids: Sequence[int]) -> str:
    """Who woke it, as a sentence names it: all threads of one name of a process alike."""
    if not row.waker_tid:
        return _INTERRUPT
    return row.waker_comm if row.waker_pid in pids else f"{row.waker_comm} (process {row.waker_pid})"


def waker_lines(row: WakerRow, pids: Sequence[int], width: int) -> list[str]:
    """Who woke whom how often, and from where; `pids` are the target's."""
    begin = f"{text.number(row.rate_hz, 1):>10}  {text.number(row.percent, 1):>6}  "
    elsewhere = "" if row.waker_pid in pids else f" (process {row.waker_pid})"
    waker = f"{row.waker_comm} {row.waker_tid}{elsewhere}" if row.waker_tid else _INTERRUPT
    path = " ← ".join(frame.function or frame.text for frame in row.stack)
    wrapped = text.wrap(path, width, " " * len(begin))[:6] if path else []
    return [text.shorten(f"{begin}{name_of(row.thread, row.tid)} ← {waker}", width), *wrapped]


def _thread(row: OffCpuThread, width: int) -> list[str]:
    figures = (row.sleep_mean_ms, row.sleep_max_ms, row.wait_mean_ms, row.wait_max_ms)
    cells = "  ".join(f"{text.number(figure, 3):>9}" for figure in figures)
    begin = f"{text.number(row.sleeps_hz, 1):>8}  {cells}  "
    states = [
        f"{state.state} {text.number(state.sleep_ms, 0)} ms in {text.plural(state.sleeps_count, 'sleep')}"
        for state in row.states or ()
    ]
    if row.preempted_count and row.preempted_ms is not None:
        states.append(f"preempted {text.plural(row.preempted_count, 'time')} for {text.number(row.preempted_ms, 1)} ms")
    why = text.wrap("; ".join(states), width, " " * 10) if states else []
    return [text.shorten(f"{begin}{name_of(row.thread, row.tid)}", width), *why]


def _most(profile: OffCpuProfile) -> str:
    """Who wakes it most."""
    by_waker: dict[str, float] = {}
    for row in profile.wakers:
        by_waker[waker_of(row, profile.pids)] = by_waker.get(waker_of(row, profile.pids), 0.0) + row.percent
    if not by_waker:
        return ""
    name, percent = max(by_waker.items(), key=lambda item: item[1])
    return f"; {text.number(percent, 0)} % of its wakings are by {name}"


def _more(rows: int, top: int, what: str) -> list[str]:
    return [f"{rows - top} more {what} (--top N, or --json)"] if rows > top else []


def _cost(profile: OffCpuProfile) -> str:
    if profile.tool_cpu_s is None:
        return "powerprof itself: unknown."
    bpf = "" if profile.bpf_s is None else f", {text.number(1e3 * profile.bpf_s / profile.window_s, 2)} ms/s in BPF"
    return f"powerprof itself: {text.number(1e3 * profile.tool_cpu_s, 0)} ms of CPU time{bpf}."


def of_before(saved: WakersProfile | SleepsProfile, width: int = text.DEFAULT_WIDTH, *, top: int = 20) -> list[str]:
    """The report of a record of wakers or sleeps alone, as versions before `offcpu` saved them."""
    return lines(as_profile(saved), width, top=top)


def lines(profile: OffCpuProfile, width: int = text.DEFAULT_WIDTH, *, top: int = 20) -> list[str]:
    """The whole report."""
    who = profile.label or "the target"
    count = profile.sleeps_count
    slept = "was traced for" if count is None else f"slept {text.plural(count, 'time')} in"
    head = f"{who} {slept} {text.number(profile.window_s, 1)} s{_most(profile)}."
    printed = [*text.wrap(head, width), ""]
    if count is not None:
        printed.append(f"{'sleeps/s':>8}  {'mean ms':>9}  {'longest':>9}  {'wait ms':>9}  {'longest':>9}  thread")
    threads = [row for row in profile.threads if row.sleeps_hz or row.wait_max_ms]
    for thread in threads[:top]:
        printed += _thread(thread, width)
    printed += _more(len(threads), top, "threads")
    if still := len(profile.threads) - len(threads):
        printed.append(f"{text.plural(still, 'more thread')} did not go to sleep in the window.")
    printed += [""] if count is not None else []
    if profile.wakings_count is not None and profile.wakings_window_s is not None:
        woken = text.plural(profile.wakings_count, "time")
        printed += [f"Woken {woken} in {text.number(profile.wakings_window_s, 1)} s.", ""]
        printed.append(f"{'wakings/s':>10}  {'%':>6}  thread ← who wakes it, and from where")
        for waker in profile.wakers[:top]:
            printed += waker_lines(waker, profile.pids, width)
        printed += [*_more(len(profile.wakers), top, "rows"), ""]
    footer = [f"Lost {profile.lost_count:,}. Tracing wakes CPUs: no energy figure comes from this window."]
    footer += [_cost(profile), *([f"Limits: {'; '.join(profile.limits)}."] if profile.limits else [])]
    footer += [f"Note: {note}." for note in texts(profile.notes)]
    if profile.interrupted:
        footer.append("Interrupted: this is what was counted until then.")
    return [*printed, *(line for word in footer for line in text.wrap(word, width))]
