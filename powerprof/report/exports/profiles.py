# SPDX-License-Identifier: Apache-2.0
"""`export --pprof-dir`: a profile of each minute, for Pyroscope, Parca, Grafana or `go tool pprof` to take.

Its sum is the host's idle exits and C0 time: kernel threads and what nobody named are in it, as in the metrics.
"""

from __future__ import annotations

import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path

from powerprof.caller import as_caller, caller, is_delegated
from powerprof.closeable import Closeable
from powerprof.errors import PowerprofError
from powerprof.files import reason_of
from powerprof.folders import Folder, only_root_writes
from powerprof.live.intervals import REST, LiveInterval
from powerprof.report.exports.pprof import encode_pprof
from powerprof.report.stacks.samples import Frames
from powerprof.text import Say

EVERY_S = 60.0
# A day of minutes. One of a busy host is some 20 KB.
KEPT = 1440
# The time is in the name, in UTC: the order of names is that of time.
_NAME = re.compile(r"powerprof-\d{8}T\d{6}Z\.pb\.gz")
_MODE = 0o640
_TYPES = (("idle_exits", "count"), ("c0", "nanoseconds"))


class ProfileFolder(Closeable):
    """Sums intervals and writes a file a minute, the newest `kept` of them; others in the folder are left alone."""

    def __init__(self, path: Path, say: Say, *, kept: int = KEPT, every_s: float = EVERY_S) -> None:
        """Raises PowerprofError where the folder is not there, or others could put something in a profile's place."""
        self._path, self._say, self._kept, self._every_s = path, say, kept, every_s
        self._failed: str | None = None
        self._clear()
        try:
            with as_caller():
                self._folder: Folder | None = Folder.open(path)
        except OSError as error:
            raise PowerprofError(f"cannot write profiles to {path} ({reason_of(error)})", f"mkdir {path}") from error
        reason = self._why_not(self._folder)
        if reason is not None:
            self.close()
            raise PowerprofError(
                f"cannot write profiles to {path} ({reason})", "name a folder of yours that nobody else may write to"
            )

    def close(self) -> None:
        if self._folder is not None:
            os.close(self._folder.handle)
        self._folder = None

    def add(self, interval: LiveInterval) -> None:
        """One more interval; the minute is written when it is full. What cannot be written is reported, and lost."""
        for row in interval.rows:
            # A row of the kernel's is identified by its cause alone.
            frames = tuple(reversed(row.stack)) or (row.key.function,)
            self._add((row.key.process, row.key.thread, *frames), row.exits_count, row.c0_s)
        self._add(
            (REST.process,),
            interval.exits_count - sum(row.exits_count for row in interval.rows),
            interval.c0_s - sum(row.c0_s for row in interval.rows),
        )
        self._window_s += interval.window_s
        if self._window_s >= self._every_s - interval.window_s / 2:
            self._write(interval.ended_at)

    def _add(self, frames: Frames, exits: int, c0_s: float) -> None:
        sums = self._sums.setdefault(frames, [0, 0])
        sums[0] += max(0, exits)
        sums[1] += max(0, round(c0_s * 1e9))

    def _clear(self) -> None:
        self._sums: dict[Frames, list[int]] = {}
        self._window_s = 0.0

    def _why_not(self, folder: Folder) -> str | None:
        if os.geteuid() == 0 and not is_delegated():
            return only_root_writes(self._path)
        # Under sudo it is the caller's: files are written and old ones removed with that account's rights only.
        info = folder.stat()
        if info.st_uid != caller().uid or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return "it belongs to somebody else, or others may write to it"
        return None

    def _write(self, ended_at: str) -> None:
        samples = sorted((frames, sums) for frames, sums in self._sums.items() if any(sums))
        ended = datetime.fromisoformat(ended_at).astimezone(UTC)
        data = encode_pprof(
            samples,
            _TYPES,
            time_ns=round((ended.timestamp() - self._window_s) * 1e9),
            duration_ns=round(self._window_s * 1e9),
        )
        self._clear()
        try:
            self._replace(f"powerprof-{ended:%Y%m%dT%H%M%SZ}.pb.gz", data)
            self._failed = None
        except OSError as error:
            # All day: a disk that is full now may not be in an hour, and the metrics go on.
            if reason_of(error) != self._failed:
                self._failed = reason_of(error)
                self._say(f"cannot write a profile to {self._path} ({self._failed})")

    def _replace(self, name: str, data: bytes) -> None:
        if self._folder is None:
            return
        with as_caller():
            # First, so that a full disk gets room. What is of times to come is older: the clock was set back.
            mine = sorted(filter(_NAME.fullmatch, self._folder.names()), key=lambda old: (old <= name, old))
            for old in mine[: max(0, len(mine) + 1 - self._kept)]:
                self._folder.remove(old)
            self._folder.write(name, data, _MODE)
