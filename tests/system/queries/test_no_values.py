# SPDX-License-Identifier: Apache-2.0
"""Statements of clients hold one word as value, comment and password: no record, page or log has it in any form."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.database.replication_status import read_replication_status
from powerprof.database.server_options import ServerOptions
from powerprof.database.topology import ServerTopology
from powerprof.system.errors import PowerprofError
from tests.conftest import Cli
from tests.programs.option_files import write_options
from tests.programs.waiting import wait_until
from tests.system.live.test_export import exporter
from tests.system.queries.postgres_work import DATABASE, client, run, shop

pytestmark = pytest.mark.usefixtures("mariadbd", "root_bpf")
Exclusive = Callable[[], AbstractContextManager[None]]

WORD, NUMBER = "Zanzibar77", "411122223333"
FORBIDDEN = [form.lower().encode() for form in (WORD, NUMBER, WORD.encode().hex())]
_HEX = WORD.encode().hex()
# What each of these sent last is what performance_schema keeps of it; some of them fail.
LAST = (
    f"SELECT '{WORD}', {NUMBER}, 0x{_HEX}, x'{_HEX}' /* {WORD} */ -- {WORD}",
    f"CREATE USER IF NOT EXISTS other@localhost IDENTIFIED BY '{WORD}'",
    f"SET PASSWORD FOR other@localhost = PASSWORD('{WORD}')",
    f"CREATE OR REPLACE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (USER 'u', PASSWORD '{WORD}')",
    *(f"CALL shop.p('{WORD}')", f"SELECT 'it\\'s', '{WORD}', \"{WORD}\" FROM shop.t WHERE b = '{WORD}'"),
    f"SELECT '{'x' * 180}', '{WORD} and the text is cut at 200 characters'",
    *(f"SELECT '\\', '{WORD}', 'and no more", f"INSERT INTO shop.t VALUES (1, '{WORD}')"),
    f"SELECT nothing FROM shop.t WHERE b = '{WORD}' AND!",
    f"SELECT a FROM shop.t WHERE b = 'O'{WORD}' AND b = '{WORD}'",
    f"SELECT a FROM shop.t WHERE b = 'O'{WORD}' OR b = 'O'{WORD}'",
    f"PREPARE one FROM 'SELECT ''{WORD}'' /* {WORD} */'",
)
_FORMS = ("html", "md", "csv", "json", "otlp")
_SCHEMA = (
    *("CREATE DATABASE shop", "CREATE TABLE shop.t (a BIGINT PRIMARY KEY, b VARCHAR(100))"),
    *("CREATE TABLE shop.jobs (token VARCHAR(100), done INT)", f"INSERT INTO shop.jobs VALUES ('{WORD}', 0)"),
    f"CREATE PROCEDURE shop.p(x VARCHAR(100)) SELECT x, '{WORD}'",
    f"CREATE EVENT shop.e ON SCHEDULE EVERY 1 SECOND DO SELECT SLEEP(0.7), '{WORD}' INTO @a, @b /* {WORD} */",
)


@contextmanager
def clients(server: PrivateServer) -> Iterator[None]:
    """Sleeping, waiting, failing, polling and writing ones."""
    stop = threading.Event()

    def again(text: str, pause_s: float) -> None:
        with suppress(PowerprofError), server.connect() as connection:
            while not stop.wait(pause_s):
                sql.fetch_rows(connection, text)

    with ExitStack() as stack:
        for text in LAST:
            connection = stack.enter_context(server.connect())
            with suppress(PowerprofError):
                sql.fetch_rows(connection, text)
        holder = stack.enter_context(server.connect())
        sql.execute(holder, "BEGIN", f"UPDATE shop.jobs SET done = 1 WHERE token = '{WORD}'")
        threads = [
            threading.Thread(target=again, args=arguments, daemon=True)
            for arguments in (
                (f"SELECT SLEEP(30), '{WORD}' /* {WORD} */", 0.0),
                (f"UPDATE shop.jobs SET done = 2 WHERE token = '{WORD}'", 0.0),
                (f"SELECT done FROM shop.jobs WHERE token = 'none-{WORD}'", 0.02),
                (f"INSERT INTO shop.t SELECT MAX(a) + 1, '{WORD}' FROM shop.t", 0.3),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            with server.connect() as connection:
                # Not by LIKE, whose own text would fit: that connection would be killed first.
                asleep = "SELECT id FROM information_schema.processlist WHERE LOCATE('SELECT SLEEP(30)', info) = 1"
                for (number,) in sql.fetch_rows(connection, asleep, columns=1):
                    with suppress(PowerprofError):
                        sql.execute(connection, f"KILL {number}")
            holder.close()
            for thread in threads:
                thread.join(20)


def option_file(server: PrivateServer, folder: Path) -> Path:
    return write_options(folder / f"{server.options.name}.cnf", server.login)


def clean(where: str, text: str | bytes) -> None:
    data = text.encode() if isinstance(text, str) else text
    found = [form for form in FORBIDDEN if form in data.lower()]
    at = data.lower().find(found[0]) if found else 0
    assert not found, f"{where}: …{data[max(0, at - 200) : at + 80]!r}"


def every_form(cli: Cli, folder: Path, *words: str) -> dict[str, Any]:
    """The record of a command; all that it prints and saves, and each document of it, is clean."""
    command, runs = words[0], folder / f"runs-{words[0]}"
    done = cli(["--runs-dir", str(runs), *words], timeout=120)
    assert done.code == 0, done.err
    clean(f"{command}: stdout", done.out)
    clean(f"{command}: stderr", done.err)
    saved = sorted(runs.glob(f"{command}-*/run.json"))
    targets = {form: folder / f"{saved[-1].parent.name}.{form}" for form in _FORMS}
    if command != "attribute":
        del targets["otlp"]
    report = cli(["report", str(saved[-1]), *(word for target in targets.values() for word in ("-o", str(target)))])
    assert report.code == 0, report.err
    clean(f"{command}: report", report.out + report.err)
    for form, target in targets.items():
        clean(f"{command} {form}", target.read_bytes())
    for path in saved[-1].parent.iterdir():
        data = path.read_bytes()
        clean(f"{command}: {path.name}", zlib.decompress(data) if path.suffix == ".bin" else data)
    record: dict[str, Any] = json.loads(saved[-1].read_bytes())
    return record


def printed(cli: Cli, *words: str) -> str:
    done = cli(list(words), timeout=120)
    assert done.code == 0, done.err
    clean(" ".join(words), done.out + done.err)
    return done.out


def page(cli: Cli, *words: str) -> str:
    with exporter(cli, "--interval", "1", "--ask-every", "1", *words, limited=False) as (port, _):
        deadline_s, text = time.monotonic() + 60, ""
        while 'text="SELECT ' not in text:
            assert time.monotonic() < deadline_s, "no series of statements"
            time.sleep(0.5)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
                text = reply.read().decode()
    clean("export", text)
    return text


@pytest.mark.parametrize("performance_schema", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_word_of_all_statements_of_mariadb(
    performance_schema: bool, powerprof_cli: Cli, tmp_path: Path, exclusive_statements: Exclusive
) -> None:
    settings = {
        "performance-schema": performance_schema,
        "performance-schema-consumer-events-statements-current": True,
        "binlog-format": "STATEMENT",
        "event-scheduler": True,
    }
    with ServerTopology("primary-replica", 2, options=ServerOptions(settings=settings)) as topology:
        primary, replica = (topology[name].server for name in ("primary", "replica-1"))
        with primary.connect() as connection, replica.connect() as other:
            sql.execute(connection, *_SCHEMA)
            wait_until(lambda: sql.fetch_rows(other, "SHOW TABLES FROM shop LIKE 'jobs'"), "the schema on the replica")
            sql.execute(other, f"INSERT INTO shop.t VALUES (1, 'other {WORD}')")
            sql.execute(connection, f"INSERT INTO shop.t VALUES (1, '{WORD}')")
            wait_until(lambda: read_replication_status(other)[0].sql_running is False, "an error of replication")
        account, cli = option_file(primary, tmp_path), powerprof_cli
        named = ("--pid", str(primary.pid), "--defaults-file", str(account))
        with clients(primary):
            look = every_form(cli, tmp_path, "diagnose", *named, "--all", "--duration", "1")["evidence"]
            queries = every_form(cli, tmp_path, "queries", *named, "--duration", "1", "--meter", "none")
            if performance_schema:  # these commands read the same tables without it
                every_form(cli, tmp_path, "attribute", "--pid", str(primary.pid), "--duration", "1")
                printed(cli, "cure", *named)
                watched = ("watch", "--system", "--json-lines", "--interval", "1", "--ask-every", "1", "--count", "2")
                with exclusive_statements():
                    printed(cli, *watched, "--defaults-file", str(account))
                    page(cli, "--defaults-file", str(account), "--statements", str(primary.pid))
        on_replica = ("--pid", str(replica.pid), "--defaults-file", str(option_file(replica, tmp_path)))
        stopped = every_form(cli, tmp_path, "diagnose", *on_replica, "--duration", "1")
    seen = {one["statement"] for sample in [look["clients_before"], *look["samples"]] for one in sample}
    assert "SELECT SLEEP(?), ?" in seen
    assert "UPDATE shop.jobs SET done = ? WHERE token = ?" in seen
    assert bool(look.get("last_statements")) == performance_schema
    assert any("INSERT INTO shop.t SELECT MAX(a) + ?, … FROM shop.t" in one["info"] for one in look["logged"]), look[
        "logged"
    ]
    assert "SELECT done FROM shop.jobs WHERE token = ?" in {one["text"] for one in queries["statements"]}
    (fault,) = (one for one in stopped["findings"] if one["rule"] == "replication_stopped")
    assert fault["evidence"][0].startswith("Error on query: INSERT INTO shop.t VALUES (?, …)")
    assert stopped["evidence"]["log"]["sql_error"].startswith("Error on query: INSERT INTO shop.t VALUES (?, …)")


_OF_POSTGRES = (
    f"SELECT '{WORD}', {NUMBER}, E'\\x{_HEX[:2]}{WORD}', $${WORD}$$, $tag$ {WORD} $tag$ /* {WORD} */ -- {WORD}",
    *(f"CREATE ROLE other PASSWORD '{WORD}'", f"ALTER ROLE other WITH PASSWORD '{WORD}'"),
    *(f"PREPARE one AS SELECT '{WORD}'::text", "EXECUTE one", f"DO $$ BEGIN PERFORM '{WORD}'; END $$"),
    f"NOTIFY channel, '{WORD}'",
)


def test_a_word_of_all_statements_of_postgresql(
    powerprof_cli: Cli, tmp_path: Path, exclusive_statements: Exclusive
) -> None:
    with shop(settings={"log_statement": "all"}) as server, ExitStack() as stack:
        stop = threading.Event()
        handles = [stack.enter_context(client(server)) for _ in range(3)]
        run(handles[0], "CREATE TABLE jobs (token text)")
        run(handles[1], f"BEGIN; INSERT INTO jobs VALUES ('{WORD}')")

        def work() -> None:
            number = 0
            while not stop.wait(0.02):
                number += 1
                handles[2].exec_(_OF_POSTGRES[number % len(_OF_POSTGRES)].encode())
                handles[2].exec_(f"SELECT count(*) FROM jobs WHERE token = '{WORD}' {'AND' * (number % 2)}".encode())

        thread = threading.Thread(target=work)
        thread.start()
        try:
            named = ("--pid", str(server.pid))
            words = ("queries", *named, "--duration", "1", "--meter", "none")
            record = every_form(powerprof_cli, tmp_path, *words)
            every_form(powerprof_cli, tmp_path, "diagnose", *named, "--all", "--duration", "1")
            with exclusive_statements():
                printed(powerprof_cli, "watch", "--system", "--json-lines", "--interval", "1", "--count", "2")
                page(powerprof_cli, "--statements", str(server.pid))
        finally:
            stop.set()
            thread.join()
    assert "SELECT count(*) FROM jobs WHERE token = ?" in {one["text"] for one in record["statements"]}
    assert DATABASE in {one["schema_name"] for one in record["statements"]}
