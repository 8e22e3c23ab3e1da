# SPDX-License-Identifier: Apache-2.0
"""Whole hosts under simulation: the total is right, or it is unknown and has a reason. It is never a wrong figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.unit.energy import battery_hosts, counter_hosts, rare_hosts, sensor_hosts, whole_hosts
from tests.unit.energy.host_faults import break_channel
from tests.unit.energy.simulated_host import Host, Verdict, judge_host

FAMILIES: tuple[Callable[[Random], Iterator[Host]], ...] = (
    counter_hosts.intel_clients,
    counter_hosts.intel_servers,
    counter_hosts.amd_hosts,
    counter_hosts.amd_energy,
    counter_hosts.perf_hosts,
    sensor_hosts.acpi_meters,
    sensor_hosts.power_supplies,
    sensor_hosts.other_servers,
    sensor_hosts.boards,
    sensor_hosts.cards,
    sensor_hosts.guests,
    battery_hosts.batteries,
    rare_hosts.rare_counters,
    rare_hosts.rare_sensors,
    rare_hosts.rare_batteries,
    whole_hosts.whole_hosts,
)


def draw_family(family: Callable[[Random], Iterator[Host]], seed: int) -> list[Host]:
    return list(family(Random(f"{family.__name__} {seed}")))


def _describe(host: Host, verdict: Verdict) -> str:
    truth = ", ".join(f"{tier} {watts:.1f}" for tier, watts in host.truth.items()) or "no figure"
    watts = "no figure" if verdict.watts is None else f"{verdict.watts:.1f} W"
    return f"{host.name}: {verdict.meter} gives {watts} of {' + '.join(verdict.domains)}, right is {truth}"


def draw_broken(family: Callable[[Random], Iterator[Host]], seed: int) -> list[Host]:
    """Return the hosts of a family that have a figure and all their files all the time, each with a broken channel."""
    hosts = [host for host in draw_family(family, seed) if host.truth and not host.sensors and host.is_steady()]
    draw = Random(f"broken {family.__name__} {seed}")
    return [host for host in hosts if break_channel(host, draw)]


Drawing = Callable[[Callable[[Random], Iterator[Host]], int], list[Host]]


@pytest.mark.parametrize("draw", [draw_family, draw_broken], ids=["whole", "broken"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_no_total_of_a_family_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: Callable[[Random], Iterator[Host]], draw: Drawing
) -> None:
    """Judge the automatic choice and every meter that can be chosen by name."""
    wrong = []
    for number, host in enumerate(draw(family, 1)):
        with monkeypatch.context() as patch:
            for verdict in judge_host(host, tmp_path / str(number), patch):
                if verdict.word in ("wrong", "silent"):
                    wrong.append(_describe(host, verdict))
    assert not wrong, "\n".join(wrong)


def test_hosts_are_at_least_150() -> None:
    names = [(host.family, host.name) for family in FAMILIES for host in draw_family(family, seed=1)]
    assert len(set(names)) == len(names) >= 150
