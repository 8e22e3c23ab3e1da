# SPDX-License-Identifier: Apache-2.0
"""The pages about JSON name every key that a record can have."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from powerprof.attribution.offcpu import OffCpuProfile, SleepsProfile, WakersProfile
from powerprof.attribution.profile import FunctionProfile, OnCpuProfile
from powerprof.attribution.symbols import Symbols
from powerprof.cure.records import Cure
from powerprof.energy.domains import EnergyResult
from powerprof.experiment.records import Comparison, LoadRun
from powerprof.experiment.sweep_comparison import SweepComparison, Trend
from powerprof.experiment.sweep_rounds import Sweep
from powerprof.model.attribution import Attribution
from powerprof.model.records import IdleRun, Run
from powerprof.queries.comparison import QueriesComparison, QueriesHistory
from powerprof.queries.records import Queries
from tests.conftest import REPOSITORY

PAGES = REPOSITORY / "docs/reference"
# `replication` is told as a whole: its keys are the server's own words.
_AS_A_WHOLE = {"ReplicationStatus"}


def _structs(kind: Any) -> set[type[msgspec.Struct]]:
    """The records that a type is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {kind}
    return {found for part in get_args(kind) for found in _structs(part)}


def _keys(record: type[msgspec.Struct], seen: set[type]) -> set[str]:
    seen.add(record)
    found = set()
    for field in msgspec.structs.fields(record):
        found.add(field.encode_name)
        for inner in _structs(field.type):
            if inner not in seen and inner.__name__ not in _AS_A_WHOLE:
                found |= _keys(inner, seen)
    return found


@pytest.mark.parametrize(
    "record",
    [
        Run,
        IdleRun,
        LoadRun,
        Comparison,
        Sweep,
        SweepComparison,
        Trend,
        Attribution,
        OnCpuProfile,
        FunctionProfile,
        OffCpuProfile,
        WakersProfile,
        SleepsProfile,
        EnergyResult,
        Symbols,
        Cure,
        Queries,
        QueriesComparison,
        QueriesHistory,
    ],
)
def test_every_key_of_a_record_is_explained(record: type[msgspec.Struct]) -> None:
    text = "".join(path.read_text() for path in PAGES.glob("json*.md"))
    assert {key for key in _keys(record, set()) if f"`{key}`" not in text} == set()
