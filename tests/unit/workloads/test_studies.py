# SPDX-License-Identifier: Apache-2.0
"""Studies as data: every shipped one leads to conditions that exist, and a bad file is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.system.errors import DataError, UsageError
from powerprof.workloads.catalogue import find_condition, find_one, find_study, list_studies, read_study
from powerprof.workloads.reading import resolve

GOOD = """
title = "T"
published = "2009"
page = "t.md"
[[steps]]
name = "one"
command = "compare"
conditions = ["index", "no-index"]
[[findings]]
label = "L"
then = "twice"
metric = "c0_percent"
a = "one:a"
b = "one:b"
expected = "higher"
"""


@pytest.mark.parametrize("name", list_studies())
def test_the_steps_of_a_shipped_study_can_be_resolved(name: str) -> None:
    study = find_study(name)
    for step in study.steps:
        if step.command == "compare":
            a, b = step.conditions
            both = [find_condition(a, (), beside=b), find_condition(b, (), beside=a)]
            assert len({workload.definition.primary_metric for workload, _ in both}) == 1
            assert all(resolve(*found) for found in both)
        elif step.conditions:
            workload, condition = find_one(step.conditions[0])
            assert resolve(workload, condition)
        assert step.typed.startswith(f"powerprof {step.command}")
    for finding in study.findings:
        for side in filter(None, (finding.a, finding.b)):
            name_of_step, _, part = side.partition(":")
            step = next(step for step in study.steps if step.name == name_of_step)
            if step.command == "compare":
                assert part in ("a", "b")
            elif step.command == "idle":
                assert part in ("baseline", "server", "clients")
            elif step.command == "sweep" and step.parameter == "condition":
                assert part in find_one(step.conditions[0])[0].definition.conditions
            elif step.command == "sweep" and step.values:
                assert part in [str(value) for value in step.values]


def test_a_sweep_is_typed_with_its_values() -> None:
    steps = {step.name: step for step in find_study("releases").steps}
    assert steps["transaction"].typed == (
        "powerprof sweep oltp-read-only --set "
        "server=mysql-5.5.9,mysql-9.7,mariadb-10.5,mariadb-10.11,mariadb-11.4,mariadb-11.8 --rate 40"
    )
    assert find_study("scale-out").steps[0].typed == "powerprof sweep tpcc-single --clients 4,16"
    assert find_study("power-profiles").steps[1].typed == (
        "powerprof sweep power-profiles:present --set condition --load 10"
    )


def test_an_unknown_study_is_refused_with_the_choices() -> None:
    with pytest.raises(UsageError, match="no study is called nonsense") as error:
        find_study("nonsense")
    assert "power-efficiency" in str(error.value.hint)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('b = "one:b"', 'b = "two:b"', "no step two"),
        ('b = "one:b"', 'b = "one"', "one is not a side of compare"),
        ('["index", "no-index"]', '["index"]', "compare takes 2 conditions"),
        ('a = "one:a"\n', "", "nothing that it could be higher than"),
        ('"higher"', '"same"', "`within` belongs to"),
        ('"higher"', '"sideways"', "Invalid enum value 'sideways'"),
        ('name = "one"', 'name = "one"\ncolour = 1', "unknown field `colour`"),
    ],
)
def test_a_bad_study_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(GOOD, encoding="utf-8")
    assert read_study(path).findings[0].expected == "higher"
    path.write_text(GOOD.replace(old, new), encoding="utf-8")
    with pytest.raises(DataError, match=reason):
        read_study(path)
