# SPDX-License-Identifier: Apache-2.0
"""Figures and limits that appear on two pages agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from powerprof.cure.records import Cure
from powerprof.experiment.study import StudyRun
from powerprof.model.runs import decode_record
from powerprof.report.cure import answer_of
from powerprof.report.kinds import document_of, load_saved
from powerprof.report.render.terminal import render_terminal
from tests.conftest import REPOSITORY
from tests.unit.docs.test_reference import table_of
from tools.pages import support_page

DOCS, README, _PYTHON = REPOSITORY / "docs", REPOSITORY / "README.md", "/usr/bin/python3.11"


def _flat(name: str) -> str:
    """Return the text of a page on one line."""
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def test_the_fleet_is_sized_with_the_series_of_the_reference() -> None:
    metrics, fleet = _flat("reference/metrics.md"), _flat("how-to/prometheus.md")
    assert "About 93 on a host with 2 CPUs" in metrics and "about 93, plus three per unit" in fleet
    assert "at most 86 with `--statements`" in metrics and "at most 86 more with `--statements`" in fleet
    assert "(at most 20 units)" in metrics and "With 20 units that is 153, and 239 with statements" in fleet
    assert (93 + 3 * 20, 93 + 3 * 20 + 86) == (153, 239)


def test_the_cost_of_attribute_is_the_measured_one() -> None:
    measured = {row[0]: row for row in table_of(DOCS / "dev/tracing.md", "## Cost")}
    shown = next(
        row[1] for row in table_of(DOCS / "cost-and-safety.md") if row[0].startswith("`attribute --max-cost none`")
    )
    lost = measured["saturated, 78,800 queries/s"][2].replace("% [", "% of throughput [")
    loads = ("one waiting client, 12,000 queries/s", "eight clients, 12,000 queries/s offered")
    least, most = (measured[load][1].partition(" %")[0] for load in loads)
    assert f"saturated server, 78,800 queries/s: {lost};" in shown
    assert f"12,000 queries/s: {least} to {most} % more CPU time per query" in shown


def test_the_cost_of_watch_is_the_measured_one() -> None:
    rows = {row[0]: row for row in table_of(DOCS / "dev/reports.md", "## Cost")}
    total = rows["full, short-lived programs"][2].partition(" [")[0]
    assert f"full host with short-lived programs: {total}" in _flat("cost-and-safety.md")
    page = _flat("how-to/attribute-wakeups.md")
    assert "itself: 3.7 % of a CPU" in page and "3.7 % of a CPU on the screen above" in page


def test_the_replica_page_separates_the_host_from_the_server() -> None:
    page = _flat("how-to/warm-idle-replica.md")
    assert "**MySQL 5.5.9** (2011)" in page.partition("## 1.")[0]
    assert "7,039 wake-ups a second of the whole host" in page
    assert "The server itself caused 2,186.7 of the host's idle exits" in page
    assert "rate fell from 2,186.7 to 1.7" in page


def test_no_page_claims_published_results_for_postgresql() -> None:
    assert "2012, and one paper in 2017" in _flat("README.md")
    assert "No results for PostgreSQL were published" in _flat("studies/power-efficiency.md")


@pytest.mark.parametrize("command", ["functions", "syscalls"])
def test_a_command_needs_the_same_platform_on_both_pages(command: str) -> None:
    row = next(row for row in support_page.ROWS if f"`{command}`" in row.command)
    page = _flat("reference/functions-offcpu-syscalls.md").partition(f" ## {command} ")[2].partition(" ## ")[0]
    # Letter c: the code has parts for one architecture.
    assert "x86-64" in page and ("arm64" in page) == (row.process[1] != "c")
    if command == "functions":
        assert f"Linux {row.kernel.split()[0]} or newer" in page


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=lambda page: page.stem)
def test_a_limitation_appears_once(page: Path) -> None:
    section = page.read_text(encoding="utf-8").partition("## Limitations")[2].partition("\n## ")[0]
    starts = [item[:24] for item in re.findall(r"^- (.+)$", section, re.MULTILINE)]
    assert len(starts) == len(set(starts))


def test_the_figures_of_the_readme_are_saved_runs() -> None:
    readme, studies = _flat("../README.md"), DOCS / "studies/runs"
    idle = decode_record(studies / "releases.json", StudyRun).rows[-1]
    assert idle.metric == "server_wakings_hz" and idle.a is not None and idle.b is not None
    rates = f"wake {idle.b.mean:.1f} times a second, those of MySQL 5.5.9 {idle.a.mean:.1f} times"
    assert f"The threads of an idle MySQL 9.7 {rates}" in readme
    gzip = load_saved(str(DOCS / "runs/compare-commands.json"), None)
    answer = "\n".join(render_terminal(document_of(gzip), 80)[:2])
    assert f"$ powerprof compare -- gzip -1 -c {_PYTHON} -- gzip -9 -c {_PYTHON}\n{answer}\n" in README.read_text(
        "utf-8"
    )
    cure = answer_of(decode_record(DOCS / "runs/cure.json", Cure))
    assert cure in readme and cure in _flat("how-to/cure.md")
