# SPDX-License-Identifier: Apache-2.0
"""The clients of each kind of load."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from powerprof.database.base import Login
from powerprof.experiment import load_clients, sysbench
from powerprof.experiment.load import Context, LoadFailed, LoadOrder
from powerprof.system.errors import CapabilityError, UsageError
from powerprof.workloads.definition import Load

# sysbench 1.0.20, --rate=100 --time=3 --histogram=on, shortened.
REPORT = """\
sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)

Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       0.100 |************                             50
       0.200 |****************                         40
       0.500 |****                                     6
       1.000 |**                                       4

SQL statistics:
    ignored errors:                      2      (0.00 per sec.)

General statistics:
    total time:                          3.0162s
    total number of events:              100

Latency (ms):
         min:                                    0.05
         avg:                                    0.20
         max:                                    0.46
         95th percentile:                        0.34
"""


def test_a_report_of_sysbench_is_read() -> None:
    result = sysbench.parse_report(REPORT, elapsed_s=3.1)
    assert (result.queries, result.elapsed_s, result.mean_ms, result.errors) == (100, 3.0162, 0.20, 2)
    assert (result.p50_ms, result.p95_ms, result.p99_ms) == (0.1, 0.5, 1.0)


@pytest.mark.parametrize("text", ["", "FATAL: unable to connect", REPORT[:400]])
def test_malformed_reports_are_refused(text: str) -> None:
    with pytest.raises(LoadFailed, match="gave no report"):
        sysbench.parse_report(text, 1.0)


def test_percentiles_of_a_histogram() -> None:
    assert sysbench.percentile([(1.0, 1), (2.0, 98), (3.0, 1)], 50) == 2.0
    assert sysbench.percentile([(1.0, 99), (3.0, 1)], 99) == 1.0
    assert sysbench.percentile([], 50) is None


def test_a_report_of_mariadb_slap_is_read() -> None:
    text = "Benchmark\n\tAverage number of seconds to run all queries: 0.125 seconds\n\tNumber of clients"
    result = sysbench.parse_mariadb_slap(text, 0.2, 1001, Load(clients=4))
    assert (result.queries, result.elapsed_s) == (1000, 0.125)  # each client runs a whole share
    with pytest.raises(LoadFailed):
        sysbench.parse_mariadb_slap("error", 0.2, 10, Load())


def test_a_command_can_report_its_queries() -> None:
    result = load_clients.parse_command("working…\nqueries=1200\np95_ms: 2.5\n", 4.0)
    assert (result.queries, result.p95_ms, result.p99_ms, result.elapsed_s) == (1200, 2.5, None, 4.0)
    assert load_clients.parse_command("", 1.0).queries is None


def test_an_account_of_postgresql_is_named_by_its_sockets_folder_and_port(tmp_path: Path) -> None:
    login = Login(user="u", socket=Path("/run/x/.s.PGSQL.5433"), database="shop", family="postgresql")
    text = sysbench.write_config(Load(), SimpleNamespace(login=login))  # type: ignore[arg-type]
    assert text.splitlines() == [
        "db-driver=pgsql",
        "pgsql-user=u",
        "pgsql-password=",
        "pgsql-host=/run/x",
        "pgsql-port=5433",
        "pgsql-db=shop",
    ]


def test_places_of_a_command_are_filled_and_unknown_ones_refused() -> None:
    assert load_clients._fill("--socket={socket}", {"socket": "/run/s"}) == "--socket=/run/s"
    with pytest.raises(UsageError, match=r"no such place \{sokcet\}"):
        load_clients._fill("{sokcet}", {"socket": "/run/s"})


def test_only_the_client_account_can_read_its_files(tmp_path: Path) -> None:
    context = _java_context(tmp_path)
    path = context.file("client.cnf", b"secret")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_uid == path.parent.stat().st_uid
    link = context.place / "link"
    link.symlink_to(tmp_path / "elsewhere")
    context.file("link", b"x")
    assert not (tmp_path / "elsewhere").exists()


PGBENCH = """\
transaction type: /tmp/x/pgbench-0.sql
number of clients: 4
number of transactions actually processed: 4
number of failed transactions: 0 (0.000%)
latency average = 2.500 ms
"""


def test_transactions_within_a_window_are_counted_from_the_log(tmp_path: Path) -> None:
    now_s, ahead_s = time.time(), time.time() - time.monotonic()
    second, micro = int(now_s), int(now_s % 1 * 1e6)
    lines = [f"{client} 1 {us} 0 {second + client} {micro} 10" for client, us in enumerate((1000, 2000, 3000, 4000))]
    (tmp_path / "pgbench-log.17").write_text("\n".join(lines) + "\nnonsense\n1 2\n")
    result = load_clients.parse_pgbench(PGBENCH, 4.0, tmp_path)
    assert (result.queries, result.errors, result.mean_ms) == (4, 0, 2.5)
    assert (result.p50_ms, result.p95_ms, result.p99_ms) == (2.0, 4.0, 4.0)
    begin_s = now_s - ahead_s
    assert result.between(begin_s - 0.5, begin_s + 1.5) == 2
    assert result.between(begin_s + 10, begin_s + 20) == 0
    with pytest.raises(LoadFailed, match="gave no report"):
        load_clients.parse_pgbench("pgbench: error: connection failed", 1.0, tmp_path)


def test_statements_become_scripts_of_pgbench() -> None:
    load = Load(kind="pgbench")
    assert load_clients.pgbench_scripts(["SELECT {{uniform 1 9}}, {{uniform 2 3}};"], load) == [
        "\\set powerprof0 random(1, 9)\n\\set powerprof1 random(2, 3)\nSELECT :powerprof0, :powerprof1;\n"
    ]
    assert load_clients.pgbench_scripts(["SELECT 1", "SELECT 2"], Load(kind="pgbench", transaction=True)) == [
        "BEGIN;\nSELECT 1;\nSELECT 2;\nEND;\n"
    ]
    for statement in ("SELECT 1;\n  \\shell rm -r x", "\\setshell a id", "SELECT {{sequence}}"):
        with pytest.raises(UsageError):
            load_clients.pgbench_scripts([statement], load)


_SELECT = "SELECT Name FROM City WHERE ID = {{uniform 1 4079}} AND Population > {{uniform 5 9}}"


def _java_context(tmp_path: Path) -> Context:
    login = Login(user="powerprof", password="a\\b=é", host="127.0.0.1", port=3307, database="world")
    return Context(SimpleNamespace(), login, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("protocol", "connector", "said"),
    [
        ("text", "mysql-connector-j", ("jdbc:mysql://", "useServerPrepStmts=false", "cachePrepStmts=false")),
        ("prepare-each", "mysql-connector-j", ("jdbc:mysql://", "useServerPrepStmts=true", "cachePrepStmts=false")),
        ("prepare-once", "mariadb-connector-j", ("jdbc:mariadb://", "useServerPrepStmts=true", "cachePrepStmts=true")),
    ],
)
def test_the_settings_of_a_java_connector(tmp_path: Path, protocol: str, connector: str, said: tuple[str, ...]) -> None:
    load = Load(kind="connector-j", protocol=protocol, connector=connector, sql=[_SELECT])  # type: ignore[arg-type]
    order = LoadOrder(duration_s=2.5, rate_hz=1000.0, seed=7)
    text = load_clients.connector_properties(load, [_SELECT], _java_context(tmp_path), order)
    assert all(word in text for word in said)
    lines = dict(line.split("=", 1) for line in text.splitlines())
    assert lines["sql"] == "SELECT Name FROM City WHERE ID = ? AND Population > ?"
    assert (lines["bounds"], lines["rate_hz"], lines["duration_s"], lines["queries"]) == (
        "1 4079 5 9",
        "1000",
        "2.5",
        "0",
    )
    # As java.util.Properties.load takes it.
    assert lines["connector.password"] == "a\\\\b=\\u00e9"


@pytest.mark.parametrize(
    "load",
    [
        Load(kind="connector-j", sql=["SELECT 1", "SELECT 2"]),
        Load(kind="connector-j", sql=["SELECT {{sequence}}"]),
        Load(kind="connector-j", sql=["SELECT 1"], reconnect=True),
    ],
)
def test_unsupported_statements_of_a_java_connector_are_refused(tmp_path: Path, load: Load) -> None:
    with pytest.raises(UsageError, match="connector-j"):
        load_clients.connector_properties(load, load.sql, _java_context(tmp_path), LoadOrder(duration_s=1.0))


def test_a_missing_jdk_or_connector_has_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(kind="connector-j", sql=["SELECT 1"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CapabilityError, match=r"^java is not installed") as caught:
        load_clients.start_connector(load, load.sql, _java_context(tmp_path), LoadOrder(duration_s=1.0))
    assert caught.value.hint == "apt install default-jdk-headless"
    # A runtime alone cannot run a source file.
    monkeypatch.setattr(load_clients.programs, "need", _only_java)
    with pytest.raises(CapabilityError, match=r"^javac is not installed"):
        load_clients.start_connector(load, load.sql, _java_context(tmp_path), LoadOrder(duration_s=1.0))
    monkeypatch.setattr(load_clients.programs, "need", lambda name, package: Path("/bin/false"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CapabilityError, match="mysql-connector-j has not been fetched") as caught:
        load_clients.start_connector(load, load.sql, _java_context(tmp_path), LoadOrder(duration_s=1.0))
    assert caught.value.hint == "fetch it: powerprof servers fetch mysql-connector-j"


def _only_java(name: str, package: str) -> Path:
    if name == "java":
        return Path("/bin/false")
    raise CapabilityError(f"{name} is not installed", f"apt install {package}")
