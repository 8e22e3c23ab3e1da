# SPDX-License-Identifier: Apache-2.0
"""Private servers under root: what a workload says, its SQL and the server's own account stay theirs."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from powerprof.database import preparation, sql
from powerprof.database.mysql import find_build
from powerprof.database.private_server import PrivateServer
from powerprof.database.runtree import RunTree
from powerprof.database.server_options import ServerOptions
from powerprof.experiment import bench_data
from powerprof.system import landlock
from powerprof.system.errors import PowerprofError, UsageError
from tests.system.safety.conftest import UID, Attacker


@pytest.fixture(scope="module")
def server(mariadbd: Path) -> Iterator[PrivateServer]:
    """One server for the questions that only ask."""
    if os.geteuid() != 0:
        pytest.skip("no capability: root (sudo make test)")
    os.environ["MYSQL_PWD"] = "the caller's secret"
    try:
        with PrivateServer(settings={"general_log": "OFF"}) as found:
            yield found
    finally:
        del os.environ["MYSQL_PWD"]


def test_a_dump_runs_no_programs(server: PrivateServer, attacker: Attacker) -> None:
    r"""The client program obeys `\!` and `system` also in what it is given with --batch."""
    ran = attacker.secret.parent / "ran"
    for line in (f"\\! touch {ran}", f"system touch {ran}", f"\\! touch {ran} ;", f"source {attacker.secret}"):
        dump = attacker.secret.parent / "world.sql"
        dump.write_text(f"CREATE DATABASE IF NOT EXISTS world;\nUSE world;\n{line}\n")
        with pytest.raises(PowerprofError):
            bench_data.load_official(server, dump)
        assert not ran.exists()
    with server.connect() as connection:
        sql.execute(connection, "DROP DATABASE IF EXISTS world")


def test_a_dump_is_loaded(server: PrivateServer, attacker: Attacker) -> None:
    dump = attacker.secret.parent / "world.sql"
    dump.write_text(
        "-- MySQL dump\n/*!40101 SET NAMES utf8mb4 */;\nSET autocommit=0;\nCREATE SCHEMA world;\nUSE world;\n"
        "CREATE TABLE `city` (`ID` int, `Name` char(35)) ENGINE=InnoDB;\n"
        "INSERT INTO `city` VALUES (1,'a;b''c'),(2,'100%');\nCOMMIT;\nSET autocommit=1;\n"
    )
    assert bench_data.load_official(server, dump) == "world"
    with server.connect() as connection:
        assert sql.fetch_rows(connection, "SELECT * FROM world.city ORDER BY 1") == [(1, "a;b'c"), (2, "100%")]
        sql.execute(connection, "DROP DATABASE world")


def test_the_servers_environment_holds_no_secret_of_the_caller(server: PrivateServer) -> None:
    names = {one.split(b"=")[0] for one in Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0") if one}
    assert names <= {b"PATH", b"HOME", b"LC_ALL", b"TZ", b"TERM"}


def test_a_server_is_never_root(server: PrivateServer) -> None:
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{server.pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert "0" not in status["Uid"].split()
    assert status["NoNewPrivs"] == "1" and int(status["CapEff"], 16) == 0


def test_statements_reach_no_files_of_the_host(server: PrivateServer, attacker: Attacker) -> None:
    place = attacker.secret.parent.parent / "everybody"
    place.mkdir()
    place.chmod(0o777)
    with server.connect() as connection:
        for statement in (
            f"SELECT 1 INTO OUTFILE '{place}/out'",
            f"SELECT 1 INTO DUMPFILE '{place}/dump'",
            "LOAD DATA INFILE '/etc/passwd' INTO TABLE mysql.plugin",
            "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE mysql.plugin",
        ):
            with pytest.raises(PowerprofError):
                sql.execute(connection, statement)
        assert sql.fetch_scalar(connection, "SELECT LOAD_FILE('/etc/passwd')") is None
    assert list(place.iterdir()) == []


def test_no_way_to_name_a_file_leads_out_of_the_servers_folder(server: PrivateServer, attacker: Attacker) -> None:
    """Its account is that of the host's own databases: what it may write to, a workload's statements may not."""
    if not landlock.read_landlock_version():
        pytest.skip("no capability: Landlock (Linux 5.19)")
    place = attacker.secret.parent.parent / "databases"
    place.mkdir()
    account = pwd.getpwuid(Path(f"/proc/{server.pid}").stat().st_uid)
    os.chown(place, account.pw_uid, account.pw_gid)
    with server.connect() as connection:
        sql.execute(connection, "CREATE DATABASE outside")
        for statement in (
            f"SET GLOBAL general_log_file = '{place}/log', GLOBAL general_log = ON",
            f"SET GLOBAL slow_query_log_file = '{place}/slow', GLOBAL slow_query_log = ON",
            f"CREATE TABLE outside.t (a INT) ENGINE=InnoDB DATA DIRECTORY='{place}'",
            f"CREATE TABLE outside.u (a INT) ENGINE=MyISAM DATA DIRECTORY='{place}'",
        ):
            with suppress(PowerprofError):
                sql.execute(connection, statement)
        sql.execute(connection, "CREATE TABLE outside.v (a INT)", "CREATE DATABASE other")
        sql.execute(connection, "RENAME TABLE outside.v TO other.v", "TRUNCATE other.v", "DROP DATABASE other")
        sql.execute(connection, "DROP DATABASE outside")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "skip-networkin",
        "loose-skip-networkin",
        "loose_skip_grant",
        "skip-grant-table",
        "datadi",
        "SOCK",
        "disable-networking",
        "enable-bootstrap",
        "secure-file",
        "plugin-di",
        "init-f",
        "maximum-port",
        "extra_port",
        "mysqlx_port",
        "wsrep_notify_cmd",
        "wsrep-provider",
        "set-variable",
        "skip-",
        "hot.datadir",
        "hot.plugin_dir",
        "loose-hot.skip-grant-tables",
        "a.b.secure-file",
    ],
)
def test_no_spelling_of_our_own_settings_passes(name: str) -> None:
    with pytest.raises(UsageError, match="is powerprof's own and cannot be changed"):
        ServerOptions(settings={name: None})


def test_every_beginning_of_our_own_settings_is_refused() -> None:
    for ours in ("networking", "grant_tables", "datadir", "socket", "bind_address", "user", "chroot", "tmpdir"):
        for length in range(1, len(ours) + 1):
            for before in ("", "skip-", "loose_", "loose-skip_", "maximum-", "loose-loose-enable-"):
                with pytest.raises(UsageError):
                    ServerOptions(settings={before + ours[:length]: 1})


@pytest.mark.parametrize(
    "name", ["log_bin", "skip-log-bin", "innodb_flush_method", "loose-key_buffer_size", "server_id"]
)
def test_other_settings_pass(name: str) -> None:
    ServerOptions(settings={name: 1})


def test_what_makes_it_private_comes_last(mariadbd: Path, tmp_path: Path) -> None:
    options = ServerOptions(settings={"key_buffer_size": 1 << 20, "sort_buffer_size": 1 << 18})
    _, words = preparation.build_command(find_build(mariadbd), options, tmp_path, None)
    names = [word.split("=")[0] for word in words]
    last_setting = names.index("--sort_buffer_size")
    for ours in (
        "--datadir",
        "--socket",
        "--pid-file",
        "--tmpdir",
        "--init-file",
        "--secure-file-priv",
        "--skip-networking",
    ):
        assert names.index(ours) > last_setting
    assert words[1] == "--no-defaults"


@pytest.fixture
def mysql(root: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attacker]:
    """The account of the servers means harm: it is also that of the host's own server."""
    try:
        entry = pwd.getpwnam("mysql")
    except KeyError:
        pytest.skip("no capability: the account mysql (apt install mariadb-server)")
    top = Path(tempfile.mkdtemp(prefix="safety-", dir="/tmp"))
    try:
        top.chmod(0o755)
        (top / "root").mkdir(mode=0o700)
        secret = top / "root/secret"
        secret.write_text("of root\n")
        secret.chmod(0o600)
        monkeypatch.setattr("tests.system.safety.conftest.UID", entry.pw_uid)
        monkeypatch.setattr("tests.system.safety.conftest.GID", entry.pw_gid)
        yield Attacker(top, secret)
    finally:
        shutil.rmtree(top)


def test_its_error_log_is_not_read_by_name(mysql: Attacker, mariadbd: Path) -> None:
    """Made a link to a file that only root may read, it would come out in an error message."""
    with PrivateServer() as server:

        def turn() -> None:
            (server.directory / "error.log").unlink()
            (server.directory / "error.log").symlink_to(mysql.secret)

        mysql.does(turn)
        assert "of root" not in server.log_tail()
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(PowerprofError) as caught:
            while True:
                server.check()
        assert "of root" not in caught.value.message


def test_its_folder_gives_nothing_of_root_away(mysql: Attacker, mariadbd: Path) -> None:
    """server/base, which was made and given away by name after the folder was the server's."""
    victim = mysql.secret.parent
    kept = victim / "server"
    (kept / "bin").mkdir(parents=True)
    (kept / "share").mkdir()
    (kept / "share/errmsg.sys").write_text("x")
    shutil.copy(mariadbd, kept / "bin/mysqld")
    with RunTree() as tree:
        build = msgspec.structs.replace(find_build(mariadbd), binary=kept / "bin/mysqld", basedir=kept)
        source = mysql.secret.parent / "data"
        source.mkdir()
        (source / "ibdata1").write_text("x")
        build = msgspec.structs.replace(build, template=source)
        for number in range(10):
            options = ServerOptions(name=f"server-{number}")
            preparation.prepare_directory(build, options, tree)
            directory = tree.path / options.name
            base = directory / "base"

            def turn(base: Path = base) -> None:
                if base.is_dir() and not base.is_symlink():
                    base.rename(base.with_name("aside" + os.urandom(4).hex()))
                    base.symlink_to(victim)
                    time.sleep(0.005)
                    base.unlink()

            with mysql.keeps_doing(turn):
                for _ in range(30):
                    with suppress(PowerprofError, OSError):
                        preparation.build_command(build, options, directory, None)
                        time.sleep(0.002)
    for path in [victim, *victim.rglob("*")]:
        assert path.stat().st_uid == 0, path


def test_a_tree_is_not_made_where_others_could_exchange_it(attacker: Attacker) -> None:
    place = attacker.folder("tmp")
    with (
        pytest.raises(PowerprofError, match=f"cannot make a private directory in .*belongs to user {UID}"),
        RunTree(place),
    ):
        pass


def test_signals_go_to_the_process_and_not_to_its_number(mariadbd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise AssertionError(f"kill({pid}, {number})")

    with PrivateServer() as server:
        monkeypatch.setattr(os, "kill", refuse)
        server.pause()
        deadline = time.monotonic() + 10
        while Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            assert time.monotonic() < deadline
        server.resume()
        with server.connect() as connection:
            assert sql.fetch_scalar(connection, "SELECT 1") == 1
        monkeypatch.undo()
        os.kill(server.pid, signal.SIGKILL)
        while server.alive():
            pass
        # Its number is free for anybody now.
        monkeypatch.setattr(os, "kill", refuse)
        server.pause()
        server.resume()
        monkeypatch.undo()
