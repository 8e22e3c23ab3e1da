# SPDX-License-Identifier: Apache-2.0
"""Workloads, conditions and studies by name."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from powerprof.system.errors import DataError, UsageError
from powerprof.workloads import studies
from powerprof.workloads.catalogue import find_condition, find_one, find_workload, list_folders
from powerprof.workloads.reading import read_workload, resolve
from powerprof.workloads.studies import Study, StudyCommand, StudyFinding, find_study, list_studies, read_study


def _write(root: Path, name: str, *conditions: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    lines = ['schema = "powerprof.workload/1"', f'name = "{name}"', 'title = "t"', '[load]\nsql = ["SELECT 1"]']
    (folder / "workload.toml").write_text("\n".join([*lines, *(f"[conditions.{one}]" for one in conditions), ""]))
    return folder


def test_every_shipped_workload_is_valid_and_its_statements_can_be_read() -> None:
    names = []
    for folder in list_folders():
        loaded = read_workload(folder)
        names.append(loaded.definition.name)
        for condition in loaded.definition.conditions:
            case = resolve(loaded, condition)
            if case.load.kind == "statements":
                assert case.load_statements()
    assert {"city", "city-join", "query-cache", "idle-connections", "read-buffer", "prepared"} <= set(names)


def test_tables_need_nothing_that_a_release_lacks() -> None:
    for folder in list_folders():
        loaded = read_workload(folder)
        for name in loaded.definition.dataset.files if loaded.definition.server.kind == "mysql" else []:
            text = (folder / name).read_text()
            # MySQL 9.7 lost these digests, 5.5 may lack SHA2, and MariaDB alone has tables of sequences.
            assert not re.search(r"\b(MD5|SHA1|SHA|SHA2)\(|\bseq_\d", text), f"{folder.name}/{name}"


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("index", "city"),
        ("no-index", "city"),
        ("join", "city-join"),
        ("subquery", "city-join"),
        ("no-query-cache", "query-cache"),
        ("city:index", "city"),
    ],
)
def test_studies_are_found_by_name(name: str, workload: str) -> None:
    loaded, condition = find_condition(name)
    assert loaded.definition.name == workload
    assert condition == name.rpartition(":")[2]


def test_an_ambiguous_name_lists_the_choices(tmp_path: Path) -> None:
    _write(tmp_path, "first", "on", "off")
    _write(tmp_path, "second", "on", "other")
    with pytest.raises(UsageError) as error:
        find_condition("on", [tmp_path])
    assert error.value.hint == "one of first:on, second:on"
    assert find_condition("on", [tmp_path], beside="off")[0].definition.name == "first"
    assert find_condition("second:on", [tmp_path])[0].definition.name == "second"


def test_a_folder_of_the_user_has_precedence(tmp_path: Path) -> None:
    mine = _write(tmp_path, "city", "index")
    assert find_workload("city", [tmp_path]).folder == mine.resolve()
    assert find_workload(str(mine)).folder == mine.resolve()
    assert find_condition(f"{mine}:index")[0].folder == mine.resolve()
    assert mine.resolve() in list_folders([mine])


@pytest.mark.parametrize("name", ["city", "index", "theirs"])
def test_a_word_without_a_slash_is_no_folder_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    planted = _write(tmp_path, name, "index")
    monkeypatch.chdir(tmp_path)
    for search in (find_workload, find_one, find_condition):
        with contextlib.suppress(UsageError):
            found = search(name)
            loaded = found[0] if isinstance(found, tuple) else found
            assert loaded.folder != planted.resolve()
    assert find_workload(f"./{name}").folder == planted.resolve()
    assert find_condition(f"./{name}:index")[0].folder == planted.resolve()


def test_the_folder_that_was_meant_is_in_the_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, "theirs", "only")
    monkeypatch.chdir(tmp_path)
    for search in (find_workload, find_one, find_condition):
        with pytest.raises(UsageError) as error:
            search("theirs")
        assert error.value.hint is not None and error.value.hint.startswith("for the folder: ./theirs; ")


def test_unknown_names_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no workload has a condition nonsense"):
        find_condition("nonsense")
    with pytest.raises(UsageError, match="no workload is called nonsense"):
        find_condition("nonsense:index")
    with pytest.raises(UsageError, match="city has no condition nonsense"):
        find_condition("city:nonsense")
    with pytest.raises(UsageError, match="no such directory"):
        list_folders([tmp_path / "absent"])


def test_run_takes_a_workload_that_has_one_condition(tmp_path: Path) -> None:
    _write(tmp_path, "single", "only")
    assert find_one("single", [tmp_path])[1] == "only"
    with pytest.raises(UsageError, match="city has several conditions"):
        find_one("city")


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


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('b = "one:b"', 'b = "two:b"', "no step two"),
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


def test_a_step_is_printed_as_its_command_line() -> None:
    step = StudyCommand(
        name="s", command="run", conditions=["city:index"], rate_hz=70.0, load_percent=30.5, attribute_s=2.0,
        build="mariadb-5.5", on_cpu=True,
    )  # fmt: skip
    assert step.typed == (
        "powerprof run city:index --rate 70 --load 30.5 --attribute 2 --server-build mariadb-5.5 --on-cpu"
    )
    swept = StudyCommand(name="s", command="sweep", conditions=["city"], values=[1, 8])
    assert swept.typed == "powerprof sweep city --clients 1,8"
    assert replace(swept, parameter="rate").typed == "powerprof sweep city --set rate=1,8"
    assert replace(swept, values=[]).typed == "powerprof sweep city --set clients"
    assert StudyCommand(name="s", command="idle", clients=7).typed == "powerprof idle --clients 7"


STUDY = Study(
    title="A study",
    published="2009.",
    page="a.md",
    steps=[StudyCommand(name="i", command="idle"), StudyCommand(name="r", command="run", conditions=["x"])],
    findings=[StudyFinding(label="l", then="t", metric="m", a="i:server", b="i:clients", expected="higher")],
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"expected": "same"}, "within"),
        ({"within": 2.0}, "within"),
        ({"expected": "same", "within": 2.0}, None),
        ({"a": None}, "nothing that it could be higher than"),
        ({"a": None, "expected": None}, None),
        ({"b": "gone:x"}, "there is no step gone"),
        ({"b": "i"}, "i is not a side of idle"),
        ({"b": "r:x"}, "r:x is not a side of run"),
    ],
)
def test_a_finding_follows_its_rules(change: dict[str, Any], reason: str | None) -> None:
    study = replace(STUDY, findings=[replace(STUDY.findings[0], **change)])
    if reason is None:
        studies._check(Path("a.toml"), study)
    else:
        with pytest.raises(DataError, match=reason):
            studies._check(Path("a.toml"), study)
    assert msgspec.json.decode(msgspec.json.encode(study), type=Study) == study


def test_steps_have_names_and_conditions_of_their_own() -> None:
    for steps, reason in (
        ([STUDY.steps[0], STUDY.steps[0]], "two steps have one name"),
        ([*STUDY.steps, StudyCommand(name="c", command="compare", conditions=["x"])], "compare takes 2 conditions"),
    ):
        with pytest.raises(DataError, match=reason):
            studies._check(Path("a.toml"), replace(STUDY, steps=steps))
