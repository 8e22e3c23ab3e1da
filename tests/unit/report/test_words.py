# SPDX-License-Identifier: Apache-2.0
"""What reports say in passing: one of a thing is one, and a doubt is told once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from powerprof.attribution.functions import FunctionProfile, FunctionRow
from powerprof.experiment.phases import Claim
from powerprof.model.attribution import StackFrame
from powerprof.model.records import Conservation, EnergySource, Estimate, IdleRun, ServerExits
from powerprof.queries.records import QueryPlanStep
from powerprof.report import attribution, idle, labels, profile
from powerprof.report.queries import plan_text
from tests.unit.report import sample_records
from tests.unit.report.sample_records import filled


def test_of_an_estimate_one_doubt_stands_for_all() -> None:
    source = EnergySource(metered=False, why="no meter on this host: rapl: none", doubts=["a", "b"])
    said = "\n".join(
        attribution.render_terminal(
            replace(sample_records.attribution(), energy_source=source, notes=["libx.so: no such file"])
        )
    )
    assert said.count("Note: ") == 2
    assert "Note: estimated (no meter): a (powerprof energy).\nNote: libx.so: no such file." in said
    metered = replace(sample_records.attribution(), energy_source=EnergySource(metered=True, why="rapl: package-0"))
    assert "energy: rapl: package-0" in labels.all_of(metered)
    # Runs of before have them among their notes, as they are.
    before = replace(sample_records.attribution(), notes=["estimate: a", "estimate: b"])
    assert "Note: estimate: a.\nNote: estimate: b." in "\n".join(attribution.render_terminal(before))


def test_a_step_without_a_table_has_no_question_marks() -> None:
    assert plan_text([QueryPlanStep(table=None, access=None, key=None, rows_count=None, extra="No tables used")]) == (
        "no table (No tables used)"
    )


def test_one_function_is_called_by_its_name() -> None:
    row = sample_records.filled(FunctionRow, function="dispatch_command", calls_count=300)
    one = sample_records.filled(FunctionProfile, label="mariadbd", pattern="dispatch*", window_s=3.0, functions=[row])
    assert profile.functions_answer(one) == "mariadbd called dispatch_command 300 times in 3.0 s."
    two = replace(one, functions=[row, replace(row, function="dispatch_end", calls_count=1)])
    assert profile.functions_answer(two) == "mariadbd called 2 functions of dispatch* 301 times in 3.0 s."


def test_only_what_the_baseline_drifted_as_far_as_is_said_to_be_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    drifted = Claim("wakeups_hz", Estimate(mean=925.3, low=729.9, high=1120.7), "drift")
    below = Claim("c0_percent", Estimate(mean=-24.57, low=-35.66, high=-13.48), "nothing")
    monkeypatch.setattr(idle, "claims", lambda *_: [drifted, below])
    assert idle.answer_of(sample_records.idle_run()) == (
        "No answer: the host changed meanwhile: 925.3 ± 195.4 wake-ups/s, but the baseline drifted as far; the rest is "
        "inconclusive: −24.57 ± 11.09 points of C0. Measure again when it is quiet."
    )


def test_a_cost_that_was_not_found_is_reported_as_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    wakeups = Claim("wakeups_hz", Estimate(mean=-4.0, low=-17.5, high=9.5), "nothing")
    c0 = Claim("c0_percent", Estimate(mean=0.04, low=-0.98, high=1.06), "nothing")
    monkeypatch.setattr(idle, "claims", lambda *_: [wakeups, c0])
    said = idle.answer_of(sample_records.idle_run())
    assert said.endswith(" no measurable cost: less than +9.5 wake-ups/s and +1.1 points of C0 (95 %).")
    assert " has no measurable" in said or " have no measurable" in said


def test_an_interval_that_excludes_nothing_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    wakeups = Claim("wakeups_hz", Estimate(mean=2342.0, low=-13085.6, high=17769.6), "nothing")
    c0 = Claim("c0_percent", Estimate(mean=-14.2, low=-64.89, high=36.49), "nothing")
    monkeypatch.setattr(idle, "claims", lambda *_: [wakeups, c0])
    said = idle.answer_of(sample_records.idle_run())
    assert said.startswith("No answer: the host's windows differ too much: up to +17,769.6 wake-ups/s and +36.5 points")


def _counted(run: IdleRun, alone: Estimate, connected: Estimate, **of_baseline: object) -> IdleRun:
    rates = {"server": alone, "clients": connected}
    phases = [
        replace(
            phase,
            **(of_baseline if phase.name == "baseline" else {}),
            server_exits=ServerExits(
                count=int(rates[phase.name].mean * 16), window_s=16.0, wakeups_hz=rates[phase.name]
            )
            if phase.name in rates
            else None,
        )
        for phase in run.phases
    ]
    return replace(run, phases=phases)


def _rate(mean: float, half: float) -> Estimate:
    return Estimate(mean=mean, low=mean - half, high=mean + half)


@pytest.mark.parametrize(
    ("alone", "connected", "answer"),
    [
        (_rate(4.6, 0.2), _rate(4.6, 0.2), "; 16 silent connections add none (0.0 ± 0.3)."),
        (_rate(4.6, 0.2), _rate(20.6, 0.8), "; 16 silent connections add 16.0 ± 0.8."),
        (_rate(4.6, 2.0), _rate(5.0, 2.0), "; 16 silent connections add less than 3.2 (95 %)."),
        (_rate(20.6, 0.8), _rate(4.6, 0.2), "; with 16 silent connections fewer: 4.6."),
    ],
)
def test_the_answer_of_idle_is_the_servers_own_count(alone: Estimate, connected: Estimate, answer: str) -> None:
    said = idle.answer_of(_counted(sample_records.idle_run(), alone, connected))
    assert said.startswith(f"An idle MariaDB 10.11 wakes the CPUs {alone.mean} ± ")
    assert " times a second" in said
    assert said.endswith(answer)


def test_a_server_that_sleeps_has_a_bound() -> None:
    quiet = Estimate(mean=0.0, low=0.0, high=0.23)
    said = idle.answer_of(_counted(sample_records.idle_run(), quiet, quiet))
    assert said == (
        "An idle MariaDB 10.11 wakes no CPU (less than 0.2 times a second); 16 silent connections add none (0.0 ± 0.2)."
    )


def test_a_host_that_was_busy_before_has_no_answer() -> None:
    said = idle.answer_of(_counted(sample_records.idle_run(), _rate(4.6, 0.2), _rate(4.6, 0.2), c0_percent=98.2))
    assert said == (
        "No answer: the CPUs were 98 % busy before the server started. Measure again when the host is quiet."
    )


def test_a_busy_host_still_knows_how_often_the_servers_threads_wake() -> None:
    run = _counted(sample_records.idle_run(), _rate(0.0, 0.2), _rate(0.0, 0.2), c0_percent=98.2)
    woken = {"server": 4.9, "clients": 5.04}
    phases = [
        replace(
            phase,
            server_exits=replace(
                phase.server_exits, wakings_hz=woken[phase.name], most_woken="mysys/statement_timer", most_woken_hz=3.6
            ),
        )
        if phase.server_exits is not None
        else phase
        for phase in run.phases
    ]
    assert idle.answer_of(replace(run, phases=phases)) == (
        "The threads of an idle MariaDB 10.11 wake 4.9 times a second (3.6 of them its thread mysys/statement_timer), "
        "5.0 with 16 silent connections. What this costs is unknown: the CPUs were 98 % busy before the server "
        "started. Measure again when the host is quiet."
    )


def test_the_hosts_difference_is_the_check_of_the_count() -> None:
    run = _counted(sample_records.idle_run(), _rate(4.6, 0.2), _rate(4.6, 0.2))
    assert idle.check(run).startswith("Whole host: ")
    assert idle.check(sample_records.idle_run()) == ""


def test_a_host_that_was_busy_while_the_server_was_traced_says_nothing_of_connections() -> None:
    run = _counted(sample_records.idle_run(), _rate(3.6, 0.4), Estimate(mean=0.0, low=0.0, high=0.8))

    def busy(**idle_percent: float) -> IdleRun:
        counts = filled(Conservation, idle_exits_count=97)
        phases = [
            replace(phase, conservation=replace(counts, idle_percent=idle_percent[phase.name]))
            if phase.name in idle_percent
            else phase
            for phase in run.phases
        ]
        return replace(run, phases=phases)

    said = idle.answer_of(busy(server=60.0, clients=2.0))
    assert said.endswith(
        " The CPUs were up to 98 % busy meanwhile: an idle host may show more, and what connections add is unknown."
    )
    assert "16 silent" not in said
    said = idle.answer_of(busy(server=1.0, clients=0.5))
    assert said == "No answer: the CPUs were 99 % busy all the time. Measure again when the host is quiet."


def test_lines_are_shown_where_they_are_asked_for_and_outlive_long_names() -> None:
    record = sample_records.attribution()
    long = StackFrame(function="f" * 200, module="m", address="0x1", source="/src/deep/main.rs:62")
    row = replace(record.wakeups[0], stack=[long])
    record = replace(record, wakeups=[row])
    assert "main.rs:62" not in "\n".join(attribution.render_terminal(record))
    shown = "\n".join(attribution.render_terminal(record, sources=True))
    assert "fff… (main.rs:62)" in shown
    assert "/src/deep" not in shown
