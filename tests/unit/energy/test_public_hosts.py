# SPDX-License-Identifier: Apache-2.0
"""Real hosts of public listings: how often the automatic choice has the right figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.unit.energy.host_table import list_families, read_hosts
from tests.unit.energy.simulated_host import judge_host

TABLE = REPOSITORY / "tests/fixtures/public-hosts.txt"


@pytest.mark.parametrize("family", list_families(TABLE))
def test_the_answers_of_public_hosts_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """A host with a meter has its figure, and a host without one has a reason."""
    answers = []
    for number, host in enumerate(read_hosts(family, TABLE)):
        assert host.source, host.name
        with monkeypatch.context() as patch:
            (verdict,) = [v for v in judge_host(host, tmp_path / str(number), patch) if v.meter == "auto"]
        is_right = verdict.word in ({"unknown"} if host.demand == "unknown" else {"right", "part"})
        if not is_right or (host.demand == "unknown" and not verdict.text):
            answers.append(f"{host.name}: {verdict.word} {verdict.watts} {verdict.domains} {verdict.text}")
    assert not answers, "\n".join(answers)


def test_most_meters_of_the_table_are_in_the_listings() -> None:
    hosts = [host for family in list_families(TABLE) for host in read_hosts(family, TABLE)]
    assert len(hosts) >= 60
    assert len({host.name for host in hosts}) == len(hosts)
