# SPDX-License-Identifier: Apache-2.0
"""Alternating pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from powerprof.experiment.alternating import choose_turn_length
from powerprof.experiment.bench import Bench
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.plan import Offer
from powerprof.workloads.reading import Case, read_workload, resolve

WORKLOAD = """\
schema = "powerprof.workload/1"
name = "w"
title = "t"
[conditions.a]
load.sql = ["SELECT 1"]
[conditions.b]
load.sql = ["SELECT 2"]
[conditions.settings]
load.sql = ["SELECT 1"]
server.set_global = { max_connections = 200 }
[conditions.entering]
load.sql = ["SELECT 1"]
enter = ["SELECT 3"]
[conditions.idle]
load.kind = "idle"
"""


class _Bench:
    def __init__(self, shared: bool, switchable: bool) -> None:
        self._shared, self._switchable = shared, switchable

    def shared(self, cases: Sequence[Case]) -> bool:
        return self._shared

    def switchable(self, cases: Sequence[Case]) -> bool:
        return self._switchable


def _length(
    folder: Path,
    b: str = "b",
    *,
    rate_hz: float | None = 1000.0,
    design: Any = "rate",
    shared: bool = True,
    switchable: bool = True,
    quick: bool = True,
    **options: Any,
) -> float | None:
    (folder / "w").mkdir(exist_ok=True)
    (folder / "w/workload.toml").write_text(WORKLOAD)
    loaded = read_workload(folder / "w")
    cases = [resolve(loaded, "a"), resolve(loaded, b)]
    offer = Offer(design, rate_hz, None, (None, None), ())
    return choose_turn_length(
        cast(Bench, _Bench(shared, switchable)), cases, offer, ExperimentOptions(**options), quick
    )


def test_conditions_of_one_server_alternate(tmp_path: Path) -> None:
    assert _length(tmp_path) == 0.05
    assert _length(tmp_path, turn_s=0.5) == 0.5
    # Ten statements are asked in a turn, or the wait for the last answer would weigh.
    assert _length(tmp_path, rate_hz=20.0) == pytest.approx(0.5)


def test_stopped_servers_have_longer_turns(tmp_path: Path) -> None:
    assert _length(tmp_path, shared=False) == 0.5
    assert _length(tmp_path, shared=False, turn_s=0.8) == 0.8
    assert _length(tmp_path, shared=False, window_s=0.8) is None


@pytest.mark.parametrize("b", ["settings", "entering", "idle"])
def test_different_settings_or_loads_do_not_alternate(tmp_path: Path, b: str) -> None:
    assert _length(tmp_path, b) is None


def test_slow_meters_and_other_sources_need_whole_windows(tmp_path: Path) -> None:
    assert _length(tmp_path, turn_s=0) is None
    assert _length(tmp_path, switchable=False) is None
    assert _length(tmp_path, quick=False) is None
    assert _length(tmp_path, design="work") is None
    assert _length(tmp_path, rate_hz=None) is None
    assert _length(tmp_path, residency_source="powertop") is None
    assert _length(tmp_path, rate_hz=2.0, window_s=6.4) is None
