# SPDX-License-Identifier: Apache-2.0
"""What a person chooses to try, read and checked before anything is looked at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from powerprof.energy.request import AS_SEEN, EnergyRequest
from powerprof.errors import UsageError
from powerprof.experiment.options import MOST_PAIRS_FACTOR

_SLACK = re.compile(r"([0-9]{1,11}(?:\.[0-9]{1,9})?) ?(ns|us|µs|ms|s)")
_UNITS_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
# The default of all threads is 50 µs. More than this and a thread seems dead.
_LONGEST_NS = 10_000_000_000
_FINDING = re.compile(r"[a-z][a-z_]{0,63}|[1-9][0-9]{0,3}")
_VARIABLE = re.compile(r"([A-Za-z][A-Za-z0-9_]{0,63}(?:\.[A-Za-z][A-Za-z0-9_]{0,63})?)=(.{0,512})", re.DOTALL)


@dataclass(frozen=True)
class SlackChoice:
    """Another timer slack for a thread, which is called `thread` or is that number."""

    thread: str
    slack_ns: int


@dataclass(frozen=True)
class VariableChoice:
    """Another value of a global variable."""

    name: str
    value: str


@dataclass(frozen=True)
class EventChoice:
    """A recurring event, disabled."""

    database: str
    event: str


@dataclass(frozen=True)
class FindingChoice:
    """The first remedy that can be tried live of the finding of `diagnose` with that rule, or number (from 1)."""

    word: str


Remedial = SlackChoice | VariableChoice | EventChoice


@dataclass(frozen=True, kw_only=True)
class CureRequest:
    """What to try on which process, and for how long. `server` and those after it: how to log in to a server.
    `precision_percent`: go on until half of the interval of the answer is so many percent of how it was before.

    Raises UsageError for senseless values.
    """

    pid: str
    choice: Remedial | FindingChoice | None
    pairs: int
    window_s: float
    seed: int
    max_p95_percent: float = 10.0
    precision_percent: float | None = None
    server_url: str | None = None
    socket: Path | None = None
    defaults_file: Path | None = None
    energy: EnergyRequest = AS_SEEN

    def __post_init__(self) -> None:
        if self.precision_percent is not None and not 0 < self.precision_percent < 100:
            raise UsageError(f"--precision {self.precision_percent:g}: must be between 0 and 100 %", "such as 2%")

    @property
    def most_pairs(self) -> int:
        """Where `--precision` gives up."""
        return self.pairs if self.precision_percent is None else self.pairs * MOST_PAIRS_FACTOR

    @property
    def server_named(self) -> bool:
        """Whether an account or an address was named."""
        return any(part is not None for part in (self.server_url, self.socket, self.defaults_file))


def choice_of(
    thread: str | None, slack: str | None, variable: str | None, finding: str | None = None
) -> SlackChoice | VariableChoice | FindingChoice | None:
    """What the options choose; None where they choose nothing. Raises UsageError."""
    if finding is not None:
        if thread is not None or slack is not None or variable is not None:
            raise UsageError("--finding names a remedy, and --thread or --set another", "try one after the other")
        return _finding(finding)
    if variable is not None:
        if thread is not None or slack is not None:
            raise UsageError("--set and --thread are two remedies", "try one after the other")
        return _variable(variable)
    if thread is None and slack is None:
        return None
    if thread is None:
        raise UsageError("--slack needs a thread", "--thread NAME, or a thread id")
    if slack is None:
        raise UsageError("--thread needs a slack to try", "--slack 50ms")
    if not thread.strip() or len(thread) > 128 or not thread.isprintable():
        raise UsageError("--thread is not the name of a thread", "ps -L -o tid,comm -p PID lists them")
    return SlackChoice(thread.strip(), slack_ns(slack))


def slack_ns(text: str) -> int:
    """`50ms` in ns. Raises UsageError."""
    found = _SLACK.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--slack {text[:40]!r} is not a time", "a number with its unit: 500us, 50ms, 1s")
    value = round(float(found[1]) * _UNITS_NS[found[2]])
    if not 1 <= value <= _LONGEST_NS:
        raise UsageError(f"--slack {text[:40]} is not between 1 ns and 10 s", "the default of all threads is 50us")
    return value


def _finding(text: str) -> FindingChoice:
    if not _FINDING.fullmatch(text):
        raise UsageError(
            f"--finding {text[:60]!r} is neither a rule nor a number", "powerprof cure --pid … lists those to try"
        )
    return FindingChoice(text)


def _variable(text: str) -> VariableChoice:
    found = _VARIABLE.fullmatch(text)
    if found is None or not found[2].isprintable():
        raise UsageError(f"--set {text[:60]!r} is not VARIABLE=VALUE", "for example --set sync_binlog=0")
    return VariableChoice(found[1], found[2])
