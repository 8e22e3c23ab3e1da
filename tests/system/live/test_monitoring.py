# SPDX-License-Identifier: Apache-2.0
"""Real Prometheus and Alertmanager: the shipped rules, every panel of the dashboard, an alert that comes and goes."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from powerprof.live.intervals import LiveFinding, ServerState
from powerprof.live.metrics import SharedTotals, StatementTotals, Totals, render_metrics
from powerprof.live.metrics_server import MetricsServer
from powerprof.measure.clock import format_now
from tests.conftest import REPOSITORY
from tests.system.live.engines import MONITORING, alertmanager, fill_variables, prometheus, wait_for
from tests.unit.live.intervals import interval, row, served, statement

DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
STORM = LiveFinding(rule="duplicate_server_id", severity="fault", text="two replicas have one id")


class Host:
    """A made-up host behind the real metrics server: an interval each second, with or without a storm."""

    def __init__(self) -> None:
        self.storm = False
        self._shared = SharedTotals(
            Totals(statements=StatementTotals()), {"version": "1", "kernel": "6.1", "driver": "intel_idle"}
        )
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self.server = MetricsServer(("127.0.0.1", 0), lambda accept: render_metrics(self._shared, accept))

    def _live(self) -> None:
        while not self._end.wait(1.0):
            server = ServerState(name="mariadbd:3306", up=True, role="replica", replication_healthy=True, lag_s=0.0)
            rows = [row("handle_slave_io", 900 if self.storm else 2, 0.01), row("page_cleaner", 1)]
            made = interval(
                *rows,
                window_s=1.0,
                idle_s={(0, "C1"): 0.9, (1, "C1"): 0.9, (1, "POLL"): 0.01},
                servers=(server,),
                findings=(STORM,) if self.storm else (),
                balance_error=0.001,
                statements=served(statement("5f98a1", 0.2), window_s=1.0),
                ended_at=format_now(),
            )
            self._shared.add(made)

    def __enter__(self) -> Host:
        self.server.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.server.__exit__(None, None, None)


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as found:
        yield found


def promtool(*words: str) -> str:
    done = subprocess.run(["promtool", *words], cwd=MONITORING, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_finds_no_fault_and_the_rules_do_what_they_say() -> None:
    assert "10 rules found" in promtool("check", "config", "prometheus.yml")
    assert "SUCCESS" in promtool("test", "rules", "rules-test.yml")


def test_every_fault_that_diagnose_finds_has_an_alert() -> None:
    page = (REPOSITORY / "docs/reference/diagnose.md").read_text(encoding="utf-8").partition("## Faults")[2]
    rules = set(re.findall(r"^\| `(\w+)` \|", page.partition("Notes")[0], re.MULTILINE))
    named = re.findall(r'rule=~?"([\w|]+)"', (MONITORING / "alerts.yml").read_text(encoding="utf-8"))
    # A server with one application has one main consumer.
    assert rules - {"main_consumer"} == {rule for words in named for rule in words.split("|")}


def queries() -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_an_alert_comes_and_goes_and_every_panel_has_data(host: Host, tmp_path: Path) -> None:
    with (
        alertmanager(tmp_path) as (port, messages),
        prometheus(tmp_path, [f"127.0.0.1:{host.server.port}"], port) as db,
    ):
        wait_for("scraped", lambda: db.value("powerprof_intervals_total"))
        host.storm = True
        began = time.monotonic()
        labels = wait_for("the storm's alert", lambda: messages.of("firing", "ReplicaStorm"))
        # One interval to find it, one scrape, one evaluation, and the message: seconds each on a loaded machine.
        assert time.monotonic() - began < 30
        assert (labels["rule"], labels["severity"]) == ("duplicate_server_id", "critical")
        wait_for("joules per query need queries", lambda: db.value("instance:powerprof_watts:rate5m"))
        for title, expression in queries():
            asked = fill_variables(expression, "30s")
            # This host answers no queries, and its server is up: no figure, and no error.
            if "joules_per_query" in asked or asked.endswith(" == 0"):
                assert db.query(asked) == []
                continue
            wait_for(f"{title}: {asked}", lambda asked=asked: db.query(asked))  # type: ignore[misc]
        host.storm = False
        wait_for("the alert is resolved", lambda: messages.of("resolved", "ReplicaStorm"))
        assert db.value("max(powerprof_finding) or vector(0)") == 0


def test_grafana_reads_the_dashboard_and_its_panels_lie_beside_each_other() -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    read: Any = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(DASHBOARD)))
    assert [one["title"] for one in read["panels"]] == [one["title"] for one in DASHBOARD["panels"]]
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not own & taken, panel["title"]
        taken |= own
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"] and panel["targets"]
    names = [
        name for _, expression in queries() for name in re.findall(r"\b(?:\w+:)?powerprof_\w+(?::\w+)?", expression)
    ]
    known = (REPOSITORY / "docs/reference/metrics.md").read_text(encoding="utf-8")
    recorded = (MONITORING / "recording.yml").read_text(encoding="utf-8")
    assert not [name for name in names if f"`{name}`" not in known and f"record: {name}\n" not in recorded]
