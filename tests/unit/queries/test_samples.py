# SPDX-License-Identifier: Apache-2.0
"""Texts with their values: which are taken, and the workload that is made of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from powerprof.database.clients.performance import Known, own_texts
from powerprof.errors import PowerprofError, UsageError
from powerprof.queries.join import parts_of
from powerprof.queries.records import Statement
from powerprof.queries.samples import StatementSample, samples
from powerprof.queries.workload import check_name, mixed, workload_toml
from powerprof.tracing.captures.statements import StatementUse, TextSeen
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


def chosen(most: int = 20) -> list[StatementSample]:
    taken = trace(
        uses=[StatementUse(256 + number, 11, 10, 10_000 - number, 1, 0, 0) for number in TEXTS],
        texts=[TextSeen(256 + number, 3, len(text), text.encode()[:1023]) for number, text in TEXTS.items()],
        latencies={},
    )
    return samples(taken.texts, parts_of(taken, Known(schemas={11: "shop"})).statements, most)


def test_only_whole_texts_that_read_are_taken() -> None:
    assert [one.text for one in chosen()] == [TEXTS[1], TEXTS[2], TEXTS[7], TEXTS[21]]
    assert [one.text for one in chosen(1)] == [TEXTS[1]]


def test_the_workload_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "workload.toml").write_text(workload_toml("shop", 'mysqld "10"', chosen(), 3))
    read = read_workload(folder)
    assert read.definition.load.sql == [TEXTS[1], TEXTS[2], TEXTS[7], TEXTS[21]]
    assert (read.definition.load.database, read.definition.load.clients) == ("shop", 3)
    assert set(read.definition.conditions) == {"as-is", "changed"}


def test_without_a_statement_there_is_no_workload() -> None:
    with pytest.raises(PowerprofError, match="no statement for a workload"):
        workload_toml("shop", "mysqld", [], 1)


@pytest.mark.parametrize("name", ["", "Shop", "a b", "../x", "-x"])
def test_a_folder_has_to_have_a_workloads_name(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


def test_a_workload_keeps_the_mix_and_none_of_our_own_statements() -> None:
    rates = {"SELECT 1": 100.0, "SELECT 2": 50.0, "SELECT 3": 10.0}
    some = [
        StatementSample(at, Statement(text=text, c0_s=1.0, calls_hz=rate), text)
        for at, (text, rate) in enumerate(rates.items())
    ]
    found = Counter(one.text for one in mixed(some))
    assert found == {"SELECT 1": 10, "SELECT 2": 5, "SELECT 3": 1}
    assert Counter(one.text for one in mixed(some)[:8])["SELECT 1"] == 5  # spread, not one behind the other
    rare = [*some, StatementSample(3, Statement(text="SELECT 4", c0_s=0.1, calls_hz=0.001), "SELECT 4")]
    assert len(mixed(rare)) <= 204
    own = own_texts()[3]
    taken = trace(
        uses=[StatementUse(300, 11, 10, 10_000, 1, 0, 0)],
        texts=[TextSeen(300, 3, len(own), own.encode())],
        latencies={},
    )
    (row, *_) = parts_of(taken, Known()).statements
    assert row.text.startswith("(powerprof) SELECT SCHEMA_NAME, DIGEST_TEXT")
    assert samples(taken.texts, [row], 9) == []
