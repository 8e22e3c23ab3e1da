# SPDX-License-Identifier: Apache-2.0
"""Rules on PostgreSQL by SQL: each finds its fault in made-up facts, and is silent next to it."""

from __future__ import annotations

from typing import Any

import pytest

from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import Evidence, Finding, OpenTransaction, StatementCpu, StatementWindow
from powerprof.diagnosis.postgres_evidence import (
    DatabaseCounts,
    PostgresFacts,
    ReplicationSlot,
    RunningVacuum,
    Session,
    Subscription,
    format_setting,
)
from tests.unit.diagnosis.examples import evidence

_MIB = 1 << 20


def postgres(before: dict[str, Any], after: dict[str, Any], **fields: Any) -> Evidence:
    """Return the evidence of 8 s between two readings."""
    base: dict[str, Any] = {"version": "PostgreSQL 15.18", "family": "postgres", "window_s": 8.0}
    readings = [PostgresFacts(**{"version": 150_018, **facts}) for facts in (before, after)]
    return evidence(**{**base, "postgres_before": readings[0], "postgres_after": readings[1], **fields})


def find(here: Evidence, rule: str) -> list[Finding]:
    return [finding for finding in diagnose(here) if finding.rule == rule and finding.severity == "fault"]


def writing(mib: float, requested: tuple[int, int], timed: int, **settings: str) -> Evidence:
    """Return a server that writes `mib` of WAL in the window."""
    return postgres(
        {"wal_bytes": 700 * _MIB, "counters": {"requested": requested[0], "timed": timed}},
        {"wal_bytes": round((700 + mib) * _MIB), "counters": {"requested": requested[1], "timed": timed}},
        variables={"max_wal_size": "64", "checkpoint_completion_target": "0.5", **settings},
    )


@pytest.mark.parametrize(
    ("mib", "requested", "timed", "count"),
    [
        (16.0, (9, 9), 3, 1),  # 64 MB / 1.5 at 2 MB/s: 21 s
        (12.0, (9, 9), 3, 1),  # 28 s
        (11.0, (9, 9), 3, 0),  # 31 s
        (16.0, (9, 9), 30, 0),  # A bulk load on a server whose checkpoints are timed.
        (16.0, (1, 3), 30, 1),  # Two requests in the window.
        (16.0, (1, 2), 30, 0),
        (0.0, (9, 9), 3, 0),
    ],
)
def test_checkpoints_are_frequent_by_the_rate_of_the_wal_and_the_counters(
    mib: float, requested: tuple[int, int], timed: int, count: int
) -> None:
    found = find(writing(mib, requested, timed), "frequent_checkpoints")
    assert len(found) == count
    for finding in found:
        assert f"checkpoint every {8 * 64 / 1.5 / mib:.0f} s" in finding.text
        assert finding.rate_hz == pytest.approx(mib / 8 / (64 / 1.5))
        assert "max_wal_size is 64 MB" in finding.evidence
        assert "ALTER SYSTEM SET max_wal_size TO '2GB'; SELECT pg_catalog.pg_reload_conf()" in finding.remedy[0]


@pytest.mark.parametrize(
    ("name", "short", "usual", "rate_hz"),
    [
        ("wal_writer_delay", "49", "50", 1000 / 49),
        ("bgwriter_delay", "10", "200", 100.0),
        ("checkpoint_timeout", "30", "60", 1 / 30),
        ("archive_timeout", "5", "0", 0.2),
        ("wal_receiver_status_interval", "1", "10", 1.0),
        ("wal_sender_timeout", "2000", "60000", 1.0),
    ],
)
def test_a_short_interval_is_a_fault_while_its_process_works(name: str, short: str, usual: str, rate_hz: float) -> None:
    worker = [Subscription(oid=5, name="orders", has_worker=True)]
    at_work: dict[str, Any] = {"wal_bytes": 8000, "senders_count": 1}

    def look(value: str, after: dict[str, Any], subscriptions: list[Subscription], **fields: Any) -> list[Finding]:
        settings = {"archive_mode": "on", name: value}
        here = postgres({"wal_bytes": 0}, after, variables=settings, subscriptions_after=subscriptions, **fields)
        return find(here, "short_interval")

    (finding,) = look(short, at_work, worker)
    assert name in finding.text
    assert finding.rate_hz == pytest.approx(rate_hz)
    assert finding.remedy[0].startswith(f"ALTER SYSTEM SET {name} TO '")
    assert look(usual, at_work, worker) == []
    assert look(short, {"wal_bytes": 7999}, []) == []
    counted = {"wal_bytes": 16 << 20, "counters": {"written": 7999}}  # The end of a closed file is not written.
    settings = {"archive_mode": "on", name: short}
    assert (
        find(postgres({"wal_bytes": 0, "counters": {"written": 0}}, counted, variables=settings), "short_interval")
        == []
    )
    # A trace counts the wake-ups of the writers themselves.
    assert len(look(short, at_work, worker, traced_s=8.0)) == int("delay" not in name)


def databases(*counts: tuple[str, int, int]) -> dict[str, Any]:
    return {
        "databases": [DatabaseCounts(name=name, files_count=files, file_bytes=size) for name, files, size in counts]
    }


@pytest.mark.parametrize(("files", "mib", "count"), [(3, 16, 1), (2, 16, 0), (3, 15, 0), (-4, -90, 0)])
def test_temporary_files_are_a_fault_by_their_number_and_size(files: int, mib: int, count: int) -> None:
    here = postgres(
        databases(("mall", 7, 7), ("shop", 40, 900 * _MIB)),
        databases(("new", 900, 900 * _MIB), ("mall", 8, 8), ("shop", 40 + files, (900 + mib) * _MIB)),
        variables={"work_mem": "8192"},
    )
    found = find(here, "temporary_files")
    assert len(found) == count
    for finding in found:
        assert "in the database shop write 2 MB/s" in finding.text
        assert finding.evidence == ["pg_stat_database: 3 files in 8.0 s, 5 MB each", "work_mem is 8 MB"]
        assert "work_mem TO '32MB'" in finding.remedy[0]


@pytest.mark.parametrize(
    ("jit", "calls_hz", "percent", "count"),
    [(50.0, 0.5, 4.0, 1), (49.0, 9.0, 4.0, 0), (90.0, 0.4, 4.0, 0), (90.0, 9.0, 0.1, 0)],
)
def test_jit_is_a_fault_if_it_is_most_of_a_repeated_statement(
    jit: float, calls_hz: float, percent: float, count: int
) -> None:
    use = StatementCpu(
        text="SELECT sum(id) FROM points", percent=percent, calls_hz=calls_hz, account='a"b@10.0.0.7', jit_percent=jit
    )
    window = StatementWindow(window_s=2.0, method="probes", percent=9.0, statements=[use])
    found = find(postgres({}, {}, statement_window=window), "costly_jit")
    assert len(found) == count
    for finding in found:
        assert 'a"b@10.0.0.7 sends SELECT sum(id) FROM points 0.50 times/s' in finding.text
        assert finding.remedy[0].endswith('ALTER ROLE "a""b" SET jit = off')


def vacuum(scanned: int, phase: str = "scanning heap", total: int = 9000) -> dict[str, Any]:
    worker = Session(pid=71, kind="autovacuum worker", state="active", table="public.slow")
    return {
        "vacuums": [RunningVacuum(pid=71, phase=phase, pages_count=total, scanned_count=scanned)],
        "sessions": [worker],
    }


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (vacuum(80), vacuum(96), "at 2.0 pages/s the rest of the table needs 1.2 h"),
        (vacuum(80), vacuum(80), "needs more than an hour"),
        (vacuum(1780), vacuum(1800), ""),  # 2.5 pages/s: 48 min
        (vacuum(80, "vacuuming indexes"), vacuum(80, "vacuuming indexes"), ""),
        ({}, vacuum(80), ""),
        (vacuum(80, total=8000), vacuum(80), ""),
    ],
)
def test_a_vacuum_is_endless_by_its_pace(before: dict[str, Any], after: dict[str, Any], text: str) -> None:
    found = find(postgres(before, after, variables={"autovacuum_vacuum_cost_delay": "100"}), "endless_vacuum")
    assert len(found) == bool(text)
    for finding in found:
        assert finding.text.startswith("Autovacuum of public.slow does not end")
        assert text in finding.text
        assert finding.evidence[1] == "autovacuum_vacuum_cost_delay is 100 ms"
        assert finding.remedy[-1].endswith("SELECT pg_catalog.pg_terminate_backend(71)")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"autovacuum_naptime": "14"}, ["Autovacuum starts a worker at least 0.07 times/s."]),
        ({"autovacuum_naptime": "15"}, []),
        ({"autovacuum_naptime": "1", "autovacuum": "off"}, []),
        (
            {"autovacuum_vacuum_threshold": "25", "autovacuum_vacuum_scale_factor": "0.001"},
            ["Autovacuum vacuums each table after 25 changed rows, however large the table is."],
        ),
        ({"autovacuum_vacuum_threshold": "26", "autovacuum_vacuum_scale_factor": "0"}, []),
        ({"autovacuum_vacuum_threshold": "0", "autovacuum_vacuum_scale_factor": "0.01"}, []),
    ],
)
def test_autovacuum_is_frequent_by_its_settings(settings: dict[str, str], words: list[str]) -> None:
    here = postgres({}, databases(("shop", 0, 0), ("mall", 0, 0)), variables=settings)
    found = find(here, "frequent_autovacuum")
    assert [finding.text for finding in found] == words
    assert all("ALTER SYSTEM SET autovacuum_" in finding.remedy[0] for finding in found)


def slot(name: str, **fields: Any) -> ReplicationSlot:
    return ReplicationSlot(**{"name": name, "kind": "physical", "active": False, "restart_bytes": 0, **fields})


@pytest.mark.parametrize(
    ("before", "after", "mib", "text"),
    [
        (
            slot("o'b"),
            slot("o'b"),
            128,
            "No standby or subscriber reads the physical replication slot o'b: it keeps 128 MB",
        ),
        (slot("o'b"), slot("o'b"), 127, ""),
        (slot("o'b", active=True), slot("o'b"), 900, ""),
        (slot("o'b"), slot("o'b", active=True), 900, ""),
        (slot("o'b"), slot("o'b", temporary=True), 900, ""),
        (slot("other"), slot("o'b"), 900, ""),
        (slot("o'b"), slot("o'b", restart_bytes=None, wal_status="lost"), 1, "its WAL is lost"),
        (slot("o'b"), slot("o'b", kind="logical"), 900, "and old row versions of the catalogs"),
    ],
)
def test_a_slot_without_a_reader_is_a_fault_by_the_wal_that_it_keeps(
    before: ReplicationSlot, after: ReplicationSlot, mib: int, text: str
) -> None:
    found = find(postgres({"slots": [before]}, {"slots": [after], "wal_bytes": mib * _MIB}), "inactive_slot")
    assert len(found) == bool(text)
    for finding in found:
        assert text in finding.text
        assert finding.remedy[1].endswith("SELECT pg_catalog.pg_drop_replication_slot('o''b')")


@pytest.mark.parametrize(("mib", "count"), [(8.0, 1), (7.9, 0), (-300.0, 0)])
def test_decoding_that_spills_is_a_fault_by_its_rate(mib: float, count: int) -> None:
    before = {"slots": [slot("reader", active=True, spilled_bytes=400 * _MIB)]}
    after = {
        "slots": [
            slot("reader", active=True, spilled_bytes=round((400 + mib) * _MIB)),
            slot("new", spilled_bytes=_MIB << 9),
        ]
    }
    found = find(postgres(before, after, variables={"logical_decoding_work_mem": "64"}), "spilled_decoding")
    assert len(found) == count
    assert all("slot reader writes 1.0 MB/s" in finding.text for finding in found)


@pytest.mark.parametrize(
    ("failed_s", "archived_s", "mode", "count"),
    [
        (5.0, None, "on", 1),
        (5.0, 90.0, "on", 1),
        (90.0, 5.0, "on", 0),
        (181.0, None, "on", 0),
        (5.0, None, "off", 0),
        (None, 5.0, "on", 0),
    ],
)
def test_the_archiver_fails_if_its_last_attempt_did(
    failed_s: float | None, archived_s: float | None, mode: str, count: int
) -> None:
    facts = {"failed_s": failed_s, "archived_s": archived_s, "counters": {"failed": 7}}
    found = find(postgres({}, facts, variables={"archive_mode": mode}), "failed_archiving")
    assert [finding.evidence for finding in found] == [["pg_stat_archiver: 7 failures, the last one 5.0 s ago"]] * count


@pytest.mark.parametrize(
    ("before", "after", "count"), [(False, False, 1), (True, False, 0), (False, True, 0), (None, None, 0)]
)
def test_an_enabled_subscription_without_a_worker_fails(before: bool | None, after: bool | None, count: int) -> None:
    def read(has_worker: bool | None, is_enabled: bool = True) -> list[Subscription]:
        return [Subscription(oid=7, name="orders", has_worker=has_worker, is_enabled=is_enabled)]

    here = postgres({}, {}, subscriptions_before=read(before), subscriptions_after=read(after))
    found = find(here, "restarted_worker")
    assert [finding.text for finding in found] == ["The logical subscription orders fails: it has no worker."] * count
    off = postgres({}, {}, subscriptions_before=read(before, False), subscriptions_after=read(after, False))
    assert find(off, "restarted_worker") == []


@pytest.mark.parametrize(
    ("open_s", "holds", "severity"),
    [(30.0, True, "fault"), (30.0, None, "fault"), (30.0, False, "note"), (29.0, True, "note")],
)
def test_an_idle_transaction_is_a_fault_if_it_lasts_and_keeps_versions(
    open_s: float, holds: bool | None, severity: str
) -> None:
    session = Session(pid=9, kind="client backend", user="app", host="10.0.0.7", application="nightly")
    transactions = [
        OpenTransaction(
            connection=pid, account="app@10.0.0.7", open_s=seconds, holds_versions=holds, statement="SELECT ?"
        )
        for pid, seconds in ((9, open_s), (8, 3.0))
    ]
    here = postgres({}, {"sessions": [session]}, open_transactions=transactions)
    (finding,) = [one for one in diagnose(here) if one.rule == "idle_transaction"]
    assert finding.severity == severity
    assert finding.text.startswith(
        f"app@10.0.0.7 leaves 2 transactions open and sends nothing, for at least {open_s:.0f} s"
    )
    assert finding.evidence[0] == "process 9 waits in a transaction: its last statement is SELECT ?"
    assert finding.evidence[-1] == "application_name of its clients: nightly (process 9)"
    assert finding.remedy[0].endswith("pg_terminate_backend(9)")
    assert 'ALTER ROLE "app" SET idle_in_transaction_session_timeout' in finding.remedy[-1]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("work_mem", "4096", "4 MB"),
        ("work_mem", "4097", "4097 kB"),
        ("max_wal_size", "2048", "2 GB"),
        ("min_parallel_table_scan_size", "1024", "8 MB"),
        ("wal_writer_delay", "200", "200 ms"),
        ("autovacuum_vacuum_scale_factor", "0.2", "0.2"),
        ("work_mem", "0", "0 kB"),
    ],
)
def test_a_setting_has_its_unit(name: str, value: str, text: str) -> None:
    assert format_setting(name, value) == text
