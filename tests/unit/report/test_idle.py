# SPDX-License-Identifier: Apache-2.0
"""Tests for the answer of `powerprof idle`, and for short sentences of other reports."""

from __future__ import annotations

import random
import re

import pytest
from msgspec.structs import replace

from powerprof.attribution.profile import FunctionProfile, FunctionRow
from powerprof.experiment.phases import Claim
from powerprof.model.records import Conservation, Estimate, IdleRun, ServerExits
from powerprof.queries.records import QueryPlanStep
from powerprof.report import idle, profile
from powerprof.report.queries import plan_text
from tests.unit.report import sample_records
from tests.unit.report.sample_records import filled


def test_plan_step_without_a_table_has_no_question_mark() -> None:
    assert plan_text([QueryPlanStep(table=None, access=None, key=None, rows_count=None, extra="No tables used")]) == (
        "no table (No tables used)"
    )


def test_single_probed_function_is_named() -> None:
    row = sample_records.filled(FunctionRow, function="dispatch_command", calls_count=300)
    one = sample_records.filled(FunctionProfile, label="mariadbd", pattern="dispatch*", window_s=3.0, functions=[row])
    assert profile.functions_answer(one) == "mariadbd called dispatch_command 300 times in 3.0 s."
    two = replace(one, functions=[row, replace(row, function="dispatch_end", calls_count=1)])
    assert profile.functions_answer(two) == "mariadbd called 2 functions of dispatch* 301 times in 3.0 s."


def test_only_drifted_figures_are_called_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    drifted = Claim("wakeups_hz", Estimate(mean=925.3, low=729.9, high=1120.7), "drift")
    below = Claim("c0_percent", Estimate(mean=-24.57, low=-35.66, high=-13.48), "nothing")
    monkeypatch.setattr(idle, "judge_costs", lambda *_: [drifted, below])
    assert idle.answer_of(sample_records.idle_run()) == (
        "No answer: the host changed during the run: 925.3 ± 195.4 wake-ups/s, but the baseline drifted as far; "
        "the rest is "
        "inconclusive: −24.57 ± 11.09 points of C0. Measure again when it is quiet."
    )


@pytest.mark.parametrize(
    ("wakeups", "c0", "answer"),
    [
        (
            Estimate(mean=-4.0, low=-17.5, high=9.5),
            Estimate(mean=0.04, low=-0.98, high=1.06),
            r".* ha(s|ve) no measurable cost: less than \+9\.5 wake-ups/s and \+1\.1 points of C0 \(95 %\)\.",
        ),
        (
            Estimate(mean=2342.0, low=-13085.6, high=17769.6),
            Estimate(mean=-14.2, low=-64.89, high=36.49),
            r"No answer: the host's windows differ too much: up to \+17,769\.6 wake-ups/s and \+36\.5 points.*",
        ),
    ],
    ids=["bound", "too wide"],
)
def test_undetected_cost_is_a_bound_or_no_answer(
    wakeups: Estimate, c0: Estimate, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [Claim("wakeups_hz", wakeups, "nothing"), Claim("c0_percent", c0, "nothing")]
    monkeypatch.setattr(idle, "judge_costs", lambda *_: claims)
    assert re.fullmatch(answer, idle.answer_of(sample_records.idle_run()))


def test_no_answer_proves_a_zero_or_misuses_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(54)
    run = sample_records.idle_run()
    given = replace(run, phases=[phase for phase in run.phases if phase.name in ("server", "clients")])
    for _ in range(400):
        ends = [sorted(draw.choice((-1, 1)) * 10 ** draw.uniform(-4, 2) for _ in range(2)) for _ in range(2)]
        claims = [
            Claim(metric, Estimate(mean=(low + high) / 2, low=low, high=high), "costs" if low > 0 else "nothing")
            for metric, (low, high) in zip(("wakeups_hz", "c0_percent"), ends, strict=True)
        ]
        monkeypatch.setattr(idle, "judge_costs", lambda *_, claims=claims: claims)
        count = draw.choice((1, 2, 16))
        answer = idle.answer_of(replace(given, options=replace(given.options, clients_count=count)))
        assert not re.search(r"less than [+−]?0(\.0+)? |less than [+]?−", answer), answer
        assert not re.search(r"\b1 silent connections|\b1 silent connection (cost|have|add) ", answer), answer
        assert not re.search(r"[^1]\b(2|16) silent connections (costs|has|adds) ", answer), answer


def test_given_server_that_works_or_a_busy_host_has_no_answer() -> None:
    run = sample_records.idle_run()
    given = [phase for phase in run.phases if phase.name in ("server", "clients")]
    working = idle.answer_of(replace(run, phases=given, statements_hz=18.04))
    assert working == "No answer: the server was not idle: 18.0 statements/s of other clients in the windows."
    busy = [replace(phase, c0_percent=100.0, conservation=None) for phase in given]
    assert idle.answer_of(replace(run, phases=busy)) == (
        "No answer: the CPUs were 100 % busy all the time. Measure again when the host is quiet."
    )


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
def test_answer_is_the_servers_own_count(alone: Estimate, connected: Estimate, answer: str) -> None:
    said = idle.answer_of(_counted(sample_records.idle_run(), alone, connected))
    assert said.startswith(f"An idle MariaDB 10.11 wakes the CPUs {alone.mean} ± ")
    assert " times a second" in said
    assert said.endswith(answer)


def test_sleeping_server_has_a_bound() -> None:
    quiet = Estimate(mean=0.0, low=0.0, high=0.23)
    said = idle.answer_of(_counted(sample_records.idle_run(), quiet, quiet))
    assert said == (
        "An idle MariaDB 10.11 wakes no CPU (less than 0.2 times a second); 16 silent connections add none (0.0 ± 0.2)."
    )


def test_host_that_was_busy_before_has_no_answer() -> None:
    said = idle.answer_of(_counted(sample_records.idle_run(), _rate(4.6, 0.2), _rate(4.6, 0.2), c0_percent=98.2))
    assert said == (
        "No answer: the CPUs were 98 % busy before the server started. Measure again when the host is quiet."
    )


def test_busy_host_still_has_the_servers_waking_rate() -> None:
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
        "5.0 with 16 silent connections. The cost is unknown: the CPUs were 98 % busy before the server "
        "started. Measure again when the host is quiet."
    )


def test_difference_of_the_host_checks_the_count() -> None:
    run = _counted(sample_records.idle_run(), _rate(4.6, 0.2), _rate(4.6, 0.2))
    assert idle.check(run).startswith("Whole host: ")
    assert idle.check(sample_records.idle_run()) == ""


def test_host_that_was_busy_while_traced_has_no_figure_of_connections() -> None:
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
        " The CPUs were up to 98 % busy during the window: an idle host may show more, and the effect of the "
        "connections is unknown."
    )
    assert "16 silent" not in said
    said = idle.answer_of(busy(server=1.0, clients=0.5))
    assert said == "No answer: the CPUs were 99 % busy all the time. Measure again when the host is quiet."
