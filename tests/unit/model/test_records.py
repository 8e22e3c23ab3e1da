# SPDX-License-Identifier: Apache-2.0
"""Values and names of records: unknown stays unknown, each metric has one name, and all kinds have one head."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.model.attribution import StackFrame, Thread
from powerprof.model.records import EnergySource, Figures, Note, Record, sum_known
from powerprof.report.kinds import KIND_LOADERS

HEAD = Record.__struct_fields__
# A kind can give a key a default value or a narrower type, such as the options of its command.
NARROWED = {"schema", "command", "started_at", "server", "tool", "options"}


@pytest.mark.parametrize("name", KIND_LOADERS)
def test_every_kind_begins_with_the_head_of_records(name: str) -> None:
    record = KIND_LOADERS[name]().record
    assert issubclass(record, Record) and record.__struct_fields__[: len(HEAD)] == HEAD
    own = {key for kind in record.__mro__ if kind not in Record.__mro__ for key in kind.__annotations__}
    assert own & set(HEAD) <= NARROWED


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=8))
def test_a_sum_with_an_unknown_part_is_unknown(amounts: list[float | None]) -> None:
    total = sum_known(amounts)
    assert (total is None) == (None in amounts)
    if total is not None:
        assert total == pytest.approx(sum(amount for amount in amounts if amount is not None))


def test_unknown_values_of_a_metric_are_left_out() -> None:
    metric = Figures(name="wakeups_hz", unit="1/s", kind="measured", values=[3.5, None, 0.0, 7.25])
    assert metric.known == [3.5, 0.0, 7.25]


@pytest.mark.parametrize(
    ("name", "unit", "limits"),
    [
        ("c0_percent", "%", (0.0, 100.0)),
        ("wakeups_hz", "1/s", (0.0, None)),
        ("joules_net", "J", (None, None)),
        ("watts:rapl:package-0", "W", (None, None)),
        ("c0_percent_net", "%", (None, 100.0)),
    ],
)
def test_only_values_net_of_idle_may_be_negative(
    name: str, unit: str, limits: tuple[float | None, float | None]
) -> None:
    assert Figures(name=name, unit=unit, kind="measured", values=[]).limits == limits


def test_the_source_of_energy_is_noted_with_all_its_doubts() -> None:
    estimated = EnergySource(metered=False, why="no meter: rapl is closed, ipmi is absent", doubts=["old", "virtual"])
    why, *doubts = estimated.notes()
    assert isinstance(why, Note)
    assert why.values["why"] == "no meter (powerprof doctor)"
    assert [note.values["doubt"] for note in doubts if isinstance(note, Note)] == ["old", "virtual"]
    (metered,) = EnergySource(metered=True, why="rapl: package-0").notes()
    assert isinstance(metered, Note)
    assert metered.values["why"] == "rapl: package-0"


@pytest.mark.parametrize(
    ("thread", "label"),
    [
        (Thread(tid=7, comm="ib_pg", server_name="thread/innodb/page_cleaner"), "innodb/page_cleaner"),
        (Thread(tid=7, comm="ib_pg"), "ib_pg"),
        (Thread(tid=0, comm="worker", threads_count=2), "worker ×2"),
        (Thread(tid=0, comm="worker", server_name="pool", threads_count=1200), "pool ×1,200"),
    ],
)
def test_a_thread_has_the_name_of_its_server_and_its_number(thread: Thread, label: str) -> None:
    assert thread.label == label


@pytest.mark.parametrize(
    ("frame", "label", "placed"),
    [
        ({"function": "poll", "function_start": "0x10", "source": "/src/io/poll.c:71"}, "poll", "poll (poll.c:71)"),
        ({"function": None, "function_start": "0x10"}, "mysqld+0x10", "mysqld+0x10"),
        ({"function": None}, "mysqld 0x55", "mysqld 0x55"),
        ({"function": None, "module": "[unmapped]"}, "[unmapped]+0x55", "[unmapped]+0x55"),
    ],
)
def test_a_frame_is_named_as_far_as_it_is_known(frame: dict[str, Any], label: str, placed: str) -> None:
    found = StackFrame(**{"module": "mysqld", "address": "0x55", **frame})
    assert (found.label, found.placed) == (label, placed)
