# SPDX-License-Identifier: Apache-2.0
"""Samples go to the statement that ran, by text and schema, and what is cut off is still counted."""

from __future__ import annotations

import msgspec
import pytest

from powerprof.database.performance import ServerReport
from powerprof.queries.join import INCOMPLETE, StatementNames, add_stacks, join_trace
from powerprof.report.exports import export
from powerprof.system.errors import UsageError
from powerprof.tracing.captures import OnCpuCapture, SampleRow
from tests.unit.queries.sample import BURN, POINT, trace
from tests.unit.queries.test_report import record

KNOWN = ServerReport(schemas={11: "shop", 12: "shop"})


def capture(rows: list[SampleRow]) -> OnCpuCapture:
    """Samples with kernel paths only: 1 is read, 2 is write."""
    return OnCpuCapture(
        event="cpu-clock",
        pids=[10],
        window_s=2.0,
        cpus=2,
        period_ms=1e3 / 99,
        rows=rows,
        users=[],
        images=[],
        kernel={1: [0x20, 0x10], 2: [0x30, 0x10]},
        kernel_names={0x10: ("entry", "vmlinux", 0x10), 0x20: ("read", "vmlinux", 0x20), 0x30: ("write", "ext4", 0x30)},
        comms={},
        events_count=100,
        idle_count=0,
        target_count=sum(row.count for row in rows),
        missed_count=0,
        stacks_count=0,
        lost_stacks_count=0,
        lost_rows_count=0,
        notes=[],
        tool_cpu_s=0.0,
    )


ROWS = [
    SampleRow(0, 1, 10, 11, 4, POINT),
    SampleRow(0, 1, 10, 12, 2, POINT),
    SampleRow(0, 2, 10, 12, 3, POINT),
    SampleRow(7, 2, 10, 12, 5, BURN),
    SampleRow(0, 2, 10, 13, 9),
]


def test_paths_of_a_statement_are_those_of_all_its_threads() -> None:
    taken = trace()
    told, modules, notes = add_stacks(
        join_trace(taken, KNOWN).statements, capture(ROWS), StatementNames(taken.texts, "mysql", [], KNOWN).name
    )
    stacks = {one.text: [(one.frames, one.count) for one in one.stacks] for one in told if one.stacks}
    assert stacks == {
        "SELECT c FROM t WHERE id = ?": [(["entry_[k]", "read_[k]"], 6), (["entry_[k]", "write_[k]"], 3)],
        "SELECT BENCHMARK(?, …)": [([INCOMPLETE, "entry_[k]", "write_[k]"], 5)],
    }
    assert modules == {"entry_[k]": "vmlinux", "read_[k]": "vmlinux", "write_[k]": "ext4"}
    assert notes[0].startswith(
        "23 samples of the server, 14 of them in statements; each CPU was woken for them 99 times"
    )


def test_they_leave_as_flame_graphs_and_folded_stacks() -> None:
    taken, whole = trace(), record()
    told, modules, _ = add_stacks(
        whole.statements, capture(ROWS), StatementNames(taken.texts, "mysql", [], ServerReport()).name
    )
    found = msgspec.structs.replace(whole, statements=told, modules=modules)
    lines = export(found, "folded").decode().splitlines()
    assert "SELECT c FROM t WHERE id = ?;entry_[k];read_[k] 6" in lines
    assert b"SELECT c FROM t WHERE id = ?" in export(found, "flame")
    assert export(found, "html").count(b'class="flame"') == 2
    with pytest.raises(UsageError, match="no stacks"):
        export(whole, "folded")
