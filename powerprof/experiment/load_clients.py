# SPDX-License-Identifier: Apache-2.0
"""Start the client of each kind of load."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from powerprof.database import historical, postgresql
from powerprof.database.connections import IdleConnections
from powerprof.experiment import sysbench
from powerprof.experiment.load import STDIN, Context, LoadFailed, LoadOrder, LoadResult, ProcessLoad, RunningLoad
from powerprof.system import programs
from powerprof.system.errors import UsageError
from powerprof.system.folders import Folder
from powerprof.system.paths import data_dir
from powerprof.workloads.definition import Load
from powerprof.workloads.reading import Case

# Any program as the client: it gets the server's address and can report its number of queries.

_PLACE = re.compile(r"\{([a-z_]+)\}")
_COUNT = re.compile(r"^(queries|p50_ms|p95_ms|p99_ms)[=: ]+(\d+(?:\.\d+)?)\s*$", re.MULTILINE)


def start_command(case: Case, context: Context, order: LoadOrder) -> ProcessLoad:
    """Start the command of `load.argv` with its {places} filled.

    The password is in MYSQL_PWD and in {defaults_file}, never an argument. A first word with a slash is searched in the
    workload's folder. Raises UsageError for an unknown place.
    """
    login = context.login
    folder = context.folder or case.workload.folder
    defaults = context.file(
        "client.cnf", (f'[client]\nuser={login.user}\npassword="{login.password}"\n' + _place_lines(context)).encode()
    )
    places = {
        "socket": str(login.socket or ""),
        "host": login.host or "localhost",
        "port": str(login.port or 3306),
        "user": login.user,
        "database": case.load.database or login.database or "",
        "defaults_file": str(defaults),
        "clients": str(case.load.clients),
        "rate_hz": f"{order.rate_hz:g}" if order.rate_hz else "0",
        "duration_s": f"{order.duration_s:g}" if order.duration_s else "0",
        "queries": str(order.queries or 0),
        "seed": str(order.seed),
        "folder": str(folder),
    }
    argv = [_fill(word, places) for word in case.load.argv]
    program = Path(argv[0])
    if "/" in argv[0] and not program.is_absolute():
        argv[0] = str(folder.absolute() / program)
    return ProcessLoad(argv, context, parse_command, env={"MYSQL_PWD": login.password}, reads=[folder.absolute()])


def _place_lines(context: Context) -> str:
    login = context.login
    if login.socket is not None:
        return f"socket={login.socket}\n"
    return f"host={login.host or '127.0.0.1'}\nport={login.port or 3306}\n"


def _fill(word: str, places: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in places:
            raise UsageError(f"load.argv: no such place {match[0]}", "one of " + ", ".join(sorted(places)))
        return places[match[1]]

    return _PLACE.sub(value, word)


def parse_command(text: str, elapsed_s: float) -> LoadResult:
    """Parse lines such as `queries=1000` and `p95_ms=2.5`; the last one of each counts."""
    values = {name: float(value) for name, value in _COUNT.findall(text)}
    return LoadResult(
        queries=int(values["queries"]) if "queries" in values else None,
        elapsed_s=elapsed_s,
        p50_ms=values.get("p50_ms"),
        p95_ms=values.get("p95_ms"),
        p99_ms=values.get("p99_ms"),
    )


# A Java connector as the client: one source file that the JDK compiles, a fetched jar, open loop with a rate. They run
# as the account of the servers and are copied to a folder that it can read, the password in a separate file.

_SOURCE = "ConnectorRunner.java"
_UNIFORM = re.compile(r"\{\{uniform (\d{1,18}) (\d{1,18})\}\}")
# Options of both connectors: prepare on the server, and keep prepared statements.
_PREPARING = {"text": ("false", "false"), "prepare-each": ("true", "false"), "prepare-once": ("true", "true")}
# The JDK compiles the source and the connector loads a few hundred classes, which takes two seconds on an idle host.
_READY_S = 120.0
_POLL_S = 0.02
# A cheap client: a small heap, one collector thread, no files for jstat.
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.awt.headless=true")


def start_connector(load: Load, statements: Sequence[str], context: Context, order: LoadOrder) -> ProcessLoad:
    """Start the connector and wait until its clients are connected.

    Raises CapabilityError without a JDK or the connector, and LoadFailed if the clients do not connect.
    """
    java = programs.need("java", "default-jdk-headless")
    # `java FILE.java` needs the compiler (JEP 330), which a mere runtime lacks.
    programs.need("javac", "default-jdk-headless")
    jar = context.file("connector.jar", historical.read_jar(load.connector))
    program = context.file(_SOURCE, (data_dir("workloads") / "lib" / _SOURCE).read_bytes())
    argv: list[str | Path] = [java, *_JAVA, "-cp", jar, program, STDIN]
    running = ProcessLoad(argv, context, parse_command, stdin=connector_properties(load, statements, context, order))
    try:
        _wait_for_connector(running)
    except BaseException:
        running.kill()
        raise
    return running


def _wait_for_connector(running: ProcessLoad) -> None:
    deadline_s = time.monotonic() + _READY_S
    while not re.search(r"^ready$", running.text(), re.MULTILINE):
        if not running.alive():
            running.finish(1.0)  # raises with its output
            raise LoadFailed("java ended before its clients were connected")
        if time.monotonic() > deadline_s:
            raise LoadFailed(f"java did not connect in {_READY_S:.0f} s")
        time.sleep(_POLL_S)


def connector_properties(load: Load, statements: Sequence[str], context: Context, order: LoadOrder) -> str:
    """Return the runner's settings for java.util.Properties. Raise UsageError for unsupported statements."""
    if len(statements) != 1 or load.session or load.reconnect or load.transaction:
        raise UsageError("a load of kind connector-j runs one statement on persistent connections", "one in load.sql")
    text = _UNIFORM.sub("?", statements[0])
    if "{{" in text:
        raise UsageError(f"{statements[0][:40]!r}: connector-j knows {{{{uniform A B}}}} only", "write it so")
    login, connector = context.login, historical.CONNECTORS[load.connector]
    on_server, kept = _PREPARING[load.protocol]
    options = {
        "user": login.user,
        "password": login.password,
        "useServerPrepStmts": on_server,
        "cachePrepStmts": kept,
        **connector.options,
    }
    values = {
        "url": connector.url(login.host or "127.0.0.1", login.port or 3306, load.database or login.database or ""),
        "sql": text,
        "bounds": " ".join(bound for pair in _UNIFORM.findall(statements[0]) for bound in pair),
        "clients": str(load.clients),
        "rate_hz": f"{order.rate_hz or 0:g}",
        "duration_s": f"{order.duration_s or 0:g}",
        "queries": str(order.queries or 0),
        "seed": str(order.seed),
        **{f"connector.{name}": value for name, value in options.items()},
    }
    return "".join(f"{name}={_escape_property(value)}\n" for name, value in values.items())


def _escape_property(value: str) -> str:
    r"""Escape a value for java.util.Properties.load: backslashes, and \uXXXX for characters outside of ASCII."""
    plain = value.replace("\\", "\\\\").replace("\n", " ").replace("\r", " ")
    return "".join(one if one.isascii() else f"\\u{ord(one):04x}" for one in plain)


# pgbench as the client of PostgreSQL: the workload's statements, open loop with --rate. Checked with 15: with --rate,
# transactions are due at exponentially distributed times and latencies count from the due time (pgbench's manual,
# --rate). --log has the end and the duration of each transaction, so those within a window are counted exactly.

_PROTOCOLS = {"text": "simple", "prepare-each": "extended", "prepare-once": "prepared"}
_RANDOM = re.compile(r"\{\{uniform (\d{1,18}) (\d{1,18})\}\}")
_LOG = "pgbench-log"
_LIMIT_BYTES = 256 << 20


def start_pgbench(case: Case, context: Context, order: LoadOrder) -> ProcessLoad:
    """Start pgbench on the statements of a case. Raise CapabilityError if it is not installed."""
    load, login = case.load, context.login
    for old in context.place.glob(f"{_LOG}.*"):
        old.unlink()
    scripts = [
        context.file(f"pgbench-{number}.sql", text.encode())
        for number, text in enumerate(pgbench_scripts(case.load_statements(context.folder), load))
    ]
    argv: list[str | Path] = [
        _pgbench_program(context),
        "--no-vacuum",
        f"--client={load.clients}",
        "--jobs=1",
        f"--protocol={_PROTOCOLS[load.protocol]}",
        f"--random-seed={order.seed}",
        "--log",
        f"--log-prefix={_LOG}",
        *(["--connect"] if load.reconnect else []),
        *([f"--rate={order.rate_hz:g}"] if order.rate_hz else []),
        (
            f"--transactions={math.ceil(order.queries / load.clients)}"
            if order.queries
            else f"--time={math.ceil(order.duration_s or 1)}"
        ),
        *(f"--file={script}" for script in scripts),
        f"--host={login.socket.parent if login.socket else login.host}",
        f"--username={login.user}",
        load.database or login.database or "postgres",
    ]
    return ProcessLoad(argv, context, lambda text, elapsed_s: parse_pgbench(text, elapsed_s, context.place))


def _pgbench_program(context: Context) -> Path:
    """Return the pgbench of the host's server. On PATH Debian has a script that searches for clusters."""
    build = getattr(context.server, "build", None)
    if build is not None and build.root is not None:
        # All releases use the same client.
        build = postgresql.find_build()
    beside = build.binary.with_name("pgbench") if build is not None else None
    return beside if beside is not None and beside.is_file() else programs.need("pgbench", "postgresql")


def pgbench_scripts(statements: Sequence[str], load: Load) -> list[str]:
    """Return a script per statement, of which pgbench picks any; for a transaction one script of all.

    `{{uniform A B}}` becomes a variable of pgbench. Raises UsageError for other places, and for a backslash, also in
    quotes: it can start a command of pgbench itself, and some of those run programs.
    """
    session = [f"{text};" for text in load.session]
    if session:
        raise UsageError("pgbench has no statements that each connection runs first", "leave load.session out")
    scripts = [_pgbench_script(statement) for statement in statements]
    return ["BEGIN;\n" + "".join(scripts) + "END;\n"] if load.transaction else scripts


def _pgbench_script(statement: str) -> str:
    if "\\" in statement:
        raise UsageError(
            f"{statement.strip()[:40]!r} has a backslash, which begins a command of pgbench's own",
            "write it as chr(92) in SQL, or use sysbench (load.kind = 'statements')",
        )
    variables: list[str] = []

    def variable(match: re.Match[str]) -> str:
        variables.append(f"\\set powerprof{len(variables)} random({match[1]}, {match[2]})\n")
        return f":powerprof{len(variables) - 1}"

    text = _RANDOM.sub(variable, statement)
    if "{{" in text:
        raise UsageError(
            f"{statement.strip()[:40]!r}: pgbench knows {{{{uniform A B}}}} only", "write it so, or use sysbench"
        )
    return "".join(variables) + text.rstrip().rstrip(";") + ";\n"


def parse_pgbench(text: str, elapsed_s: float, directory: Path) -> LoadResult:
    """Parse pgbench's report and log. Raise LoadFailed if there is no report."""
    counted = re.search(r"number of transactions actually processed: (\d+)", text)
    if not counted:
        raise LoadFailed(f"pgbench gave no report: {' / '.join(text.split()[-20:])[:200]}")
    failed = re.search(r"number of failed transactions: (\d+)", text)
    mean = re.search(r"latency average = (\d+(?:\.\d+)?) ms", text)
    load = LoadResult(
        queries=int(counted[1]),
        elapsed_s=elapsed_s,
        mean_ms=float(mean[1]) if mean else None,
        errors=int(failed[1]) if failed else 0,
    )
    ends, latencies = _read_log(directory)
    if not latencies:
        return load
    latencies.sort()

    def at(percent: float) -> float:
        return latencies[min(len(latencies) - 1, math.ceil(len(latencies) * percent / 100) - 1)]

    # The log has the time of day, windows use the monotonic clock.
    ahead_s = time.time() - time.monotonic()
    return replace(load, p50_ms=at(50), p95_ms=at(95), p99_ms=at(99), ends_s=tuple(end - ahead_s for end in ends))


def _read_log(directory: Path) -> tuple[list[float], list[float]]:
    """Return the end in s and the duration in ms of each transaction.

    A line of the log: client, number, µs, script, s, µs[, lag in µs].
    """
    ends, latencies = [], []
    with Folder.open(directory) as folder:
        for path in directory.glob(f"{_LOG}.*"):
            text = folder.read(path.name, _LIMIT_BYTES).decode("ascii", "replace")
            for line in text.splitlines():
                words = line.split()
                if len(words) >= 6 and words[2].isdigit():
                    latencies.append(int(words[2]) / 1e3)
                    ends.append(int(words[4]) + int(words[5]) / 1e6)
    return ends, latencies


class IdleLoad:
    """Open, silent connections of powerprof itself. Raises PowerprofError if one is refused."""

    def __init__(self, context: Context, clients: int) -> None:
        self._started_s = time.monotonic()
        self._held = IdleConnections(context.server, clients)
        self._held.__enter__()

    @property
    def pids(self) -> Sequence[int]:
        return ()

    def alive(self) -> bool:
        """Return whether all connections are open."""
        return self._held.lost_count() == 0

    def done(self) -> int | None:
        return None

    def finish(self, timeout_s: float) -> LoadResult:
        """Close the connections. Raise LoadFailed if the server has closed some before."""
        lost = self._held.lost_count()
        elapsed_s = time.monotonic() - self._started_s
        self._held.end()
        if lost:
            raise LoadFailed(f"the server closed {lost} idle connections")
        return LoadResult(queries=0, elapsed_s=elapsed_s)

    def kill(self) -> None:
        self._held.close()


def start_load(case: Case, context: Context, order: LoadOrder) -> RunningLoad:
    """Start the load of `case`. Raise CapabilityError, LoadFailed, UsageError."""
    if case.load.is_silent:
        return IdleLoad(context, case.load.clients if case.load.kind == "idle" else 0)
    if case.load.kind == "slap":
        return sysbench.start_mariadb_slap(case, context, order)
    if case.load.kind == "command":
        return start_command(case, context, order)
    if case.load.kind == "connector-j":
        return start_connector(case.load, case.load_statements(context.folder), context, order)
    if case.load.kind == "pgbench":
        return start_pgbench(case, context, order)
    if case.load.kind == "tpcc":
        return sysbench.start_tpcc(case, context, order)
    if context.login.family == "postgresql" and order.duration_s is not None:
        return sysbench.OpenGate(case.load, case.load_statements(context.folder), context, order)
    return sysbench.start_sysbench(case.load, case.load_statements(context.folder), context, order)
