# SPDX-License-Identifier: Apache-2.0
"""What a comparison is made of: the JSON of `powerprof.comparison/1`. Unknown is None, never 0."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from powerprof.database.private.replication import ReplicationStatus
from powerprof.model.attribution import Attribution
from powerprof.model.records import EnergyReading, EnergySource, IdleRun, Kind, Notes, Run, RunMetric, Window
from powerprof.model.runs import decode_record, read_head
from powerprof.statistics import Verdict

Arm = Literal["a", "b"]
Design = Literal["rate", "work"]
Range = tuple[float, float]


class MemberShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one server of a topology did in a window, and its replication status at the window's end.

    `c0_percent` is its CPU time in percent of all CPUs' wall time. Unknown is None.
    """

    name: str
    pid: int | None
    cpu_s: float | None
    c0_percent: float | None
    connections_hz: float
    commits_hz: float | None
    relay_log_bytes_hz: float | None
    replication: list[ReplicationStatus] = []


class StormShare(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a window a storm was active. `began` False: it could not be started, the servers back off.

    `counter_hz` is how fast the counter that shows it rose over the whole window.
    """

    began: bool
    raged_percent: float
    restarts_count: int
    counter: str
    counter_hz: float


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A window of its own with every server of one condition traced. `members`: name → process."""

    arm: Arm
    members: dict[str, int]
    attribution: Attribution
    storm: StormShare | None = None


class Slices(msgspec.Struct, frozen=True, kw_only=True):
    """A window from within: of each slice its length, the bytes that the server wrote, and the idle exits of all CPUs.

    What this host does not tell is empty.
    """

    lengths_s: list[float]
    write_bytes: list[int] = []
    wakeups_count: list[int] = []


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One window of one condition. `queries` were finished in it, by the server's own count.

    `dropped`: warm-up, not counted. `disturbed`: other programs ran in its pair, which is not counted either.
    `attempts_count` is above 1 where it had to be repeated. With the design `work` the window lasts longer than the
    work, whose time is `solution_s`, and `solution_energy` what the meters measured of it (in runs saved before,
    `solution_joules`). `status`: how far the server's counters moved. Of a
    command it is one window of `executions_count` executions, which ended with these `exit_codes` (each once).
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
    solution_joules: float | None = None
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


BlockPair = tuple[Block, Block]


def pairs_of(blocks: Sequence[Block]) -> list[BlockPair]:
    """The complete pairs that count, as (a, b), in the order of time."""
    by_pair: dict[int, dict[str, Block]] = {}
    for block in blocks:
        if not block.dropped and not block.disturbed:
            by_pair.setdefault(block.pair, {})[block.arm] = block
    return [(both["a"], both["b"]) for _, both in sorted(by_pair.items()) if len(both) == 2]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Mean of a metric in one condition, its 95 % interval, and the value of each pair."""

    mean: float | None
    ci95: Range | None
    values: list[float | None] = []


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """b − a over the pairs, with its 95 % interval; `percent` is of a.

    Of estimated figures `ci95` has the model's doubt in it, and `sampling_ci95` has not. `less_than`: of a difference
    that was not found the most that it may be, either way.
    """

    b_minus_a: float | None
    ci95: Range | None
    percent: float | None
    sampling_ci95: Range | None = None
    less_than: float | None = None


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """b / a over the pairs."""

    b_over_a: float
    ci95: Range | None


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of both conditions and its verdict."""

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


class FunctionChange(msgspec.Struct, frozen=True, kw_only=True):
    """One function of the server or the kernel, in percent of one CPU (of sweeps, of its samples): where it ran
    itself, and with what it called.

    The difference, its interval and the verdict are of where it ran itself.
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
    """What functions the servers ran in either condition, over so many windows of each; largest change first."""

    windows_count: int
    window_s: float | None
    samples_count: int
    functions: list[FunctionChange]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The server's plan of one statement of a condition, as EXPLAIN gave it; `asserted` where the workload did."""

    arm: Arm
    statement: str
    rows: list[dict[str, Any]]
    asserted: bool


class ConditionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was run under a name. `work` identifies it: only runs of the same work can be compared."""

    name: str
    workload: str
    title: str
    load: dict[str, Any]
    settings: dict[str, Any]
    work: str


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `run` was asked for, and what it offered the server."""

    primary_metric: str | None = None
    window_s: float | None = None
    windows_count: int | None = None
    design: Design | None = None
    offered_hz: float | None = None
    queries_per_block: int | None = None
    energy_source: str | None = None
    residency_source: str | None = None


class LoadRun(Run, frozen=True, kw_only=True):
    """What `run` saves: a condition's metrics over its windows.

    Of a condition with several servers `blocks` are its windows with what each server did, and `traced` one in which
    all were traced.
    """

    condition: ConditionRecord
    options: LoadOptions = LoadOptions()
    metrics: list[RunMetric] = msgspec.field(default_factory=list)
    system: list[RunMetric] = msgspec.field(default_factory=list)
    traced: TraceSummary | None = None
    blocks: list[Block] = msgspec.field(default_factory=list)


class Threat(msgspec.Struct, frozen=True, kw_only=True):
    """Something that could have made the difference, with its figures; `serious` ones are doubts of the answer.

    `form` selects its sentence where it has more than one; report writes the `text`.
    """

    name: str
    text: str = ""
    serious: bool = False
    form: str = ""
    values: dict[str, float | str] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """By which metric a comparison answers: `metric` is None where that which was `asked` for was not measured.

    Report writes the sentences: the `text`, by that metric; its `ground`, of the CPU time that measured energy rests on
    or of the energy that CPU time stands for; speed and power apart from that; `doubts`, why not to believe it.
    """

    metric: str | None
    text: str = ""
    asked: str | None = None
    ground: str | None = None
    speed: str | None = None
    power: str | None = None
    doubts: list[str] = []


class ControlRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A against A. `sound` where no difference was found; `half_width_percent` is what can be resolved.

    Report writes the `text`.
    """

    kind: Literal["own_blocks", "run"]
    pairs_count: int
    sound: bool
    half_width_percent: float | None
    difference_percent: float | None = None
    text: str = ""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two conditions compared: `powerprof.comparison/1`. `system`: what the host beneath did, judged as a family."""

    id: str | None
    command: str
    started_at: str
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
    host: dict[str, Any] = {}
    server: dict[str, Any] = {}
    tool: dict[str, Any] = {}
    options: dict[str, Any] = {}
    energy_source: EnergySource | None = None
    notes: Notes = []
    interrupted: bool = False
    failure: str | None = None
    schema: Literal["powerprof.comparison/1"] = "powerprof.comparison/1"


# What each command saves under `powerprof.run/1`.
RUN_TYPES: dict[str | None, type[Run]] = {"residency": Run, "idle": IdleRun, "run": LoadRun}


def read_run(path: Path) -> Run:
    """A saved run as what its command saves. Raises DataError."""
    return decode_record(path, RUN_TYPES.get(read_head(path).command, Run))
