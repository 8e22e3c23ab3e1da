# SPDX-License-Identifier: Apache-2.0
"""VictoriaMetrics as the store of a fleet: the exporter's pages go in, the shipped rules, alerts and panels answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import yaml

from powerprof.live.intervals import LiveFinding, ServerState
from powerprof.live.metrics import SharedTotals, StatementTotals, Totals, render_metrics
from powerprof.measure.clock import format_now
from tests.system.live.engines import (
    MONITORING,
    Messages,
    Victoria,
    alertmanager,
    fetch,
    fill_variables,
    victoria,
    vmalert,
    wait_for,
)
from tests.system.live.test_monitoring import queries
from tests.unit.live.intervals import interval, row, served, statement

EVERY_S, MINUTES = 15.0, 12
STORM = LiveFinding(rule="duplicate_server_id", severity="fault", text="two replicas have one id")


def fill(store: Victoria, name: str, exits: int, storm: bool) -> int:
    """Twelve minutes of a made-up host behind the real counters; how many series it had."""
    shared = SharedTotals(
        Totals(statements=StatementTotals()), {"version": "1", "kernel": "6.1", "driver": "intel_idle"}
    )
    labels = {"job": "powerprof", "instance": name}
    now_s, page = time.time(), b""
    for number in range(round(MINUTES * 60 / EVERY_S)):
        at_s = now_s - MINUTES * 60 + (number + 1) * EVERY_S
        server = ServerState(
            name="mariadbd:3306", up=True, role="replica", replication_healthy=True, lag_s=0.0, queries_count=150
        )
        made = interval(
            row("handle_slave_io", exits),
            row("page_cleaner", 15),
            window_s=EVERY_S,
            idle_s={(0, "C6"): 13.5, (1, "C6"): 10.5, (1, "POLL"): 1.0},
            servers=(server,),
            findings=(STORM,) if storm else (),
            balance_error=0.001,
            statements=served(statement("5f98a1", 3.0), window_s=EVERY_S),
            ended_at=format_now(now_s - at_s),
        )
        shared.add(made)
        page = render_metrics(shared)[0]
        store.take(page + b"up 1\n", labels, at_s)
    return sum(not line.startswith(b"#") for line in page.splitlines())


@dataclass(frozen=True)
class Fleet:
    """A store with its hosts (how many series each has), what evaluates rules over it, and what was sent of alerts."""

    store: Victoria
    series: dict[str, int]
    vmalert_url: str
    messages: Messages


def now(store: Victoria, expression: str) -> list[Any]:
    """What it answers with all that was written: by itself it shows a new series some ten seconds late."""
    store.flush()
    return store.query(expression)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("victoria")
    with victoria(folder) as (store, _):
        made = {
            name: fill(store, name, exits, storm)
            for name, exits, storm in (("a:9477", 30, False), ("b:9477", 60, False), ("c:9477", 7500, True))
        }
        store.flush()
        with alertmanager(folder) as (port, messages), vmalert(folder, store, port) as url:
            yield Fleet(store, made, url, messages)


def test_a_host_has_as_many_series_as_its_page(fleet: Fleet) -> None:
    found = {
        one["metric"]["instance"]: int(one["value"][1])
        for one in fleet.store.query('count by (instance) ({__name__=~"powerprof_.*"})')
    }
    assert found == fleet.series
    assert max(found.values()) <= 120


def test_recorded_figures_are_those_of_the_hosts(fleet: Fleet) -> None:
    expected = {
        'instance:powerprof_wakeups:rate5m{instance="a:9477"}': 45 / EVERY_S,
        'instance:powerprof_wakeups:rate5m{instance="c:9477"}': 7515 / EVERY_S,
        'instance:powerprof_idle:ratio5m{instance="b:9477"}': 24.0 / 30.0,
        "fleet:powerprof_idle:ratio5m": 24.0 / 30.0,
        'instance:powerprof_watts:rate5m{instance="a:9477",kind="measured"}': 30.0 / EVERY_S,
        'fleet:powerprof_watts:sum{kind="measured"}': 3 * 30.0 / EVERY_S,
        'statement:powerprof_statement_cpu:rate5m{instance="b:9477"}': 3.0 / EVERY_S,
        'fleet:powerprof_joules_per_query:ratio1h{kind="measured"}': 30.0 / 150,
    }
    for expression, value in expected.items():
        recorded = wait_for(expression, partial(now, fleet.store, expression))[0]
        assert float(recorded["value"][1]) == pytest.approx(value, rel=0.03), expression
    worst = wait_for("the worst wakers", partial(now, fleet.store, "topk(1, fleet:powerprof_wakeups:rate5m)"))[0]
    assert worst["metric"]["function"] == "handle_slave_io"
    assert float(worst["value"][1]) == pytest.approx(7590 / EVERY_S, rel=0.03)


def test_every_rule_is_evaluated_without_an_error_and_the_storm_fires(fleet: Fleet) -> None:
    labels = wait_for("the storm's alert", lambda: fleet.messages.of("firing", "ReplicaStorm"))
    assert (labels["instance"], labels["rule"]) == ("c:9477", "duplicate_server_id")
    assert {name for _, name, _ in fleet.messages.received} == {"ReplicaStorm"}
    shipped = [
        rule
        for name in ("recording.yml", "alerts.yml")
        for group in yaml.safe_load((MONITORING / name).read_text())["groups"]
        for rule in group["rules"]
    ]
    rules = [rule for group in fetch(f"{fleet.vmalert_url}/api/v1/rules")["data"]["groups"] for rule in group["rules"]]
    assert len(rules) == len(shipped)
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []


def test_every_panel_of_the_dashboard_answers(fleet: Fleet) -> None:
    for title, expression in queries():
        asked = fill_variables(expression, "2m")
        if asked.endswith(" == 0"):  # all servers are up
            assert now(fleet.store, asked) == []
            continue
        wait_for(f"{title}: {asked}", partial(now, fleet.store, asked))
