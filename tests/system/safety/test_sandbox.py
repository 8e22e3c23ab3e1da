# SPDX-License-Identifier: Apache-2.0
"""Servers, load clients and programs of workloads: never root, and nothing but their own files and network."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from powerprof.database import catalogue, sandbox, sql
from powerprof.database.base import Login
from powerprof.database.given import GivenServer
from powerprof.database.private_server import PrivateServer
from powerprof.database.topology import ServerTopology
from powerprof.experiment import connector_client, pgbench
from powerprof.experiment.bench import Bench
from powerprof.experiment.bench_options import BenchOptions
from powerprof.experiment.load import Context, LoadFailed, LoadOrder
from powerprof.experiment.load_clients import start_load
from powerprof.system import landlock, programs
from powerprof.system.caller import account_of
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.workloads.catalogue import find_workload
from powerprof.workloads.definition import Load, LoadKind
from powerprof.workloads.reading import Case, LoadedWorkload, read_workload, resolve
from tests.conftest import REPOSITORY, Cli
from tests.programs.forbidden import Forbidden, forbidden, is_confined
from tests.programs.unprivileged import as_nobody
from tests.system.safety.conftest import Attacker
from tests.unit.layers import sources

_HEAD = 'schema = "powerprof.workload/1"\nname = "theirs"\ntitle = "x"\n'
# Each kind of load that is a program, on statements that take long enough to look at it.
_LOADS = {
    "statements": ("mysql", 'sql = ["SELECT SLEEP(0.01)"]'),
    "statements of PostgreSQL": ("postgresql", 'sql = ["SELECT pg_sleep(0.01)"]'),
    "pgbench": ("postgresql", 'kind = "pgbench"\nsql = ["SELECT pg_sleep(0.01)"]'),
    "tpcc": ("mysql", 'kind = "tpcc"'),
    "slap": ("mysql", 'kind = "slap"\nsql = ["SELECT SLEEP(0.01)"]\nqueries = 1000'),
    "connector-j": ("mysql", 'kind = "connector-j"\ntcp = true\nsql = ["SELECT 1"]'),
    "command": ("mysql", 'kind = "command"\nargv = ["/bin/sleep", "60"]'),
}
_NO_PROGRAM = {"idle", "none"}


@pytest.fixture
def host(root: None) -> Iterator[Forbidden]:
    """A host with secrets and services."""
    with forbidden() as made:
        yield made


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, Any]]:
    """Program, account and confinement of everything that is started; none is a fallback."""
    seen: list[tuple[str, Any, Any]] = []

    def spy(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(argv: Sequence[str | Path], **options: Any) -> Any:
            seen.append((Path(argv[0]).name, options.get("user"), options.get("confinement")))
            return original(argv, **options)

        return called

    for name in ("start", "run"):
        monkeypatch.setattr(programs, name, spy(getattr(programs, name)))
    return seen


def case_of(folder: Path, load: str, more: str = "", kind: str = "mysql") -> Case:
    """A workload of somebody."""
    folder.mkdir(parents=True)
    text = f'{_HEAD}[server]\nkind = "{kind}"\n[load]\nclients = 1\n{load}\n[conditions.only]\n{more}\n'
    (folder / "workload.toml").write_text(text)
    return resolve(read_workload(folder), "only")


def shipped() -> list[LoadedWorkload]:
    """All workloads that come with powerprof."""
    return [find_workload(path.parent.name) for path in sorted((REPOSITORY / "workloads").glob("*/workload.toml"))]


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


def java_that_finds_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connector/J's jar is fetched: an empty one starts the same Java, which reads its settings and then gives up."""
    data = BytesIO()
    with zipfile.ZipFile(data, "w") as jar:
        jar.writestr("empty", "")
    monkeypatch.setattr(catalogue, "read_jar", lambda name: data.getvalue())
    monkeypatch.setattr(connector_client, "_wait_for_connector", lambda running: None)


# Finding 1


_SHELL_STATEMENTS = (
    "SELECT 1 \\shell /usr/bin/id >> {place}/id",
    "SELECT 1 \\setshell a /usr/bin/id >> {place}/id",
    "SELECT 'a\\' \\shell /usr/bin/id >> {place}/id",
    "SELECT E'\\'' \\shell /usr/bin/id >> {place}/id",
    "SELECT $$a$$ /* ; */ \\shell /usr/bin/id >> {place}/id",
    "SELECT 1 -- c\n;\\shell /usr/bin/id >> {place}/id",
    "\\if 1\n\\endif\nSELECT 1",
)


def test_a_statement_for_pgbench_is_no_command_of_its_own(host: Forbidden, tmp_path: Path, powerprof_cli: Cli) -> None:
    for statement in _SHELL_STATEMENTS:
        with pytest.raises(UsageError, match="has a backslash"):
            pgbench.write_pgbench_scripts([statement.format(place=host.place)], Load(kind="pgbench"))
    folder = tmp_path / "theirs"
    text = json.dumps([_SHELL_STATEMENTS[0].format(place=host.place)])
    case_of(folder, f'kind = "pgbench"\nsql = {text}', kind="postgresql")
    done = powerprof_cli(["run", str(folder), "--repeat", "2", "--duration", "0.3", "--meter", "none"])
    assert not (host.place / "id").exists()
    assert done.code == 2 and "has a backslash" in done.err and "hint: write it as chr(92)" in done.err


def test_a_command_that_pgbench_is_given_runs_in_the_sandbox(
    host: Forbidden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the look at statements had missed it."""
    shell = f"cat {host.secret} /etc/shadow > stolen 2>&1; id -u > uid; touch {host.place}/made; true"
    monkeypatch.setattr(pgbench, "write_pgbench_scripts", lambda statements, load: [f"SELECT 1 \\shell {shell}\n"])
    case = case_of(tmp_path / "theirs", 'kind = "pgbench"\nsql = ["SELECT 1"]', kind="postgresql")
    with Bench([case], BenchOptions(), print) as bench:
        context = bench.context(case)
        start_load(case, context, LoadOrder(queries=1)).finish(60)
        said = (context.place / "stolen").read_text()
        assert (context.place / "uid").read_text().strip() == str((sandbox.choose_user(None) or ())[0])
    assert said.count("No such file or directory") == 2 and "kept apart" not in said
    assert not (host.place / "made").exists()


# Finding 2


def test_a_client_sends_no_file_of_the_host_and_no_password(
    host: Forbidden, attacker: Attacker, tmp_path: Path, mariadbd: Path
) -> None:
    """What it read its account from is empty afterwards, by every name."""
    own = ("/proc/self/fd/0", "sysbench.cnf", "slap.cnf", "/proc/self/environ", "/proc/self/cmdline")
    setup = '["SET GLOBAL local_infile = 1", "CREATE DATABASE test_leak", "CREATE TABLE test_leak.t (a TEXT)"]'
    case = case_of(tmp_path / "first/theirs", 'sql = ["SELECT 1"]', f"setup = {setup}")
    with Bench([case], BenchOptions(), print) as bench:
        bench.enter(case)

        def send(kind: str, name: object) -> None:
            folder = tmp_path / kind / str(name).replace("/", "-") / "theirs"
            load = f"""kind = "{kind}"\nsql = ["LOAD DATA LOCAL INFILE '{name}' INTO TABLE test_leak.t"]"""
            start_load(case_of(folder, load), bench.context(case), LoadOrder(queries=1, duration_s=1.0)).finish(60)

        def leaked() -> list[object]:
            with bench.connect(case) as connection:
                return list(sql.fetch_rows(connection, "SELECT a FROM test_leak.t"))

        for kind in ("statements", "slap"):
            for secret in (attacker.secret, host.secret):
                with pytest.raises(LoadFailed):
                    send(kind, secret)
        assert leaked() == []
        for kind in ("statements", "slap"):
            for name in own:
                with suppress(LoadFailed):
                    send(kind, name)
        assert bench.login(case).password not in str(leaked())


@pytest.mark.parametrize("name", ["local_infile", "LOCAL-INFILE"])
def test_local_infile_is_no_setting_of_a_workload(name: str, tmp_path: Path) -> None:
    case = case_of(tmp_path / "theirs", 'sql = ["SELECT 1"]', f"server.set_global = {{ {name} = 1 }}")
    with pytest.raises(UsageError, match="lets servers read clients' files"):
        Bench([case], BenchOptions(), print).__enter__()


def test_a_private_server_reaches_no_service_of_the_host(host: Forbidden, mariadbd: Path) -> None:
    """By replication, and by an engine whose tables are those of another server."""
    with PrivateServer(port="ephemeral", settings={"server-id": 1}) as server, server.connect() as connection:
        sql.execute(
            connection,
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={host.port}, MASTER_USER='stolen'",
            "START SLAVE",
        )
        deadline = time.monotonic() + 60
        while not (status := sql.fetch_records(connection, "SHOW SLAVE STATUS")[0])["Last_IO_Errno"]:
            assert not host.was_reached(), "the server is connected to the host's loopback"
            assert time.monotonic() < deadline, status
            time.sleep(0.05)
        sql.execute(connection, "STOP SLAVE", "INSTALL SONAME 'ha_federatedx'", "CREATE DATABASE f")
        where = f"SOCKET '{host.place}/socket', USER 'mysql', DATABASE 'mysql', HOST 'localhost'"
        sql.execute(connection, f"CREATE SERVER other FOREIGN DATA WRAPPER mysql OPTIONS ({where})")
        with pytest.raises(PowerprofError):
            sql.execute(connection, "CREATE TABLE f.t (a INT) ENGINE=FEDERATED CONNECTION='other/user'")
    assert not host.was_reached()


# The rule


def test_every_kind_of_load_is_looked_at() -> None:
    looked_at = {name for name in get_args(LoadKind) if name in _LOADS or name in _NO_PROGRAM}
    assert looked_at == set(get_args(LoadKind))
    kinds = {resolve(workload, name).load.kind for workload in shipped() for name in workload.definition.conditions}
    assert kinds <= looked_at


# For one load of each product the empty data are made as well, which takes two seconds of CPU time.
_MAKES_TEMPLATE = ("statements", "statements of PostgreSQL")


def _cache_for(kind: str, folder: Path, shared: Path) -> Path:
    return folder / "cache" if kind in _MAKES_TEMPLATE else shared


@pytest.mark.parametrize("kind", _LOADS)
def test_all_that_a_workload_starts_is_confined(
    kind: str,
    host: Forbidden,
    started: list[tuple[str, Any, Any]],
    tmp_path: Path,
    shared_cache: Path,
    mariadbd: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its running processes, and the probe in the confinement of each program that was started."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(_cache_for(kind, tmp_path, shared_cache)))
    if kind == "connector-j":
        java_that_finds_no_driver(monkeypatch)
    server, load = _LOADS[kind]
    shipped_one = kind == "tpcc"
    case = (
        resolve(find_workload(kind), "tpcc-single") if shipped_one else case_of(tmp_path / "theirs", load, kind=server)
    )
    with ExitStack() as stack:
        bench = stack.enter_context(Bench([case], BenchOptions(trust=True), print))
        bench.enter(case)
        running = start_load(
            case, bench.context(case), LoadOrder(duration_s=60.0, queries=None if kind != "slap" else 1000)
        )
        stack.callback(running.kill)
        assert running.pids
        for pid in [*bench.server_pids, *running.pids]:
            for one in family(pid):
                assert is_confined(one) == [], (kind, Path(f"/proc/{one}/comm").read_text())
        confined = [(name, user, limits) for name, user, limits in started if limits is not None]
        names = {name for name, _, _ in confined}
        least = 3 if kind in _MAKES_TEMPLATE else 2
        assert len(names) >= least, "the look at the version, the template, the server and its client"
        for name, user, confinement in confined:
            limits = confinement
            assert user is not None and 0 not in user, name
            if limits.folder is not None and not limits.folder.exists():
                limits = replace(limits, folder=None)  # that of the template is gone
            answer = host.reached_from(limits)
            assert answer == {"uid": user[0], "reached": []}, name
        # What else was started helps powerprof itself.
        others = {name for name, _, limits in started if limits is None}
        assert others <= {"sleep", Path(programs.python_command(site=False)[0]).name}
    assert not host.was_reached()


@pytest.mark.parametrize("kind", [pytest.param("primary-replica", marks=pytest.mark.nightly), "routed-pair"])
def test_servers_that_work_together_reach_one_another_alone(kind: str, host: Forbidden, mariadbd: Path) -> None:
    with ServerTopology(kind) as topology:  # type: ignore[arg-type]
        for member in topology.members:
            assert is_confined(member.server.pid) == []
            answer = host.reached_from(sandbox._confinement("true", member.server._sandbox(), None))
            assert answer["reached"] == []
        nets = {os.readlink(f"/proc/{member.server.pid}/ns/net") for member in topology.members}
        assert len(nets) == 1


def test_the_client_of_a_given_server_connects_to_its_port_alone(host: Forbidden) -> None:
    if landlock.read_landlock_version() < 4:
        pytest.skip("no capability: Landlock for TCP (Linux 6.7)")
    login = Login(user="u", host="127.0.0.1", port=host.port)
    context = Context(GivenServer(login), login, host.place)
    context.file("x", b"")
    confinement = sandbox._confinement("true", context.sandbox([]), context.place)
    reached = host.reached_from(confinement)["reached"]
    assert [one for one in reached if not one.startswith("udp")] == [f"tcp {host.port}"]
    other = Context(GivenServer(login), Login(user="u", host="127.0.0.1", port=host.port ^ 1), host.place)
    reached = host.reached_from(sandbox._confinement("true", other.sandbox([]), context.place))["reached"]
    assert [one for one in reached if not one.startswith("udp")] == []


def test_where_there_are_no_namespaces_landlock_holds(host: Forbidden, monkeypatch: pytest.MonkeyPatch) -> None:
    if landlock.read_landlock_version() < 6:
        pytest.skip("no capability: Landlock for signals (Linux 6.12)")
    monkeypatch.setattr(sandbox, "has_namespaces", lambda: False)
    reached = host.reached_from(sandbox._confinement("true", sandbox.Sandbox(), None))["reached"]
    # What the note says: unix sockets and UDP.
    assert [one.split()[0] for one in reached] == ["udp", "unix"]
    assert "unix sockets, send UDP" in str(sandbox.describe_gap())


def test_without_root_it_is_the_caller_in_the_same_sandbox(tmp_path: Path, mariadbd: Path, host: Forbidden) -> None:
    script = (
        "import json, sys\n"
        "from powerprof.database import sandbox\n"
        "assert sandbox.has_namespaces()\n"
        "from tests.programs.forbidden import PYTHON, _PROBE\n"
        "done = sandbox.run([PYTHON, '-I', '-S', '-c', _PROBE, sys.argv[1]], sandbox.Sandbox(), timeout_s=60)\n"
        "print(done.stdout or done.stderr)\n"
    )
    targets = json.dumps(host.targets)
    done = subprocess.run(
        [*as_nobody(), sys.executable, "-c", script, targets],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"uid": 65534, "reached": []}


def test_there_is_no_way_to_be_root(monkeypatch: pytest.MonkeyPatch, root: None) -> None:
    account = account_of(0)
    for call in (sandbox.run, lambda argv, own, timeout_s: sandbox.start(argv, own, output=1, env={})):
        with pytest.raises(CapabilityError, match="no account but root"):
            call(["true"], sandbox.Sandbox(account=account), timeout_s=5)
    monkeypatch.setattr(sandbox, "find_server_owner", lambda: account)
    with pytest.raises(CapabilityError, match="no account but root"):
        sandbox.run(["true"], sandbox.Sandbox(), timeout_s=5)
    for user in (None, (0, 0)):
        with pytest.raises(PowerprofError, match="refused its sandbox"):
            programs.run(["true"], user=user, confinement=sandbox._confinement("true", sandbox.Sandbox(), None))


def test_a_client_is_not_root_for_roots_own_account(
    pooled_server: Callable[..., PrivateServer], tmp_path: Path, root: None
) -> None:
    """root@localhost logs in by the socket as root alone: the client is refused, and the hint says what to do."""
    login = Login(user="root", socket=pooled_server().socket)
    case = case_of(tmp_path / "theirs", 'sql = ["SELECT 1"]')
    given = BenchOptions(given=GivenServer(login).__enter__())
    with Bench([case], given, print) as bench, pytest.raises(LoadFailed, match="sysbench failed") as caught:
        start_load(case, bench.context(case), LoadOrder(queries=1)).finish(60)
    assert "name an account with a password" in str(caught.value.hint)


def test_output_of_a_client_is_read_from_no_other_file(attacker: Attacker, tmp_path: Path, mariadbd: Path) -> None:
    """Its folder is its own: it may make links there, and what powerprof prints of a failure is no file of root's."""
    links = " ".join(f"ln -sf {attacker.secret} {name};" for name in ("load.out", "gate", "client.cnf"))
    case = case_of(tmp_path / "theirs", f"kind = 'command'\nargv = ['/bin/sh', '-c', '{links} echo error; exit 1']")
    with Bench([case], BenchOptions(trust=True), print) as bench, pytest.raises(LoadFailed) as caught:
        start_load(case, bench.context(case), LoadOrder(queries=1)).finish(60)
    assert "of root" not in str(caught.value) and "error" in str(caught.value)


# One owner

# Who starts programs that do not work for a workload, and what they are.
_STARTERS = {
    "database/runtree.py": "the janitor and ip",
    "database/sandbox.py": "the owner",
    "database/debian_packages.py": "apt and dpkg-deb, of packages whose signatures were compared",
    "energy/calibrate.py": "a loop of ours",
    "system/fetching.py": "a download, under an account without rights",
    "host/program_probes.py": "tools of the host",
    "reversible/changed.py": "the keeper of settings",
    "reversible/host_settings.py": "tuned-adm",
    "energy/meters/ipmi.py": "ipmitool",
    "energy/meters/turbostat.py": "turbostat",
    "measure/program_output.py": "perf",
    "stacks/demangle.py": "libstdc++'s demangler in a limited child",
    "system/reader_process.py": "the reader of memory",
    "tracing/bpf/detacher.py": "the helper that removes probes later",
    "tracing/bpf/compiled_cache.py": "the compiler",
    "tracing/dtrace.py": "dtrace",
}
_OWNER = "database/sandbox.py"


def starters_in(sources: dict[str, ast.Module]) -> set[str]:
    """Modules that start programs, and `MODULE: confinement` for one that makes a confinement of its own."""
    found = set()
    for where, tree in sources.items():
        of_programs: set[str] = set()
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "powerprof.system.programs":
                of_programs |= {one.asname or one.name for one in node.names if one.name in ("start", "run")}
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            if name in ("programs.start", "programs.run") or name in of_programs:
                found.add(where)
            if name.endswith(("Confinement", "Child")) or any(word.arg == "confinement" for word in node.keywords):
                found.add(f"{where}: confinement")
    return found


def test_one_module_starts_servers_and_clients() -> None:
    package = REPOSITORY / "powerprof"
    texts = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    whole = {name: sources.parse(text) for name, text in texts.items() if re.search("programs|onfinement|Child", text)}
    found = starters_in(whole)
    assert found == {*_STARTERS, f"{_OWNER}: confinement", "system/programs.py: confinement"}
    planted = {
        "experiment/loads/other.py": "from powerprof.system import programs\nprograms.start(['mysql'], user=None)",
        "database/private/other.py": "from powerprof.system.programs import run as go\ngo(['mysqld'])",
        "experiment/other.py": "programs.run(['x'], confinement=Confinement())",
    }
    trees = {where: sources.parse(text) for where, text in planted.items()}
    assert starters_in(trees) - set(_STARTERS) == {*planted, "experiment/other.py: confinement"}
    # What chooses an account for a child is the owner, and what needs no rights at all.
    choosing = {
        where
        for where, tree in whole.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("programs.start", "programs.run")
        and any(word.arg == "user" for word in node.keywords)
    }
    assert choosing == {_OWNER, "system/fetching.py"}


def test_the_probe_reaches_all_of_it_without_a_sandbox(host: Forbidden) -> None:
    """Otherwise the tests above would show nothing."""
    reached = {one.split()[0] for one in host.reached_from(None)["reached"]}
    assert reached == set(host.targets)
