# SPDX-License-Identifier: Apache-2.0
"""Feeds bent inputs to the loaders and judges: refused by the one error or read, in time, in bounded memory."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from powerprof.system.errors import PowerprofError
from tests.nightly.fuzz.loaders import LOADERS, Loader
from tests.nightly.fuzz.mutate import bent

MOST_S = 2.0
MOST_BYTES = 200 << 20
# CPU time, and time by the clock on a busy host.
_HANG_CPU_S, _HANG_S = 10, 120


@dataclass(frozen=True)
class Problem:
    """An input that was answered wrongly; `bent(seeds, number)` makes it again."""

    loader: str
    number: int
    what: str
    data: bytes = field(repr=False)


@dataclass
class Outcome:
    """What became of the inputs. `slowest_s` is CPU time, `peak_bytes` the process's largest resident size."""

    tried: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest: str = ""
    peak_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)


class _Hung(BaseException):
    pass


def _alarm(_number: int, _frame: FrameType | None) -> None:
    raise _Hung


def _memory(name: str) -> int:
    """VmRSS or VmHWM (the largest resident size) in bytes (proc(5))."""
    found = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(found.split()[1]) * 1024


def _forget_peak() -> int:
    """From here on VmHWM is that of what comes (proc(5), clear_refs); returns the size now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def inputs(loader: Loader, first: int, step: int = 1) -> Iterator[tuple[int, bytes]]:
    """Numbered inputs, the sound ones first, without end."""
    seeds = loader.all_seeds
    for number, seed in enumerate(seeds):
        if number % step == first % step:
            yield -1 - number, seed
    number = first
    while True:
        yield number, bent(seeds, number)
        number += step


def feed(loader: Loader, number: int, data: bytes, folder: Path, outcome: Outcome) -> None:
    """One input."""
    path = folder / "input"
    path.write_bytes(data)
    before = _forget_peak()
    began = time.process_time()
    what = None
    signal.setitimer(signal.ITIMER_PROF, _HANG_CPU_S)
    signal.alarm(_HANG_S)
    try:
        loader.read(path, data)
    except PowerprofError as error:
        outcome.refused[loader.name] += 1
        if "\n" in error.message:
            what = f"a message of several lines: {error.message[:80]!r}"
    except _Hung:
        what = f"hung for {_HANG_CPU_S} s"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {str(error)[:80]} ({Path(place.filename).name}:{place.lineno})"
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    took = time.process_time() - began
    outcome.tried[loader.name] += 1
    if took > outcome.slowest_s:
        outcome.slowest_s, outcome.slowest = took, f"{loader.name} {number}"
    if what is None and took > MOST_S:
        what = f"took {took:.1f} s"
    peak = _memory("VmHWM")
    outcome.peak_bytes = max(outcome.peak_bytes, peak)
    if what is None and peak > max(before, MOST_BYTES) and peak - before > MOST_BYTES // 4:
        what = f"needed {peak >> 20} MiB, {before >> 20} before"
    if what is not None:
        outcome.problems.append(Problem(loader.name, number, what, data))


def campaign(
    loaders: Sequence[Loader], *, count: int | None = None, seconds: float = 1e9, first: int = 0, step: int = 1
) -> Outcome:
    """`count` inputs in all, evenly over the loaders, or as many as `seconds` allow."""
    outcome = Outcome()
    streams = [(loader, inputs(loader, first, step)) for loader in loaders]
    end = time.monotonic() + seconds
    previous = {number: signal.signal(number, _alarm) for number in (signal.SIGALRM, signal.SIGPROF)}
    try:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as name, contextlib.chdir(name):
            while (count is None or sum(outcome.tried.values()) < count) and time.monotonic() < end:
                for loader, stream in streams:
                    if count is not None and sum(outcome.tried.values()) >= count:
                        break
                    feed(loader, *next(stream), Path(name), outcome)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return outcome


def share(task: tuple[int, int, int | None, float, str]) -> Outcome:
    """What one process does of a campaign: (first, step, count, seconds, loaders by name or "")."""
    first, step, count, seconds, only = task
    wanted = [one for one in LOADERS if not only or one.name in only.split(",")]
    return campaign(wanted, count=count, seconds=seconds, first=first, step=step)
