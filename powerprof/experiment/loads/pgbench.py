# SPDX-License-Identifier: Apache-2.0
"""pgbench as the client of PostgreSQL: the workload's statements, open loop with --rate.

Checked with 15: with --rate transactions are due at exponentially distributed times and a latency counts from when one
was due (pgbench's manual, --rate). --log says of each transaction when it ended and how long it took, from which those
within a window are counted exactly.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from powerprof import programs
from powerprof.database.products import postgres
from powerprof.errors import UsageError
from powerprof.experiment.loads.base import Context, LoadFailed, LoadOrder, LoadResult
from powerprof.experiment.loads.process import ProcessLoad
from powerprof.folders import Folder
from powerprof.workloads.definition import Load
from powerprof.workloads.reading import Case

_PROTOCOLS = {"text": "simple", "prepare-each": "extended", "prepare-once": "prepared"}
_RANDOM = re.compile(r"\{\{uniform (\d{1,18}) (\d{1,18})\}\}")
_LOG = "pgbench-log"
_LIMIT_BYTES = 256 << 20


def start(case: Case, context: Context, order: LoadOrder) -> ProcessLoad:
    """Start pgbench on the statements of a case. Raises CapabilityError where it is not installed."""
    load, login = case.load, context.login
    for old in context.place.glob(f"{_LOG}.*"):
        old.unlink()
    scripts = [
        context.file(f"pgbench-{number}.sql", text.encode())
        for number, text in enumerate(texts(case.load_statements(), load))
    ]
    argv: list[str | Path] = [
        _program(context),
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
    return ProcessLoad(argv, context, lambda text, elapsed_s: result(text, elapsed_s, context.place))


def _program(context: Context) -> Path:
    """The one that came with the host's server. On PATH Debian has a script that looks for clusters."""
    build = getattr(context.server, "build", None)
    if build is not None and build.root is not None:
        # One client for all releases.
        build = postgres.find_build()
    beside = build.binary.with_name("pgbench") if build is not None else None
    return beside if beside is not None and beside.is_file() else programs.need("pgbench", "postgresql")


def texts(statements: Sequence[str], load: Load) -> list[str]:
    """The scripts: each statement one, of which pgbench takes any, or all of them one where they are a transaction.

    `{{uniform A B}}` becomes a variable of pgbench's. Raises UsageError for other places, and for a backslash, also in
    quotes: outside of them it begins a command of pgbench's own, and some of those run programs.
    """
    session = [f"{text};" for text in load.session]
    if session:
        raise UsageError("pgbench has no statements that each connection runs first", "leave load.session out")
    scripts = [_script(statement) for statement in statements]
    return ["BEGIN;\n" + "".join(scripts) + "END;\n"] if load.transaction else scripts


def _script(statement: str) -> str:
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


def result(text: str, elapsed_s: float, directory: Path) -> LoadResult:
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
