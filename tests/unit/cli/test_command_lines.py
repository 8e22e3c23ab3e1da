# SPDX-License-Identifier: Apache-2.0
"""Compare the requests and refusals of command lines with their golden files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from powerprof.cli import app
from powerprof.experiment import idle
from powerprof.system import errors
from tests.programs.golden_files import GOLDEN
from tests.unit.cli.command_lines import FILES, REFUSALS, file_text


@pytest.mark.parametrize("file", FILES)
def test_command_lines_make_the_requests_of_the_golden_file(file: str, tmp_path: Path) -> None:
    made = file_text(FILES[file](tmp_path))
    assert made == (GOLDEN / file).read_text(), "python -m tests.programs.golden_files writes it anew"


def test_a_refusal_has_an_error_and_a_remedy() -> None:
    kept = (GOLDEN / "refusals.txt").read_text()
    assert kept.count("\n2\nerror: ") == kept.count("\nhint: ") == len(REFUSALS)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.PowerprofError("broken"), 1),
        (errors.UsageError("wrong", "a hint"), 2),
        (errors.CapabilityError("missing", "install it"), 3),
        (errors.WorseError("slower"), 4),
        (errors.DataError(Path("x"), "damaged"), 1),
        (errors.Interrupted("interrupted"), 130),
        (errors.HungUp("hung up"), 129),
        (MemoryError(), 1),
        (PermissionError(13, "Permission denied", "/x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_each_error_has_its_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(idle, "measure_idle", fail)
    monkeypatch.setattr(app, "leave_terminal", lambda: None)
    assert app.run_app(["--runs-dir", str(tmp_path), "idle"]) == code
