# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that records which test executes which line of the product (coverage, one context per test)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_COVERAGE = coverage.Coverage(data_file=None, include=["powerprof/*"], branch=False)
_SECONDS: dict[str, float] = {}
_COVERAGE.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Name the lines that a test executes, its fixtures included, after the test."""
    _COVERAGE.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _COVERAGE.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the seconds of a test."""
    _SECONDS[report.nodeid] = _SECONDS.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish() -> None:
    """Write {"lines": {module: {line: [tests]}}, "seconds": {test: seconds}} into the file of $MUTATION_MAP."""
    _COVERAGE.stop()
    data = _COVERAGE.get_data()
    lines = {
        str(Path(file).relative_to(Path.cwd())): {
            line: [test for test in tests if test] for line, tests in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    Path(os.environ["MUTATION_MAP"]).write_text(json.dumps({"lines": lines, "seconds": _SECONDS}))
