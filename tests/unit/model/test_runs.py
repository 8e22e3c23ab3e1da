# SPDX-License-Identifier: Apache-2.0
"""The run store: numbers, order, labels, and the earlier run of a comparison."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from powerprof.model.runs import About, RunStore, check_label
from powerprof.system.errors import UsageError


class Record(msgspec.Struct, frozen=True):
    id: str | None
    started_at: str
    schema: str = "test/1"
    interrupted: bool = False


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


def save(store: RunStore, command: str, minute: int, target: str | None = "mysqld", *labels: str) -> str:
    record = Record(None, f"2026-01-01T00:{minute:02}:00.000Z")
    about = About(labels=list(labels), target=target, answer=f"answer {minute}")
    name = store.save(command, record, about=about).id
    assert name is not None
    return name


def test_runs_of_a_command_are_numbered_and_all_are_listed_by_time(store: RunStore) -> None:
    for minute in (40, 41, 42, 43, 44, 45):
        save(store, "idle-deep", minute)
    names = [save(store, "idle", 30), save(store, "idle", 10), save(store, "attribute", 20), save(store, "idle", 5)]
    assert names == ["idle-0001", "idle-0002", "attribute-0001", "idle-0003"]
    assert save(store, "idle-deep", 46) == "idle-deep-0007"
    assert save(store, "idle", 50) == "idle-0004"
    listed = [run for run in store.list() if run.id not in [f"idle-deep-000{number}" for number in range(2, 8)]]
    assert [run.id for run in listed] == [
        "idle-0003",
        "idle-0002",
        "attribute-0001",
        "idle-0001",
        "idle-deep-0001",
        "idle-0004",
    ]
    assert [run.command for run in listed][1:5] == ["idle", "attribute", "idle", "idle-deep"]
    assert (listed[0].answer, listed[0].target, listed[0].schema) == ("answer 5", "mysqld", "test/1")
    store.remove("idle-0004")
    assert save(store, "idle", 55) == "idle-0004"
    assert store.load("idle-0003", Record).started_at == "2026-01-01T00:05:00.000Z"


def test_the_earlier_run_is_the_newest_before_it_of_the_same_command_and_target(store: RunStore) -> None:
    save(store, "idle", 1, "mysqld", "v1")
    older = save(store, "idle", 2, "mysqld", "v1")
    save(store, "idle", 3, "postgres", "v1")
    save(store, "attribute", 4, "mysqld", "v1")
    this = save(store, "idle", 5, "mysqld", "v1", "v2")
    later = save(store, "idle", 6, "mysqld", "v2")
    assert store.find_earlier(this, "last") == older
    # A label may be that of a later run.
    assert store.find_earlier(this, "v1") == older
    assert store.find_earlier(this, "v2") == later
    assert store.find_earlier(later, "last") == this
    for name, label in (("idle-0001", "last"), (this, "v3"), ("attribute-0001", "last")):
        with pytest.raises(UsageError, match="of the same command and target"):
            store.find_earlier(name, label)
    damaged = store.directory / older / "run.json"
    damaged.write_text("{")
    assert store.find_earlier(this, "last") == "idle-0001"
    assert next(run for run in store.list() if run.id == older).problem is not None


def test_labels_are_added_to_those_of_a_run(store: RunStore) -> None:
    name = save(store, "idle", 1, "mysqld", "v1", "main")
    store.describe(name, About(labels=["v2", "v1"]))
    about = store.about(name)
    assert (about.labels, about.target, about.answer) == (["v1", "main", "v2"], "mysqld", "answer 1")
    store.describe(name, About(target="postgres", answer="other"))
    about = store.about(name)
    assert (about.labels, about.target, about.answer) == (["v1", "main", "v2"], "postgres", "other")
    with pytest.raises(UsageError):
        store.describe("idle-0009", About())
    assert store.about("idle-0009") == About()
    (store.directory / name / "about.json").write_text("{broken")
    assert store.list()[0].labels == []
    store.remove(name)
    assert not (store.directory / name).exists()
    with pytest.raises(UsageError):
        store.remove("../elsewhere")


@pytest.mark.parametrize("label", ["last", "prune", "export", "idle-0001", "", "-x", "a b", "x" * 41])
def test_a_label_is_a_word_and_no_run(label: str) -> None:
    with pytest.raises(UsageError):
        check_label(label)
    assert check_label("x" * 40) == "x" * 40
