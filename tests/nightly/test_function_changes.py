# SPDX-License-Identifier: Apache-2.0
"""The functions by which a read buffer above malloc's threshold costs: sampled on a real server in both conditions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("root_bpf")


def test_fault_handlers_grew_with_the_buffer(powerprof_cli: Cli, mariadbd: Path, sysbench: Path) -> None:
    done = powerprof_cli(
        [
            *("compare", "read-buffer-128k", "read-buffer-5m", "--on-cpu", "--pairs", "3", "--duration", "1"),
            *("--meter", "none", "--no-save", "--json", "-"),
        ]
    )
    assert done.code == 0, done.err
    grown = [one for one in json.loads(done.out)["on_cpu"]["functions"] if one["verdict"] == "b_higher"]
    first = {one["function"] for one in grown[:5]}
    assert any("fault" in name for name in first)
    assert any("clear_page" in name or "clear_huge" in name for name in first)
    assert all(one["kernel"] for one in grown[:3])
    assert any(one["ci95"][0] > 1.0 for one in grown)
