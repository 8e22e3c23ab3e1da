# SPDX-License-Identifier: Apache-2.0
"""Start sysbench as the client: statements through sysbench's Lua, open loop with --rate.

Checked with 1.0.20: with --rate a generator queues events at exponentially distributed times, even if the workers are
late, and latencies count from there. That is an open loop: waiting time is included. --time takes whole seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from powerprof.database.base import Login
from powerprof.experiment.load import STDIN, Context, LoadFailed, LoadOrder, LoadResult, ProcessLoad, find_libpq_place
from powerprof.system import program_search
from powerprof.system.paths import data_dir
from powerprof.workloads.definition import Load
from powerprof.workloads.reading import Case

_BUCKET = re.compile(r"^\s+(\d+\.\d+) \|.*?\s(\d+)$", re.MULTILINE)


def start_sysbench(load: Load, statements: Sequence[str], context: Context, order: LoadOrder) -> ProcessLoad:
    """Start sysbench on these statements. Raise CapabilityError if it is not installed."""
    program = program_search.need("sysbench", "sysbench")
    pacing = [
        f"--time={math.ceil(order.duration_s) if order.duration_s else 0}",
        f"--events={order.queries or 0}",
        f"--rate={max(1, round(order.rate_hz)) if order.rate_hz else 0}",
        "--histogram=on",
    ]
    argv = build_command_line(program, load, statements, context, order.seed, pacing)
    return ProcessLoad(argv, context, parse_report, stdin=write_config(load, context))


def start_tpcc(case: Case, context: Context, order: LoadOrder) -> ProcessLoad:
    """Start TPC-C's transactions at full speed. Raise CapabilityError if sysbench is not installed."""
    load = case.load
    argv: list[str | Path] = [
        program_search.need("sysbench", "sysbench"),
        f"--config-file={STDIN}",
        f"--threads={load.clients}",
        f"--rand-seed={order.seed}",
        "--rand-type=uniform",
        f"--time={math.ceil(order.duration_s) if order.duration_s else 0}",
        f"--events={order.queries or 0}",
        "--histogram=on",
        f"--warehouses={case.workload.definition.dataset.warehouses}",
        f"--think={load.think:g}",
        _copy_script("tpcc.lua", context),
        "run",
    ]
    return ProcessLoad(argv, context, parse_report, stdin=write_config(load, context))


def build_command_line(
    program: Path, load: Load, statements: Sequence[str], context: Context, seed: int, pacing: Sequence[str]
) -> list[str | Path]:
    """Return the command line of sysbench for these statements; write them to files in the client's folder.

    sysbench reads `config` from its standard input.
    """
    texts = context.file("statements.nul", _join_by_nul(statements))
    session = context.file("session.nul", _join_by_nul(load.session))
    return [
        program,
        f"--config-file={STDIN}",
        f"--threads={load.clients}",
        f"--rand-seed={seed}",
        "--rand-type=uniform",
        *pacing,
        f"--statements={texts}",
        f"--session={session}",
        f"--protocol={load.protocol}",
        f"--reconnect={'on' if load.reconnect else 'off'}",
        f"--transaction={'on' if load.transaction else 'off'}",
        f"--unique={seed}",
        _copy_script("statements.lua", context),
        "run",
    ]


def _join_by_nul(statements: Sequence[str]) -> bytes:
    return b"\0".join(text.replace("\0", " ").encode() for text in statements)


def _copy_script(name: str, context: Context) -> Path:
    """Copy one of our scripts to the client, because its account may be unable to enter our folder."""
    return context.file(name, (data_dir("workloads") / "lib" / name).read_bytes())


def write_config(load: Load, context: Context) -> str:
    """Return the account as a configuration of sysbench: every user can read passwords on command lines."""
    login = context.login
    if login.family == "postgresql":
        return _write_postgresql_config(load, login)
    lines = ["db-driver=mysql", f"mysql-user={login.user}", f"mysql-password={login.password}"]
    if login.socket is not None:
        lines.append(f"mysql-socket={login.socket}")
    else:
        lines += [f"mysql-host={login.host or '127.0.0.1'}", f"mysql-port={login.tcp_port}"]
    lines.append(f"mysql-db={load.database or login.database or 'mysql'}")
    if login.tls:
        lines.append("mysql-ssl=on")
    return "\n".join(lines) + "\n"


def _write_postgresql_config(load: Load, login: Login) -> str:
    """Return the account for PostgreSQL."""
    host, port = find_libpq_place(login)
    return "\n".join(
        [
            "db-driver=pgsql",
            f"pgsql-user={login.user}",
            f"pgsql-password={login.password}",
            f"pgsql-host={host}",
            f"pgsql-port={port}",
            f"pgsql-db={load.database or login.database or 'postgres'}\n",
        ]
    )


def parse_report(text: str, elapsed_s: float) -> LoadResult:
    """Parse sysbench's report. Raise LoadFailed if it is not one."""
    events = re.search(r"total number of events:\s+(\d+)", text)
    total = re.search(r"total time:\s+(\d+(?:\.\d+)?)s", text)
    if not events or not total:
        raise LoadFailed(f"sysbench gave no report: {' / '.join(text.split()[-20:])[:200]}")
    mean = re.search(r"^\s+avg:\s+(\d+\.\d+)", text, re.MULTILINE)
    errors = re.search(r"ignored errors:\s+(\d+)", text)
    buckets = [(float(value), int(count)) for value, count in _BUCKET.findall(text)]
    return LoadResult(
        queries=int(events[1]),
        elapsed_s=float(total[1]) or elapsed_s,
        p50_ms=find_percentile(buckets, 50),
        p95_ms=find_percentile(buckets, 95),
        p99_ms=find_percentile(buckets, 99),
        mean_ms=float(mean[1]) if mean and int(events[1]) else None,
        errors=int(errors[1]) if errors else 0,
    )


def find_percentile(buckets: Sequence[tuple[float, int]], percent: float) -> float | None:
    """Return the value of a histogram below which `percent` of the counts are; None for an empty one.

    The resolution is 2 %, the distance of the 1,024 buckets from 0.001 ms to 100 s (sysbench's sb_histogram).
    """
    total = sum(count for _, count in buckets)
    if not total:
        return None
    seen = 0
    for value, count in buckets:
        seen += count
        if seen >= total * percent / 100:
            return value
    return buckets[-1][0]
