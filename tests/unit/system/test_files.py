# SPDX-License-Identifier: Apache-2.0
"""Pseudo files of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.system import files
from powerprof.system.errors import PowerprofError
from powerprof.system.files import read_fields


def test_the_first_line_of_a_field_counts(tmp_path: Path) -> None:
    """A process may have any name, and a name with \\n is escaped by the kernel; \\r and U+2028 are not."""
    status = tmp_path / "status"
    status.write_bytes("Name:\tx\rUid:\t0\u2028Uid:\t0\nUid:\t1001\nUid:\t0\nno field\n".encode())
    assert read_fields(status)["Uid"] == "1001"
    assert set(read_fields(status)) == {"Name", "Uid"}
    assert read_fields(tmp_path / "none") == {}


def test_a_pseudo_file_with_another_text_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "number").write_text(" -7\n")
    assert files.read_int(tmp_path / "number") == files.try_int(tmp_path / "number") == -7
    (tmp_path / "number").write_text("max\n")
    assert files.try_int(tmp_path / "number") is None and files.try_int(tmp_path / "none") is None
    with pytest.raises(PowerprofError, match="not a number: 'max'"):
        files.read_int(tmp_path / "number")
