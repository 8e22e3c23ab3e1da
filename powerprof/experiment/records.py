# SPDX-License-Identifier: Apache-2.0
"""The records of conditions, blocks and comparisons: `powerprof.comparison/1`. Unknown values are None, never 0."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from powerprof.database.base import ReplicationStatus
from powerprof.model.attribution import Attribution
from powerprof.model.records import EnergyReading, IdleRun, Kind, Record, Run, RunMetric, Window
from powerprof.model.runs import decode_record, read_head
from powerprof.statistics.verdicts import Verdict

Arm = Literal["a", "b"]
Design = Literal["rate", "work"]
Range = tuple[float, float]


class MemberShare(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one server of a topology, and its replication status at the end."""

    name: str
    pid: int | None
    cpu_s: float | None
    c0_percent: float | None
    connections_hz: float
    commits_hz: float | None
    relay_log_bytes_hz: float | None
    replication: list[ReplicationStatus] = []


class StormShare(msgspec.Struct, frozen=True, kw_only=True):
    """The share of a window with an active storm. `began`: it could be started."""

    began: bool
    raged_percent: float
    restarts_count: int
    counter: str
    counter_hz: float


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A window in which all servers of a condition were traced. `members`: name → process id."""

    arm: Arm
    members: dict[str, int]
    attribution: Attribution
    storm: StormShare | None = None


class Slices(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a window: length, bytes written by the server, idle exits of all CPUs."""

    lengths_s: list[float]
    write_bytes: list[int] = []
    wakeups_count: list[int] = []


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One window of one condition.

    `dropped` (warm-up) and `disturbed` (other programs ran in the pair) ones are not counted.

    Attributes:
        attempts_count: above 1 if repeated.
        queries: finished by the server.
        solution_s, solution_energy: of the work alone, with the design `work`.
        status: change of the server's counters.
        executions_count, exit_codes: of a command; each code once.
    """

    pair: int
    arm: Arm
    dropped: bool
    attempts_count: int
    queries: int | None
    offered_hz: float | None
    window: Window
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    mean_ms: float | None = None
    errors_count: int = 0
    client_cpu_s: float | None = None
    solution_s: float | None = None
    solution_energy: list[EnergyReading] = []
    rows_examined: int | None = None
    minor_faults_count: int | None = None
    status: dict[str, int] = {}
    disturbed: bool = False
    executions_count: int | None = None
    exit_codes: list[int] = []
    members: list[MemberShare] = []
    storm: StormShare | None = None
    slices: Slices | None = None

    @property
    def is_counted(self) -> bool:
        """Whether the block counts: it is neither warm-up nor disturbed."""
        return not self.dropped and not self.disturbed


BlockPair = tuple[Block, Block]


def list_pairs(blocks: Sequence[Block]) -> list[BlockPair]:
    """Return the complete counted pairs as (a, b), in the order of time."""
    by_pair: dict[int, dict[str, Block]] = {}
    for block in blocks:
        if block.is_counted:
            by_pair.setdefault(block.pair, {})[block.arm] = block
    return [(both["a"], both["b"]) for _, both in sorted(by_pair.items()) if len(both) == 2]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A metric in one condition, with the value of each pair."""

    mean: float | None
    ci95: Range | None
    values: list[float | None] = []


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """b − a; `percent` is of a. `ci95` of estimates includes the model's uncertainty, `sampling_ci95` does not.

    Attributes:
        percent: null if a is not above 0.
        less_than: largest possible absolute value, if inconclusive; null with a hint or if it is too large for a bound.
    """

    b_minus_a: float | None
    ci95: Range | None
    percent: float | None
    sampling_ci95: Range | None = None
    less_than: float | None = None


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """b ÷ a over the pairs."""

    b_over_a: float
    ci95: Range | None


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of both conditions.

    Attributes:
        verdict: `inconclusive` if the interval contains 0, or if it does not after the correction for all metrics.
        hint: direction of an interval that excludes 0 without a verdict; reports print `may be chance`.
        minimum_detectable_percent: the difference that four of five such comparisons would detect.
        typical: the ratio of typical pairs, only if their ranks are significant and the mean is `inconclusive`.
    """

    name: str
    unit: str
    kind: Kind
    a: Side
    b: Side
    difference: Difference
    verdict: Verdict
    minimum_detectable_percent: float | None
    ratio: Ratio | None = None
    source: str | None = None
    hint: Verdict | None = None
    typical: Ratio | None = None


class FunctionChange(msgspec.Struct, frozen=True, kw_only=True):
    """A function in percent of one CPU (in sweeps, of its samples).

    `…_total_percent` includes callees; the rest is self time.
    """

    function: str
    module: str
    kernel: bool
    a_percent: float
    b_percent: float
    b_minus_a_percent: float
    ci95: Range | None
    a_total_percent: float
    b_total_percent: float
    verdict: Verdict


class FunctionChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The servers' functions in both conditions."""

    windows_count: int
    window_s: float | None
    samples_count: int
    functions: list[FunctionChange]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """EXPLAIN of one statement; `asserted` if the workload requires it."""

    arm: Arm
    statement: str
    rows: list[dict[str, Any]]
    asserted: bool


class ConditionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A condition. Only runs of equal `work` are compared."""

    name: str
    workload: str
    title: str
    load: dict[str, Any]
    settings: dict[str, Any]
    work: str


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `run`, and the offered load."""

    primary_metric: str | None = None
    window_s: float | None = None
    windows_count: int | None = None
    design: Design | None = None
    offered_hz: float | None = None
    queries_per_block: int | None = None
    energy_source: str | None = None
    residency_source: str | None = None


class LoadRun(Run, frozen=True, kw_only=True):
    """The record of `run`. `blocks` has each server's use if a condition has several servers."""

    condition: ConditionRecord
    options: LoadOptions = LoadOptions()  # type: ignore[assignment]
    metrics: list[RunMetric] = []
    system: list[RunMetric] = []
    traced: TraceSummary | None = None
    blocks: list[Block] = []


class Threat(msgspec.Struct, frozen=True, kw_only=True):
    """Another possible cause of the difference; `serious` ones are doubts. `form` selects the sentence."""

    name: str
    text: str = ""
    serious: bool = False
    form: str = ""
    values: dict[str, float | str] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `metric` is null if the `asked` one was not measured.

    Attributes:
        ground: on the CPU time behind the energy, or the reverse.
        doubts: reasons not to believe it.
        deciding_pairs_count: pairs that would decide it, if the difference is as measured.
    """

    metric: str | None
    text: str = ""
    asked: str | None = None
    ground: str | None = None
    speed: str | None = None
    power: str | None = None
    doubts: list[str] = []
    deciding_pairs_count: int | None = None


class ControlRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A compared with itself. `sound`: no difference was detected. `half_width_percent`: the resolution."""

    kind: Literal["own_blocks", "run"]
    pairs_count: int
    sound: bool
    half_width_percent: float | None
    difference_percent: float | None = None
    text: str = ""


class Comparison(Record, frozen=True, kw_only=True):
    """Two compared conditions. `system`: metrics of the host, judged as a separate family."""

    a: ConditionRecord
    b: ConditionRecord
    design: Design
    order: list[Arm]
    blocks_count: int
    metrics: list[Metric]
    verdict: Answer
    seed: int
    system: list[Metric] = []
    offered_hz: float | None = None
    queries_per_block: int | None = None
    plans: list[Plan] = []
    threats: list[Threat] = []
    control: ControlRecord | None = None
    differences: list[str] = []
    traced: list[TraceSummary] = []
    on_cpu: FunctionChanges | None = None
    baseline: list[Window] = []
    baseline_after: list[Window] = []
    blocks: list[Block] = []
    started_at: str
    schema: Literal["powerprof.comparison/1"] = "powerprof.comparison/1"


# The type that each command saves as `powerprof.run/1`.
RUN_TYPES: dict[str | None, type[Run]] = {"residency": Run, "idle": IdleRun, "run": LoadRun}


def read_run(path: Path) -> Run:
    """Read a saved run as the type of its command. Raise DataError."""
    return decode_record(path, RUN_TYPES.get(read_head(path).command, Run))
