# SPDX-License-Identifier: Apache-2.0
"""`powerprof watch` without a terminal: lines and documents."""

from __future__ import annotations

import json

from tests.conftest import Cli


def test_the_rows_of_a_document_sum_to_its_exits(powerprof_cli: Cli, root_bpf: None) -> None:
    done = powerprof_cli(["watch", "--system", "--json-lines", "--interval", "0.5", "--count", "4", "--no-ask"])
    assert done.code == 0, done.err
    documents = [json.loads(line) for line in done.out.splitlines()]
    assert len(documents) == 4
    for document in documents:
        assert document["schema"] == "powerprof.interval/1"
        assert sum(document["mechanisms_count"].values()) == document["idle_exits_count"]
        blamed = sum(row["count"] for row in document["rows"])
        assert blamed + document["mechanisms_count"]["untraced"] == document["idle_exits_count"]


def test_each_interval_is_a_line_without_a_terminal(powerprof_cli: Cli, root_bpf: None) -> None:
    done = powerprof_cli(["watch", "--system", "--interval", "0.5", "--count", "2", "--no-ask"])
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("time") and len(lines) == 3
