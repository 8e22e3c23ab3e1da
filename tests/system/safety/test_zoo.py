# SPDX-License-Identifier: Apache-2.0
"""Five verbs beside processes that keep their readers waiting. The nightly test has all verbs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.programs.zoo import cage
from tests.programs.zoo_rounds import Visitor, end_by_signal, visitor

pytestmark = pytest.mark.usefixtures("root_bpf")
_LINES = (
    "attribute --system --duration 2 --no-save",
    "watch --plain --no-ask --count 3 --interval 1 --energy-source none",
    "profile --pid COVERED,LOCKED,UPPER --duration 2 --no-save",
    "idle --clients 1 --duration 0.5 --repeat 3 --energy-source none --no-save",
    "doctor --pid COVERED",
)


@pytest.fixture(scope="module")
def beside(mariadbd: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    cli = Cli(tmp_path_factory.mktemp("zoo"))
    with cage(mariadbd) as place, visitor(cli, place, {}, mappers=20) as found:
        yield found


@pytest.mark.parametrize("line", _LINES)
def test_a_signal_ends_a_command_beside_the_zoo(beside: Visitor, line: str) -> None:
    """After KILL, too, nothing remains but abandoned readers. They end with the zoo."""
    for name in ("INT", "KILL"):
        beside.open()
        print(end_by_signal(beside, line, name, random.uniform(0.5, 3.5)))
