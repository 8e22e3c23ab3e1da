# SPDX-License-Identifier: Apache-2.0
"""Markdown and CSV carry the record's figures, and nothing in a name becomes markup or a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from powerprof.attribution.offcpu import build_bpf_profile
from powerprof.attribution.syscalls import build_syscall_profile
from powerprof.energy.domains import EnergyResult, Total
from powerprof.model.attribution import Attribution, Waking
from powerprof.model.records import EnergyReading
from powerprof.report import attribution as report
from powerprof.report import comparison as compare
from powerprof.report.exports import export, render_csv, render_html, render_markdown
from powerprof.report.markdown import code_span, escape
from powerprof.tracing.captures import CallSum, OffCpuTrace, SyscallTrace, ThreadSums
from tests.unit.report.sample_records import (
    HOSTILE,
    attribution,
    comparison,
    diagnosis,
    idle_run,
    load_run,
    on_cpu,
    sweep,
)


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


def _busy(counts: Sequence[int]) -> Attribution:
    """On a host that is busy with something else, where all that wakes the target finds a CPU running."""
    record, window_s = attribution(), 10.0
    ended = record.wakeups[0]
    wakings = [
        Waking(
            origin=ended.origin,
            wakings_count=count,
            wakings_hz=count / window_s,
            thread=ended.thread,
            waker=None,
            stack=[*ended.stack, replace(ended.stack[-1], function=f"place_{number}")],
            stack_complete=True,
        )
        for number, count in enumerate(counts)
    ]
    return replace(record, wakeups=[], wakings_without_exit=wakings, wakings_window_s=window_s)


def test_a_target_that_ended_nothing_is_shown_what_woke_it() -> None:
    busy = _busy([250])
    printed = "\n".join(report.render_terminal(busy))
    said = "was woken 25.0 times a second, while CPUs ran anyway: 25.0 by mysys/statement_timer in "
    assert said in " ".join(printed.split())
    assert re.search(r"^ +25\.0 +mysys/statement_timer · its own timer$", printed, re.MULTILINE), printed
    assert "timer_handler" in printed
    for text in (render_html(busy), render_markdown(busy)):
        assert "25.0" in text and "timer_handler" in text and "quieter host" in text
    assert "quieter host" not in "\n".join(report.render_terminal(replace(busy, wakings_without_exit=[])))
    assert not any("more" in line for line in report.render_terminal(busy))


def test_wakings_of_one_thread_and_stack_are_one_row() -> None:
    busy = _busy([250, 50])
    first, second = busy.wakings_without_exit
    twin = replace(second, stack=first.stack, origin="device", detail="virtio0")
    one = replace(busy, wakings_without_exit=[first, twin])
    printed = "\n".join(report.render_terminal(one))
    assert re.search(r"^ +30\.0 +mysys/statement_timer · its own timer 83 %, a d", printed, re.MULTILINE), printed
    assert render_markdown(one).count("timer_handler") == 1


def test_rows_beyond_a_limit_are_counted_not_dropped() -> None:
    busy = _busy(range(300, 170, -1))
    left = f"{sum(range(171, 281)) / 10:,.1f}"
    assert any(
        re.fullmatch(rf" +{left} +110 more \(--top N, or --json\)", line) for line in report.render_terminal(busy)
    )
    assert "105 more rows with" in render_markdown(busy)
    assert f"The JSON has 30 more rows with {sum(range(171, 201)):,} wakings." in render_html(busy)
    record = attribution()
    first = record.wakeups[0]
    many = replace(
        record,
        wakeups=[
            replace(first, count=2, rate_hz=0.2, stack=[replace(first.stack[0], function=f"f{number}")])
            for number in range(101)
        ],
    )
    assert "76 more rows with 152 idle exits." in render_markdown(many)
    assert "The JSON has 1 more row with 2 idle exits." in render_html(many)
    grouped = report.render_terminal(record, by="thread", top=1)
    assert any(re.search(r"^ +\d+\.\d +43 +\d more \(--top N\)$", line) for line in grouped), grouped


def test_csv_of_an_attribution_is_a_line_a_stack() -> None:
    record = attribution()
    rows = rows_of(render_csv(record))
    assert [int(row["count"]) for row in rows] == [25, 10, 20, 9, 4]
    assert rows[4]["stack"] == "poll < handle_connections_sockets < mysqld_main"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_spreadsheet_runs_no_name_as_a_formula(name: str) -> None:
    record = attribution()
    thread = replace(record.wakeups[0].thread, server_name=None, comm=name)
    text = render_csv(replace(record, wakeups=[replace(record.wakeups[0], thread=thread, detail=name)]))
    (row,) = rows_of(text)
    assert not row["thread"].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert row["thread"].removeprefix("'") == name.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def test_a_spreadsheet_is_told_the_encoding() -> None:
    assert export(comparison(4), "csv").startswith(b"metric,")
    assert export(comparison(4), "csv-bom") == b"\xef\xbb\xbf" + export(comparison(4), "csv")


@pytest.mark.parametrize("record", [idle_run, load_run, comparison, sweep, attribution])
def test_every_row_of_a_table_is_as_long_as_its_head(record: Callable[[], Any]) -> None:
    lengths = {len(row) for row in csv.reader(io.StringIO(render_csv(record()), newline=""))}
    assert len(lengths) == 1


def test_markdown_of_a_comparison_begins_with_the_answer_and_has_every_metric() -> None:
    record = comparison()
    text = render_markdown(record)
    first = text.splitlines()[0]
    assert first.startswith("**no-index uses ") and first.endswith("**")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(record.metrics)
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 8 for line in table)
    assert "| 0.057 | 2.723 | +2.666 | +2.631 to +2.697 | +4,675 % |" in table[2] and "**worse**" in table[2]


def test_markdown_of_a_run_and_of_an_attribution() -> None:
    run = render_markdown(idle_run())
    assert "| `mariadbd mysys/statement_timer` | `timer` | 400 ms | 2.5 | 17.4 |" in run
    assert "143 classified + 1 unknown + 0 lost = 144 idle exits; cpuidle counted 145." in run
    text = render_markdown(attribution())
    assert text.startswith("**mariadbd (8123) wakes the CPUs 6.8 times a second (17.8")
    assert "`poll ← handle_connections_sockets ← mysqld_main`" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_markdown_is_one_code_span(name: str) -> None:
    span = code_span(name)
    fence = re.match("`+", span)
    assert fence and span.endswith(fence[0])
    inner = span[len(fence[0]) : -len(fence[0])]
    assert fence[0] not in re.findall("`+", inner)
    assert "\n" not in span and not re.search(r"(?<!\\)\|", span) and len(span) < 200


@pytest.mark.parametrize("name", HOSTILE)
def test_a_sentence_in_markdown_has_no_markup(name: str) -> None:
    text = escape(f"costs {name} more")
    assert not re.search(r"(?<!\\)[`*_<>\[\]|]", text)
    assert "\n" not in text and "@S" not in text and "://" not in text


def test_a_sweep_has_a_line_a_metric_and_point_and_says_what_failed() -> None:
    record = sweep()
    rows = rows_of(render_csv(record))
    rates = [row for row in rows if row["metric"] == "queries_hz"]
    assert [int(row["clients"]) for row in rates] == [1, 2, 4, 8]
    assert float(rates[0]["mean"]) == record.points[0].metrics[1].estimate.mean and rates[0]["low"] == ""
    assert rows[-1]["error"] == "the server refused connections"
    text = render_markdown(record)
    assert "| `clients` | `1` | `2` | `4` | `8` | `1024` |" in text
    assert "- clients 1024: the server refused connections" in text


def test_markdown_of_a_load_has_its_metrics() -> None:
    text = render_markdown(load_run())
    assert text.startswith("**city:index: the server's CPU time per query is ")
    assert "| energy per query, mJ, estimated | 0.230 | 0.220 to 0.240 |" in text


def test_doubts_stand_beside_the_answer_in_every_form() -> None:
    record = comparison()
    verdict = replace(record.verdict, doubts=["steal 7 %", "idle baseline drift −3 points of C0"])
    doubted = replace(record, verdict=verdict)
    told = "Caution: steal 7 %; idle baseline drift −3 points of C0."
    printed = " ".join(" ".join(compare.render_terminal(doubted)).split())
    assert told in printed
    assert printed.startswith(record.verdict.text[:40])
    lines = render_markdown(doubted).splitlines()
    assert lines[0].startswith("**no-index uses")
    assert lines[2] == f"> {told}"
    page = render_html(doubted)
    assert page.count("<b>Caution:</b>") == 2
    assert "Caution" not in render_html(replace(record, verdict=replace(verdict, doubts=[])))


def test_csv_of_a_diagnosis_is_a_line_a_finding() -> None:
    record = diagnosis()
    rows = rows_of(render_csv(record))
    assert [(row["severity"], row["rule"]) for row in rows] == [(one.severity, one.rule) for one in record.findings]
    assert float(rows[0]["rate_hz"]) == record.findings[0].rate_hz
    said = render_markdown(record)
    assert said.startswith("**The thread innodb/log\\_files\\_governor\\_thread")
    assert "- what ends it: innodb\\_log\\_writer\\_threads=OFF" in said


def test_csv_of_energy_says_what_was_summed() -> None:
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


def test_csv_of_a_profile_is_a_line_a_function() -> None:
    rows = rows_of(render_csv(on_cpu()))
    assert [(row["function"], int(row["self_count"])) for row in rows][:2] == [("vfs_read", 20), ("row_search_mvcc", 3)]


def test_csv_of_calls_and_of_threads_is_a_line_each_under_the_records_own_names() -> None:
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
