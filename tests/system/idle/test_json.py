# SPDX-License-Identifier: Apache-2.0
"""`powerprof idle --json -` is what scripts rely on: names, units, and sums that come out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from powerprof.model.records import IdleRun
from tests.conftest import REPOSITORY
from tests.programs.balance import check_balance, counts_idle_exits
from tests.system.idle.conftest import Measured

pytestmark = pytest.mark.alone  # judges the idleness or the speed of this host

UNITS = ("_s", "_ms", "_us", "_hz", "_mhz", "_percent", "_joules", "_watts", "_bytes", "_count")
# A unit is the whole name of some; others count or name things and have none. docs/reference/json.md lists them.
BARE_UNITS = {"joules", "watts", "percent", "count"}
WITHOUT_UNIT = {"cpus", "pid", "tid", "cpu", "cpu_family", "cpu_model_number", "cpu_stepping", "odds_low", "odds_high"}
# An estimate has the unit of its metric, which its delta or the key of its interval names.
ESTIMATE = {"mean", "low", "high"}
MECHANISMS = {"timer", "device", "ipi", "no_ipi", "tick", "unknown"}
PHASES = ["baseline", "server", "clients", "baseline-after"]


def numbers(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every number with the keys that lead to it."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from numbers(value, (*path, key))
    elif isinstance(node, list):
        for value in node:
            yield from numbers(value, path)
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield path, node


def has_unit(name: str) -> bool:
    """By its ending, or because the whole name is a unit."""
    return name.endswith(UNITS) or name in BARE_UNITS


def metric_has_unit(name: str) -> bool:
    """A metric may say of what after a colon: `residency_percent:C1`, `watts:rapl:package-0`."""
    return has_unit(name.split(":", maxsplit=1)[0])


def test_stdout_is_one_json_document_and_nothing_else_is_said(measured: Measured) -> None:
    assert measured.result.err == ""
    assert measured.result.out.endswith("}\n")
    assert measured.run["schema"] == "powerprof.run/1"


def test_the_keys_of_the_contract_are_there(measured: Measured) -> None:
    run = measured.run
    assert {"schema", "id", "command", "started_at", "host", "tool", "phases"} <= set(run)
    assert {"version", "cpu_s", "wakeups_hz"} <= set(run["tool"])
    assert [phase["name"] for phase in run["phases"]] == PHASES
    for phase in run["phases"]:
        assert {
            "name",
            "window_s",
            "cpus",
            "c0_percent",
            "idle_percent",
            "wakeups_hz",
            "states",
            "steal_percent",
            "energy",
            "causes",
        } <= set(phase)
        for state in phase["states"]:
            assert {
                "name",
                "residency_percent",
                "average_residency_ms",
                "entries_hz",
                "above_hz",
                "below_hz",
                "rejected_hz",
            } <= set(state)
        for reading in phase["energy"]:
            assert {"source", "domain", "kind", "joules", "watts"} <= set(reading)
            assert reading["kind"] in ("measured", "estimated")
        for cause in phase["causes"]:
            assert {"mechanism", "name", "process", "pid", "thread", "wakeups_hz", "percent"} <= set(cause)
            assert cause["mechanism"] in MECHANISMS
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", run["started_at"])


def test_every_number_says_its_unit(measured: Measured) -> None:
    wrong = set()
    for path, _ in numbers(measured.run):
        name = path[-1]
        if name in WITHOUT_UNIT or has_unit(name):
            continue
        if name in ESTIMATE and (path[-2] == "difference" or metric_has_unit(path[-2])):
            continue
        wrong.add(".".join(path))
    assert wrong == set()
    metrics = {delta["metric"] for delta in [*measured.run["deltas"], *measured.run["drift"]]}
    assert all(map(metric_has_unit, metrics))


def test_what_needs_no_unit_is_in_the_reference(measured: Measured) -> None:
    reference = (REPOSITORY / "docs/reference/json.md").read_text()
    for name in {*WITHOUT_UNIT, *ESTIMATE}:
        assert f"`{name}`" in reference


def test_no_number_stands_for_unknown(measured: Measured) -> None:
    """Power that nobody knows is null; nothing is negative but the bounds of intervals and what is left of a split."""
    signed = {*ESTIMATE, "residual_joules"}
    for path, value in numbers(measured.run):
        assert path[-1] in signed or value >= 0, path
    for phase in measured.run["phases"]:
        assert all(reading["joules"] is None or reading["joules"] > 0 for reading in phase["energy"])


@pytest.mark.parametrize("name", PHASES)
def test_c0_and_the_residencies_are_all_the_time(measured: Measured, name: str) -> None:
    phase = measured.phase(name)
    for part in (phase, *phase["windows"]):
        idle = sum(state["residency_percent"] for state in part["states"])
        # Without a cpuidle driver the states are unknown.
        assert bool(part["states"]) == counts_idle_exits()
        assert not part["states"] or part["c0_percent"] + idle == pytest.approx(100.0, abs=0.5)
        assert part["c0_percent"] >= 0
        assert part["c0_percent"] + part["idle_percent"] == pytest.approx(100.0)


@pytest.mark.parametrize("name", ["baseline", "server", "clients"])
def test_every_idle_exit_is_accounted_for(measured: Measured, name: str) -> None:
    phase = measured.phase(name)
    balance = phase["conservation"]
    parts = balance["classified_count"] + balance["unknown_count"] + balance["lost_count"]
    assert parts == balance["idle_exits_count"] > 0
    check_balance(balance, exits=2 * phase["cpus"])
    assert balance["classified_count"] >= 0.98 * parts
    assert balance["coverage_percent"] == pytest.approx(100.0 * balance["classified_count"] / parts)


@pytest.mark.parametrize("name", ["baseline", "server", "clients"])
def test_the_causes_are_the_classified_and_unknown_exits(measured: Measured, name: str) -> None:
    phase = measured.phase(name)
    causes, balance = phase["causes"], phase["conservation"]
    counts = [cause["count"] for cause in causes]
    assert sum(counts) == balance["classified_count"] + balance["unknown_count"]
    assert counts == sorted(counts, reverse=True)
    assert sum(cause["percent"] for cause in causes) == pytest.approx(100.0)
    for cause in causes:
        assert cause["wakeups_hz"] * phase["traced_window_s"] == pytest.approx(cause["count"])
    unknown = sum(cause["count"] for cause in causes if cause["mechanism"] == "unknown")
    assert unknown == balance["unknown_count"]


def test_the_servers_threads_have_the_names_of_performance_schema(measured: Measured) -> None:
    """MariaDB's statement timer wakes 2.5 times a second, its page cleaner once; not each finds its CPU idle."""
    causes = [cause for name in ("server", "clients") for cause in measured.phase(name)["causes"]]
    threads = {cause["thread"] for cause in causes if cause["process"] == "mariadbd"}
    assert any("/" in (thread or "") for thread in threads), threads


def test_server_has_one_name_in_causes_and_energy(measured: Measured) -> None:
    pid = measured.run["server"]["pid"]
    for name in ("server", "clients"):
        phase = measured.phase(name)
        named = {cause["process"] for cause in phase["causes"] if cause["pid"] == pid}
        # A worker of the kernel for the server's io_uring is a thread of it, with a name of the kernel.
        names = {process for process in named if not process.startswith("iou-wrk-")}
        groups = {group["name"] for window in phase["windows"] for group in window["processes"]}
        assert names <= groups


def test_the_windows_last_as_long_as_asked(measured: Measured) -> None:
    """An edge takes about a millisecond; a busy machine is late, never early."""
    counts = {"baseline": 2, "server": 2, "clients": 2, "baseline-after": 2}
    for name, count in counts.items():
        windows = measured.phase(name)["windows"]
        assert len(windows) == count
        assert all(0.99 <= window["window_s"] <= 2.0 for window in windows)


def test_the_deltas_are_the_differences_of_the_phases(measured: Measured) -> None:
    for delta in measured.run["deltas"]:
        if delta["metric"] not in ("c0_percent", "wakeups_hz"):
            continue
        before, after = (measured.phase(delta[key])[delta["metric"]] for key in ("from_phase", "to_phase"))
        difference = delta["difference"]
        assert difference["mean"] == pytest.approx(after - before)
        assert difference["low"] <= difference["mean"] <= difference["high"]
    pairs = {(delta["from_phase"], delta["to_phase"]) for delta in measured.run["deltas"]}
    assert pairs == {("baseline", "server"), ("baseline", "clients"), ("server", "clients")}


def test_the_saved_run_is_what_was_printed(measured: Measured) -> None:
    saved = measured.cli.home / "state/powerprof/runs" / measured.run["id"] / "run.json"
    assert saved.read_text() == measured.result.out
    assert saved.stat().st_mode & 0o077 == 0


def test_the_record_is_read_back_whole(measured: Measured) -> None:
    again = msgspec.json.decode(measured.result.out.encode(), type=IdleRun)
    assert msgspec.json.decode(msgspec.json.encode(again)) == measured.run


def test_the_json_schema_of_the_reference_fits(measured: Measured, tmp_path: Path) -> None:
    """The tables of the reference name every field that a run has."""
    reference = (REPOSITORY / "docs/reference/json.md").read_text()
    names = {name for path, _ in numbers(measured.run) for name in path if "intervals" not in path}
    names -= set(measured.run["host"]["mitigations"])
    missing = {name for name in names if f"`{name}`" not in reference}
    assert missing == set()


def test_the_servers_own_exits_are_those_of_its_causes(measured: Measured) -> None:
    pid = measured.run["server"]["pid"]
    for name in ("server", "clients"):
        phase = measured.phase(name)
        exits = phase["server_exits"]
        assert exits["count"] == sum(cause["count"] for cause in phase["causes"] if cause["pid"] == pid)
        assert exits["window_s"] == phase["traced_window_s"]
        assert exits["wakeups_hz"]["mean"] == pytest.approx(exits["count"] / exits["window_s"])
        assert exits["wakeups_hz"]["low"] <= exits["wakeups_hz"]["mean"] <= exits["wakeups_hz"]["high"]
        assert sum(exits["blocks_count"]) == pytest.approx(exits["count"] if any(exits["blocks_count"]) else 0)
    assert measured.phase("baseline").get("server_exits") is None
