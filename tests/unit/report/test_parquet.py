# SPDX-License-Identifier: Apache-2.0
"""Saved runs of many hosts as tables: what the how-to page asks is answered, by the engine that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from powerprof.model.records import Phase
from powerprof.model.runs import RunStore
from powerprof.report.parquet import export
from tests.conftest import REPOSITORY
from tests.unit.report.sample_records import attribution, comparison, idle_run, load_run

HOSTS = 12


def tenfold(phase: Phase) -> Phase:
    """Whose interval would say another rate: it goes."""
    return msgspec.structs.replace(phase, wakeups_hz=10 * (phase.wakeups_hz or 0), intervals={})


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of twelve hosts with an idle run each, of which one wakes its CPUs ten times as often, and other runs on one."""
    base = tmp_path_factory.mktemp("fleet")
    for number in range(HOSTS):
        store, record = RunStore(base / "runs" / f"db{number:02}"), idle_run()
        record = msgspec.structs.replace(record, host={**record.host, "hostname": f"db{number:02}", "kernel": "6.1.0"})
        if number == 3:
            record = msgspec.structs.replace(record, phases=[tenfold(one) for one in record.phases])
        store.save("idle", record)
    own = RunStore(base / "runs")
    own.save("compare", comparison())
    own.save("attribute", attribution())
    own.save("run", load_run())
    said: list[str] = []
    (base / "runs/db00/idle-0002").mkdir()
    (base / "runs/db00/idle-0002/run.json").write_text("{")
    (base / "tables").mkdir()
    runs, figures = export(base / "runs", base / "tables", said.append)
    assert runs == HOSTS + 3
    assert figures > 10 * runs
    assert len(said) == 1 and "idle-0002" in said[0]
    return base / "tables"


def answer(tables: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as engine:
        engine.execute(f"SET file_search_path = '{tables}'")
        return engine.execute(query).fetchall()


def test_every_run_and_figure_is_there_once(tables: Path) -> None:
    rows = answer(tables, "SELECT store, run, host, command FROM 'runs.parquet' ORDER BY ALL")
    assert [row[1:] for row in rows if row[0] == "db07"] == [("idle-0001", "db07", "idle")]
    assert {row[3] for row in rows if row[0] == ""} == {"compare", "attribute", "run"}
    phase = next(one for one in idle_run().phases if one.name == "server")
    query = "SELECT DISTINCT value FROM 'figures.parquet' WHERE store = 'db07' AND part = 'server' AND figure = "
    assert answer(tables, query + "'wakeups' AND mechanism IS NULL") == [(pytest.approx(phase.wakeups_hz),)]


def test_comparisons_and_attributions_have_their_figures(tables: Path) -> None:
    metric = comparison().metrics[0]
    query = (
        "SELECT part, value, verdict FROM 'figures.parquet' WHERE run = 'compare-0001' AND unit <> '%' AND figure = "
    )
    found = {part: (value, verdict) for part, value, verdict in answer(tables, f"{query}'{metric.name}'")}
    assert found["a"][0] == pytest.approx(metric.a.mean)
    assert found["b_minus_a"] == (pytest.approx(metric.difference.b_minus_a), metric.verdict)
    query = "SELECT sum(value) FROM 'figures.parquet' WHERE run = 'attribute-0001'"
    assert answer(tables, query) == [(pytest.approx(sum(one.rate_hz for one in attribution().wakeups)),)]


def test_the_queries_of_the_page_are_answered(tables: Path) -> None:
    page = (REPOSITORY / "docs/how-to/fleet.md").read_text()
    queries = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert len(queries) == 3
    worst, kernels, threads = (answer(tables, query) for query in queries)
    assert worst[0][0] == "db03"
    assert worst[0][1] == pytest.approx(10 * worst[1][1])
    assert [row[:2] for row in kernels] == [("6.1.0", HOSTS)]
    cause = next(one for one in idle_run().phases[1].causes if one.process == "mariadbd")
    assert threads[0][:3] == ("mariadbd", cause.thread, HOSTS)
    assert threads[0][3] == pytest.approx(HOSTS * cause.wakeups_hz)
