# SPDX-License-Identifier: Apache-2.0
"""The two readings of a server: its error log, the CPU time of its threads, its counters and its clients."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from powerprof.diagnosis.collect import (
    CpuTimes,
    ServerReadings,
    Subject,
    _subtract_counts,
    build_evidence,
    compute_cpu_shares,
    read_cpu_times,
    read_log_end,
    summarise_log,
)
from powerprof.diagnosis.evidence import CpuShares, LogSummary, ServerFacts, StartsWatch
from powerprof.system import reader_child
from powerprof.system.errors import DataError
from powerprof.system.outside_files import read_outside_text
from tests.programs.cpu_time import least_cpu_s
from tests.unit.diagnosis.recorded_server import RecordedServer, Table
from tests.unit.live.records import attribution, cause, wakeup
from tests.unit.report.distinct_records import make

NOW = time.mktime((2026, 11, 20, 11, 40, 0, 0, 0, -1))


def test_evictions_are_counted_since_the_last_start_by_hand() -> None:
    same = "[ERROR] Error reading packet from server: A slave with the same server_uuid/server_id as this slave has"
    text = "\n".join(
        [
            f"2026-11-20 11:00:00 7 {same} connected to the master (server_errno=4052)",
            f"2026-11-20 11:36:00 7 {same} connected to the master (server_errno=4052)",
            "2026-11-20 11:36:30 9 [Note] Slave I/O thread: Failed reading log event, reconnecting to retry, log 'b.1'",
            "2026-11-20 11:37:00 9 [Note] Slave I/O thread: Start asynchronous replication to master 'r@[::1]:3306'",
            f"2026-11-20 11:38:00 9 {same} connected to the master (server_errno=4052)",
            "2026-11-20 11:38:00 9 [Note] Slave I/O thread: Failed reading log event, reconnecting to retry, log 'b.1'",
        ]
    )
    log = summarise_log(text, NOW)
    assert (log.same_id_count, log.same_id_last_s, log.retries_count) == (1, 120.0, 1)
    assert log.span_s == 240.0


@pytest.mark.parametrize("word", ["[ERROR] ", "[ERROR] Slave SQL", "[ERROR] Replica SQL for channel '"])
def test_time_for_a_line_grows_with_its_length(word: str) -> None:
    """An error quotes a statement, whose text any account of the primary may choose."""
    line = f"2026-11-20 11:39:30 8 {word * 30_000}"
    # A search from each [ERROR] took more than 9 s.
    assert least_cpu_s(lambda: summarise_log(line, NOW), 1.0) < 1.0


@pytest.mark.parametrize("when", ["2026-11-20 11:39:30 8", "261120 11:39:30"])
def test_starts_of_replicas_are_counted_by_server_id(when: str) -> None:
    text = "\n".join([f"{when} [Note] Start binlog_dump to slave_server(2), pos(binlog.000001, 1079)"] * 5)
    log = summarise_log(text, NOW)
    assert (log.dump_starts, log.dump_last_s) == ({"2": 5}, {"2": 30.0})


def test_messages_of_both_servers_are_understood() -> None:
    stamp = "2026-11-20 11:39:58 12"
    denied = f"{stamp} [Warning] Access denied for user 'repl'@'10.0.0.9' (using password: YES)"
    failed = "[MY-010584] [Repl] Replica SQL for channel 'a': Could not execute Write_rows event on table d.t"
    mariadb = "Slave SQL: Error 'x' on query. Default database: 'd'. Query: 'INSERT INTO t VALUES (5)' Gtid 0-1-5"
    log = summarise_log("\n".join([*[denied] * 3, f"{stamp} [ERROR] {mariadb}", f"{stamp} [ERROR] {failed}"]), NOW)
    assert log.denied == {"repl@10.0.0.9": 3}
    assert log.sql_errors_count == 2
    assert (log.sql_error or "").startswith("Could not execute Write_rows event")


def test_noise_is_ignored() -> None:
    assert summarise_log("\x00\x1b[2J999999 99:99:99 x\n2026-13-45 00:00:00 y\n" * 100, NOW).dump_starts == {}


def test_quoted_statement_is_not_a_login_and_has_no_values() -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - 2))
    quoted = "Query: 'INSERT INTO t VALUES ('Access denied for user 'secret'@'secret'')', Gtid 0-1-5, Internal MariaDB"
    log = summarise_log(
        f"{stamp} 5 [ERROR] Slave SQL: Error 'x' on query. Default database: 'd'. {quoted} error code: 1062"
    )
    assert (log.denied, log.sql_errors_count) == ({}, 1)
    assert log.sql_error == "Error on query: INSERT INTO t VALUES (?"


def test_times_with_a_zone_are_universal_and_other_times_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        now = datetime(2026, 11, 20, 6, 10, 0, tzinfo=UTC).timestamp()  # 11:40 local time
        dump = "[Note] Start binlog_dump to {}_server({}), pos(b.1, 4)"
        text = "\n".join(
            [
                f"2026-11-20T06:08:30.123456Z 8 {dump.format('replica', 2)}",
                f"2026-11-20 11:39:15 8 {dump.format('slave', 3)}",
                f"261120 11:38:05 {dump.format('slave', 4)}",
                f"2026-11-20T06:11:30Z 8 {dump.format('replica', 5)}",  # after now
                f"2026-11-20 11:29:50 8 {dump.format('slave', 6)}",  # before the span
            ]
        )
        log = summarise_log(text, now)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert log.dump_last_s == {"2": 90.0, "3": 45.0, "4": 115.0}
    assert log.span_s == 115.0


def test_each_message_has_its_count_and_its_age() -> None:
    def at(age_s: int, text: str) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S ", time.localtime(NOW - age_s)) + text

    denied = "5 [Warning] Access denied for user '{}'@'h'"
    error = "5 [ERROR] Slave SQL: Could not execute Write_rows event on table a.{}"
    lines = [
        at(599, denied.format("a")),
        at(500, "5 [Note] Failed reading log event, reconnecting to retry"),
        at(400, denied.format("b")),
        at(300, denied.format("a")),
        at(200, error.format("t")),
        at(150, error.format("u")),
        at(100, "5 [Note] Failed reading log event, reconnecting to retry"),
    ]
    log = summarise_log("\n".join(lines), NOW)
    assert (log.denied, log.denied_last_s) == ({"a@h": 2, "b@h": 1}, {"a@h": 300.0, "b@h": 400.0})
    assert (log.sql_errors_count, log.sql_error_last_s, log.retries_count, log.span_s) == (2, 150.0, 2, 599.0)
    assert log.sql_error == "Could not execute Write_rows event on table a.u"
    assert (log.same_id_count, log.same_id_last_s) == (0, None)
    assert summarise_log("", NOW) == LogSummary(span_s=0.0)


TIMES = st.integers(0, 10**10)


@given(TIMES, TIMES, TIMES, TIMES, TIMES, st.floats(0.5, 30.0))
def test_the_threads_and_ended_threads_are_the_process(
    used: int, new: int, idle: int, ended: int, before: int, span_s: float
) -> None:
    """Thread 2 began in the window, thread 3 did not run, and threads that ended used the rest."""
    first = CpuTimes(5.0, before + idle, {1: before, 3: idle})
    second = CpuTimes(5.0 + span_s, before + idle + used + new + ended, {1: before + used, 2: new, 3: idle})
    shares = compute_cpu_shares(first, second, {1: "thread/sql/main"})
    percents = {thread.tid: thread.percent for thread in shares.threads_cpu}
    expected = {1: 100 * used / (span_s * 1e9), 2: 100 * new / (span_s * 1e9)}
    assert percents == pytest.approx({tid: percent for tid, percent in expected.items() if percent})
    assert list(percents.values()) == sorted(percents.values(), reverse=True)
    assert shares.ended_cpu_percent == pytest.approx(100 * ended / (span_s * 1e9), abs=1e-6)
    assert sum(percents.values()) + shares.ended_cpu_percent == pytest.approx(shares.cpu_percent, abs=1e-6)


def test_without_two_readings_or_threads_shares_are_unknown() -> None:
    one, other = CpuTimes(5.0, 10**9, {}), CpuTimes(9.0, 3 * 10**9, {7: 5})
    assert compute_cpu_shares(one, other, {}) == CpuShares(cpu_percent=50.0)
    assert compute_cpu_shares(None, other, {}) == compute_cpu_shares(one, None, {}) == CpuShares()
    assert compute_cpu_shares(other, one, {}) == CpuShares()
    many = CpuTimes(9.0, 10**9, {tid: tid * 1000 for tid in range(1, 40)})
    shown = compute_cpu_shares(CpuTimes(5.0, 0, {1: 0}), many, {39: "x"}).threads_cpu
    assert [thread.tid for thread in shown] == list(range(39, 23, -1))
    assert (shown[0].name, shown[1].name) == ("x", None)


def test_cpu_times_are_those_of_the_schedulers_threads(fake_tree: Callable[[dict[str, str]], Path]) -> None:
    me = os.getpid()
    fake_tree({f"proc/{me}/task/{tid}/schedstat": f"{tid}000 77 5\n" for tid in (31, 32)})
    before = time.process_time_ns()
    times = read_cpu_times([me])
    assert times is not None
    assert times.threads_ns == {31: 31_000, 32: 32_000}
    assert before <= times.process_ns <= time.process_time_ns()
    assert read_cpu_times([2**22 + 1]) is None


def test_statements_of_a_connection_are_those_since_the_first_reading() -> None:
    before = {7: {"Com_select": 5, "Com_show_status": 40}, 8: {"Com_select": 9}}
    after = {7: {"Com_select": 8, "Com_show_status": 40}, 8: {"Com_select": 9}, 9: {"Com_select": 2}}
    assert _subtract_counts(before, after) == {7: {"Com_select": 3}, 9: {"Com_select": 2}}


def status(**counts: int) -> Table:
    return ("Variable_name", "Value"), list(counts.items())


def processes(*ids: int, user: str = "root", command: str = "Sleep") -> Table:
    names = ("ID", "USER", "HOST", "COMMAND", "TIME", "STATE", "TIME_MS", "TID", "QUERY_ID", "INFO")
    rows = [(id, user, "h:1", command, 3, "", 3500, 1000 + id, 5, "SELECT 'secret'") for id in ids]
    return names, rows


def readings(server: RecordedServer, names: int = 0) -> ServerReadings:
    """Read both ends of a window."""
    made = ServerReadings(server, [], None)
    made.read_before()
    for _ in range(names):
        made.read_thread_names()
    made.read_after()
    return made


def recorded(before: dict[str, int], after: dict[str, int], lists: list[Table]) -> RecordedServer:
    server = RecordedServer().set("SELECT CONNECTION_ID()", (("id",), [(5,)]))
    server.set("innodb_trx", (tuple("abcd"), [(11, "web", "h:1", 47)]))
    server.set("IS_USED_LOCK", (tuple("abcdefghijklmnop"), [(5, 6, *[None] * 14)]))
    server.set("SUBSTRING_INDEX(USER()", (("ID",), [(5,), (6,)]))
    server.set("SHOW GLOBAL STATUS", [status(**before), status(**after)])
    server.set("information_schema.processlist", lists)
    return server


def test_readings_of_a_window_are_without_own_connections_and_hide_what_is_always_hidden() -> None:
    lists = [processes(5, 6, 11), processes(5, 6, 12), processes(5, 6, 13), processes(5, 6, 14)]
    server = recorded({"Threads_connected": 8, "Questions": 100}, {"Threads_connected": 6, "Questions": 160}, lists)
    server.set("SHOW MASTER STATUS", [(("File", "Position"), [("b.1", at)]) for at in (700, 950)])
    server.set("SHOW BINLOG EVENTS", (("Event_type", "Server_id", "Info"), [("Query", 3, "BEGIN")]))
    made = readings(server)
    facts = made.facts
    assert [client.id for client in facts.clients_before] == [11]
    assert [[client.id for client in sample] for sample in facts.samples] == [[12], [13], *[[14]] * 6]
    # 5 are hidden at the start and 3 at the end: the others began or ended.
    assert (facts.hidden_connections_count, facts.other_instances_count) == (3, 1)
    (waiting,) = facts.open_transactions
    assert (waiting.connection, waiting.account, waiting.open_s) == (11, "web@h", 47)
    assert (facts.position_before_bytes, facts.position_after_bytes) == (700, 950)
    assert [event.server_id for event in facts.logged] == [3]
    assert made.window_s > 0
    assert facts.samples_span_s >= 7 * 0.04
    unknown = recorded({"Questions": 100}, {"Threads_connected": 6, "Questions": 160}, lists)
    assert readings(unknown).facts.hidden_connections_count is None


def test_another_file_of_the_binary_log_gives_no_positions() -> None:
    server = recorded({"Questions": 1}, {"Questions": 2}, [processes(5)])
    server.set("SHOW MASTER STATUS", [(("File", "Position"), [(file, 700)]) for file in ("b.1", "b.2")])
    facts = readings(server).facts
    assert (facts.position_before_bytes, facts.position_after_bytes, facts.logged) == (None, None, [])


@pytest.mark.parametrize("names", [0, 1, 3])
def test_own_statements_between_the_counters_are_known(names: int) -> None:
    """SHOW STATUS is one scan of as many rows as counters. The thread names are a scan of as many as threads."""
    server = recorded({"Questions": 1, "Com_select": 2, "Uptime": 3}, {"Questions": 9}, [processes(5)])
    threads = [(21, "thread/sql/main", None), (22, "thread/sql/manager", None)]
    server.set("THREAD_OS_ID, NAME", (("THREAD_OS_ID", "NAME", "C"), threads))
    assert readings(server, names).facts.own_counts == {
        "Com_show_status": 1,
        "Com_select": names + 1,
        "Select_scan": names + 2,
        "Rows_sent": 3 + 1 + 2 * names,
        "Handler_read_rnd_next": 3 + 1 + 2 * names,
    }


@pytest.mark.parametrize(
    ("before", "after", "command", "asks"),
    [
        ({"Com_binlog_dump": 4}, {"Com_binlog_dump": 5}, "Sleep", True),
        ({"Com_binlog_dump": 4}, {"Com_binlog_dump": 4}, "Sleep", False),
        ({"Com_register_slave": 4}, {"Com_register_slave": 6}, "Sleep", True),
        ({}, {"Slaves_connected": 1}, "Sleep", True),
        ({}, {"Slaves_connected": 0}, "Binlog Dump", True),
        ({"Threads_connected": 9}, {"Threads_connected": 9}, "Sleep", True),  # hidden connections
        ({"Threads_connected": 1}, {"Threads_connected": 1}, "Sleep", False),
    ],
)
def test_replicas_are_read_only_if_there_may_be_some(
    before: dict[str, int], after: dict[str, int], command: str, asks: bool
) -> None:
    server = recorded({**before, "Uptime": 1}, {**after, "Uptime": 2}, [processes(5, command=command)])
    server.set("innodb_trx", (tuple("abcd"), [(11, "web", "h:1", 47)]))
    server.set("IS_USED_LOCK", ((), ()))
    server.set("SHOW SLAVE HOSTS", (("Server_id", "Host", "Port"), [(2, "r", 3306)]))
    facts = readings(server).facts
    assert [replica.server_id for replica in facts.replicas] == ([2] if asks else [])
    assert ("SHOW SLAVE HOSTS" in server.statements) is asks


def test_the_evidence_of_a_server_has_its_windows_and_rows() -> None:
    server = recorded({"Questions": 100}, {"Questions": 160}, [processes(5)])
    server.set("SHOW GLOBAL VARIABLES", (("Variable_name", "Value"), [("PORT", 3307)]))
    made = readings(server)
    subject = Subject(None, "mysqld", server, "MySQL 8.4.3", None)
    record = attribution(wakeups=[wakeup(30), wakeup(10)], other_causes=[cause(4, mechanism="timer")])
    here = build_evidence(subject, made, record, 9.0, ["a note"])
    assert (here.window_s, here.traced_s, here.cpus, here.family) == (made.window_s, 4.0, 3, "mysql")
    assert here.exits_hz == pytest.approx(10.0)
    assert here.timers_hz == pytest.approx(44 / 4 / 3)
    assert (here.count_increase("Questions"), here.variables, here.asked) == (60, {"port": "3307"}, True)
    blind = build_evidence(Subject(None, "thing", None, "thing 1", None), ServerReadings(None, [], None), None, 9.0, [])
    assert (blind.window_s, blind.exits_hz, blind.timers_hz, blind.traced_s) == (9.0, None, None, None)
    assert (blind.family, blind.asked, blind.cpus) == ("thing", False, None)


def test_only_the_end_of_a_regular_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    folder = tmp_path / "77/fd"
    folder.mkdir(parents=True)
    (folder / "2").write_bytes(b"x" * (1 << 20) + b"end")
    text = read_log_end(77)
    assert text is not None
    assert (len(text), text[-3:]) == (256 << 10, "end")
    (folder / "2").unlink()
    os.mkfifo(folder / "2")
    assert read_log_end(77) is None
    assert read_log_end(78) is None


def opened_by_the_reader(path: Path) -> None:
    """Open a path as the reader process opens paths of other processes."""
    try:
        os.close(reader_child.open_regular(-1, b"", os.fsencode(path))[0])
    except OSError as error:
        assert error.errno == reader_child.NOT_REGULAR
    else:
        raise AssertionError("a pipe was opened")


@pytest.mark.parametrize("read", [opened_by_the_reader, lambda path: read_outside_text(path)])
def test_file_that_becomes_a_pipe_before_it_is_opened_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    path = tmp_path / "77/fd/2"
    path.parent.mkdir(parents=True)
    path.write_text("a log")
    with exchanged(path, lambda: (path.unlink(), os.mkfifo(path))), within(5.0):
        try:
            assert read(path) is None
        except DataError as error:
            assert error.reason == "not a regular file"


@pytest.mark.parametrize("read", [lambda path: read_log_end(77), lambda path: read_outside_text(path)])
def test_file_with_a_lease_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    """Opening it would break the lease and wait up to 45 s for its holder (/proc/sys/fs/lease-break-time)."""
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    path = tmp_path / "77/fd/2"
    path.parent.mkdir(parents=True)
    path.write_text("a log")
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    with path.open("r+") as held, within(5.0):
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        try:
            assert read(path) is None
        except DataError as error:
            assert error.reason == "another process holds a lease on it"


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise an error in a block that takes longer."""

    def end(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def exchanged(path: Path, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` immediately before `path` is opened, after all checks by name."""
    left = [act]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and left and arguments[0] in (path, str(path), os.fsencode(path)):
            left.pop()()

    sys.addaudithook(hook)
    try:
        yield
    finally:
        left.clear()


def test_the_evidence_has_every_fact_that_was_read() -> None:
    made = ServerReadings(None, [], None)
    made.facts, made.cpu, made.watch = (make(kind, known=True) for kind in (ServerFacts, CpuShares, StartsWatch))
    here = build_evidence(Subject(None, "mysqld", None, "MySQL 8.4.3", None), made, None, 9.0, [])
    for part in (made.facts, made.cpu, made.watch):
        assert {name: getattr(here, name) for name in part.__struct_fields__} == asdict(part)
