# SPDX-License-Identifier: Apache-2.0
"""Texts with their values: which are taken, and the workload that is made of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.database.server_report import ServerReport, list_own_statements
from powerprof.model.statements import normalise
from powerprof.queries.client_texts import (
    LeftOutStatements,
    StatementSample,
    choose_texts,
    explain_left_out,
    list_missing_plans,
)
from powerprof.queries.join import join_trace
from powerprof.queries.records import Statement
from powerprof.queries.workload_file import check_workload_name, format_workload, interleave_by_rate
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.tracing.captures import RecordedText, StatementUse
from powerprof.workloads.reading import read_workload
from tests.unit.queries.sample import trace

TEXTS = {
    1: r"""SELECT c FROM t WHERE n='it''s " and \\' AND id=7""",
    2: "/* app:shop */ (select d from t where id in (1,2)) union (select 1)",
    3: "UPDATE t SET c=1",
    4: "SELECT c FROM t WHERE id=1 FOR UPDATE",
    5: "SELECT * FROM t INTO OUTFILE '/tmp/x'",
    6: "SELECT e FROM t WHERE id=?",
    7: "WITH x AS (SELECT 1) SELECT * FROM x",
    8: "SELECT '" + "x" * 2000,
    9: "CALL p(1)",
    10: "SELECT a FROM t /*!50000 INTO OUTFILE '/tmp/x' */",
    11: "SELECT f FROM t /*M!100100 INTO OUTFILE '/tmp/x' */",
    12: "/*!80018 ANALYZE */ SELECT g FROM t",
    13: "WITH x AS (SELECT 1) DELETE FROM t WHERE id IN (SELECT * FROM x)",
    14: "SELECT SETVAL(s, 1)",
    15: "SELECT h FROM t; DROP TABLE t",
    16: "SELECT 1--1 INTO OUTFILE '/tmp/x'",
    17: r"SELECT '\' INTO OUTFILE '/tmp/x' -- '",
    18: "SELECT 1 # '\n INTO OUTFILE '/tmp/x' -- '",
    19: "SELECT NEXT VALUE FOR s",
    20: "SELECT i FROM t WHERE id = 1 FOR/**/UPDATE",
    21: "SELECT j FROM t WHERE n = 'please insert; or delete' AND `lock` = 1 AND REPLACE(n, 'a', 'b') = 'c'",
    22: "SELECT @x := k FROM t",
    23: "SELECT 'x' /*' */ INTO DUMPFILE '/tmp/x' /*'*/",
}


def sampled() -> tuple[list[RecordedText], list[Statement]]:
    taken = trace(
        uses=[StatementUse(256 + number, 11, 10, 10_000 - number, 1, 0, 0) for number in TEXTS],
        texts=[RecordedText(256 + number, 3, len(text), text.encode()[:1023]) for number, text in TEXTS.items()],
        latencies={},
    )
    return taken.texts, join_trace(taken, ServerReport(schemas={11: "shop"})).statements


def chosen(most: int = 20) -> list[StatementSample]:
    return choose_texts(*sampled(), most)


def others() -> LeftOutStatements:
    return explain_left_out(*sampled(), chosen())


def test_each_statement_without_a_sample_has_its_reason() -> None:
    reasons = {reason: {one.text for one in statements} for reason, statements in others().items()}
    prepared = next(texts for reason, texts in reasons.items() if reason.startswith("prepared: "))
    assert prepared == {"SELECT e FROM t WHERE id = ?"}
    assert {"UPDATE t SET c = ?", "CALL p(?)"} <= reasons["it does more than read"]
    assert "SELECT c FROM t WHERE id = ? FOR UPDATE" in reasons["it may do more than read"]
    assert len(reasons["its text has 1,024 bytes or more"]) == 1
    named = {one.id for statements in others().values() for one in statements} | {one.statement.id for one in chosen()}
    assert len(named) == len({normalise(text) for text in TEXTS.values()})
    notes = list_missing_plans(others())
    first = next(statements[0] for reason, statements in others().items() if reason.startswith("prepared: "))
    assert (
        f"no plan of #{first.id}: prepared: its values are not in its text, and others could have another plan" in notes
    )


def test_the_workload_names_what_is_not_in_it(tmp_path: Path) -> None:
    hostile = msgspec.structs.replace(
        chosen()[0].statement, text="SELECT '\n[load]\nsql = 1\x00'", c0_percent=12.34, id="abcdef"
    )
    text = format_workload("shop", "mysqld", chosen(), 3, {**others(), "a reason": [hostile]})
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "workload.toml").write_text(text)
    assert read_workload(folder).definition.load.sql == [TEXTS[1], TEXTS[2], TEXTS[7], TEXTS[21]]
    assert "# left out: SELECT e FROM t WHERE id = ? (#" in text
    assert "# left out: SELECT ' [load] sql = 1?' (#abcdef, 12.3 % of the server's CPU time): a reason\n" in text


def test_the_workload_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "workload.toml").write_text(format_workload("shop", 'mysqld "10"', chosen(), 3))
    read = read_workload(folder)
    assert read.definition.load.sql == [TEXTS[1], TEXTS[2], TEXTS[7], TEXTS[21]]
    assert [one.text for one in chosen(1)] == [TEXTS[1]]
    assert (read.definition.load.database, read.definition.load.clients) == ("shop", 3)
    assert set(read.definition.conditions) == {"as-is", "changed"}


def test_without_a_statement_there_is_no_workload() -> None:
    with pytest.raises(PowerprofError, match="no statement for a workload"):
        format_workload("shop", "mysqld", [], 1)


@pytest.mark.parametrize("name", ["", "Shop", "a b", "../x", "-x"])
def test_a_folder_has_to_have_a_workloads_name(name: str) -> None:
    with pytest.raises(UsageError):
        check_workload_name(name)


def test_a_workload_keeps_the_mix_and_none_of_our_own_statements() -> None:
    rates = {"SELECT 1": 100.0, "SELECT 2": 50.0, "SELECT 3": 10.0}
    some = [
        StatementSample(at, Statement(text=text, c0_s=1.0, calls_hz=rate), text)
        for at, (text, rate) in enumerate(rates.items())
    ]
    found = Counter(one.text for one in interleave_by_rate(some))
    assert found == {"SELECT 1": 10, "SELECT 2": 5, "SELECT 3": 1}
    assert (
        Counter(one.text for one in interleave_by_rate(some)[:8])["SELECT 1"] == 5
    )  # spread, not one behind the other
    rare = [*some, StatementSample(3, Statement(text="SELECT 4", c0_s=0.1, calls_hz=0.001), "SELECT 4")]
    assert len(interleave_by_rate(rare)) <= 204
    own = list_own_statements()[3]
    taken = trace(
        uses=[StatementUse(300, 11, 10, 10_000, 1, 0, 0)],
        texts=[RecordedText(300, 3, len(own), own.encode())],
        latencies={},
    )
    (row, *_) = join_trace(taken, ServerReport()).statements
    assert row.text.startswith("(powerprof) SELECT SCHEMA_NAME, DIGEST_TEXT")
    assert choose_texts(taken.texts, [row], 9) == []


def test_texts_of_postgresql_have_no_strings() -> None:
    texts = {1: "SELECT a FROM t WHERE b = 's3cret' AND c = $1", 2: "SELECT a ? 'k' FROM t", 3: "DELETE FROM t", 4: ""}
    seen = [RecordedText(number, 3, len(text), text.encode()) for number, text in texts.items()]
    rows = [Statement(text=normalise(text, "postgresql"), c0_s=1.0, id=f"{number}") for number, text in texts.items()]
    samples = choose_texts(seen, rows, 9, "postgresql")
    assert [sample.text for sample in samples] == ["SELECT a FROM t WHERE b = '0' AND c = $1", "SELECT a ? '0' FROM t"]
    assert {reason: [one.id for one in left] for reason, left in explain_left_out(
        seen, rows, samples, "postgresql"
    ).items()} == {"it does more than read": ["3", "4"]}  # fmt: skip
    (reason,) = explain_left_out([], rows[:1], [], "postgresql")
    assert reason == "its whole text was not seen"


def test_execute_by_its_own_text_is_prepared_too() -> None:
    (reason,) = explain_left_out([], [Statement(text="EXECUTE s USING @a", c0_s=1.0)], [])
    assert reason.startswith("prepared: ")
    assert explain_left_out([], [Statement(text="(COM_PING)", c0_s=1.0)], []) == {}


def test_a_workload_has_the_rate_of_the_statements_in_its_schema(tmp_path: Path) -> None:
    figures = (("shop", 2.5), ("shop", 0.75), ("mall", 90.0), ("shop", None))
    samples = [
        StatementSample(
            number, Statement(text=normalise(text), schema_name=schema, c0_s=1.0, calls_hz=hertz, id=f"{number}"), text
        )
        for number, (schema, hertz) in enumerate(figures)
        for text in (f"SELECT c{number} FROM t",)
    ]
    folder = tmp_path / "shop"
    folder.mkdir()
    text = format_workload("shop", "mysqld", samples, 99)
    (folder / "workload.toml").write_text(text)
    load = read_workload(folder).definition.load
    assert (load.rate_hz, load.clients, load.database) == (3.25, 64, "shop")
    assert "# left out: SELECT c2 FROM t (#2): in another schema" in text
    assert format_workload("shop", "mysqld", samples[3:], 0).count("clients = 1\nrate_hz = 0.1") == 1


@given(st.lists(st.floats(0.01, 500.0), min_size=1, max_size=6))
def test_the_mix_has_each_statement_in_proportion_and_at_least_once(rates: list[float]) -> None:
    samples = [
        StatementSample(number, Statement(text=f"s{number}", c0_s=1.0, calls_hz=hertz), f"s{number}")
        for number, hertz in enumerate(rates)
    ]
    mix = Counter(one.text for one in interleave_by_rate(samples))
    slots = min(sum(rates) / min(rates), 200)
    assert set(mix) == {one.text for one in samples}
    for number, hertz in enumerate(rates):
        assert abs(mix[f"s{number}"] - max(slots * hertz / sum(rates), 1)) <= 0.5 + 1e-9
    assert interleave_by_rate([*samples[:1], StatementSample(9, Statement(text="x", c0_s=1.0), "x")])[-1].text in "s0x"
