# SPDX-License-Identifier: Apache-2.0
"""The split of a window's energy onto consumers, and the idle floor of a metered host."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.energy.request import EnergyRequest
from powerprof.energy.split import Consumer, split_energy
from powerprof.energy.windows import WindowEnergy
from powerprof.experiment import phases
from powerprof.experiment.phases import split_phase_energy
from powerprof.model.records import EnergyPart, EnergySplit
from tests.unit.experiment import builders

joules = st.floats(0, 1e6)
seconds = st.floats(0, 1e5)
counts = st.integers(0, 10**7)


def conservation_error(split: EnergySplit) -> float:
    """|idle + Σ parts + residual − total| as a share of the total, over every level of the tree."""
    top = abs(
        math.fsum(
            [split.idle_joules or 0.0, *(p.joules for p in split.parts), split.residual_joules, -split.total_joules]
        )
    )
    scale = max(abs(split.total_joules), 1e-12)
    return max([top / scale, *(_tree_error(part, scale) for part in split.parts)])


def _tree_error(part: EnergyPart, scale: float) -> float:
    if not part.children:
        return 0.0
    own = abs(math.fsum([*(c.joules for c in part.children), part.residual_joules or 0.0, -part.joules])) / scale
    return max([own, *(_tree_error(child, scale) for child in part.children)])


def leaf(name: str) -> st.SearchStrategy[Consumer]:
    return st.builds(Consumer, name=st.just(name), c0_s=seconds, wakeups_count=counts)


trees = st.recursive(
    leaf("function"),
    lambda below: st.builds(
        Consumer,
        name=st.just("thread"),
        c0_s=seconds,
        wakeups_count=counts,
        children=st.lists(below, max_size=4).map(tuple),
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(
    total=joules,
    window_s=st.floats(0.1, 1e4),
    idle=st.one_of(st.none(), st.floats(0, 1e3)),
    c0_s=seconds,
    consumers=st.lists(trees, max_size=6),
    wakeups=counts,
    wakeup_joules=st.one_of(st.none(), st.floats(0, 1e-3)),
    steal_s=seconds,
)
def test_parts_and_residual_sum_to_the_total(
    total: float,
    window_s: float,
    idle: float | None,
    c0_s: float,
    consumers: list[Consumer],
    wakeups: int,
    wakeup_joules: float | None,
    steal_s: float,
) -> None:
    split = split_energy(
        total,
        window_s,
        idle_watts=idle,
        c0_s=c0_s,
        consumers=consumers,
        kind="measured",
        source="rapl",
        wakeups_count=wakeups,
        wakeup_joules=wakeup_joules,
        steal_s=steal_s,
    )
    # Parts of consumers that "ran" far longer than the CPUs dwarf the total; the sum is exact to their rounding.
    largest = max([abs(total), *(abs(p) for p in figures(split))])
    assert conservation_error(split) * max(abs(total), 1e-12) <= 1e-9 * max(largest, 1e-12)
    # The clocks of processes and of CPUs are read one after the other: a hundredth below 0 is none.
    if split.residual_joules < -0.01 * abs(split.active_joules or 0.0):
        assert split.notes


def figures(split: EnergySplit) -> list[float]:
    def below(part: EnergyPart) -> list[float]:
        return [part.joules, *(f for child in part.children for f in below(child))]

    return [split.idle_joules or 0.0, *(f for part in split.parts for f in below(part))]


@pytest.mark.parametrize(
    ("total", "idle_watts", "c0_s", "residual", "note"),
    [
        (5.0, None, 1.0, 5.0, "the idle floor is unknown: 5.000 J cannot be attributed"),
        (9.0, 1.0, 1.0, -1.0, "the host drew 1.000 J less than its idle floor: cannot be attributed"),
        (20.0, 1.0, 0.0, 10.0, "no CPU ran: 10.000 J above the idle floor cannot be attributed"),
    ],
)
def test_energy_that_no_part_used(
    total: float, idle_watts: float | None, c0_s: float, residual: float, note: str
) -> None:
    consumers = [Consumer(name="x", c0_s=c0_s)]
    how = {"idle_watts": idle_watts, "c0_s": c0_s, "consumers": consumers, "kind": "measured", "source": "rapl"}
    split = split_energy(total, 10.0, **how)  # type: ignore[arg-type]
    assert (split.residual_joules, split.notes, sum(p.joules for p in split.parts)) == (residual, [note], 0.0)


def test_stolen_time_is_a_separate_line() -> None:
    # 2 CPUs for 2 s: C0 30 % = 1.2 s, of which 0.4 s were stolen; the server used 0.4 s of CPU time.
    window = msgspec.structs.replace(builders.window(30.0, client_s=0.0, watts=3.0), steal_percent=10.0)
    phase = phases.combine_windows("server", [window])
    with WindowEnergy(EnergyRequest(source="model")) as energy:
        split = split_phase_energy(phase, energy, None).energy_split
    assert split is not None
    assert {part.name: pytest.approx(part.c0_s) for part in split.parts} == {
        "server": 0.4,
        "client": 0.0,
        "powerprof": 0.0,
        "rest of the system": 0.4,
        "stolen by other guests": 0.4,
    }
    assert split.residual_joules == pytest.approx(0.0, abs=1e-9)


def test_steal_and_smt_are_noted() -> None:
    split = split_energy(
        20.0,
        10.0,
        idle_watts=1.0,
        c0_s=3.0,
        steal_s=1.0,
        smt=True,
        kind="measured",
        source="rapl",
        consumers=[Consumer(name="x", c0_s=1.0)],
    )
    assert split.rate_watts == 5.0
    assert [(part.name, part.joules, part.c0_s) for part in split.parts] == [
        ("x", 5.0, 1.0),
        ("stolen by other guests", 0.0, 1.0),
    ]
    assert split.notes == [
        "SMT siblings share a core: a CPU second is charged the same alone and next to a busy sibling"
    ]
