# SPDX-License-Identifier: Apache-2.0
"""Tests for the answer of `powerprof idle`, and for short sentences of other reports."""

from __future__ import annotations

import random
import re

import pytest
from msgspec.structs import replace

from powerprof.experiment.phases import Cost
from powerprof.experiment.server_cost import server_cost
from powerprof.model.records import Conservation, Estimate, IdleRun, ServerExits
from powerprof.report import idle_answer, labels
from tests.unit.report import sample_records
from tests.unit.report.sample_records import filled


def test_no_answer_proves_a_zero_or_misuses_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(54)
    run = sample_records.idle_run()
    given = replace(run, phases=[phase for phase in run.phases if phase.name in ("server", "clients")])
    for _ in range(400):
        ends = [sorted(draw.choice((-1, 1)) * 10 ** draw.uniform(-4, 2) for _ in range(2)) for _ in range(2)]
        claims = [
            Cost(metric, Estimate(mean=(low + high) / 2, low=low, high=high), "costs" if low > 0 else "nothing")
            for metric, (low, high) in zip(("wakeups_hz", "c0_percent"), ends, strict=True)
        ]
        monkeypatch.setattr(idle_answer, "judge_costs", lambda *_, claims=claims: claims)
        count = draw.choice((1, 2, 16))
        answer = idle_answer.answer_of(replace(given, options=replace(given.options, clients_count=count)))
        assert not re.search(r"less than [+−]?0(\.0+)? |less than [+]?−", answer), answer
        assert not re.search(r"\b1 silent connections|\b1 silent connection (cost|have|add) ", answer), answer
        assert not re.search(r"[^1]\b(2|16) silent connections (costs|has|adds) ", answer), answer


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
        (_rate(4.6, 0.2), _rate(4.6, 0.2), "; 16 silent connections add less than 0.29 (95 %)."),
        (_rate(4.6, 0.2), _rate(20.6, 0.8), "; 16 silent connections add 16.00 ± 0.82."),
        (_rate(4.6, 2.0), _rate(5.0, 2.0), "; 16 silent connections add less than 3.3 (95 %)."),
        (_rate(20.6, 0.8), _rate(4.6, 0.2), "; with 16 silent connections fewer: 4.60 ± 0.20."),
    ],
)
def test_answer_is_the_servers_own_count(alone: Estimate, connected: Estimate, answer: str) -> None:
    said = idle_answer.answer_of(_counted(sample_records.idle_run(), alone, connected))
    assert said.startswith(f"An idle MariaDB 10.11 wakes the CPUs {labels.plus_minus(alone)} times a second")
    assert said.endswith(answer)


def test_connections_add_nothing_only_within_their_bound() -> None:
    """Draw the rates with and without connections: the sentence has the direction or the upper end of the interval."""
    draw = random.Random(11)
    for _ in range(300):
        alone = _rate(draw.uniform(0.0, 200.0), draw.uniform(0.1, 20.0))
        connected = _rate(max(0.0, alone.mean + draw.choice((0.0, 0.3, 5.0, -5.0))), draw.uniform(0.1, 20.0))
        run = _counted(sample_records.idle_run(), alone, connected)
        cost, said = server_cost(run), idle_answer.answer_of(run)
        assert cost is not None and cost.added is not None
        low, high = cost.added.low or 0.0, cost.added.high or 0.0
        assert " add none" not in said
        bounds = re.findall(r"add less than ([\d.]+) \(95 %\)", said)
        assert bool(bounds) is (low <= 0 <= high), (cost.added, said)
        assert all(float(bound) == pytest.approx(high, abs=0.06, rel=0.1) for bound in bounds)


def test_sleeping_server_has_a_bound() -> None:
    quiet = Estimate(mean=0.0, low=0.0, high=0.23)
    said = idle_answer.answer_of(_counted(sample_records.idle_run(), quiet, quiet))
    assert said == (
        "An idle MariaDB 10.11 wakes no CPU (less than 0.23 times a second); 16 silent connections add less than 0.23 "
        "(95 %)."
    )


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

    said = idle_answer.answer_of(busy(server=60.0, clients=2.0))
    assert said.endswith(
        " The CPUs were up to 98 % busy during the window: an idle host may show more, and the effect of the "
        "connections is unknown."
    )
    assert "16 silent" not in said
    said = idle_answer.answer_of(busy(server=1.0, clients=0.5))
    assert said == "No answer: the CPUs were 99 % busy all the time. Measure again when the host is quiet."
