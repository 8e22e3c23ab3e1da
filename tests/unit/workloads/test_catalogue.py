# SPDX-License-Identifier: Apache-2.0
"""Workloads and conditions by the names that people type."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from powerprof.system.errors import UsageError
from powerprof.workloads.catalogue import find_condition, find_one, find_workload, list_folders
from powerprof.workloads.reading import read_workload, resolve


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
    assert error.value.hint == "say which: first:on, second:on"
    assert find_condition("on", [tmp_path], beside="off")[0].definition.name == "first"
    assert find_condition("second:on", [tmp_path])[0].definition.name == "second"


def test_a_folder_of_the_user_has_precedence(tmp_path: Path) -> None:
    mine = _write(tmp_path, "city", "index")
    assert find_workload("city", [tmp_path]).folder == mine.resolve()
    assert find_workload(str(mine)).folder == mine.resolve()
    assert find_condition(f"{mine}:index")[0].folder == mine.resolve()
    assert mine.resolve() in list_folders([mine])


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
