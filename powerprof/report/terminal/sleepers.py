# SPDX-License-Identifier: Apache-2.0
"""Saved records of wakers and of sleeps, as they were before `offcpu`, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof import text
from powerprof.attribution.sleepers import SleepsProfile, WakerRow, WakersProfile
from powerprof.report.wording.notes import texts

_INTERRUPT = "an interrupt (a timer or a device)"


def wakers_lines(profile: WakersProfile, width: int = text.DEFAULT_WIDTH, *, top: int = 20) -> list[str]:
    """The whole report on who wakes the target's threads."""
    who = profile.label or f"process {profile.pid}"
    head = f"{who} had its threads woken {profile.wakings_count:,} times in {text.number(profile.window_s, 1)} s."
    lines = [*text.wrap(head, width), "", f"{'wakings/s':>10}  {'%':>6}  thread ← who wakes it, and from where"]
    for row in profile.wakers[:top]:
        lines += waker_lines(row, (profile.pid,), width)
    left = len(profile.wakers) - top
    lines += [f"{left} more rows (--top N, or --json)"] if left > 0 else []
    return [*lines, *_footer(profile, width)]


def sleeps_lines(profile: SleepsProfile, width: int = text.DEFAULT_WIDTH, *, top: int = 20) -> list[str]:
    """The whole report on how long the target's threads sleep, and wait for a CPU once woken."""
    who = profile.label or f"process {profile.pid}"
    head = f"{who} slept {profile.sleeps_count:,} times in {text.number(profile.window_s, 1)} s."
    lines = [*text.wrap(head, width), ""]
    lines.append(f"{'sleeps/s':>10}  {'mean':>11}  {'longest':>11}  {'waits: mean':>11}  {'longest':>11}  thread")
    for row in profile.threads[:top]:
        figures = (row.sleep_mean_ms, row.sleep_max_ms, row.wait_mean_ms, row.wait_max_ms)
        cells = "  ".join(f"{text.number(figure, 3, ' ms'):>11}" for figure in figures)
        begin = f"{text.number(row.sleeps_hz, 1):>10}  {cells}  "
        lines.append(text.cut(f"{begin}{name_of(row.thread, row.tid)}", width))
    left = len(profile.threads) - top
    lines += [f"{left} more threads (--top N, or --json)"] if left > 0 else []
    return [*lines, *_footer(profile, width)]


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
    return [text.cut(f"{begin}{name_of(row.thread, row.tid)} ← {waker}", width), *wrapped]


def _footer(profile: WakersProfile | SleepsProfile, width: int) -> list[str]:
    cost = "" if profile.tool_cpu_s is None else f", which used {text.number(profile.tool_cpu_s, 2)} s of CPU time"
    said = [f"Lost {profile.lost_count:,}. Traced by DTrace{cost}: no energy figure comes from this window."]
    said += [f"Limit: {limit}." for limit in profile.limits]
    said += [f"Note: {note}." for note in texts(profile.notes)]
    if profile.interrupted:
        said.append("Interrupted: this is what was counted until then.")
    return ["", *(line for word in said for line in text.wrap(word, width))]
