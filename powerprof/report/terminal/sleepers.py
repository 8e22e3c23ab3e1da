# SPDX-License-Identifier: Apache-2.0
"""`powerprof attribute --wakers` and `--sleeps` for a terminal."""

from __future__ import annotations

from powerprof import text
from powerprof.attribution.sleepers import SleepsProfile, WakerRow, WakersProfile


def wakers_lines(profile: WakersProfile, width: int = text.DEFAULT_WIDTH, *, top: int = 20) -> list[str]:
    """The whole report on who wakes the target's threads."""
    who = profile.label or f"process {profile.pid}"
    head = f"{who} had its threads woken {profile.wakings_count:,} times in {text.number(profile.window_s, 1)} s."
    lines = [*text.wrap(head, width), "", f"{'wakings/s':>10}  {'%':>6}  thread ← who wakes it, and from where"]
    for row in profile.wakers[:top]:
        begin = f"{text.number(row.rate_hz, 1):>10}  {text.number(row.percent, 1):>6}  "
        lines.append(text.cut(f"{begin}{_name(row.thread, row.tid)} ← {_waker(row, profile.pid)}", width))
        path = " ← ".join(frame.function or frame.text for frame in row.stack)
        lines += text.wrap(path, width, " " * len(begin))[:6] if path else []
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
        lines.append(text.cut(f"{begin}{_name(row.thread, row.tid)}", width))
    left = len(profile.threads) - top
    lines += [f"{left} more threads (--top N, or --json)"] if left > 0 else []
    return [*lines, *_footer(profile, width)]


def _name(thread: str | None, tid: int) -> str:
    return f"{(thread or 'thread').removeprefix('thread/')} {tid}"


def _waker(row: WakerRow, pid: int) -> str:
    if row.waker_tid == 0:
        return "the idle task (a timer or a device)"
    return f"{row.waker_comm} {row.waker_tid}" + ("" if row.waker_pid == pid else f" (process {row.waker_pid})")


def _footer(profile: WakersProfile | SleepsProfile, width: int) -> list[str]:
    said = [f"Lost {profile.lost_count:,}. Traced by DTrace: no energy figure comes from this window."]
    said += [f"Limit: {limit}." for limit in profile.limits]
    said += [f"Note: {note}." for note in profile.notes]
    if profile.interrupted:
        said.append("Interrupted: this is what was counted until then.")
    return ["", *(line for word in said for line in text.wrap(word, width))]
