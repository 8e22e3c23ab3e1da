# SPDX-License-Identifier: Apache-2.0
"""What can be refused is refused before the first window: the checks of docs/reference/environment.md, and others.

Every command here would measure for a minute or more. None gets so far: each ends within the time that starting Python
and asking a server take, prints no report and saves no run.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.database.base import Server
from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.system.errors.conftest import Refused

# Less than half of one window; Python takes seconds to start on a busy host.
_WINDOW_S = 120
_SOON_S = 55.0
LONG = ("--duration", str(_WINDOW_S))
CITY = ("city:index", *LONG)

TABLE: list[tuple[int, str, tuple[str, ...]]] = [
    # Values.
    (2, r"--rate \S+: must be above 0", ("run", *CITY, "--rate", "0")),
    (2, r"--rate \S+: must be above 0", ("run", *CITY, "--rate", "-5")),
    (2, r"--rate \S+: not a finite number", ("compare", "index", "no-index", *LONG, "--rate", "nan")),
    (2, r"--rate \S+: must be above 0 and at most 10,000,000", ("run", *CITY, "--rate", "1e12")),
    (2, r"--rate \S+: must be above 0", ("sweep", *CITY, "--clients", "1,2", "--rate", "0")),
    (2, r"--queries", ("run", *CITY, "--queries", "0")),
    (2, r"--clients a,b: not a whole number", ("idle", *LONG, "--clients", "a,b")),
    (2, r"^error: --clients a: must be a whole number", ("sweep", *CITY, "--clients", "a,b")),
    (2, r"^error: --clients 0: must be a whole number, 1 or more$", ("sweep", *CITY, "--clients", "1,0")),
    (2, r"^error: --clients 100000: must be a whole number, at most 10000$", ("sweep", *CITY, "--clients", "1,100000")),
    (2, r"^error: --clients 1,1 names 1 twice", ("sweep", *CITY, "--clients", "1,1")),
    (2, r"^error: --clients , has an empty value", ("sweep", *CITY, "--clients", ",")),
    (2, r"two turns do not fit", ("compare", "index", "no-index", "--duration", "60", "--turn", "40")),
    (2, r"--precision nan", ("compare", "index", "no-index", *LONG, "--precision", "nan")),
    (2, r"no residency source 'nonsense'", ("compare", "index", "no-index", *LONG, "--residency-source", "nonsense")),
    (2, r"no residency source 'nonsense'", ("sweep", *CITY, "--clients", "1", "--residency-source", "nonsense")),
    # What has no effect.
    (2, r"--rate and --queries exclude each other", ("run", *CITY, "--rate", "5", "--queries", "5")),
    (2, r"--turn has no effect with equal work", ("compare", "index", "no-index", "--queries", "9", "--turn", "1")),
    (2, r"--duration has no effect with --quick", ("idle", *LONG, "--quick")),
    (2, r"--duration and --pairs have no effect with --quick", ("compare", "a", "b", *LONG, "--quick", "--pairs", "9")),
    (2, r"--network-namespaces has no effect", ("run", *CITY, "--network-namespaces")),
    # No interval can be had.
    (2, r"^error: --pairs 2: an interval needs at least 3$", ("compare", "index", "no-index", "--pairs", "2")),
    (2, r"^error: --pairs 1: an interval", ("compare", "--pairs", "1", "--", "true", "--", "true")),
    (2, r"^error: --repeat 1: an interval needs at least 2$", ("idle", "--repeat", "1")),
    (2, r"^error: --repeat 0: an interval needs at least 2$", ("idle", "--repeat", "0")),
    (2, r"^error: --pairs 0: an interval needs at least 3$", ("compare", "index", "no-index", "--pairs", "0")),
    (2, r"^error: --pairs -1: an interval needs at least 3$", ("cure", "--pid", "1", "--pairs", "-1")),
    (2, r"^error: --repeat 1: an interval", ("run", *CITY, "--repeat", "1")),
    (2, r"^error: --repeat 1: an interval", ("run", "--repeat", "1", "--", "true")),
    (2, r"^error: --repeat 2: an interval needs at least 3$", ("sweep", *CITY, "--repeat", "2")),
    (2, r"^error: --until p95: not a limit$", ("sweep", "city:index", "--until", "p95")),
    (2, r"^error: --until cpu=120%: must be between 0 and 100 %$", ("sweep", "city:index", "--until", "cpu=120%")),
    (2, r"^error: city:index and index are the same condition$", ("sweep", *CITY, "index", "--until", "p95=5ms")),
    (
        2,
        r"^error: --repeat 2: an interval needs at least",
        ("sweep", "index", "no-index", "--until", "cpu=80%", "--repeat", "2"),
    ),
    (2, r"^error: no-index has no effect without --until$", ("sweep", "index", "no-index")),
    (2, r"^error: --steps has no effect without --until$", ("sweep", *CITY, "--steps", "3")),
    (2, r"^error: --clients has no effect with --until", ("sweep", *CITY, "--clients", "1", "--until", "cpu=80%")),
    (2, r"^error: --html is not available for", ("sweep", *CITY, "--until", "cpu=80%", "--html", "x.html")),
    (2, r"^error: no such command: saturate$", ("saturate", "index", "--until", "p95=5ms")),
    (2, r"^error: no study is called nonsense$", ("study", "nonsense")),
    (2, r"^error: --only x: power-efficiency has no such step$", ("study", "power-efficiency", "--only", "x")),
    (2, r"cannot run at a given rate \(load idle\)", ("sweep", "sixteen-connections", "--until", "p95=5ms")),
    (2, r"--rate and --set rate=", ("sweep", *CITY, "--set", "rate=1,2", "--rate", "5")),
    (2, r"--runs-dir has no effect with --no-save", ("idle", *LONG, "--no-save", "--runs-dir", "/tmp")),
    (2, r"--quiet and --no-save discard the result", ("idle", *LONG, "--no-save", "--quiet")),
    (2, r"^error: attribute has no --event$", ("attribute", *LONG, "--event", "page-faults")),
    (2, r"--event nonsense is not a choice", ("profile", "--system", *LONG, "--event", "nonsense")),
    (2, r"--backend nonsense is not a choice", ("functions", "x", "--pid", "1", *LONG, "--backend", "nonsense")),
    (2, r"--backend nonsense is not a choice", ("offcpu", "--pid", "1", *LONG, "--backend", "nonsense")),
    (2, r"no such option: --stack-buffer", ("profile", "--system", "--stack-buffer", "64")),
    (2, r"--duration has no effect with --from", ("attribute", "--from", "attribute-0001", *LONG)),
    (2, r"--duration has no effect with --from", ("residency", "--from", "/proc/stat", *LONG)),
    (2, r"--duration has no effect with --from", ("energy", "--from", "/proc/stat", *LONG)),
    (2, r"--json has no effect with a RUN", ("runs", "idle-0001", "--json", "-")),
    (2, r"--yes has no effect on list", ("servers", "list", "--yes")),
    (2, r"--yes has no effect without --fetch", ("doctor", "--pid", "1", "--yes")),
    (2, r"--fetch needs a server in DEBUGINFOD_URLS", ("doctor", "--pid", "1", "--fetch", "--yes")),
    (2, r"--duration has no effect with --from", ("doctor", "--from", "attribute-0001", "--duration", "1")),
    (2, r"--runs-dir has no effect without --from", ("doctor", "--pid", "1", "--runs-dir", "/tmp")),
    (2, r"a saved run and a target exclude each other", ("doctor", "--from", "attribute-0001", "--pid", "1")),
    (2, r"--fetch has no effect without --pid", ("doctor", "--fetch")),
    (2, r"^error: no such command: symbols$", ("symbols", "--pid", "1")),
    (2, r"--ask-every has no effect with --no-ask", ("watch", "--no-ask", "--ask-every", "5")),
    (2, r"--pprof-keep has no effect without --pprof-dir", ("export", "--pprof-keep", "5")),
    (
        2,
        r"--frequency has no effect with --event page",
        ("profile", "--system", "--event", "page-faults", "--frequency", "9"),
    ),
    (2, r"--yes has no effect without --allow-unwinding-risk", ("functions", "x", "--pid", "1", "--yes")),
    (2, r"--yes has no effect without --explain", ("queries", "--pid", "1", "--yes")),
    (2, r"NAME and --workloads have no effect with --schema", ("workloads", "city", "--schema")),
    (
        2,
        r"--rate 0.1: less than one query in a window of 5 s",
        ("run", "city:index", "--duration", "5", "--rate", "0.1"),
    ),
    (2, r"^error: city:index and a command after -- exclude each other", ("run", "city:index", "--", "true")),
    (2, r"^error: --clients 1,,2 has an empty value", ("sweep", *CITY, "--clients", "1,,2")),
    (2, r"^error: --clients ١: must be a whole number$", ("sweep", *CITY, "--clients", "١,٢")),
    (2, r"^error: --workloads /proc: no workload.toml in it", ("workloads", "--workloads", "/proc")),
    (2, r"^error: --workloads /proc: no workload.toml in it", ("run", *CITY, "--workloads", "/proc")),
    (1, r"^error: cannot run /etc/passwd \(not executable\)", ("run", "--", "/etc/passwd")),
    (1, r"^error: cannot run /etc \(it is a directory\)", ("compare", "--", "true", "--", "/etc")),
    (2, r"^error: --listen \[::1:9477: \[::1 is not an IP address", ("export", "--listen", "[::1:9477")),
    (2, r"^error: --pid kthreadd: 2 \(kthreadd\) is a kernel thread", ("attribute", "--pid", "kthreadd")),
    # Files.
    (2, r"no such option: --html", ("functions", "x", "--pid", "1", *LONG, "--html", "-")),
    (2, r"--perfetto is not available for", ("profile", "--system", *LONG, "--perfetto", "-")),
    (2, r"--html .*no such directory", ("idle", *LONG, "--html", "/nonexistent/page.html")),
    (2, r"only one file can be stdout", ("idle", *LONG, "--html", "-", "--json", "-")),
    (1, r"cannot write /proc/page.html \(", ("idle", *LONG, "--html", "/proc/page.html")),
    (1, r"cannot write /dev/full \(no space left on device\)", ("idle", *LONG, "--html", "/dev/full")),
    (1, r"cannot write /dev/full \(no space left on device\)", ("compare", "index", "no-index", "--json", "/dev/full")),
    (1, r"cannot write /dev/fd/77 \(bad file descriptor\)", ("sweep", *CITY, "--clients", "1", "--csv", "/dev/fd/77")),
    (1, r"cannot save the run in /proc \(", ("idle", *LONG, "--runs-dir", "/proc")),
    (1, r"cannot save the run in /proc \(", ("residency", *LONG, "--runs-dir", "/proc")),
    # Targets and servers.
    (2, r"--pid '-1' is not a process id", ("attribute", "--pid", "-1", *LONG)),
    (1, r"is not a MariaDB or MySQL server", ("compare", "index", "no-index", *LONG, "--server-binary", "/bin/true")),
    (1, r"is not a MariaDB or MySQL server", ("sweep", *CITY, "--clients", "1,2", "--server-binary", "/bin/true")),
    (
        1,
        r"cannot start the server /nonexistent \(",
        ("sweep", *CITY, "--clients", "1", "--server-binary", "/nonexistent"),
    ),
    (2, r"--server-basedir /bin/true: not a directory", ("run", *CITY, "--server-basedir", "/bin/true")),
    (1, r"/nonexistent: no such file", ("compare", "index", "no-index", *LONG, "--world-sql", "/nonexistent")),
    (1, r"/nonexistent: no such file", ("watch", "--plain", "--defaults-file", "/nonexistent")),
    # Refused at its first point: no empty run is left to go on with.
    (3, r"no log was named", ("sweep", *CITY, "--clients", "1,2", "--energy-source", "meter_log")),
    (3, r"no log was named", ("idle", *LONG, "--energy-source", "meter_log")),
]


def _ids(line: object) -> str | None:
    return " ".join(line).replace("/", "|") if isinstance(line, tuple) else None


@pytest.mark.parametrize(("code", "said", "args"), TABLE, ids=_ids)
def test_the_table(refused: Refused, code: int, said: str, args: tuple[str, ...]) -> None:
    _refused_soon(refused, code, said, args)


def _refused_soon(refused: Refused, code: int, said: str, args: tuple[str, ...]) -> None:
    started_s = time.monotonic()
    refused(code, said, args)
    assert time.monotonic() - started_s < _SOON_S
    assert list(refused.cli.home.glob("state/powerprof/runs/[a-z]*")) == []


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that hangs: the kernel accepts for it, and it says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("command", [("idle", *LONG), ("compare", "index", "no-index", *LONG), ("diagnose", *LONG)])
def test_a_server_that_does_not_answer(refused: Refused, silent: int, command: tuple[str, ...]) -> None:
    address = f"mysql://root@127.0.0.1:{silent}/"
    said = rf"cannot connect to {address} \(the server did not answer in \d+ s( in all)?\)"
    _refused_soon(refused, 1, said, (*command, "--server", address))


@pytest.fixture
def small(mariadbd: Path) -> Iterator[Server]:
    """A server with room for ten connections."""
    with PrivateServer(settings={"max_connections": 10}) as server:
        yield server


@pytest.mark.parametrize(
    "command",
    [("idle", "--clients", "50", *LONG), ("sweep", *CITY, "--clients", "1,50")],
    ids=lambda command: command[0],
)
def test_more_clients_than_a_given_server_takes(
    refused: Refused, small: Server, tmp_path: Path, command: tuple[str, ...]
) -> None:
    options = tmp_path / "account.cnf"
    options.touch(0o600)
    login = small.login
    options.write_text(f"[client]\nuser={login.user}\npassword={login.password}\nsocket={login.socket}\n")
    said = r"the server has room for \d+ more connections, 50 are wanted \(max_connections 10\)"
    _refused_soon(refused, 1, said, (*command, "--defaults-file", str(options)))


def test_a_folder_that_the_servers_account_may_not_enter(root: None, refused: Refused, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    done = refused(
        1, r"the server's account .* cannot access /", ["idle", "--clients", "0", *LONG], {"TMPDIR": str(tmp_path)}
    )
    assert done.err.endswith("set TMPDIR to a directory that it may enter, such as /tmp\n")


def test_saved_runs_take_no_options_of_measuring(refused: Refused) -> None:
    for number in ("1", "2"):
        done = refused.cli(["residency", "--duration", "0.1", "--runs-dir", str(refused.cli.home / "runs"), "--quiet"])
        assert done.code == 0, number
    runs = ("residency-0001", "residency-0002", "--runs-dir", str(refused.cli.home / "runs"))
    said = r"--duration and --pairs have no effect on saved runs"
    _refused_soon(refused, 2, said, ("compare", *runs, "--duration", "60", "--pairs", "4"))


def test_without_a_place_for_runs_it_is_measured_and_said(powerprof_cli: Cli) -> None:
    """Nobody chose the place, so nobody is refused for it: HOME may be missing in a service or a container."""
    done = powerprof_cli(["residency", "--duration", "0.1"], {"XDG_STATE_HOME": "/proc"})
    assert done.code == 0
    assert done.out.startswith("The CPUs ran ")
    assert "Saved as" not in done.out
    assert done.err.startswith("note: the run will not be saved: cannot create /proc/powerprof/runs (")
