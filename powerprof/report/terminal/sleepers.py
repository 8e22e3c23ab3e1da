# SPDX-License-Identifier: Apache-2.0
"""Threads that sleep and who wakes them, as lines of a terminal name them."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof import text
from powerprof.attribution.sleepers import WakerRow

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
    return [text.cut(f"{begin}{name_of(row.thread, row.tid)} ← {waker}", width), *wrapped]
