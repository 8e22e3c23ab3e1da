# SPDX-License-Identifier: Apache-2.0
"""One command of root's beside what means it harm: how long it took, how large it became, and how it ended."""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import Cli
from tests.nightly.lying_pages import pages

MOST_S, MOST_KB = 5.0, 200 << 10
NO_METER = ["--meter", "none"]
_QUIET = {
    "attribute": ["attribute", "--system", "--duration", "1", "--no-save", *NO_METER],
    "idle": ["idle", "--duration", "0.5", "--repeat", "2", "--clients", "0", "--no-save", *NO_METER],
    "watch": ["watch", "--plain", "--count", "1", "--interval", "1", *NO_METER],
    "energy": ["energy", "--duration", "1", *NO_METER],
}


@dataclass(frozen=True)
class Ran:
    """How one command ended."""

    words: list[str]
    code: int
    err: str
    beyond_s: float
    peak_kb: int

    @property
    def late(self) -> bool:
        return self.beyond_s > MOST_S

    def problem(self) -> str | None:
        """What should not be."""
        figures = f"{self.code}, {self.beyond_s:.1f} s beyond, {self.peak_kb >> 10} MB"
        said = f"{' '.join(self.words)[:300]}: {figures}: {self.err[-600:]!r}"
        broken = re.search(r"Traceback|Exception ignored|\w+Warning:", self.err)
        fits = self.code in (0, 1, 2, 3) and not self.late and self.peak_kb <= MOST_KB
        return None if fits and not broken else said


def largest_kb(pid: int) -> int:
    """The largest size so far of a command and of those of its children that are powerprof as well, not of servers that
    it starts: VmHWM of proc_pid_status(5); 0 where it has ended."""
    with suppress(OSError):
        program, largest = Path(f"/proc/{pid}/exe").readlink(), 0
        for each in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
            with suppress(OSError, TypeError):
                if Path(f"/proc/{each}/exe").readlink() == program:
                    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{each}/status").read_text())
                    largest = max(largest, int(found[1]))  # type: ignore[index]
        return largest
    return 0


@dataclass
class Commands:
    """Runs them; what each takes where nobody is hostile is measured once, and again where one was late."""

    cli: Cli
    own: dict[str, list[str]] = field(default_factory=dict)
    quiet_s: dict[str, float] = field(default_factory=dict)

    def __call__(
        self, words: list[str], window_s: float, allowed_s: Callable[[], float] = lambda: 0.0, as_quiet: str = ""
    ) -> Ran:
        """One command to its end. `allowed_s`: what it may wait besides, known afterwards; `as_quiet`: see `quiet`."""
        quiet_s = self.quiet(as_quiet or words[0])
        began_s = time.monotonic()
        process = self.cli.start(words)
        err: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            threading.Thread(target=process.stdout.read),
            threading.Thread(target=lambda: err.append(process.stderr.read())),  # type: ignore[union-attr]
        ]
        for reader in readers:
            reader.start()
        end = threading.Timer(120, process.kill)
        end.start()
        if words[0] == "export":
            self._scrape(words, window_s)
            process.send_signal(signal.SIGTERM)
        peak_kb = 0
        while process.poll() is None:
            peak_kb = max(peak_kb, largest_kb(process.pid))
            time.sleep(0.02)
        end.cancel()
        for reader, pipe in zip(readers, (process.stdout, process.stderr), strict=True):
            reader.join()
            pipe.close()
        beyond_s = time.monotonic() - began_s - window_s - quiet_s - allowed_s()
        return Ran(words, process.returncode, err[0], beyond_s, peak_kb)

    @staticmethod
    def _scrape(words: list[str], window_s: float) -> None:
        """Wait for the first interval's figures, and ask for them until the window is over."""
        path = words[words.index("--listen") + 1].removeprefix("unix:")
        end_s = time.monotonic() + 60
        while b"powerprof_last_interval_timestamp_seconds" not in scraped(path) and time.monotonic() < end_s:
            time.sleep(0.2)
        time.sleep(window_s)
        assert b"powerprof_build_info" in scraped(path)

    def quiet(self, what: str) -> float:
        """What a command takes beyond its window where nobody is hostile: this host's business, and its load's.

        "pages" is `energy` with twelve sound ones.
        """
        if what in self.quiet_s:
            return self.quiet_s[what]
        # It has no end of its own: as `watch`.
        known = _QUIET | self.own
        words = known.get("watch" if what == "export" else what, ["doctor"])
        with pages(0, bent_too=False) as served:
            words = served.asking(12) if what == "pages" else words
            self.cli(words, timeout=300)  # what is made once is in the cache from then on
            began_s = time.monotonic()
            self.cli(words, timeout=300)
        self.quiet_s[what] = time.monotonic() - began_s - (1.0 if what in known or what == "export" else 0.0)
        return self.quiet_s[what]


def scraped(place: str | int) -> bytes:
    """The page of an exporter at a socket or a port; empty where it has none yet."""
    try:
        with socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET) as channel:
            channel.settimeout(10)
            channel.connect(place if isinstance(place, str) else ("127.0.0.1", place))
            channel.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            data = b""
            with suppress(OSError):
                while piece := channel.recv(65536):
                    data += piece
        return data
    except OSError:
        return b""
