# SPDX-License-Identifier: Apache-2.0
"""/proc/PID/stat: names are whatever a process chose, and what is not understood is unknown."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from powerprof.system.tasks import ProcessStat, read_process_stat

Tree = Callable[[Mapping[str, str]], Path]

FIELDS = "S 1 7 7 0 -1 2097216 11 12 13 14 15 16 17 -2 20 0 1 0 4242 0 0"


@pytest.mark.parametrize("name", ["mariadbd", "a) S 9 9 (b", ")", "", "two words", "\xff\n"])
def test_fields_are_counted_from_the_last_bracket(name: str, fake_tree: Tree) -> None:
    fake_tree({"proc/7/stat": f"7 ({name}) {FIELDS}\n"})
    assert read_process_stat(7) == ProcessStat(name, 2097216, 11, 15, 4242)


@pytest.mark.parametrize("text", ["", "7", "7 (x", "7 (x) S 1 7", f"7 (x) {FIELDS}".replace("4242", "soon")])
def test_what_is_not_understood_is_unknown(text: str, fake_tree: Tree) -> None:
    fake_tree({"proc/7/stat": text})
    assert read_process_stat(7) is None
    assert read_process_stat(8) is None


def test_this_process_is_known() -> None:
    found = read_process_stat(os.getpid())
    assert found is not None and found.started_ticks > 0 and found.minor_faults > 0
