# SPDX-License-Identifier: Apache-2.0
"""A cure of a setting of PostgreSQL: ALTER SYSTEM in windows, and the same text as before in postgresql.auto.conf."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.cure.records import Cure
from powerprof.model.runs import decode_record
from tests.conftest import Cli
from tests.programs.own_postgresql import OwnPostgresql, own_postgresql
from tests.programs.waiting import wait_until
from tests.system.cure.test_cure import keeper_of, kill_both, with_own_journal

pytestmark = pytest.mark.usefixtures("root_bpf")
# ALTER SYSTEM has to keep a quote and a backslash.
_PREFIX = r"it''s \ %m "
_UNSET = "unset in postgresql.auto.conf"


@pytest.fixture(scope="module")
def server() -> Iterator[OwnPostgresql]:
    with own_postgresql() as running:
        running.execute(
            f"ALTER SYSTEM SET log_line_prefix = '{_PREFIX}'",
            "SELECT pg_reload_conf()",
            "CREATE ROLE app",
            "CREATE DATABASE shop",
            "ALTER ROLE app IN DATABASE shop SET work_mem = '16MB'",
            "ALTER DATABASE shop SET work_mem = '17MB'",
        )
        yield running


@pytest.fixture
def cli(powerprof_cli: Cli, tmp_path: Path) -> Cli:
    return with_own_journal(powerprof_cli, tmp_path)


def cure(server: OwnPostgresql, setting: str, window_s: float = 0.5) -> list[str]:
    return ["cure", "--pid", str(server.pid), "--set", setting, "--duration", str(window_s), "--pairs", "3", "--yes",
            "--meter", "none"]  # fmt: skip


def sort_lines(text: str) -> list[str]:
    """Return the lines in order: ALTER SYSTEM moves a setting to the end."""
    return sorted(text.splitlines())


@pytest.mark.parametrize(
    ("setting", "before", "after"), [("work_mem=64MB", "4MB", _UNSET), (r"log_line_prefix=\%p'", None, None)]
)
def test_the_file_is_as_before(
    server: OwnPostgresql, cli: Cli, tmp_path: Path, setting: str, before: str | None, after: str | None
) -> None:
    file, saved = server.auto_file, tmp_path / "cure.json"
    result = cli([*cure(server, setting), "--json", str(saved)], timeout=120)
    assert result.code == 0, result.err
    record, prefix = decode_record(saved, Cure), _PREFIX.replace("''", "'")
    assert (record.remedy.from_value, record.reverted, record.read_back) == (before or prefix, True, after or prefix)
    assert record.remedy.lasting.endswith("; SELECT pg_catalog.pg_reload_conf()")
    assert record.latency == "not measured: the server received no statement in the windows"
    assert sort_lines(server.auto_file) == sort_lines(file)
    assert server.show("work_mem") == "4MB"
    if setting.startswith("work_mem"):
        words = " ".join(result.err.split())
        assert "own value (role app in database shop: 16MB, database shop: 17MB)" in words
        assert f"restored and verified: {_UNSET}" in " ".join(result.out.split())


@pytest.mark.parametrize(
    ("setting", "code", "reason"),
    [
        ("shared_buffers=1GB", 2, "it changes only when the server starts"),
        ("server_version=16", 2, "the server computes it"),
        ("work_men=8MB", 2, "did you mean work_mem?"),
        ("search_path=public", 2, "a list of quoted names"),
        ("log_connections=on", 2, "connections that open during the test would keep it"),
        ("transaction_isolation=serializable", 2, "each session sets it"),
        ("work_mem=many", 1, 'invalid value for parameter "work_mem"'),
    ],
)
def test_refuse_what_cannot_be_tried(server: OwnPostgresql, cli: Cli, setting: str, code: int, reason: str) -> None:
    file = server.auto_file
    refused = cli([*cure(server, setting), "--no-save"], timeout=60)
    assert (refused.code, refused.out) == (code, ""), refused.err
    assert reason in refused.err
    assert re.search(r"^hint: ", refused.err, re.MULTILINE)
    assert sort_lines(server.auto_file) == sort_lines(file)


def test_refuse_to_load_an_edited_file(server: OwnPostgresql, cli: Cli) -> None:
    edited = server.data / "pg_hba.conf"
    edited.write_text(f"{edited.read_text()}# edited\n")
    # Files of the present second may be loaded already.
    subprocess.run(["touch", "--date=+2 seconds", edited], check=True)
    refused = cli([*cure(server, "work_mem=8MB"), "--no-save"])
    subprocess.run(["touch", "--date=-1 hour", edited], check=True)
    assert refused.code == 2
    assert f"{edited} changed after the server loaded it" in refused.err


@pytest.fixture
def running(server: OwnPostgresql, cli: Cli) -> Iterator[subprocess.Popen[str]]:
    """Yield a cure in a window with the changed setting."""
    process = cli.start(cure(server, "work_mem=65MB", 30))
    yield process
    process.kill()
    process.communicate()


def is_changed(server: OwnPostgresql) -> bool:
    return server.show("work_mem") == "65MB"


def is_restored(server: OwnPostgresql) -> bool:
    return server.show("work_mem") == "4MB" and "work_mem" not in server.auto_file


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_keeper_restores_after_the_end_of_powerprof(
    server: OwnPostgresql, running: subprocess.Popen[str], number: int
) -> None:
    wait_until(lambda: is_changed(server), "it changes nothing")
    running.send_signal(number)
    running.communicate(timeout=60)
    wait_until(lambda: is_restored(server), "the setting is not restored")


def test_powerprof_restores_after_the_end_of_the_keeper(server: OwnPostgresql, running: subprocess.Popen[str]) -> None:
    wait_until(lambda: is_changed(server), "it changes nothing")
    keeper_of(running).kill()
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert is_restored(server), err


def test_next_start_restores_after_a_restart_of_the_server(
    server: OwnPostgresql, running: subprocess.Popen[str], cli: Cli
) -> None:
    kill_both(running, lambda: is_changed(server))
    server.stop()
    waiting = cli(["runs"])
    assert f"the server of {server.data} does not run" in " ".join(waiting.err.split())
    server.start()
    assert is_changed(server)
    result = cli(["runs"])
    assert f"work_mem is {_UNSET} again: a powerprof that was killed had left it at 65MB" in " ".join(
        result.err.split()
    )
    assert is_restored(server)
    assert "work_mem" not in cli(["runs"]).err


def test_refuse_a_setting_of_the_command_line(server: OwnPostgresql, cli: Cli) -> None:
    server.stop()
    server.start("work_mem=7MB")
    refused = cli([*cure(server, "work_mem=8MB"), "--no-save"])
    server.stop()
    server.start()
    assert refused.code == 2
    assert "the server's command line sets it" in refused.err
