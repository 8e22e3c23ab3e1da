# SPDX-License-Identifier: Apache-2.0
"""Start pgbench as the client of PostgreSQL: the workload's statements, open loop with --rate.

Checked with 15: with --rate, transactions are due at exponentially distributed times and latencies count from the due
time (pgbench's manual, --rate). --log has the end and the duration of each transaction, so those within a window are
counted exactly.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from powerprof.database import postgresql
from powerprof.experiment.load import Context, LoadFailed, LoadOrder, LoadResult, ProcessLoad, find_libpq_place
from powerprof.system import program_search
from powerprof.system.errors import UsageError
from powerprof.system.folders import Folder
from powerprof.workloads.definition import Load
from powerprof.workloads.reading import Case

_PROTOCOLS = {"text": "simple", "prepare-each": "extended", "prepare-once": "prepared"}
_RANDOM = re.compile(r"\{\{uniform (\d{1,18}) (\d{1,18})\}\}")
_LOG = "pgbench-log"
_LIMIT_BYTES = 256 << 20


def start_pgbench(case: Case, context: Context, order: LoadOrder) -> ProcessLoad:
    """Start pgbench on the statements of a case. Raise CapabilityError if it is not installed."""
    load, login = case.load, context.login
    host, port = find_libpq_place(login)
    for old in context.place.glob(f"{_LOG}.*"):
        old.unlink()
    scripts = [
        context.file(f"pgbench-{number}.sql", text.encode())
        for number, text in enumerate(write_pgbench_scripts(case.load_statements(context.folder), load))
    ]
    argv: list[str | Path] = [
        _find_pgbench(context),
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
        f"--host={host}",
        f"--port={port}",
        f"--username={login.user}",
        load.database or login.database or "postgres",
    ]
    env = {}
    if login.password:
        # The client's account alone can read the file. Every account can read a command line.
        password = re.sub(r"([\\:])", r"\\\1", login.password)
        env["PGPASSFILE"] = str(context.file("pgpass", f"*:*:*:*:{password}\n".encode()))
    return ProcessLoad(argv, context, lambda text, elapsed_s: parse_pgbench(text, elapsed_s, context.place), env)


def _find_pgbench(context: Context) -> Path:
    """Return the pgbench of the host's server. On PATH Debian has a script that searches for clusters."""
    build = getattr(context.server, "build", None)
    if build is not None and build.root is not None:
        # All releases use the same client.
        build = postgresql.find_build()
    beside = build.binary.with_name("pgbench") if build is not None else None
    return beside if beside is not None and beside.is_file() else program_search.need("pgbench", "postgresql")


def write_pgbench_scripts(statements: Sequence[str], load: Load) -> list[str]:
    """Return a script per statement, of which pgbench picks any; for a transaction one script of all.

    `{{uniform A B}}` becomes a variable of pgbench. Raises UsageError for other places, and for a backslash, also in
    quotes: it can start a command of pgbench itself, and some of those run programs.
    """
    session = [f"{text};" for text in load.session]
    if session:
        raise UsageError("pgbench has no statements that each connection runs first", "leave load.session out")
    scripts = [_write_pgbench_script(statement) for statement in statements]
    return ["BEGIN;\n" + "".join(scripts) + "END;\n"] if load.transaction else scripts


def _write_pgbench_script(statement: str) -> str:
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
