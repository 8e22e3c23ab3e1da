# SPDX-License-Identifier: Apache-2.0
"""Each page that shows the answer of `cure` shows it as the report words it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from powerprof.cure.records import Cure
from powerprof.experiment.records import Difference, Metric
from powerprof.report.cure import answer_of
from tests.conftest import REPOSITORY
from tests.unit.report.distinct_records import make_kind

_SHOWN = re.compile(r"^ *(?P<who>\S+) wakes up [\d.]+ times a second (?:less|more) often:(?:.|\n)*?\.$", re.MULTILINE)
_FIGURE = re.compile(r"(?<![\w.])[−+]?\d+(?:\.\d+)?(?!\d| %)")
_FILES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
_PAGES = {str(path.relative_to(REPOSITORY)): path for path in _FILES if _SHOWN.search(path.read_text("utf-8"))}


def _worded(who: str, figures: list[float]) -> str:
    """Return the answer of a cure with these figures: difference, before, cured, difference, its interval."""
    _, before, cured, change, low, high = figures
    record = make_kind("powerprof.cure/1", known=True)
    assert isinstance(record, Cure)
    first = record.metrics[0]
    remedy = replace(record.remedy, kind="timer_slack", thread=None)
    metric: Metric = replace(
        first,
        a=replace(first.a, mean=before),
        b=replace(first.b, mean=cured),
        difference=Difference(b_minus_a=change, percent=100 * change / before, ci95=(low, high)),
        verdict="b_lower" if change < 0 else "b_higher",
    )
    return answer_of(replace(record, metrics=[metric], remedy=remedy, target=replace(record.target, label=who)))


def test_the_readme_the_tutorial_and_the_how_to_show_it() -> None:
    assert {"README.md", "docs/tutorial.md", "docs/how-to/cure.md"} <= _PAGES.keys()


@pytest.mark.parametrize("page", _PAGES)
def test_a_page_shows_the_answer_as_it_is_printed(page: str) -> None:
    path: Path = _PAGES[page]
    for shown in _SHOWN.finditer(path.read_text("utf-8")):
        sentence = " ".join(shown[0].split())
        figures = [float(figure.replace("−", "-")) for figure in _FIGURE.findall(sentence)]
        assert sentence == _worded(shown["who"], figures)
