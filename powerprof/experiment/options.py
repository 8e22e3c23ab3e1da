# SPDX-License-Identifier: Apache-2.0
"""The options of an experiment. By default it takes less than five minutes."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

import msgspec

from powerprof.energy.request import DEFAULT_REQUEST, EnergyRequest
from powerprof.experiment.records import ConditionRecord
from powerprof.model.text import approximate_time
from powerprof.system.errors import UsageError
from powerprof.workloads.reading import Case

# 11 pairs (one is warm-up) of 2 × 7 s are 155 s. At most four replacements of disturbed pairs add 56 s, calibration and
# baselines half a minute: less than five minutes in all.
WINDOW_S = 6.4
PAIRS = 10
# Fewer pairs have no interval.
MINIMUM_PAIRS = 3
BASELINE_WINDOWS = 3
# A command runs in a window as often as it fits, at least once.
COMMAND_WINDOW_S = 2.0
RAMP_S = 0.4
# The load of a server that was started again, before its windows.
WARM_UP_S = 1.0
# With the start itself and the filling of tables.
START_AGAIN_S = WARM_UP_S + 1.5
# With --quick: (1 + 4) × 2 × 2 s, ten seconds of calibration and baselines, and the server's start: within 40 s.
QUICK_WINDOW_S = 1.2
QUICK_PAIRS = 4
QUICK_BASELINES = 2
# Shorter than the load changes of a neighbour on the same core: docs/dev/experiments.md.
TURN_S = 0.05
MOST_PAIRS_FACTOR = 4
# Share of the pairs that may be measured again because other programs disturbed them.
REPLACED_SHARE = 0.4
# Time around each window (start and end of the load, reading of counters), and until the servers are ready.
AROUND_S = 1.0
_READY_S = 10.0


class ExperimentOptions(msgspec.Struct, frozen=True):
    """How an experiment is measured.

    `pairs` counts the pairs without warm-up. `design` None means equal rates if both conditions can serve them.
    `rate_hz` None means a calibrated rate. `load_percent` is a share of the capacity instead: 0 means idle clients.
    `precision_percent` adds pairs until the interval is that narrow. `turn_s` is the length of a turn if conditions
    alternate within a window; 0 means whole windows. `quick` adds a note that windows are few and short.

    Raises UsageError if a value is out of range, or two values contradict each other.
    """

    pairs: int = PAIRS
    window_s: float = WINDOW_S
    seed: int = 1
    design: Literal["rate", "work"] | None = None
    rate_hz: float | None = None
    load_percent: float | None = None
    queries: int | None = None
    precision_percent: float | None = None
    control: bool = False
    warm_up_pairs: int = 1
    baseline_windows: int = BASELINE_WINDOWS
    energy: EnergyRequest = DEFAULT_REQUEST
    residency_source: str = "cpuidle"
    attribute_s: float | None = None
    on_cpu: bool = False
    turn_s: float = TURN_S
    quick: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.pairs <= 1000:
            raise UsageError(f"--pairs {self.pairs}: must be between 1 and 1000", "such as --pairs 12")
        if not (self.turn_s == 0 or 0.05 <= self.turn_s <= 60):
            raise UsageError(
                f"--turn {self.turn_s:g}: must be 0 (whole windows) or between 0.05 and 60 s", "such as --turn 0.4"
            )
        if 2 * self.turn_s > self.window_s:
            raise UsageError(
                f"--turn {self.turn_s:g}: two turns do not fit into a window of {self.window_s:g} s",
                "a shorter --turn, or a longer --duration",
            )
        if self.precision_percent is not None and not 0 < self.precision_percent < 100:
            raise UsageError(f"--precision {self.precision_percent:g}: must be between 0 and 100 %", "such as 2%")
        if self.rate_hz is not None and self.rate_hz * self.window_s < 1:
            raise UsageError(
                f"--rate {self.rate_hz:g}: less than one query in a window of {self.window_s:g} s",
                "a higher --rate, or a longer --duration",
            )
        if self.design == "work" and self.rate_hz is not None:
            raise UsageError("--rate belongs to --design rate", "leave one of the two out")
        if self.design == "rate" and self.queries is not None:
            raise UsageError("--queries belongs to --design work", "leave one of the two out")

    @property
    def baseline_s(self) -> float:
        """The length of a window of an idle baseline."""
        return max(0.5, min(self.window_s, 4.0))

    @property
    def calibrate_s(self) -> float:
        """The length of the calibration of each condition; sysbench counts whole seconds."""
        return 2.0 if self.window_s >= 2 else 1.0

    def seconds(self, conditions: int) -> float:
        """Return the approximate duration of an experiment with this number of conditions."""
        windows = conditions * (self.pairs + self.warm_up_pairs) + (max(12, self.pairs) if self.control else 0)
        beside_s = _READY_S + conditions * (self.calibrate_s + (self.attribute_s or 0.0))
        return windows * (self.window_s + AROUND_S) + 2 * self.baseline_windows * min(self.window_s, 4.0) + beside_s

    def command_seconds(self, conditions: int) -> float:
        """Return the approximate duration of the windows of commands, without servers and warm-up."""
        return conditions * self.pairs * self.window_s + 2 * self.rest_s

    @property
    def rest_s(self) -> float:
        """The duration of the idle baseline at one end."""
        return self.baseline_windows * self.baseline_s

    def plan(self, conditions: int) -> str:
        """Return the windows and the duration of an experiment, to be printed at its start."""
        pairs = "pairs of " * (conditions > 1)
        return f"{self.pairs} {pairs}windows of {self.window_s:g} s: {approximate_time(self.seconds(conditions))}"

    @property
    def notes(self) -> list[str]:
        """Notes for the reader of the result."""
        if not self.quick:
            return []
        return [f"--quick: {self.pairs} pairs of {self.window_s:g} s; for narrower intervals, leave it out"]

    @property
    def most_pairs(self) -> int:
        """The largest number of pairs that `--precision` measures."""
        return self.pairs if self.precision_percent is None else self.pairs * MOST_PAIRS_FACTOR


# Keys that change the pace of a load, but not its statements.
_NOT_WORK = ("rate_hz", "maximum_rate_hz", "queries", "clients")


def condition_record(case: Case) -> ConditionRecord:
    """Return a condition as it is saved.

    `work` is a digest of statements, protocol, schema and dataset: runs of the same work have the same one.
    """
    load = msgspec.to_builtins(case.load)
    settings = {**msgspec.to_builtins(case.server), **msgspec.to_builtins({"topology": case.topology})}
    settings |= {"host": case.condition.host} if case.condition.host else {}
    asks = case.load.kind in ("statements", "slap", "pgbench", "connector-j")
    statements = case.load_statements() if asks else case.load.argv
    asked = {
        "load": {key: value for key, value in load.items() if key not in (*_NOT_WORK, "sql", "files")},
        "statements": statements,
        "dataset": msgspec.to_builtins(case.workload.definition.dataset),
        "setup": [*case.workload.definition.setup, *case.condition.setup],
    }
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    return ConditionRecord(
        name=case.name,
        workload=case.workload.definition.name,
        title=case.title,
        load=load,
        settings=settings,
        work=digest,
    )
