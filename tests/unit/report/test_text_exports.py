# SPDX-License-Identifier: Apache-2.0
"""Tests for Markdown and CSV: exact figures, and names that are neither markup nor formulas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from powerprof.attribution.offcpu import build_bpf_profile, build_syscall_profile
from powerprof.energy.domains import EnergyResult, Total
from powerprof.model.records import EnergyReading
from powerprof.report import comparison as compare
from powerprof.report.exports import export, render_csv, render_html, render_markdown
from powerprof.report.table import code_span, escape
from powerprof.tracing.captures import CallSum, OffCpuTrace, SyscallTrace, ThreadSums
from tests.unit.report.sample_records import HOSTILE, attribution, comparison, diagnosis, idle_run, load_run, sweep


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_csv_of_a_comparison_is_exact() -> None:
    record = comparison()
    rows = rows_of(render_csv(record))
    assert [row["metric"] for row in rows] == [metric.name for metric in record.metrics]
    for row, metric in zip(rows, record.metrics, strict=True):
        assert float(row["b_minus_a"]) == metric.difference.b_minus_a
        assert (float(row["low"]), float(row["high"])) == metric.difference.ci95
        assert [float(row[f"a_{n}"]) for n in range(1, 12)] == metric.a.values
        assert row["verdict"] == metric.verdict and row["kind"] == metric.kind


def test_csv_of_a_run_has_phases_states_and_causes() -> None:
    run = idle_run()
    rows = rows_of(render_csv(run))
    (c0,) = [row for row in rows if (row["phase"], row["figure"]) == ("clients", "c0")]
    assert float(c0["value"]) == run.phases[2].c0_percent
    causes = [row for row in rows if row["phase"] == "clients" and row["mechanism"]]
    assert [float(row["value"]) for row in causes] == [cause.wakeups_hz for cause in run.phases[2].causes]
    assert all(row["value"] == "" for row in rows if row["figure"] == "average residency in POLL")


def test_csv_of_an_attribution_has_one_line_per_stack() -> None:
    record = attribution()
    rows = rows_of(render_csv(record))
    assert [int(row["count"]) for row in rows] == [25, 10, 20, 9, 4]
    assert rows[4]["stack"] == "poll < handle_connections_sockets < mysqld_main"


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_no_formulas_in_csv(name: str) -> None:
    record = attribution()
    thread = replace(record.wakeups[0].thread, server_name=None, comm=name)
    text = render_csv(replace(record, wakeups=[replace(record.wakeups[0], thread=thread, detail=name)]))
    (row,) = rows_of(text)
    assert not row["thread"].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert row["thread"].removeprefix("'") == name.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def test_csv_bom_begins_with_the_byte_order_mark() -> None:
    assert export(comparison(4), "csv").startswith(b"metric,")
    assert export(comparison(4), "csv-bom") == b"\xef\xbb\xbf" + export(comparison(4), "csv")


@pytest.mark.parametrize("record", [idle_run, load_run, comparison, sweep, attribution])
def test_csv_lines_are_as_long_as_the_head(record: Callable[[], Any]) -> None:
    lengths = {len(row) for row in csv.reader(io.StringIO(render_csv(record()), newline=""))}
    assert len(lengths) == 1


def test_markdown_of_a_comparison_has_every_metric() -> None:
    record = comparison()
    text = render_markdown(record)
    first = text.splitlines()[0]
    assert first.startswith("**no-index uses ") and first.endswith("**")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(record.metrics)
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 8 for line in table)
    assert "| 0.057 | 2.723 | +2.666 | +2.624 to +2.709 | +4,675 % |" in table[2] and "**worse**" in table[2]


@pytest.mark.parametrize("name", HOSTILE)
def test_name_in_markdown_is_one_code_span(name: str) -> None:
    span = code_span(name)
    fence = re.match("`+", span)
    assert fence and span.endswith(fence[0])
    inner = span[len(fence[0]) : -len(fence[0])]
    assert fence[0] not in re.findall("`+", inner)
    assert "\n" not in span and not re.search(r"(?<!\\)\|", span) and len(span) < 200


@pytest.mark.parametrize("name", HOSTILE)
def test_sentence_in_markdown_has_no_markup(name: str) -> None:
    text = escape(f"costs {name} more")
    assert not re.search(r"(?<!\\)[`*_<>\[\]|]", text)
    assert "\n" not in text and "@S" not in text and "://" not in text


def test_csv_and_markdown_of_a_sweep_report_failed_points() -> None:
    record = sweep()
    rows = rows_of(render_csv(record))
    rates = [row for row in rows if row["metric"] == "queries_hz"]
    assert [int(row["clients"]) for row in rates] == [1, 2, 4, 8]
    assert float(rates[0]["mean"]) == record.points[0].metrics[1].estimate.mean and rates[0]["low"] == ""
    assert rows[-1]["error"] == "the server refused connections"
    text = render_markdown(record)
    assert "| `clients` | `1` | `2` | `4` | `8` | `1024` |" in text
    assert "- clients 1024: the server refused connections" in text


def test_every_form_shows_the_doubts() -> None:
    record = comparison()
    verdict = replace(record.verdict, doubts=["steal 7 %", "idle baseline drift −3 points of C0"])
    doubted = replace(record, verdict=verdict)
    told = "Caution: steal 7 %; idle baseline drift −3 points of C0."
    printed = " ".join(" ".join(compare.render_terminal(doubted, everything=True)).split())
    assert told in printed
    assert "Caution: steal 7 % (1 more: --all)." in " ".join(compare.render_terminal(doubted))
    assert printed.startswith(record.verdict.text[:40])
    lines = render_markdown(doubted).splitlines()
    assert lines[0].startswith("**no-index uses")
    assert lines[2] == f"> {told}"
    page = render_html(doubted)
    assert page.count("<b>Caution:</b>") == 2
    assert "Caution" not in render_html(replace(record, verdict=replace(verdict, doubts=[])))


def test_csv_of_a_diagnosis_has_one_line_per_finding() -> None:
    record = diagnosis()
    rows = rows_of(render_csv(record))
    assert [(row["severity"], row["rule"]) for row in rows] == [(one.severity, one.rule) for one in record.findings]
    assert float(rows[0]["rate_hz"]) == record.findings[0].rate_hz
    said = render_markdown(record)
    assert said.startswith("**The thread innodb/log\\_files\\_governor\\_thread")
    assert "- do: innodb\\_log\\_writer\\_threads=OFF" in said


def test_csv_of_energy_marks_the_summed_domains() -> None:
    readings = [
        EnergyReading(source="rapl", domain=name, kind="measured", joules=joules, watts=joules / 2, contained_in=inside)
        for name, joules, inside in (("package-0", 40.0, None), ("core", 30.0, "package-0"))
    ]
    total = Total(source="rapl", domains=["package-0"], joules=40.0, watts=20.0, kind="measured")
    rows = rows_of(render_csv(EnergyResult(window_s=2.0, meters=readings, total=total)))
    assert [(row["domain"], float(row["joules"]), row["summed"]) for row in rows] == [
        ("package-0", 40.0, "yes"),
        ("core", 30.0, "no"),
    ]


def test_csv_of_calls_and_threads_has_the_field_names_of_the_record() -> None:
    window: dict[str, Any] = {"pids": [7], "window_s": 2.0, "lost_count": 0, "notes": [], "interrupted": False}
    window |= {"tool_cpu_s": 0.01, "bpf_s": None}
    asked = CallSum(
        pid=7, tid=8, name="read", operation="", count=30, errors_count=2, ns=9_000_000, longest_ns=4_000_000
    )
    trace = SyscallTrace(**window, calls=[asked], files=[], waiting={}, parts_count=0)
    (call,) = rows_of(render_csv(build_syscall_profile(trace, {8: "=cmd()"})))
    assert (call["thread"], call["name"], call["count"], call["errors_count"]) == ("'=cmd()", "read", "30", "2")
    assert float(call["total_ms"]) == 9.0
    sums = ThreadSums(
        pid=7,
        tid=8,
        comm="writer",
        states={"interruptible": (4, 40_000_000)},
        sleep_max_ns=20_000_000,
        waits_count=4,
        wait_ns=8_000_000,
        wait_max_ns=3_000_000,
        preempted_count=0,
        preempted_ns=0,
    )
    profile = build_bpf_profile(OffCpuTrace(**window, threads=[sums], wakings=[], unseen_count=0), {})
    (thread,) = rows_of(render_csv(profile))
    assert (thread["thread"], thread["sleeps_count"], float(thread["sleep_mean_ms"])) == ("writer", "4", 10.0)
    assert "states" not in thread
    assert render_csv(replace(profile, threads=[])).startswith("tid,thread,")
