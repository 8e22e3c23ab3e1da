# SPDX-License-Identifier: Apache-2.0
"""Made-up hosts under simulation: the total is right, or it is unknown and has a reason. It is never a wrong figure."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.unit.energy.host_faults import break_channel, break_memory
from tests.unit.energy.host_table import list_families, read_hosts
from tests.unit.energy.simulated_host import Host, Verdict, judge_host


def _describe(host: Host, verdict: Verdict) -> str:
    truth = ", ".join(f"{tier} {watts:.1f}" for tier, watts in host.truth.items()) or "no figure"
    watts = "no figure" if verdict.watts is None else f"{verdict.watts:.1f} W"
    return f"{host.name}: {verdict.meter} gives {watts} of {' + '.join(verdict.domains)}, right is {truth}"


def _break_channels(hosts: list[Host]) -> list[Host]:
    """Return the hosts that have a figure and all their files all the time, each with a broken channel."""
    draw = Random(f"broken {hosts[0].family} 1")
    return [
        host for host in hosts if host.truth and not host.sensors and host.is_steady() and break_channel(host, draw)
    ]


@pytest.mark.parametrize(
    "is_broken", [pytest.param(False, id="whole"), pytest.param(True, id="broken", marks=pytest.mark.simulation)]
)
@pytest.mark.parametrize("family", list_families())
def test_no_total_of_a_family_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, is_broken: bool
) -> None:
    """Judge the automatic choice and every meter that can be chosen by name."""
    hosts, wrong = read_hosts(family), []
    assert len({host.name for host in hosts}) == len(hosts)
    for number, host in enumerate(_break_channels(hosts) if is_broken else hosts):
        with monkeypatch.context() as patch:
            for verdict in judge_host(host, tmp_path / str(number), patch):
                if verdict.word in ("wrong", "silent"):
                    wrong.append(_describe(host, verdict))
    assert not wrong, "\n".join(wrong)


def test_broken_memory_leaves_the_packages_and_no_smaller_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RAPL has no total, or the right one if its memory counts in none of the windows; the packages are right."""
    draw, words, wrong = Random("memory 1"), [], []
    hosts = [h for _ in range(3) for family in list_families() for h in read_hosts(family) if "dram" in h.truth]
    for number, host in enumerate(h for h in hosts if h.is_steady() and break_memory(h, draw)):
        with monkeypatch.context() as patch:
            for verdict in judge_host(host, tmp_path / str(number), patch):
                words += [verdict.word] if verdict.meter == "rapl" else []
                wrong += [_describe(host, verdict)] if verdict.word in ("wrong", "silent") else []
    assert not wrong, "\n".join(wrong)
    assert words.count("packages") > 0.5 * len(words), words
