# SPDX-License-Identifier: Apache-2.0
"""One cure: the plan, the consent, alternating windows, and the restored setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby
from statistics import fmean

import msgspec

from powerprof import __version__
from powerprof.cure.judge import choose_primary, judge_blocks
from powerprof.cure.latencies import LatencyRise, LatencyWatch, StatementLatencies
from powerprof.cure.prediction import explain_no_trial, predict_change
from powerprof.cure.records import Arm, Cure, CureBlock, CurePrediction, CureVerdict, Untried
from powerprof.cure.remedies import CureRequest, PlannedChange, plan_change
from powerprof.cure.replicas import ReplicaSampler
from powerprof.cure.threads import find_target
from powerprof.cure.windows import CureWindows
from powerprof.energy.windows import WindowEnergy
from powerprof.experiment.plan import block_order
from powerprof.experiment.verdict import count_missing_pairs
from powerprof.measure.procfs import own_peak_bytes
from powerprof.measure.progress import Countdown, join_parts
from powerprof.measure.target_life import TargetLife, raise_ended
from powerprof.model.attribution import TargetInfo
from powerprof.model.records import Ended, EnergySource, Notes, ToolCost
from powerprof.model.text import Say, number
from powerprof.reversible.changed import ChangedSettings, change_settings
from powerprof.reversible.groups import describe_values, join_values
from powerprof.reversible.host_settings import FileAway
from powerprof.reversible.journal import Journal, SavedSetting
from powerprof.reversible.session_copies import kept_text
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.processes import name_of
from powerprof.system.targets import Target
from powerprof.system.tasks import list_threads

# A sleep that began under the other value ends by it. Servers poll often enough to be worth a cure with periods of at
# most 0.1 s, so 0.5 s are five of the longest periods.
_SETTLE_S = 0.5


def estimate_seconds(request: CureRequest) -> float:
    """Return the approximate duration of a trial in s."""
    return 2 * request.most_pairs * (request.window_s + _SETTLE_S)


Consent = Callable[[PlannedChange, Target, float, CurePrediction | None], None]
"""A function of the plan, the target, the duration in seconds and the prediction, which is called before anything is
changed. It raises UsageError without consent."""


class _Trial(msgspec.Struct):
    """The alternating windows of a planned change, and their results.

    Attributes:
        untraced: the reason if idle exits are unknown.
        unprobed: the reason if latency is unknown.
        unsampled: the reason if replication lag is unknown.
        rise: the rise of latency that ended the trial.
    """

    request: CureRequest
    target: Target
    plan: PlannedChange
    say: Countdown
    blocks: list[CureBlock] = msgspec.field(default_factory=list)
    tool_cpu_s: float = 0.0
    ended: Ended | None = None
    untraced: str | None = None
    unprobed: str | None = None
    unsampled: str | None = None
    rise: LatencyRise | None = None
    notes: list[str] = msgspec.field(default_factory=list)

    def run(self, energy: WindowEnergy, journal: Journal) -> None:
        """Measure alternating windows until there are enough, a signal arrives, or latency rises too far."""
        request, plan = self.request, self.plan
        self.say("testing the change: set it once and restore it")
        with self._change(journal) as change:
            changed_values = change.since
        check_value(plan, changed_values)
        thread = plan.remedy.thread
        watch = LatencyWatch(request.max_p95_percent, request.guard_percentile)
        tid = None if thread is None else thread.tid
        with (
            TargetLife(self.target) as life,
            StatementLatencies(self.target.first) as statements,
            ReplicaSampler(self.target.first, request) as replica,
            CureWindows(self.target, tid, energy, statements, replica, life) as windows,
        ):
            self.untraced = windows.untraced
            self.unprobed, self.unsampled = statements.unavailable, replica.unavailable
            done, more = 0, request.pairs
            while more:
                order = _order_windows(done, more, request.seed)
                done += more
                for arm, group in groupby(order, key=lambda each: each[1]):
                    pairs = [pair for pair, _ in group]
                    if arm == "before":
                        self._measure(windows, arm, pairs, plan.befores, 2 * done, watch)
                    else:
                        with self._change(journal):
                            self._measure(windows, arm, pairs, changed_values, 2 * done, watch)
                    if self.ended or self.rise is not None:
                        return
                primary = choose_primary(plan, self.blocks)
                metrics = judge_blocks(self.blocks, primary, request.seed)
                judged = next((metric for metric in metrics if metric.name == primary), None)
                more = count_missing_pairs(judged, request.precision_percent, done, request.most_pairs, self.notes)

    @contextmanager
    def _change(self, journal: Journal) -> Iterator[ChangedSettings]:
        """Change the setting for the block. Raise PowerprofError if it cannot be changed or restored."""
        plan = self.plan
        counted = nullcontext() if plan.connections is None else plan.connections.counted()
        with counted, change_settings(ChangedSettings(plan.settings, journal, plan.befores)) as changed:
            yield changed

    def _measure(
        self,
        windows: CureWindows,
        arm: Arm,
        pairs: Sequence[int],
        expected: Sequence[str | None],
        count: int,
        watch: LatencyWatch,
    ) -> None:
        """Measure consecutive windows of one arm, in which the settings must have these values."""
        self._keep_end(windows.settle(_SETTLE_S))
        if self.ended is not None:
            return
        for pair in pairs:
            label = join_parts(f"{arm}: window {len(self.blocks) + 1} of {count}", _format_so_far(self.blocks))
            self.say.step(label, len(self.blocks), count, self.request.window_s)
            measured = windows.measure(self.request.window_s, pair, arm)
            self.tool_cpu_s += measured.tool_cpu_s
            self._keep_end(measured.ended)
            if self.ended is not None:
                return  # A shortened window belongs to no pair.
            self._check_values(expected)
            self.blocks.append(measured.block)
            self.rise = watch.add(arm, measured.latencies)
            if self.rise is not None:
                return

    def _keep_end(self, ended: Ended | None) -> None:
        """Keep the end of a window by a signal. Raise TargetEndedError if the target ended it."""
        if ended is not None and ended.is_of_target:
            raise_ended(msgspec.structs.replace(ended, why=f"{ended.why} during the test", after_s=None))
        self.ended = ended

    def _check_values(self, expected: Sequence[str | None]) -> None:
        """Raise PowerprofError if another user has changed a setting, or if it is gone."""
        name, settings, values = self.plan.remedy.name, self.plan.settings, [each.read() for each in self.plan.settings]
        if None in values and self.plan.remedy.thread is not None:
            raise PowerprofError(
                f"{name} is gone: its thread has ended", "choose a thread that lives as long as its server"
            )
        if None in values:
            raise PowerprofError(
                f"{self.target.label} ended or was restarted during the test, so {name} is gone",
                "try again when it runs without restarts",
            )
        foreign = [place for place, known in enumerate(expected) if known not in (None, values[place])]
        if foreign:
            others, now = [settings[place] for place in foreign], [str(values[place]) for place in foreign]
            changes = describe_values(others, now) if self.plan.remedy.kind == "host" else f"{name} to {now[0]}"
            raise PowerprofError(
                f"another user set {changes} during the test; it stays so "
                f"(before the test: {join_values(self.plan.befores)})",
                "coordinate with whoever changed it",
            )

    def kept_copies(self) -> str:
        """Return a sentence about the connections that keep the value; empty without such connections."""
        connections = self.plan.connections
        if connections is None:
            return ""
        try:
            still_open = connections.still_open()
        except PowerprofError:
            still_open = None
        return kept_text(self.plan.remedy.name, self.plan.value, still_open)


def check_value(plan: PlannedChange, values: Sequence[str | None]) -> None:
    """Raise UsageError if the server keeps a variable within a limit: its number is not the requested one."""
    name, wanted = plan.remedy.name, plan.value
    if plan.remedy.kind != "variable" or not values or values[0] is None:
        return
    try:
        is_same = float(values[0]) == float(wanted)
    except ValueError:
        return  # a word: ON reads as 1
    if not is_same:
        raise UsageError(
            f"--set {name}={wanted}: the server sets it to {values[0]} instead; it is {plan.befores[0]} again",
            f"--set {name}={values[0]}",
        )


def _order_windows(first: int, pairs: int, seed: int) -> list[tuple[int, Arm]]:
    """Return the pair and the arm of each window, of `pairs` pairs from number `first`."""
    arms: dict[str, Arm] = {"a": "before", "b": "cured"}
    return [(at, arms[arm]) for at, pair in enumerate(block_order(pairs, seed + first), first) for arm in pair]


def run_cure(request: CureRequest, check_terminal: Callable[[], None], consent: Consent, say: Say) -> Cure:
    """Try the remedy and judge it. The setting has its old value when this returns or raises.

    If the change cannot save anything, nothing is changed, and the record has the reason instead of windows.
    `check_terminal` is called before the first window, and raises UsageError if `consent` could not ask.

    Raise UsageError, CapabilityError, PowerprofError, and the errors of `consent`.
    """
    from powerprof.host.describe import host_record
    from powerprof.measure.clock import format_now

    target = find_target(request.pid, request.choice, only=request.only, say=say)
    plan = plan_change(target.first, request)
    untried = explain_no_trial(plan, None)
    if not untried:
        check_terminal()
    prediction = None if untried else predict_change(plan, target, request, say)
    lasts_s = estimate_seconds(request)
    if untried := untried or explain_no_trial(plan, prediction):
        trial = _Trial(request, target, plan, Countdown(say, 0.0))
        return _make_record(trial, prediction, plan.befores, format_now(), None, host_record(), untried)
    consent(plan, target, lasts_s, prediction)
    started_at = format_now()
    trial = _Trial(request, target, plan, Countdown(say, lasts_s))
    with WindowEnergy(request.energy) as energy:
        with Journal(plan.saved) as journal:
            try:
                trial.run(energy, journal)
            except PowerprofError as error:
                # There is no record, so the hint of the error has the note.
                error.hint = "; ".join(filter(None, [error.hint, trial.kept_copies()]))
                raise
            trial.notes += filter(None, [trial.kept_copies()])
            after = [_read_restored(each) for each in plan.saved]
            journal.settled = all(now in (None, before) for now, before in zip(after, plan.befores, strict=True))
        source = energy.source
    return _make_record(trial, prediction, after, started_at, source, host_record())


def _read_restored(saved: SavedSetting) -> str | None:
    """Return the value of a restored setting; None if its owner has ended. Raise PowerprofError."""
    try:
        return saved.setting.read()
    except FileAway:  # Its CPU went offline later.
        return saved.before


def _format_so_far(blocks: Sequence[CureBlock]) -> str:
    """Return the wake-ups of the thread, else of the process, before the change and with it; empty without both."""
    rates_hz: dict[Arm, list[float]] = {"before": [], "cured": []}
    for block in blocks:
        count = block.thread_wakings_count
        if block.counted_s > 0:
            rates_hz[block.arm].append((block.target_wakings_count if count is None else count) / block.counted_s)
    before, cured = rates_hz.values()
    if not before or not cured:
        return ""
    return f"{number(fmean(before), 1)} → {number(fmean(cured), 1)} wake-ups/s so far"


def _make_record(
    trial: _Trial,
    prediction: CurePrediction | None,
    after: Sequence[str | None],
    started_at: str,
    source: EnergySource | None,
    host: dict[str, object],
    untried: Untried | None = None,
) -> Cure:
    request, plan, blocks, rise = trial.request, trial.plan, trial.blocks, trial.rise
    read_back = [value for value in after if value is not None]
    is_known = len(read_back) == len(after)
    pid, primary = trial.target.first, choose_primary(plan, blocks)
    wall_s = sum(block.window.window_s or 0.0 for block in blocks)
    cpus = max((block.window.cpus for block in blocks), default=1) or 1
    return Cure(
        started_at=started_at,
        target=TargetInfo(
            pid=pid,
            executable=name_of(pid),
            build_id=None,
            label=trial.target.label,
            pids=[pid],
            threads_count=len(list_threads(pid)) or None,
        ),
        remedy=plan.remedy,
        window_s=request.window_s,
        blocks_count=len(blocks),
        order=[block.arm for block in blocks],
        metrics=judge_blocks(blocks, primary, request.seed),
        verdict=CureVerdict(
            metric=primary,
            max_p95_percent=request.max_p95_percent,
            guard_percentile=request.guard_percentile,
            untried=untried,
            hurts=None if rise is None else rise.what,
            hurts_from_ms=None if rise is None else rise.before_ms,
            hurts_to_ms=None if rise is None else rise.cured_ms,
        ),
        latency=_latency_text(trial),
        replication=_replication_text(trial),
        predicted=prediction,
        reverted=read_back == plan.befores if is_known else None,
        read_back=join_values(read_back) if is_known else None,
        blocks=blocks,
        host=host,
        tool=ToolCost(
            version=__version__,
            cpu_s=trial.tool_cpu_s,
            wakeups_hz=None,
            cpu_percent=100.0 * trial.tool_cpu_s / wall_s / cpus if wall_s else None,
            memory_bytes=own_peak_bytes(),
        ),
        energy_source=source,
        notes=_make_notes(trial),
        ended=trial.ended,
    )


def _latency_text(trial: _Trial) -> str:
    """Return the number of measured statements, or the reason if latency is unknown."""
    if not trial.blocks:
        return "not measured: no window was measured"
    if trial.unprobed is not None:
        return f"not measured: {trial.unprobed}"
    count = sum(block.statements_count or 0 for block in trial.blocks)
    if not count:
        return "not measured: the server received no statement in the windows"
    return f"of {count} statements in {len(trial.blocks)} windows"


def _replication_text(trial: _Trial) -> str:
    """Return the source of the replica's figures, or the reason if they are unknown."""
    blocks = trial.blocks
    looks = sum(block.replica_looks_count or 0 for block in blocks)
    if not looks:
        return f"not measured: {trial.unsampled or 'no window was measured'}"
    sources = sorted({block.replica_delay_source for block in blocks if block.replica_delay_source})
    measured = f"by the replica's own report, in {looks} samples of {len(blocks)} windows"
    if sources:
        measured += f"; delay: {', '.join(sources)}"
    stopped = sum(block.replica_stopped_count or 0 for block in blocks)
    return f"{measured}; in {stopped} of them its SQL thread was stopped" if stopped else measured


def _make_notes(trial: _Trial) -> Notes:
    notes: list[str] = list(trial.notes)
    if trial.untraced is not None:
        notes.append(f"not traced, so the owners of the idle exits are unknown: {trial.untraced}")
    for block in trial.blocks:
        notes += [note for note in block.window.notes if isinstance(note, str) and note not in notes]
    return notes
