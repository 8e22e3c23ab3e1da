# SPDX-License-Identifier: Apache-2.0
"""Tests for files: Markdown and CSV with exact figures, stacks, profiles and timelines."""

from __future__ import annotations

import csv
import io
import re

import pytest
from msgspec.structs import replace

from powerprof.report.exports import export, render_csv
from powerprof.report.files import SUFFIXES
from powerprof.report.render.markdown import code_span, escape
from powerprof.system.errors import UsageError
from tests.unit.report.sample_records import HOSTILE, attribution, comparison, on_cpu
from tests.unit.report.test_pprof import decoded


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_no_formulas_in_csv(name: str) -> None:
    record = attribution()
    thread = replace(record.wakeups[0].thread, server_name=None, comm=name)
    text = render_csv(replace(record, wakeups=[replace(record.wakeups[0], thread=thread, detail=name)]))
    (row,) = rows_of(text)
    assert not row["thread"].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert row["thread"].removeprefix("'") == name.replace("\x00", "\N{REPLACEMENT CHARACTER}")


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


@pytest.mark.parametrize("kind", ["folded", "pprof", "flame"])
def test_record_without_stacks_names_its_files(kind: str) -> None:
    with pytest.raises(UsageError, match=f"compare-0007 has no {re.escape(SUFFIXES[kind])} file") as caught:
        export(comparison(4), kind)
    assert caught.value.hint == "available: .html, .md, .csv and .json"


def test_profile_of_c0_has_all_stack_files() -> None:
    """Kernel frames carry the suffix by which flamegraph.pl colours them."""
    profile = on_cpu()
    assert export(profile, "folded").decode() == (
        "sql/one_connection;[incomplete];row_search_mvcc 5\n"
        "sql/one_connection;start_thread;do_command;vfs_read_[k] 20\n"
    )
    types, samples = decoded(export(profile, "pprof"))
    assert types == [("samples_of_C0", "count"), ("c0", "nanoseconds")]
    assert samples[0] == (("vfs_read_[k]", "do_command", "start_thread", "sql/one_connection"), [20, 20_000_000])
    assert b"C0 time by function" in export(profile, "flame")
    faults = replace(profile, percent_of="page_faults", stacks=[replace(row, c0_ms=None) for row in profile.stacks])
    assert decoded(export(faults, "pprof"))[0] == [("page_faults", "count")]
