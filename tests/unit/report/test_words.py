# SPDX-License-Identifier: Apache-2.0
"""What reports say in passing: one of a thing is one, and a doubt is told once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from powerprof.attribution.functions import FunctionProfile, FunctionRow
from powerprof.experiment.judge.cost import Claim
from powerprof.queries.records import QueryPlanStep
from powerprof.records import Estimate
from powerprof.report.terminal import attribution, functions, idle
from powerprof.report.terminal.queries import plan_text
from tests.unit.report import sample_records


def test_of_an_estimate_one_doubt_stands_for_all() -> None:
    notes = ["energy: no meter on this host: rapl: none", "estimate: a", "estimate: b", "libx.so: no such file"]
    said = "\n".join(attribution.lines(replace(sample_records.attribution(), notes=notes)))
    assert said.count("Note: ") == 2
    assert "Note: no meter here: estimate: a (more doubts: powerprof energy).\nNote: libx.so: no such file." in said
    metered = replace(sample_records.attribution(), notes=["energy: rapl: package-0"])
    assert "Note: energy: rapl: package-0." in "\n".join(attribution.lines(metered))


def test_a_step_without_a_table_has_no_question_marks() -> None:
    assert plan_text([QueryPlanStep(table=None, access=None, key=None, rows_count=None, extra="No tables used")]) == (
        "no table (No tables used)"
    )


def test_one_function_is_called_by_its_name() -> None:
    row = sample_records.filled(FunctionRow, function="dispatch_command", calls_count=300)
    one = sample_records.filled(FunctionProfile, label="mariadbd", pattern="dispatch*", window_s=3.0, functions=[row])
    assert functions.headline(one) == "mariadbd called dispatch_command 300 times in 3.0 s."
    two = replace(one, functions=[row, replace(row, function="dispatch_end", calls_count=1)])
    assert functions.headline(two) == "mariadbd called 2 functions of dispatch* 301 times in 3.0 s."


def test_only_what_the_baseline_drifted_as_far_as_is_said_to_be_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    drifted = Claim("wakeups_hz", Estimate(mean=925.3, low=729.9, high=1120.7), "drift")
    below = Claim("c0_percent", Estimate(mean=-24.57, low=-35.66, high=-13.48), "nothing")
    monkeypatch.setattr(idle, "claims", lambda *_: [drifted, below])
    assert idle.headline(sample_records.idle_run()) == (
        "The host itself changed too much to tell what it costs: 925.3 ± 195.4 wake-ups/s, but the baseline drifted as "
        "far; the rest is inconclusive: −24.57 ± 11.09 points of C0."
    )


def test_a_cost_that_was_not_found_is_reported_as_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    wakeups = Claim("wakeups_hz", Estimate(mean=-4.0, low=-17.5, high=9.5), "nothing")
    c0 = Claim("c0_percent", Estimate(mean=0.04, low=-0.98, high=1.06), "nothing")
    monkeypatch.setattr(idle, "claims", lambda *_: [wakeups, c0])
    said = idle.headline(sample_records.idle_run())
    assert said.endswith(" no measurable cost: less than +9.5 wake-ups/s and +1.1 points of C0 (95 %).")
    assert " has no measurable" in said or " have no measurable" in said
