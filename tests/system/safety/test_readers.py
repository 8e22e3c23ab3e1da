# SPDX-License-Identifier: Apache-2.0
"""SQL that is not ours, on a real server: it gets no right but SELECT, and no right that the caller lacks."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.base import Login, StatementError
from powerprof.database.builds import ServerBuild
from powerprof.database.given import build_login, given_server
from powerprof.database.plans import explain
from powerprof.database.private_server import PrivateServer
from powerprof.database.readers import ReadOnlyAccount, may_only_read, read_only_login
from powerprof.database.runtree import RunTree
from powerprof.queries.client_texts import StatementSample, add_plans
from powerprof.queries.records import Statement
from powerprof.system.acting import connecting_as
from powerprof.system.caller import account_of
from powerprof.system.errors import DataError, PowerprofError
from tests.conftest import each_release
from tests.programs.option_files import write_options
from tests.system.safety.conftest import UID, Attacker

pytestmark = pytest.mark.usefixtures("root", "mariadbd")
# What an account that may make functions leaves for whoever explains its statement; and behind a view.
_TRAP = (
    "CREATE FUNCTION shop.trap() RETURNS INT DETERMINISTIC SQL SECURITY INVOKER BEGIN"
    " SET GLOBAL init_connect = 'SELECT 666'; RETURN 1; END"
)
_SETTING = "SELECT @@GLOBAL.init_connect"


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with RunTree() as tree, PrivateServer(tree=tree) as started:
        with started.connect() as connection:
            sql.execute(
                connection,
                "CREATE DATABASE shop",
                "CREATE DATABASE shopx",
                "CREATE TABLE shop.t (id INT PRIMARY KEY, n INT)",
                "INSERT INTO shop.t SELECT seq, seq FROM shop.seq_1_to_100",
                "CREATE TABLE shopx.secret (n INT)",
                _TRAP,
                "CREATE SQL SECURITY INVOKER VIEW shop.v AS SELECT id FROM shop.t WHERE shop.trap() = 1",
            )
        # The caller may reach the socket, as everybody may reach that of a host's own server.
        for folder in (tree.path, started.directory, started.socket.parent):
            folder.chmod(0o711)
        started.socket.chmod(0o777)
        yield started


def ask(server: PrivateServer, statement: str) -> object:
    with server.connect() as connection:
        return sql.fetch_scalar(connection, statement)


def accounts(server: PrivateServer) -> list[str]:
    with server.connect() as connection:
        return [
            row[0] for row in sql.fetch_rows(connection, "SELECT User FROM mysql.user WHERE User LIKE 'pp\\_read%'")
        ]


def accounts_made(server: PrivateServer) -> int:
    """Return how many statements CREATE USER the server has executed."""
    with server.connect() as connection:
        return int(sql.fetch_rows(connection, "SHOW GLOBAL STATUS LIKE 'Com_create_user'")[0][1])


@pytest.mark.parametrize("text", ["SELECT id FROM t WHERE trap() = 1", "SELECT id FROM v"])
def test_a_plan_executes_nothing_with_rights(server: PrivateServer, text: str) -> None:
    with server.connect() as connection:
        sql.execute(connection, "SET GLOBAL init_connect = ''")
    statements = [
        Statement(text=text, schema_name="shop", c0_s=1.0),
        Statement(text="SELECT n FROM t WHERE id = ?", schema_name="shop", c0_s=1.0),
    ]
    chosen = [
        StatementSample(0, statements[0], text),
        StatementSample(1, statements[1], "SELECT n FROM t WHERE id = 7"),
    ]
    planned, notes = add_plans(statements, chosen, server.login)
    assert ask(server, _SETTING) == "", "the function was executed with powerprof's rights"
    assert not planned[0].plan
    assert "no plan of SELECT id FROM" in notes[0]
    assert [(step.table, step.key) for step in planned[1].plan or []] == [("t", "PRIMARY")]
    assert accounts(server) == []


def test_the_reader_reads_its_schema_and_nothing_else(server: PrivateServer) -> None:
    with ReadOnlyAccount(server.login, "shop") as reader:
        assert len(accounts(server)) == 1
        assert reader.login.password not in repr(reader.login)
        with sql.connect(reader.login) as connection:
            assert sql.fetch_scalar(connection, "SELECT COUNT(*) FROM shop.t") == 100
            for refused in (
                "DELETE FROM shop.t",
                "SELECT shop.trap()",
                "SELECT * FROM shopx.secret",
                "SELECT * FROM mysql.global_priv",
                "SELECT 1 INTO OUTFILE '/tmp/powerprof-reader-wrote'",
                "SET GLOBAL init_connect = ''",
            ):
                with pytest.raises(StatementError):
                    sql.execute(connection, refused)
    assert accounts(server) == []


def test_a_schema_with_wildcards_in_its_name_is_only_itself(server: PrivateServer) -> None:
    with server.connect() as connection:
        sql.execute(connection, "CREATE DATABASE `sh_p%`", "CREATE TABLE `sh_p%`.t (n INT)")
    with ReadOnlyAccount(server.login, "sh_p%") as reader, sql.connect(reader.login) as connection:
        assert sql.fetch_scalar(connection, "SELECT COUNT(*) FROM `sh_p%`.t") == 0
        with pytest.raises(StatementError):
            sql.execute(connection, "SELECT * FROM shop.t")


def test_a_text_of_one_schema_learns_nothing_of_another(server: PrivateServer) -> None:
    """A server evaluates constant subqueries for a plan. It would then depend on rows that the sender may not read."""
    with server.connect() as connection:
        sql.execute(connection, "REPLACE INTO shopx.secret VALUES (7)")
        before = accounts_made(server)
    texts = [
        ("SELECT id FROM t WHERE id = (SELECT MAX(n) FROM shopx.secret)", "shop"),
        ("SELECT n FROM secret", "shopx"),
    ]
    texts += [("SELECT 1", None), ("SELECT * FROM global_priv", "mysql"), ("SELECT id FROM t WHERE id = 7", "shop")]
    statements = [Statement(text=text, schema_name=schema, c0_s=1.0) for text, schema in texts]
    chosen = [StatementSample(number, statement, statement.text) for number, statement in enumerate(statements)]
    planned, notes = add_plans(statements, chosen, server.login)
    assert [bool(statement.plan) for statement in planned] == [False, True, True, False, True]
    assert [note.rpartition(": ")[2] for note in notes] == ["it reads another schema"] * 2
    assert accounts_made(server) - before == 4, "one account for each schema, and one without any"
    assert accounts(server) == []


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_a_killed_one_left_is_dropped_by_the_next(
    server: PrivateServer, ending: signal.Signals, tmp_path: Path
) -> None:
    script = (
        "import sys, time; from pathlib import Path; from powerprof.database.base import Login\n"
        "from powerprof.system import paths, signals; signals.install()\n"
        "from powerprof.database.readers import ReadOnlyAccount\n"
        "paths.ROOT_CHANGED_FOR_GOOD = Path(sys.argv[3])\n"
        "login = Login(user=sys.argv[1], password=sys.stdin.readline(), socket=Path(sys.argv[2]))\n"
        "with ReadOnlyAccount(login, 'shop'): print('made', flush=True); time.sleep(60)"
    )
    login = server.login
    process = subprocess.Popen(
        [sys.executable, "-c", script, login.user, str(server.socket), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(login.password)
    process.stdin.close()
    assert process.stdout.readline() == "made\n"
    with ReadOnlyAccount(login, "shop"):
        assert len(accounts(server)) == 2, "one in use is not dropped"
    process.send_signal(ending)
    process.wait()
    process.stdout.close()
    left = accounts(server)
    assert len(left) == (ending == signal.SIGKILL)
    if not left:
        return
    for _ in range(100):  # the server notices the end of a connection when it looks
        if ask(server, f"SELECT IS_FREE_LOCK('powerprof.{left[0]}')") == 1:
            break
    with ReadOnlyAccount(login, "shop"):
        assert left[0] not in accounts(server)
    assert accounts(server) == []


def test_without_an_account_that_only_reads_there_is_no_plan(server: PrivateServer, tmp_path: Path) -> None:
    with server.connect() as connection:
        sql.execute(
            connection,
            "CREATE USER teller@localhost IDENTIFIED BY 'one'",
            "GRANT SELECT, INSERT ON shop.* TO teller@localhost",
            "CREATE USER looker@localhost IDENTIFIED BY 'two'",
            "GRANT SELECT ON shop.* TO looker@localhost",
        )
    statement = Statement(text="SELECT n FROM t", schema_name="shop", c0_s=1.0)
    chosen = [StatementSample(0, statement, "SELECT n FROM t")]
    teller, looker = server.login.with_account("teller", "one"), server.login.with_account("looker", "two")
    planned, notes = add_plans([statement], chosen, teller)
    assert not planned[0].plan
    assert "cannot make an account that only reads (it cannot create accounts" in notes[0]
    planned, notes = add_plans([statement], chosen, looker)
    assert (len(planned[0].plan or []), notes) == (1, []), "one that only reads is used as it is"
    for name, password, plans in (("teller", "one", 0), ("looker", "two", 1)):
        file = tmp_path / f"{name}.cnf"
        file.write_text(f"[client]\nuser={name}\npassword={password}\n")
        planned, notes = add_plans([statement], chosen, server.login, file)
        assert len(planned[0].plan or []) == plans
        assert bool(notes) != bool(plans)
    with pytest.raises(PowerprofError, match="may do more than SELECT"):
        read_only_login(server.login, tmp_path / "teller.cnf")


@pytest.fixture
def sudo(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> Attacker:
    """Root on behalf of the attacker."""
    monkeypatch.setenv("SUDO_UID", str(UID))
    monkeypatch.setenv("SUDO_GID", str(UID))
    return attacker


def test_under_sudo_the_socket_account_is_the_callers(server: PrivateServer, sudo: Attacker) -> None:
    with server.connect() as connection:
        with suppress(StatementError):
            sql.execute(connection, "INSTALL SONAME 'auth_socket'")
        sql.execute(connection, "CREATE USER nobody@localhost IDENTIFIED VIA unix_socket")
    try:
        with given_server(socket=server.socket) as given, given.connect() as connection:
            assert sql.fetch_scalar(connection, "SELECT CURRENT_USER()") == "nobody@localhost"
            assert may_only_read(connection)
        # Another's name in an option file of the caller's does not help: the server asks the kernel.
        options = sudo.home / "root.cnf"
        options.write_text("[client]\nuser=root\n")
        with pytest.raises(PowerprofError, match="denied") as caught:
            given_server(socket=server.socket, defaults_file=options).__enter__()
        assert "under sudo powerprof connects as nobody" in str(caught.value.hint)
    finally:
        with server.connect() as connection:
            sql.execute(connection, "DROP USER nobody@localhost")


def test_under_sudo_an_option_file_is_read_as_the_caller(server: PrivateServer, sudo: Attacker) -> None:
    hidden = sudo.secret
    write_options(hidden, server.login, socket=False)
    with pytest.raises(DataError, match="nobody has no permission to read it"):
        build_login(socket=server.socket, defaults_file=hidden)
    link = sudo.home / "link.cnf"
    sudo.does(lambda: link.symlink_to(hidden))
    with pytest.raises(DataError):
        build_login(socket=server.socket, defaults_file=link)
    included = sudo.home / "my.cnf"
    included.write_text(f"!include {hidden}\n")
    with pytest.raises(DataError):
        build_login(socket=server.socket, defaults_file=included)


def test_under_sudo_keys_are_read_as_the_caller(sudo: Attacker) -> None:
    account = account_of(UID)
    login = Login(user="x", host="127.0.0.1", port=1, tls={"ca": str(sudo.secret)}, account=account)
    with pytest.raises(PowerprofError, match="ermission denied"):
        sql.connect(login)


def test_root_is_root_again_afterwards(attacker: Attacker) -> None:
    before = os.getresuid(), os.getresgid(), os.getgroups()
    account = account_of(UID)
    with connecting_as(account):
        assert os.geteuid() == UID
        with pytest.raises(PermissionError):
            attacker.secret.read_text()
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before
    attacker.secret.read_text()


def test_a_saved_workload_is_the_callers_alone(sudo: Attacker) -> None:
    from powerprof.cli.queries import _write

    place = sudo.home / "saved"
    before = os.umask(0)
    try:
        _write(place, "text")
    finally:
        os.umask(before)
    file = place / "workload.toml"
    assert (stat.S_IMODE(place.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o700, 0o600)
    assert (place.stat().st_uid, file.stat().st_uid) == (UID, UID)


def test_explain_is_of_the_text_alone(server: PrivateServer) -> None:
    with ReadOnlyAccount(server.login, "shop") as reader:
        assert explain(reader.login, "SELECT n FROM t WHERE id = 7", "shop")[0].key == "PRIMARY"


@each_release("mysql-9.7")
def test_mysql_gives_such_an_account_and_plans_by_it(historical_build: ServerBuild) -> None:
    with PrivateServer(build=historical_build) as mysql:
        with mysql.connect() as connection:
            sql.execute(
                connection,
                "CREATE DATABASE shop",
                "CREATE DATABASE shopx",
                "CREATE TABLE shopx.secret (n INT)",
                "CREATE TABLE shop.t (id INT PRIMARY KEY, n INT, g INT AS (n + 1), KEY (g))",
                "INSERT INTO shop.t (id, n) VALUES (1, 1), (2, 2)",
                _TRAP,
                "CREATE SQL SECURITY INVOKER VIEW shop.v AS SELECT id FROM shop.t WHERE shop.trap() = 1",
            )
        with ReadOnlyAccount(mysql.login, "shop") as reader:
            (step,) = explain(reader.login, "SELECT n FROM t WHERE id = 2", "shop")
            assert (step.table, step.access, step.key) == ("t", "const", "PRIMARY")
            (step,) = explain(reader.login, "SELECT n FROM t WHERE g = 2", "shop")
            assert step.key == "g"
            for trap in ("SELECT id FROM t WHERE trap() = 1", "SELECT id FROM v"):
                with pytest.raises(StatementError):
                    explain(reader.login, trap, "shop")
            with sql.connect(reader.login) as connection:
                assert may_only_read(connection)
                for refused in (
                    "DELETE FROM shop.t",
                    "SELECT * FROM shopx.secret",
                    "SELECT * FROM mysql.user",
                    "SELECT 1 INTO OUTFILE '/tmp/powerprof-reader-wrote'",
                    "SET GLOBAL init_connect = ''",
                    "SET PERSIST init_connect = ''",
                    "SELECT shop.trap()",
                ):
                    with pytest.raises(StatementError):
                        sql.execute(connection, refused)
        assert ask(mysql, _SETTING) == ""
        with mysql.connect() as connection:
            assert sql.fetch_rows(connection, "SELECT User FROM mysql.user WHERE User LIKE 'pp\\_read%'") == []
            # What every account is given is no right of an account that only reads.
            sql.execute(
                connection,
                "CREATE ROLE writer",
                "GRANT INSERT ON shop.* TO writer",
                "SET GLOBAL mandatory_roles = 'writer'",
            )
        with pytest.raises(PowerprofError, match="more rights than SELECT"), ReadOnlyAccount(mysql.login, "shop"):
            pass


def test_what_is_granted_to_everybody_is_not_overlooked(server: PrivateServer) -> None:
    with server.connect() as connection:
        if sql.fetch_scalar(connection, "SELECT SUBSTRING_INDEX(@@version, '.', 2) + 0 >= 10.11") != 1:
            return
        sql.execute(connection, "GRANT EXECUTE ON shop.* TO PUBLIC")
    try:
        with pytest.raises(PowerprofError, match="more rights than SELECT"), ReadOnlyAccount(server.login, "shop"):
            pass
    finally:
        with server.connect() as connection:
            sql.execute(connection, "REVOKE EXECUTE ON shop.* FROM PUBLIC")
    assert accounts(server) == []


@each_release("mysql-5.5.9")
def test_a_plan_that_takes_its_time_is_given_up_by_the_server_too(historical_build: ServerBuild) -> None:
    """It executes derived tables to explain them, and has no limit of its own."""
    with PrivateServer(build=historical_build) as old:
        with pytest.raises(StatementError, match="did not answer in 3 s"):
            explain(old.login, "SELECT * FROM (SELECT BENCHMARK(100000000000, SHA1('a'))) AS x", None)
        with old.connect() as connection:
            for _ in range(50):
                running = "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE 'EXPLAIN%'"
                if not (left := sql.fetch_rows(connection, running)):
                    break
                time.sleep(0.1)
        assert left == []
