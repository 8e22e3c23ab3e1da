# SPDX-License-Identifier: Apache-2.0
"""Start mariadb-slap as the client: it has no rate and runs a number of queries at full speed."""

from __future__ import annotations

import re
from pathlib import Path

from powerprof.experiment.load import STDIN, Context, LoadFailed, LoadOrder, LoadResult, ProcessLoad
from powerprof.system import program_search
from powerprof.system.errors import UsageError
from powerprof.workloads.definition import Load
from powerprof.workloads.reading import Case

_DELIMITER = ";\n"


def start_mariadb_slap(case: Case, context: Context, order: LoadOrder) -> ProcessLoad:
    """Start mariadb-slap with `order.queries` queries. Raise CapabilityError if it is not installed."""
    program = program_search.which("mariadb-slap") or program_search.which("mysqlslap")
    if program is None:
        program = program_search.need("mariadb-slap", "mariadb-client")
    if order.queries is None:
        raise UsageError("mariadb-slap runs a number of queries, not a rate", "use --design work")
    load = case.load
    query = context.file("slap.sql", _DELIMITER.join(case.load_statements(context.folder)).encode())
    argv: list[str | Path] = [
        program,
        f"--defaults-file={STDIN}",
        f"--concurrency={load.clients}",
        "--iterations=1",
        f"--number-of-queries={order.queries}",
        f"--query={query}",
        "--delimiter=;",
        f"--create-schema={load.database or context.login.database or 'mysql'}",
        "--no-drop",
    ]
    if load.session:
        argv.append(f"--init-command={'; '.join(load.session)}")
    queries = order.queries
    return ProcessLoad(
        argv,
        context,
        lambda text, elapsed_s: parse_mariadb_slap(text, elapsed_s, queries, load),
        stdin=_write_slap_config(context),
    )


def _write_slap_config(context: Context) -> str:
    login = context.login
    place = (
        f"socket={login.socket}"
        if login.socket is not None
        else f"host={login.host or '127.0.0.1'}\nport={login.tcp_port}"
    )
    return f'[client]\nuser={login.user}\npassword="{login.password}"\n{place}\n'


def parse_mariadb_slap(text: str, elapsed_s: float, queries: int, load: Load) -> LoadResult:
    """Parse mariadb-slap's report. Raise LoadFailed if it is not one."""
    match = re.search(r"Average number of seconds to run all queries:\s+(\d+\.\d+) seconds", text)
    if not match:
        raise LoadFailed(f"mariadb-slap gave no report: {' '.join(text.split())[-200:]}")
    each = queries // load.clients * load.clients
    return LoadResult(queries=each or queries, elapsed_s=float(match[1]) or elapsed_s)
