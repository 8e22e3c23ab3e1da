# SPDX-License-Identifier: Apache-2.0
"""What is served, read back by prometheus_client's own parsers in both formats."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

from powerprof.live.intervals import LiveFinding, ServerState
from powerprof.live.metrics import SharedTotals, Totals, render_metrics
from tests.conftest import REPOSITORY
from tests.unit.live.intervals import interval, row

WHOSE = {"server": "mariadbd:3306", "account": "mysql", "program": "/usr/sbin/mariadbd"}
OPEN = "application/openmetrics-text;version=1.0.0"


def shared() -> SharedTotals:
    found = SharedTotals(Totals(), {"version": "1", "kernel": "6.1", "driver": "intel_idle"})
    finding = LiveFinding(rule="duplicate_server_id", severity="fault", text="two replicas have one id", **WHOSE)
    server = ServerState(name="mariadbd:3306", up=True, role="replica", replication_healthy=False, queries_count=40)
    server = msgspec.structs.replace(server, account="mysql", program="/usr/sbin/mariadbd")
    for number in range(3):
        found.add(
            interval(
                row("a", 10),
                untraced=1,
                servers=(server,),
                findings=(finding,),
                ended_at=f"1970-01-01T00:16:4{number}.250Z",
            )
        )
        render_metrics(found)
    return found


def values(text: str, of: str = "") -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    parse = open_metrics if of == OPEN else plain
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_both_formats_say_the_same() -> None:
    made = shared()
    text, kind = render_metrics(made)
    opened, open_kind = render_metrics(made, OPEN)
    assert kind.startswith("text/plain") and open_kind.startswith("application/openmetrics-text")
    assert values(text.decode()) == values(opened.decode(), OPEN)
    assert opened.endswith(b"# EOF\n")


def test_the_figures() -> None:
    found = values(render_metrics(shared())[0].decode())

    def of(name: str, **labels: str) -> float | None:
        return found.get((name, frozenset(labels.items())))

    assert of("powerprof_idle_exits_total", mechanism="timer") == 30
    assert of("powerprof_idle_exits_total", mechanism="untraced") == 3
    rows = {key: value for key, value in found.items() if key[0] == "powerprof_wakeups_total"}
    assert sum(rows.values()) == 33
    assert of("powerprof_wakeups_total", process="mariadbd", thread="page_cleaner", function="a") == 20
    assert of("powerprof_idle_seconds_total", cpu="0", state="C1") == 27.0
    assert of("powerprof_energy_joules_total", source="rapl", domain="package-0", kind="measured") == 90.0
    assert of("powerprof_host_energy_joules_total", kind="measured") == 90.0
    assert of("powerprof_server_queries_total", server="mariadbd:3306") == 120
    assert of("powerprof_replication_healthy", server="mariadbd:3306") == 0
    assert of("powerprof_finding", rule="duplicate_server_id", severity="fault", **WHOSE) == 1
    assert of("powerprof_server_up", **WHOSE) == 1
    assert of("powerprof_balance_error_ratio") is None
    assert of("powerprof_last_interval_timestamp_seconds") == 1002.25


def test_what_has_ended_is_left_out() -> None:
    made = shared()
    made.add(interval(row("a", 1), energy=()))
    found = values(render_metrics(made)[0].decode())
    names = {name for name, _ in found}
    assert (
        not {"powerprof_finding", "powerprof_server_up", "powerprof_meter_up", "powerprof_server_queries_total"} & names
    )
    assert "powerprof_energy_joules_total" in names


def test_every_metric_has_a_line_in_the_reference() -> None:
    text, _ = render_metrics(shared())
    page = (REPOSITORY / "docs/reference/metrics.md").read_text(encoding="utf-8")
    families = {line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")}
    assert not {name for name in families if f"`{name}" not in page}


def test_figures_past_their_deadline_are_absent_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    made = SharedTotals(Totals(), {"version": "1"}, deadline_s=75.0)
    server = ServerState(name="mariadbd:3306", up=True)
    made.add(interval(row("a", 10), servers=(server,), ended_at="1970-01-01T00:16:40.000Z"))
    now_s[0] += 75.0
    names = {name for name, _ in values(render_metrics(made)[0].decode())}
    assert {"powerprof_server_up", "powerprof_wakeups_total", "powerprof_build_info"} <= names
    now_s[0] += 0.1
    for of in ("", OPEN):
        late = values(render_metrics(made, of)[0].decode(), of)
        assert late == {
            ("powerprof_last_interval_timestamp_seconds", frozenset()): 1000.0,
            ("powerprof_build_info", frozenset({("version", "1")})): 1.0,
        }
    made.add(interval(row("a", 10), ended_at="1970-01-01T00:18:20.000Z"))
    found = values(render_metrics(made)[0].decode())
    assert found[("powerprof_idle_exits_total", frozenset({("mechanism", "timer")}))] == 20
