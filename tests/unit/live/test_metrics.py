# SPDX-License-Identifier: Apache-2.0
"""Counters over intervals, and their pages as prometheus_client's own parsers read them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

from powerprof.live.intervals import (
    IdleCounts,
    IntervalRow,
    Joules,
    LiveFinding,
    OwnCost,
    RowKey,
    ServedStatements,
    ServerState,
)
from powerprof.live.metrics import Ranking, SharedTotals, StatementTotals, Totals, render_metrics
from powerprof.live.statements import format_label
from powerprof.measure.idle_counters import StateInfo
from powerprof.model.records import Kind
from powerprof.system.cgroups import UnitLabels
from tests.conftest import REPOSITORY
from tests.unit.live.intervals import interval, row, served, statement

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
        # A store drops labels without a value.
        (sample.name, frozenset(pair for pair in sample.labels.items() if pair[1])): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_both_formats_have_the_same_values() -> None:
    made = shared()
    text, kind = render_metrics(made)
    opened, open_kind = render_metrics(made, OPEN)
    assert kind.startswith("text/plain") and open_kind.startswith("application/openmetrics-text")
    assert values(text.decode()) == values(opened.decode(), OPEN)
    assert opened.endswith(b"# EOF\n")


def test_a_page_has_the_sums_of_all_intervals() -> None:
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


def test_ended_series_are_left_out() -> None:
    made = shared()
    made.add(interval(row("a", 1), energy=()))
    found = values(render_metrics(made)[0].decode())
    names = {name for name, _ in found}
    assert (
        not {"powerprof_finding", "powerprof_server_up", "powerprof_meter_up", "powerprof_server_queries_total"} & names
    )
    assert "powerprof_energy_joules_total" in names


def test_every_metric_is_in_the_reference() -> None:
    text, _ = render_metrics(shared())
    page = (REPOSITORY / "docs/reference/metrics.md").read_text(encoding="utf-8")
    families = {line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")}
    assert not {name for name in families if f"`{name}" not in page}


def test_figures_past_their_deadline_are_absent_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    made = SharedTotals(Totals(), {"version": "1"}, deadline_s=75.0, begun_s=100.0)
    server = ServerState(name="mariadbd:3306", up=True)
    now_s[0] += 75.0
    assert not made.has_stopped()
    now_s[0] += 0.1
    # The first interval is awaited too.
    assert (made.has_stopped(), made.is_late) == (True, False)
    made.add(interval(row("a", 10), servers=(server,), ended_at="1970-01-01T00:16:40.000Z"))
    now_s[0] += 75.0
    assert not made.has_stopped()
    names = {name for name, _ in values(render_metrics(made)[0].decode())}
    assert {"powerprof_server_up", "powerprof_wakeups_total", "powerprof_build_info"} <= names
    now_s[0] += 0.1
    assert made.has_stopped()
    for of in ("", OPEN):
        late = values(render_metrics(made, of)[0].decode(), of)
        assert late == {
            ("powerprof_last_interval_timestamp_seconds", frozenset()): 1000.0,
            ("powerprof_build_info", frozenset({("version", "1")})): 1.0,
        }
    made.add(interval(row("a", 10), ended_at="1970-01-01T00:18:20.000Z"))
    found = values(render_metrics(made)[0].decode())
    assert found[("powerprof_idle_exits_total", frozenset({("mechanism", "timer")}))] == 20


Seen = dict[RowKey | None, int]


def read(totals: Totals) -> Seen:
    """Read the counters; None stands for `other`."""
    seen: Seen = {key: place.exits_count for key, place in totals.rows.places.items()}
    seen[None] = totals.rows.rest.exits_count
    totals.mark_read()
    return seen


def increase(before: Seen, after: Seen) -> int:
    """Return the increase between two readings. A store ignores the first value of a series."""
    return sum(value - before[key] for key, value in after.items() if key in before)


@example([([(1, 0)], 1), ([(1, 1), (2, 1)], 1), ([], 1), ([], 1), ([(1, 0)], 1), ([(0, 1)], 2), ([], 1)], 2)
@given(
    st.lists(st.tuples(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 500)), max_size=12), st.integers(1, 4))),
    st.integers(0, 5),
)
def test_the_increase_of_all_series_is_that_of_the_host(
    story: list[tuple[list[tuple[int, int]], int]], top: int
) -> None:
    totals = Totals(Ranking(top, 45.0))
    before, exits_before = read(totals), 0
    for turn, (rows, every) in enumerate(story, 1):
        totals.add(interval(*(row(f"f{name}", count) for name, count in rows), untraced=1))
        if turn % every == 0:
            after, exits = read(totals), sum(totals.mechanisms.values())
            assert len(after) <= top + 1
            assert all(after[key] >= before[key] for key in after if key in before)
            assert increase(before, after) == exits - exits_before
            before, exits_before = after, exits


def test_memory_is_bounded_if_rows_never_repeat() -> None:
    totals = Totals(Ranking(5, 1e9))
    for number in range(300):
        totals.add(interval(*(row(f"f{number}-{n}", 1) for n in range(20))))
    assert len(totals.rows._recent) <= 5 + 20 * 5


Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


def statement_totals(top: int = 20) -> SharedTotals:
    return SharedTotals(Totals(statements=StatementTotals(top)), {"version": "1"})


def page(shown: SharedTotals, accept: str = "") -> Found:
    return values(render_metrics(shown, accept)[0].decode(), accept)


def serve(shown: SharedTotals, statements: ServedStatements) -> Found:
    """Add an interval and return the page."""
    shown.add(interval(row("a", 1), statements=statements))
    return page(shown)


def by_statement(found: Found, name: str) -> dict[str, float]:
    return {dict(labels)["statement"]: value for (own, labels), value in found.items() if own == name}


def test_a_statement_counts_after_its_zero_was_read() -> None:
    shown = statement_totals()
    for _ in range(3):
        found = serve(shown, served(statement("aa", 1.0, 4), statement("bb", 0.25)))
    assert by_statement(found, "powerprof_statement_cpu_seconds_total") == {"aa": 2.0, "bb": 0.5, "other": 2.75}
    assert by_statement(found, "powerprof_statement_wakeups_total") == {"aa": 8.0, "bb": 4.0, "other": 9.0}
    assert by_statement(found, "powerprof_statement_joules_total") == {"aa": 4.0, "bb": 1.0, "other": 5.5}
    assert by_statement(found, "powerprof_statement_info") == {"aa": 1.0, "bb": 1.0}
    server = ("server", "mariadbd:3306")
    assert found["powerprof_statements_measured_seconds_total", frozenset({server, ("method", "probes")})] == 30.0
    assert found["powerprof_statements_up", frozenset({server})] == 1.0
    assert page(shown, OPEN) == found


def test_series_and_memory_are_bounded_if_statements_never_repeat() -> None:
    shown = statement_totals(5)
    for number in range(30):
        rows = [statement(f"{number:03}{place:03}", 1.0) for place in range(20)]
        found = serve(shown, served(*rows))
        totals = shown.totals.statements.servers["mariadbd:3306"]
        assert len(by_statement(found, "powerprof_statement_cpu_seconds_total")) <= 6
        assert len(by_statement(found, "powerprof_statement_info")) <= 5
    assert len(totals.texts) <= 20 * 5 + 20


def test_the_series_of_a_displaced_statement_ends() -> None:
    shown = statement_totals(1)
    for _ in range(3):
        serve(shown, served(statement("aa", 1.0)))
    for _ in range(20):
        found = serve(shown, served(statement("bb", 9.0), statement("aa", 0.01)))
    assert set(by_statement(found, "powerprof_statement_cpu_seconds_total")) == {"bb", "other"}
    assert set(by_statement(found, "powerprof_statement_info")) == {"bb"}


def test_samples_have_no_wakeups_and_an_absent_server_no_figures() -> None:
    shown = statement_totals()
    for _ in range(2):
        serve(shown, served(statement("aa", 1.0)))
    sampled = served(statement("aa", 1.0, 0), method="samples", wakeups_count=None)
    shown.add(interval(row("a", 1), statements=sampled))
    found = page(shown)
    assert not by_statement(found, "powerprof_statement_wakeups_total")
    assert by_statement(found, "powerprof_statement_cpu_seconds_total")["aa"] == 2.0
    shown.add(interval(row("a", 1), statements=served(statement("new", 5.0))))
    shown.add(interval(row("a", 1), statements=msgspec.structs.replace(served(), method=None)))
    found = page(shown)
    assert {name for name, _ in found if "statement" in name} == {
        "powerprof_statements_up",
        "powerprof_statements_measured_seconds_total",
    }
    assert found["powerprof_statements_up", frozenset({("server", "mariadbd:3306")})] == 0.0
    shown.add(interval(row("a", 1), statements=served(statement("new", 5.0))))
    # Its 0 has not been read yet.
    assert by_statement(page(shown), "powerprof_statement_cpu_seconds_total")["new"] == 0.0


def test_measured_and_estimated_joules_are_not_summed() -> None:
    shown = statement_totals()
    for kind in ("measured", "measured", "estimated", None, "measured"):
        found = serve(shown, served(statement("aa", 1.0), kind=kind))
    joules = {key: value for key, value in found.items() if key[0] == "powerprof_statement_joules_total"}
    assert {dict(labels)["kind"] for _, labels in joules} == {"measured"}
    assert by_statement(found, "powerprof_statement_joules_total") == {"aa": 4.0, "other": 5.0}


def test_a_hostile_text_is_a_short_printable_label() -> None:
    hostile = 'SELECT `a"b\\c`,\n\t\x1b[31m\u202eé FROM t WHERE id = ?'
    text = format_label(hostile)
    assert text == 'SELECT `a"b\\c`, ?[31m?é FROM t WHERE id = ?'
    assert len(format_label("SELECT " + "column, " * 10_000)) == 120
    shown = statement_totals()
    shown.add(interval(row("a", 1), statements=served(statement("aa", 1.0, text=text))))
    for accept in ("", OPEN):
        info = [labels for (name, labels) in page(shown, accept) if name == "powerprof_statement_info"]
        assert [dict(labels)["text"] for labels in info] == [text]


COST = st.tuples(st.integers(0, 8), st.integers(0, 40), st.integers(0, 30), st.integers(0, 50))


@given(st.lists(st.tuples(st.lists(COST, max_size=6), st.integers(1, 3)), max_size=10), st.integers(0, 4))
def test_the_increase_of_all_series_is_that_of_the_whole_in_exits_seconds_and_joules(
    story: list[tuple[list[tuple[int, int, int, int]], int]], top: int
) -> None:
    """An eighth of a second per step: the sums are exact, also those of series that end and begin again."""
    ranking: Ranking[str] = Ranking(top, 25.0)
    seen: dict[str, tuple[float, float, float]] = {"other": (0, 0.0, 0.0)}
    grown = [0.0, 0.0, 0.0]
    whole = [0.0, 0.0, 0.0]
    for turn, (rows, every) in enumerate(story, 1):
        costs = {f"k{name}": (exits, eighths / 8) for name, exits, eighths, _ in rows}
        energy = {f"k{name}": joules / 8 for name, _, _, joules in rows}
        total = (
            sum(exits for exits, _ in costs.values()) + 1,
            sum(c0_s for _, c0_s in costs.values()) + 0.25,
            sum(energy.values()) + 0.5,
        )
        ranking.add(10.0, costs, *total[:2], energy, total[2])
        whole = [was + now for was, now in zip(whole, total, strict=True)]
        if turn % every == 0:
            shown = {**ranking.places, "other": ranking.rest}
            now = {key: (one.exits_count, one.c0_s, one.joules) for key, one in shown.items()}
            ranking.mark_read()
            for key, figures in now.items():
                for at, (was, new) in enumerate(zip(seen.get(key, figures), figures, strict=True)):
                    assert new >= was
                    grown[at] += new - was
            seen = now
            assert grown == whole


def test_a_place_is_taken_by_a_cost_of_one_and_a_half() -> None:
    """Exits and seconds are each half of a cost; costs fade by half in a minute."""
    for ratio, winner in ((1.45, "old"), (1.6, "new")):
        ranking: Ranking[str] = Ranking(1)
        for _ in range(3):
            ranking.add(10.0, {"old": (100, 1.0)}, 100, 1.0)
        for _ in range(400):
            ranking.add(10.0, {"old": (100, 1.0), "new": (round(100 * ratio), ratio)}, 300, 3.0)
        assert list(ranking.places) == [winner]
    by_time: Ranking[str] = Ranking(1)
    by_time.add(10.0, {"exits": (100, 0.0), "seconds": (0, 1.0), "both": (60, 0.6)}, 160, 1.6)
    assert list(by_time.places) == ["both"]
    faded: Ranking[str] = Ranking(2)
    faded.add(30.0, {"a": (10, 1.0)}, 10, 1.0)
    before = faded._recent["a"].cost
    faded.add(60.0, {"b": (10, 1.0)}, 10, 1.0)
    assert faded._recent["a"].cost == pytest.approx(before / 2)
    assert (faded._recent["a"].idle_for_s, faded._recent["b"].idle_for_s) == (60.0, 0.0)


def test_totals_are_sums_over_all_intervals_and_gauges_those_of_the_last() -> None:
    totals = Totals()
    first = interval(
        row("a", 30),
        untraced=4,
        window_s=9.5,
        idle_s={(0, "C1"): 4.0, (1, "C1"): 5.0, (1, "C6"): 2.5},
        idle_counts={(0, "C1"): IdleCounts(40, 3, None, 2), (1, "C1"): IdleCounts(10, None, None, 5)},
        own=OwnCost(cpu_s=0.5, wakeups_count=7, bpf_s=0.125, memory_bytes=60),
        lost_count=3,
        lost_stacks_count=11,
        suspended_s=2.0,
        balance_error=0.25,
        stacks_complete_percent=80.0,
        cpus=2,
    )
    second = msgspec.structs.replace(
        first,
        window_s=10.5,
        idle_s={(0, "C1"): -0.5, (1, "C1"): 6.0},
        idle_counts={(0, "C1"): IdleCounts(-3, 4, None, 1)},
        own=OwnCost(cpu_s=0.25, wakeups_count=2, bpf_s=None, memory_bytes=70),
        balance_error=None,
        stacks_complete_percent=62.5,
        cpus=1,
        traced_percent=12.5,
        max_cost_percent=2.0,
    )
    totals.add(first)
    totals.add(second)
    assert totals.idle_s == {("0", "C1"): 4.0, ("1", "C1"): 11.0, ("1", "C6"): 2.5}
    # A counter that the kernel lacks has no series, and none runs back.
    assert totals.idle_counts == {
        "entries": {("0", "C1"): 40, ("1", "C1"): 10},
        "above": {("0", "C1"): 7},
        "rejected": {("0", "C1"): 3, ("1", "C1"): 5},
    }
    assert (totals.intervals_count, totals.measured_s, totals.suspended_s) == (2, 20.0, 4.0)
    assert (totals.lost_count, totals.lost_stacks_count) == (6, 22)
    assert (totals.own_cpu_s, totals.own_bpf_s, totals.own_wakeups_count) == (0.75, 0.125, 9)
    assert (totals.own_memory_bytes, totals.cpus) == (70, 1)
    assert (totals.balance_error, totals.stacks_complete_percent) == (None, 62.5)
    assert (totals.mechanisms["timer"], totals.mechanisms["untraced"], totals.mechanisms["ipi"]) == (60, 8, 0)
    found = page(SharedTotals(totals, {"version": "1"}))
    plain_names = {name: value for (name, labels), value in found.items() if not labels}
    assert plain_names == {
        "powerprof_lost_events_total": 6,
        "powerprof_lost_stacks_total": 22,
        "powerprof_measured_seconds_total": 20.0,
        "powerprof_intervals_total": 2,
        "powerprof_suspended_seconds_total": 4.0,
        "powerprof_tool_cpu_seconds_total": 0.75,
        "powerprof_tool_bpf_seconds_total": 0.125,
        "powerprof_tool_wakeups_total": 9,
        "powerprof_stacks_complete_ratio": 0.625,
        "powerprof_traced_ratio": 0.125,
        "powerprof_tool_max_cost_ratio": 0.02,
        "powerprof_tool_resident_bytes": 70,
        "powerprof_online_cpus": 1,
    }
    idle = {
        (dict(labels)["cpu"], dict(labels)["state"]): value
        for (name, labels), value in found.items()
        if name == "powerprof_idle_above_total"
    }
    assert idle == {("0", "C1"): 7}
    assert not any(name == "powerprof_idle_below_total" for name, _ in found)
    together = Totals(per_cpu=False)
    together.add(first)
    assert together.idle_counts["entries"] == {("all", "C1"): 50}
    assert together.idle_s == {("all", "C1"): 9.0, ("all", "C6"): 2.5}


def test_states_have_their_latency_and_what_is_unknown_is_named() -> None:
    states = (StateInfo("C1", False, latency_us=2, target_us=20), StateInfo("C6", False, disabled=True))
    totals = Totals()
    totals.add(interval(idle_states=states))
    totals.add(interval())
    infos = [dict(labels) for name, labels in page(SharedTotals(totals, {})) if name == "powerprof_idle_state_info"]
    assert sorted(infos, key=lambda one: one["state"]) == [
        {"state": "C1", "latency_us": "2", "target_us": "20", "disabled": "0"},
        {"state": "C6", "latency_us": "unknown", "target_us": "unknown", "disabled": "1"},
    ]


def test_meters_and_kinds_of_joules_are_apart_and_a_meter_without_a_figure_is_down() -> None:
    def joules(domain: str, amount: float | None, kind: Kind = "measured") -> Joules:
        return Joules(source="rapl", domain=domain, kind=kind, joules=amount)

    totals = Totals()
    totals.add(interval(energy=(joules("package-0", 30.0), joules("dram", 4.0)), host_joules=34.0))
    totals.add(interval(energy=(joules("package-0", None), joules("dram", -1.0)), host_joules=None))
    assert totals.joules == {("rapl", "package-0", "measured"): 30.0, ("rapl", "dram", "measured"): 4.0}
    assert totals.meters == {("rapl", "package-0"): False, ("rapl", "dram"): True}
    # A counter that stands still would show a host of 0 W.
    assert "powerprof_host_energy_joules_total" not in {name for name, _ in page(SharedTotals(totals, {}))}
    totals.add(interval(energy=(joules("model", 7.0, "estimated"),), host_joules=7.0, host_kind="estimated"))
    assert totals.host_joules == {"measured": 34.0, "estimated": 7.0}
    assert totals.meters == {("rapl", "model"): True}


def test_servers_have_their_role_lag_and_statements_while_they_are_up() -> None:
    replica = ServerState(name="a:1", up=True, role="replica", replication_healthy=True, lag_s=17.0, queries_count=40)
    away = ServerState(name="b:2", up=False, role="primary")
    totals = Totals()
    totals.add(interval(servers=(replica, away)))
    totals.add(interval(servers=(msgspec.structs.replace(replica, queries_count=2), away)))
    found = page(SharedTotals(totals, {}))

    def of(name: str) -> dict[str, float]:
        return {dict(labels)["server"]: value for (own, labels), value in found.items() if own == name}

    assert of("powerprof_server_up") == {"a:1": 1.0, "b:2": 0.0}
    assert [dict(labels) for name, labels in found if name == "powerprof_server_role"] == [
        {"server": "a:1", "role": "replica"}
    ]
    assert of("powerprof_replication_lag_seconds") == {"a:1": 17.0}
    assert of("powerprof_replication_healthy") == {"a:1": 1.0}
    assert of("powerprof_server_queries_total") == {"a:1": 42.0, "b:2": 0.0}
    totals.add(interval(servers=()))
    totals.add(interval(servers=(replica,)))
    assert totals.queries == {("a:1", "", "", "", ""): 40}


def test_series_of_a_pod_have_the_labels_of_kube_state_metrics() -> None:
    pod = UnitLabels(namespace="shop", pod="db-0", container="mariadb")
    server = ServerState(name="mariadbd:3306@shop/db-0/mariadb", up=True, role="standalone", place=pod)
    finding = LiveFinding(rule="stopped_server", severity="fault", text="stopped", server=server.name, place=pod)
    totals = Totals()
    units = ("pod shop/db-0: mariadb", "container web (docker)", "container web (podman)", "cron.service")
    rows = [msgspec.structs.replace(row("a", 10 + n), unit=unit) for n, unit in enumerate(units)]
    for _ in range(2):
        totals.add(interval(*rows, servers=(server,), findings=(finding,)))
        totals.mark_read()
    found = page(SharedTotals(totals, {}))
    labels = {"server": server.name, "namespace": "shop", "pod": "db-0", "container": "mariadb"}
    assert found["powerprof_server_up", frozenset(labels.items())] == 1
    assert found["powerprof_finding", frozenset({**labels, "rule": "stopped_server", "severity": "fault"}.items())] == 1
    del labels["server"]
    wakeups = {key: value for (name, key), value in found.items() if name == "powerprof_unit_wakeups_total"}
    assert wakeups == {
        frozenset(labels.items()): 10,
        frozenset({("container", "web")}): 11,
        frozenset({("unit", "container web (podman)")}): 12,
        frozenset({("unit", "cron.service")}): 13,
        frozenset({("unit", "other")}): 46,
    }


def test_units_have_the_seconds_of_their_rows_and_the_rest_is_the_host() -> None:
    def of(name: str, exits: int, c0_s: float, unit: str | None) -> IntervalRow:
        return msgspec.structs.replace(row(name, exits, c0_s), unit=unit)

    totals = Totals()
    rows = [
        of("a", 10, 0.25, "x.service"),
        of("b", 7, 0.5, "x.service"),
        of("c", 5, 0.125, "y.service"),
        of("d", 3, 0.0625, None),
    ]
    for _ in range(2):
        totals.add(interval(*rows, untraced=2, c0_s=1.5))
        totals.mark_read()
    places = {unit: (place.exits_count, place.c0_s) for unit, place in totals.units.places.items()}
    assert places == {"x.service": (17, 0.75), "y.service": (5, 0.125)}
    assert (totals.units.rest.exits_count, totals.units.rest.c0_s) == (2 * 27 - 22, 3.0 - 0.875)
    keys = {key.function: (place.exits_count, place.c0_s) for key, place in totals.rows.places.items()}
    assert keys == {"a": (10, 0.25), "b": (7, 0.5), "c": (5, 0.125), "d": (3, 0.0625)}
    assert (totals.rows.rest.exits_count, totals.rows.rest.c0_s) == (54 - 25, 3.0 - 0.9375)


def test_a_series_that_ends_and_begins_between_readings_has_no_cost_twice() -> None:
    """What it counted after the last reading has moved to the rest, so it continues from the value that was read."""
    ranking: Ranking[str] = Ranking(stale_s=25.0)
    cost = {"a": (10, 0.5)}
    ranking.add(10.0, cost, 12, 0.75, {"a": 2.0}, 3.0)
    ranking.mark_read()
    ranking.add(10.0, cost, 12, 0.75, {"a": 2.0}, 3.0)
    ranking.mark_read()
    read = (10, 0.5, 2.0, 12 + 2, 0.75 + 0.25, 3.0 + 1.0)

    def figures() -> tuple[float, ...]:
        place, rest = ranking.places["a"], ranking.rest
        return place.exits_count, place.c0_s, place.joules, rest.exits_count, rest.c0_s, rest.joules

    assert figures() == read
    ranking.add(10.0, cost, 12, 0.75, {"a": 2.0}, 3.0)
    assert figures() == (20, 1.0, 4.0, 16, 1.25, 5.0)
    for _ in range(3):
        ranking.add(10.0, {}, 2, 0.25, {}, 1.0)
    assert "a" not in ranking.places
    ranking.add(10.0, cost, 12, 0.75, {"a": 2.0}, 3.0)
    # The series is known to the reader, which saw 10 of its exits. All others are in the rest.
    place = ranking.places["a"]
    assert (place.read_count, place.read_c0_s, place.read_joules) == (10, 0.5, 2.0)
    assert figures() == (10, 0.5, 2.0, 54 - 10, 3.75 - 0.5, 15.0 - 2.0)


def test_joules_of_units_and_the_idle_floor_sum_to_the_host() -> None:
    rows = [msgspec.structs.replace(row("a", 10, 0.25), unit="x.service"), row("b", 5, 0.5)]
    totals = Totals()
    for _ in range(3):
        totals.add(interval(*rows, host_joules=30.0, idle_joules=21.0, unit_joules={"x.service": 2.5}))
        totals.mark_read()
    found = {dict(key)["unit"]: value for key, value in joules_of(totals).items()}
    # The first interval of a series counts as other, until a reader has seen its 0.
    assert found == {"x.service": 5.0, "idle": 63.0, "other": 22.0}
    assert sum(found.values()) == totals.host_joules["measured"]
    totals.add(interval(*rows, host_joules=None))
    assert joules_of(totals) == {}


def joules_of(totals: Totals) -> dict[frozenset[tuple[str, str]], float]:
    """Return the joules of units by their labels."""
    found = page(SharedTotals(totals, {}))
    assert all(dict(key)["kind"] == "measured" for name, key in found if name == "powerprof_unit_joules_total")
    return {key: value for (name, key), value in found.items() if name == "powerprof_unit_joules_total"}


def test_statements_of_all_servers_share_one_bound() -> None:
    shown = statement_totals(4)
    rows = [statement(f"{n:02}", 1.0 + n) for n in range(8)]
    first, second = served(*rows), served(*rows, server="mariadbd:3307")
    for _ in range(3):
        shown.add(interval(row("a", 1), statements=first))
        page(shown)
    names = ("powerprof_statement_cpu_seconds_total", "powerprof_statement_info")
    assert [len([name for name, _ in page(shown) if name == wanted]) for wanted in names] == [5, 4]
    for _ in range(3):
        shown.add(interval(row("a", 1), statements=first, other_statements=(second,)))
        found = page(shown)
    assert [len([name for name, _ in found if name == wanted]) for wanted in names] == [6, 4]
    for name in ("mariadbd:3306", "mariadbd:3307"):
        key = frozenset({("server", name), ("statement", "other")})
        assert found[names[0], key] > 0
    shown.add(interval(row("a", 1), statements=second))
    assert {dict(key)["server"] for name, key in page(shown) if name == "powerprof_statements_up"} == {"mariadbd:3307"}


def test_a_smaller_number_of_places_loses_no_cost() -> None:
    ranking: Ranking[str] = Ranking(3)
    for _ in range(3):
        ranking.add(10.0, {"a": (4, 1.0), "b": (3, 2.0), "c": (2, 4.0)}, 9, 7.0)
        ranking.mark_read()
    ranking.top = 1
    ranking.add(10.0, {"a": (4, 1.0), "b": (3, 2.0), "c": (2, 4.0)}, 9, 7.0)
    assert len(ranking.places) == 1
    # A store adds the increases of the series that it still sees, and the end of a series takes its unread costs along.
    assert sum(place.exits_count for place in ranking.places.values()) + ranking.rest.exits_count == 36 - 2 * 7
