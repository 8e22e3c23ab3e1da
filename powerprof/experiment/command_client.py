# SPDX-License-Identifier: Apache-2.0
"""Start any program as the client: it gets the server's address and can report its number of queries."""

from __future__ import annotations

import re
from pathlib import Path

from powerprof.experiment.load import Context, LoadOrder, LoadResult, ProcessLoad
from powerprof.system.errors import UsageError
from powerprof.workloads.reading import Case

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
        "client.cnf", (f'[client]\nuser={login.user}\npassword="{login.password}"\n' + _format_place(context)).encode()
    )
    places = {
        "socket": str(login.socket or ""),
        "host": login.host or "localhost",
        "port": str(login.tcp_port),
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
    argv = [_fill_places(word, places) for word in case.load.argv]
    program = Path(argv[0])
    if "/" in argv[0] and not program.is_absolute():
        argv[0] = str(folder.absolute() / program)
    return ProcessLoad(argv, context, parse_command, env={"MYSQL_PWD": login.password}, reads=[folder.absolute()])


def _format_place(context: Context) -> str:
    login = context.login
    if login.socket is not None:
        return f"socket={login.socket}\n"
    return f"host={login.host or '127.0.0.1'}\nport={login.tcp_port}\n"


def _fill_places(word: str, places: dict[str, str]) -> str:
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
