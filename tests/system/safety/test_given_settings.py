# SPDX-License-Identifier: Apache-2.0
"""`set_global` on a given server: all global variables are as before, whichever process is killed and whenever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.given import GivenServer
from powerprof.database.private_server import PrivateServer
from powerprof.reversible import changed
from powerprof.reversible.journal import Journal, SavedSetting, restore_orphaned_settings
from powerprof.reversible.timer_slack import read_start_ticks
from powerprof.reversible.variables import Variable
from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from tests.conftest import Cli, CliResult
from tests.programs.option_files import write_options
from tests.programs.waiting import wait_until
from tests.system.safety.test_reversible import keeper_of, until

pytestmark = pytest.mark.usefixtures("root", "sysbench")
WORKLOAD = """
schema = "powerprof.workload/1"
name = "moves"
title = "settings that move others"
load = { kind = "statements", sql = ["SELECT 1"], clients = 1, rate_hz = 50 }
[conditions.plain]
[conditions.high]
server.set_global = { innodb_io_capacity = 5000, max_connect_errors = 777, innodb_flush_log_at_trx_commit = 0 }
[conditions.low]
server.set_global = { innodb_io_capacity_max = 100, innodb_flush_log_at_trx_commit = 2 }
[conditions.both.server.set_global]
innodb_io_capacity = 5000
innodb_io_capacity_max = 6000
key_buffer_size = 1000000
character_set_server = "latin1"
collation_server = "latin1_bin"
[conditions.copied]
server.set_global = { long_query_time = 3, innodb_flush_log_at_trx_commit = 0 }
[conditions.reads]
load = { reads_only = true, database = "shop" }
[conditions.unknown]
server.set_global = { innodb_io_capacity = 5000, max_connections = "many" }
"""
HIDDEN = """
[conditions.hidden]
enter = ["EXECUTE IMMEDIATE CONCAT('SET GLO', 'BAL max_connect_errors = 999')"]
"""
_OWN_FOLDERS = """
for name in /run/powerprof-changed /var/lib/powerprof-changed; do
    mkdir -p -m 700 $name "$0$name" && mount --bind "$0$name" $name || exit 9
done
exec "$@"
"""
DURABILITY = "innodb_flush_log_at_trx_commit"


@dataclass(frozen=True)
class Given:
    """A server that is not ours, and powerprof with journals of its own for all starts of a test."""

    server: PrivateServer
    cli: Cli
    folder: Path

    def words(self, command: str, *conditions: str) -> list[str]:
        cases = [f"moves:{condition}" for condition in conditions]
        count = ["--repeat", "2"] if command == "run" else ["--pairs", "3"]
        where = ["--workloads", str(self.folder), "--defaults-file", str(self.folder / "client.cnf")]
        return [command, *cases, *count, "--duration", "0.3", *where, "--meter", "none"]

    def start(self, command: str, *conditions: str) -> subprocess.Popen[str]:
        return self.cli.start(self.words(command, *conditions))

    def __call__(self, *words: str) -> CliResult:
        return self.cli(list(words))

    def variables(self) -> dict[str, str]:
        with self.server.connect() as connection:
            rows = sql.fetch_rows(connection, "SHOW GLOBAL VARIABLES WHERE Variable_name NOT LIKE '%gtid%'", columns=2)
        return {str(name): str(value) for name, value in rows}

    def set(self, name: str, value: str) -> None:
        with self.server.connect() as connection:
            sql.execute(connection, f"SET GLOBAL {name} = {value}")

    def journals(self) -> list[Path]:
        return list((self.folder / "run/powerprof-changed").iterdir())

    def wait_for(self, durability: str) -> None:
        """Wait until a condition with this value holds: it is the last that is set."""
        wait_until(lambda: self.variables()[DURABILITY] == durability, f"{DURABILITY} = {durability}")


@pytest.fixture(scope="module")
def server(mariadbd: Path) -> Iterator[PrivateServer]:
    with PrivateServer(name="theirs") as started:
        yield started


@pytest.fixture
def given(server: PrivateServer, tmp_path: Path, shared_cache: Path) -> Iterator[Given]:
    """Yield the server of the module; whatever a test leaves changed has its old value afterwards."""
    given = prepare(server, tmp_path, shared_cache)
    before = given.variables()
    yield given
    for name, value in given.variables().items():
        if value != before[name]:
            given.set(name, before[name])


def prepare(server: PrivateServer, folder: Path, cache: Path) -> Given:
    (folder / "moves").mkdir()
    (folder / "moves/workload.toml").write_text(WORKLOAD + HIDDEN)
    write_options(folder / "client.cnf", server.login)
    return Given(
        server, Cli(folder / "home", cache, ("unshare", "--mount", "sh", "-c", _OWN_FOLDERS, str(folder))), folder
    )


def kill_both(process: subprocess.Popen[str]) -> None:
    keeper = keeper_of(process.pid)
    keeper.suspend()
    process.kill()
    process.communicate()
    keeper.kill()
    until(lambda: not keeper.is_running() or keeper.status() == "zombie")


def test_kill_of_powerprof(given: Given) -> None:
    """Conditions that alternate their values, killed in the block of one and of the other."""
    before = given.variables()
    for durability in ("0", "2"):
        with given.start("compare", "high", "low") as process:
            given.wait_for(durability)
            process.kill()
        assert until(lambda: given.variables() == before)


def test_kill_of_the_keeper(given: Given) -> None:
    before = given.variables()
    with given.start("run", "high") as process:
        given.wait_for("0")
        keeper_of(process.pid).kill()
        _, err = process.communicate()
    assert process.returncode == 0, err
    assert given.variables() == before


def test_kill_of_both(given: Given) -> None:
    """The next start restores, and prints what it restored."""
    before = given.variables()
    with given.start("run", "low") as process:
        given.wait_for("2")
        kill_both(process)
    assert given.variables()[DURABILITY] == "2"
    done = given("runs")
    assert f"{DURABILITY} is 1 again: a powerprof that was killed had left it at 2" in done.err
    assert given.variables() == before
    assert given.journals() == []
    assert given("runs").err == ""


def test_a_value_of_a_restarted_server_stays(tmp_path: Path, shared_cache: Path, mariadbd: Path) -> None:
    """The value that powerprof set ended with the server's process: the same value now is the administrator's."""
    with PrivateServer(name="theirs") as server:
        given = prepare(server, tmp_path, shared_cache)
        with given.start("run", "high") as process:
            given.wait_for("0")
            kill_both(process)
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not server.alive())
        (server.directory / "init.sql").touch()  # its account is in its data
        server._launch()
        server.wait_ready()
        given.set(DURABILITY, "0")
        assert given("runs").err == ""
        assert given.variables()[DURABILITY] == "0"
        assert given.journals() == []


def test_signal_in_the_middle(given: Given) -> None:
    before = given.variables()
    with given.start("compare", "high", "low") as process:
        given.wait_for("2")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130, err
    assert given.variables() == before
    assert given.journals() == []


def test_variables_that_move_with_others_are_restored(given: Given) -> None:
    before = given.variables()
    done = given(*given.words("compare", "low", "both"))
    assert done.code == 0, done.err
    assert given.variables() == before
    assert given.journals() == []


def test_a_private_server_has_its_own_settings_in_the_next_condition(given: Given) -> None:
    from powerprof.experiment.bench_settings import PrivateSettings

    before = given.variables()
    settings = PrivateSettings(given.server.connect)
    for _ in range(2):
        settings.apply({"innodb_io_capacity": 5000, "innodb_max_dirty_pages_pct": 0.5})
        settings.apply({"innodb-io-capacity-max": 100, "innodb_max_dirty_pages_pct_lwm": 80})
        settings.apply({})
        assert given.variables() == before


def test_a_value_that_the_server_refuses(given: Given) -> None:
    before = given.variables()
    done = given(*given.words("run", "unknown"))
    assert done.code == 1
    assert done.err.startswith("error: set_global: max_connections=many: SET failed (Incorrect argument type")
    assert given.variables() == before
    assert given.journals() == []


def test_a_value_of_another_person_stays_and_is_reported(given: Given) -> None:
    before = given.variables()
    with given.start("compare", "plain", "high") as process:
        given.wait_for("0")
        given.set("max_connect_errors", "778")
        _, err = process.communicate()
    assert process.returncode == 1, err
    assert "max_connect_errors was set to 778 by another person during the run and stays so: it was 100" in err
    assert given.variables() == {**before, "max_connect_errors": "778"}
    assert given.journals() == []


def test_connections_that_keep_a_value_are_listed(given: Given) -> None:
    with given.start("run", "copied") as process:
        given.wait_for("0")
        with given.server.connect() as pooled:
            _, err = process.communicate()
            assert process.returncode == 0, err
            number = sql.fetch_scalar(pooled, "SELECT CONNECTION_ID()")
            assert sql.fetch_scalar(pooled, "SELECT @@SESSION.long_query_time") == 3
    (saved,) = (given.cli.home / "state/powerprof/runs").iterdir()
    notes = " ".join(str(note) for note in json.loads((saved / "run.json").read_text())["notes"])
    assert f"1 open connection started while long_query_time was 3 and may keep that value: {number} " in notes


def test_an_account_of_a_killed_command_is_dropped_by_the_next_start(given: Given) -> None:
    def accounts() -> list[object]:
        with given.server.connect() as connection:
            return [
                row[0] for row in sql.fetch_rows(connection, "SELECT User FROM mysql.user WHERE User LIKE 'pp_read%'")
            ]

    with given.server.connect() as connection:
        sql.execute(connection, "CREATE DATABASE shop")
    with given.start("run", "reads") as process:
        (account,) = wait_until(accounts, "an account")
        process.kill()
        process.communicate()

    def dropped() -> bool:  # at the latest once the server has noticed the end of its maker's connection
        said = given("runs").err
        assert said == "" or f"the account '{account}'@'localhost' on " in said
        return accounts() == []

    assert until(dropped)
    assert list((given.folder / "var/lib/powerprof-changed").iterdir()) == []


def test_others_that_a_killed_keeper_moved_are_restored(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had set the variable and looked at nothing yet."""
    from powerprof.experiment.bench_settings import GivenSettings

    class Killed(changed.ChangedSettings):
        def _open(self) -> None:
            given.set("innodb_io_capacity", "5000")
            given.set("innodb_io_capacity", "200")
            raise PowerprofError("no answer", None)

    before = given.variables()
    monkeypatch.setattr(changed, "ChangedSettings", Killed)
    with pytest.raises(PowerprofError, match="set_global: no answer"), GivenServer(given.server.login) as server:
        GivenSettings(server).apply({"innodb_io_capacity": 5000})
    assert given.variables() == before


def test_others_that_moved_before_both_were_killed_are_reported(
    given: Given, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody has written down that it was powerprof, so they are left alone."""
    monkeypatch.setattr(paths, "ROOT_CHANGED", tmp_path / "changed")
    server, before = given.server, given.variables()
    ticks = read_start_ticks(server.pid)
    variable = Variable(server.login.to_fields(), "innodb_io_capacity", "5000", server.pid, ticks)
    options = str(tmp_path / "client.cnf")
    with Journal([SavedSetting(variable, "200", server.pid, ticks, options, before)]):
        given.set("innodb_io_capacity", "5000")
    assert restore_orphaned_settings() == [
        "innodb_io_capacity is 200 again: a powerprof that was killed had left it at 5000",
        "innodb_io_capacity_max is 10000, and was 2000 before powerprof was killed while it changed "
        "innodb_io_capacity: if no other person set it, SET GLOBAL innodb_io_capacity_max = 2000",
    ]
    assert given.variables() == {**before, "innodb_io_capacity_max": "10000"}


def test_a_change_that_no_text_shows_is_reported(given: Given) -> None:
    """SQL that is put together at run time cannot be refused."""
    done = given("--quiet", *given.words("run", "hidden"), "--json", "-")
    assert done.code == 0, done.err
    (note,) = [note for note in json.loads(done.out)["notes"] if "max_connect_errors" in str(note)]
    assert note == (
        "the server's max_connect_errors was 100 when the run began and is 999 now: set_global did not change it"
    )


def test_sql_that_sets_a_global_variable_is_refused(given: Given) -> None:
    before = given.variables()
    for key, statement in (
        ("setup", "SET GLOBAL max_connect_errors = 999"),
        ("enter", "SET @a = 1, /* ours */ GLOBAL max_connect_errors = 999"),
        ("leave", "SET @@global.max_connect_errors = 999"),
    ):
        (given.folder / "moves/workload.toml").write_text(f'{WORKLOAD}\n[conditions.sets]\n{key} = ["{statement}"]\n')
        done = given(*given.words("compare", "plain", "sets"))
        assert done.code == 2
        assert done.err.startswith(f"error: moves:sets: {key} sets a global variable of the given server (SET ")
        assert "hint: use set_global" in done.err
    assert given.variables() == before
