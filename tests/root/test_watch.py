# SPDX-License-Identifier: Apache-2.0
"""`powerprof watch` without a terminal: lines, and documents whose parts are the whole."""

from __future__ import annotations

import json

from tests.conftest import Cli


def test_documents_add_up(powerprof_cli: Cli, root_bpf: None) -> None:
    done = powerprof_cli(["watch", "--json-lines", "--interval", "0.5", "--count", "4", "--no-ask"])
    assert done.code == 0, done.err
    found = [json.loads(line) for line in done.out.splitlines()]
    assert len(found) == 4
    for one in found:
        assert one["schema"] == "powerprof.interval/1"
        assert sum(one["mechanisms_count"].values()) == one["idle_exits_count"]
        blamed = sum(row["count"] for row in one["rows"])
        assert blamed + one["mechanisms_count"]["untraced"] == one["idle_exits_count"]


def test_without_a_terminal_a_line_each(powerprof_cli: Cli, root_bpf: None) -> None:
    done = powerprof_cli(["watch", "--interval", "0.5", "--count", "2", "--no-ask"])
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("time") and len(lines) == 3
