# SPDX-License-Identifier: Apache-2.0
"""The table of supported systems: each cell has a proof that exists, or a reason."""

from __future__ import annotations

import pytest

from tools.pages import support_page
from tools.pages.support_page import REASONS, ROWS, find_proof, is_proof

_CELLS = [(row.command, cell) for row in ROWS for cells in row.cells for cell in cells]


def test_the_table_is_generated() -> None:
    assert support_page.render() in support_page.PAGE.read_text(encoding="utf-8"), support_page.COMMAND


def test_each_proof_exists() -> None:
    assert [cell for cell in _CELLS if is_proof(cell[1]) and not find_proof(cell[1])] == []


@pytest.mark.parametrize("cell", ["machine arm64 nosuch", "machine nosuch idle", "safety/test_readers.py::test_nosuch"])
def test_a_missing_proof_is_noticed(cell: str) -> None:
    assert is_proof(cell) and not find_proof(cell)


def test_each_reason_is_used() -> None:
    assert {cell for _, cell in _CELLS if not is_proof(cell)} == set(REASONS)


def test_each_command_is_proven_for_a_target() -> None:
    assert [row.command for row in ROWS if not any(is_proof(cells[0]) for cells in row.cells)] == []
