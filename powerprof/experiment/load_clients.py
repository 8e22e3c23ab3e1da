# SPDX-License-Identifier: Apache-2.0
"""From the kind of a load to what runs it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from powerprof.database.clients.connections import IdleConnections
from powerprof.database.fetched import historical
from powerprof.database.products import products
from powerprof.experiment import sysbench
from powerprof.experiment.load import STDIN, Context, LoadFailed, LoadOrder, LoadResult, ProcessLoad, RunningLoad
from powerprof.system import programs
from powerprof.system.errors import UsageError
from powerprof.system.folders import Folder
from powerprof.system.paths import data_dir
from powerprof.workloads.definition import Load
from powerprof.workloads.reading import Case

# Any program as the client: it gets the server's address, and may report how many queries it ran.

_PLACE = re.compile(r"\{([a-z_]+)\}")
_COUNT = re.compile(r"^(queries|p50_ms|p95_ms|p99_ms)[=: ]+(\d+(?:\.\d+)?)\s*$", re.MULTILINE)


def start_command(case: Case, context: Context, order: LoadOrder) -> ProcessLoad:
    """Start the command of `load.argv` with its {places} filled. Raises UsageError for an unknown place.

    The password is in MYSQL_PWD and in {defaults_file}, never an argument. A first word with a slash is
    looked for in the workload's folder.
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
    """Lines such as `queries=1000` and `p95_ms=2.5`, last of each; what is not reported is unknown."""
    values = {name: float(value) for name, value in _COUNT.findall(text)}
    return LoadResult(
        queries=int(values["queries"]) if "queries" in values else None,
        elapsed_s=elapsed_s,
        p50_ms=values.get("p50_ms"),
        p95_ms=values.get("p95_ms"),
        p99_ms=values.get("p99_ms"),
    )


# A Java connector as the client: one source file that the JDK compiles, a jar that was fetched, open loop with a rate.
#
# Both run as the account of the servers. They are copied to where that may read them, the password in a file of its
# own.

_SOURCE = "ConnectorRunner.java"
_UNIFORM = re.compile(r"\{\{uniform (\d{1,18}) (\d{1,18})\}\}")
# Both connectors' words: whether the server prepares, and whether the connector keeps what it prepared.
_PREPARING = {"text": ("false", "false"), "prepare-each": ("true", "false"), "prepare-once": ("true", "true")}
# The JDK compiles the source and the connector loads a few hundred classes: two seconds on a host that is not busy.
_READY_S = 120.0
_POLL_S = 0.02
# Of a client that is to cost little beside the server: a small heap, one collector thread, no files for jstat.
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.awt.headless=true")


def start_connector(load: Load, statements: Sequence[str], context: Context, order: LoadOrder) -> ProcessLoad:
    """Start it, and wait until its clients are connected.

    Raises CapabilityError without a JDK or the connector, LoadFailed where it does not come so far.
    """
    java = programs.need("java", "default-jdk-headless")
    # `java FILE.java` is the compiler's doing (JEP 330), which a mere runtime has not.
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
    """The runner's settings, as java.util.Properties reads them. Raises UsageError for what it cannot ask."""
    if len(statements) != 1 or load.session or load.reconnect or load.transaction:
        raise UsageError("a load of kind connector-j asks one statement, on connections that stay", "one in load.sql")
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
    return "".join(f"{name}={_escaped(value)}\n" for name, value in values.items())


def _escaped(value: str) -> str:
    r"""As java.util.Properties.load reads it: a backslash before what is special, \uXXXX for what is no Latin-1."""
    plain = value.replace("\\", "\\\\").replace("\n", " ").replace("\r", " ")
    return "".join(one if one.isascii() else f"\\u{ord(one):04x}" for one in plain)


# pgbench as the client of PostgreSQL: the workload's statements, open loop with --rate.
#
# Checked with 15: with --rate transactions are due at exponentially distributed times and a latency counts from when
# one was due (pgbench's manual, --rate). --log says of each transaction when it ended and how long it took, from which
# those within a window are counted exactly.

_PROTOCOLS = {"text": "simple", "prepare-each": "extended", "prepare-once": "prepared"}
_RANDOM = re.compile(r"\{\{uniform (\d{1,18}) (\d{1,18})\}\}")
_LOG = "pgbench-log"
_LIMIT_BYTES = 256 << 20


def start_pgbench(case: Case, context: Context, order: LoadOrder) -> ProcessLoad:
    """Start pgbench on the statements of a case. Raises CapabilityError where it is not installed."""
    load, login = case.load, context.login
    for old in context.place.glob(f"{_LOG}.*"):
        old.unlink()
    scripts = [
        context.file(f"pgbench-{number}.sql", text.encode())
        for number, text in enumerate(pgbench_scripts(case.load_statements(), load))
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
    """The one that came with the host's server. On PATH Debian has a script that looks for clusters."""
    build = getattr(context.server, "build", None)
    if build is not None and build.root is not None:
        # One client for all releases.
        build = products.find_postgres_build()
    beside = build.binary.with_name("pgbench") if build is not None else None
    return beside if beside is not None and beside.is_file() else programs.need("pgbench", "postgresql")


def pgbench_scripts(statements: Sequence[str], load: Load) -> list[str]:
    """The scripts: each statement one, of which pgbench takes any, or all of them one where they are a transaction.

    `{{uniform A B}}` becomes a variable of pgbench's. Raises UsageError for other places, and for a backslash, also in
    quotes: outside of them it begins a command of pgbench's own, and some of those run programs.
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
            "write it as chr(92) in SQL, or let sysbench ask (load.kind = 'statements')",
        )
    variables: list[str] = []

    def variable(match: re.Match[str]) -> str:
        variables.append(f"\\set powerprof{len(variables)} random({match[1]}, {match[2]})\n")
        return f":powerprof{len(variables) - 1}"

    text = _RANDOM.sub(variable, statement)
    if "{{" in text:
        raise UsageError(
            f"{statement.strip()[:40]!r}: pgbench knows {{{{uniform A B}}}} only", "write it so, or let sysbench ask"
        )
    return "".join(variables) + text.rstrip().rstrip(";") + ";\n"


def parse_pgbench(text: str, elapsed_s: float, directory: Path) -> LoadResult:
    """pgbench's report and log. Raises LoadFailed where it gave none."""
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
    ends, latencies = _logged(directory)
    if not latencies:
        return load
    latencies.sort()

    def at(percent: float) -> float:
        return latencies[min(len(latencies) - 1, math.ceil(len(latencies) * percent / 100) - 1)]

    # The log has the time of day, a window the monotonic clock.
    ahead_s = time.time() - time.monotonic()
    return replace(load, p50_ms=at(50), p95_ms=at(95), p99_ms=at(99), ends_s=tuple(end - ahead_s for end in ends))


def _logged(directory: Path) -> tuple[list[float], list[float]]:
    """When each transaction ended and its milliseconds. A line: client, number, µs, script, s, µs[, lag in µs]."""
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


# Connections that are open and silent; powerprof holds them itself and sleeps.


class IdleLoad:
    """Open connections. Raises PowerprofError where one is refused."""

    def __init__(self, context: Context, clients: int) -> None:
        self._started_s = time.monotonic()
        self._held = IdleConnections(context.server, clients)
        self._held.__enter__()

    @property
    def pids(self) -> Sequence[int]:
        """None: powerprof is the client."""
        return ()

    def alive(self) -> bool:
        """False once the server has closed one."""
        return self._held.lost_count() == 0

    def done(self) -> int | None:
        """Nothing is asked."""
        return None

    def finish(self, timeout_s: float) -> LoadResult:
        """Close the connections. Raises LoadFailed where the server has closed some before."""
        lost = self._held.lost_count()
        elapsed_s = time.monotonic() - self._started_s
        self._held.end()
        if lost:
            raise LoadFailed(f"the server closed {lost} idle connections")
        return LoadResult(queries=0, elapsed_s=elapsed_s)

    def kill(self) -> None:
        """Close the connections."""
        self._held.close()


def start_load(case: Case, context: Context, order: LoadOrder) -> RunningLoad:
    """Start the load of `case`. Raises CapabilityError, LoadFailed, UsageError."""
    if case.load.is_silent:
        return IdleLoad(context, case.load.clients if case.load.kind == "idle" else 0)
    if case.load.kind == "slap":
        return sysbench.start_mariadb_slap(case, context, order)
    if case.load.kind == "command":
        return start_command(case, context, order)
    if case.load.kind == "connector-j":
        return start_connector(case.load, case.load_statements(), context, order)
    if case.load.kind == "pgbench":
        return start_pgbench(case, context, order)
    if case.load.kind == "tpcc":
        return sysbench.start_tpcc(case, context, order)
    if context.login.family == "postgresql" and order.duration_s is not None:
        return sysbench.OpenGate(case.load, case.load_statements(), context, order)
    return sysbench.start_sysbench(case.load, case.load_statements(), context, order)
