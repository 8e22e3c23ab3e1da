# SPDX-License-Identifier: Apache-2.0
"""A Java connector as the client: one source file that the JDK compiles, a jar that was fetched, open loop with a rate.

Both run as the account of the servers. They are copied to where that may read them, the password in a file of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from powerprof import programs
from powerprof.database.fetched import connectors
from powerprof.errors import UsageError
from powerprof.experiment.loads.base import Context, LoadFailed, LoadOrder
from powerprof.experiment.loads.command import parse
from powerprof.experiment.loads.process import STDIN, ProcessLoad
from powerprof.paths import data_dir
from powerprof.workloads.definition import Load

_SOURCE = "ConnectorRunner.java"
_UNIFORM = re.compile(r"\{\{uniform (\d{1,18}) (\d{1,18})\}\}")
# Both connectors' words: whether the server prepares, and whether the connector keeps what it prepared.
_PREPARING = {"text": ("false", "false"), "prepare-each": ("true", "false"), "prepare-once": ("true", "true")}
# The JDK compiles the source and the connector loads a few hundred classes: two seconds on a host that is not busy.
_READY_S = 120.0
_POLL_S = 0.02
# Of a client that is to cost little beside the server: a small heap, one collector thread, no files for jstat.
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.awt.headless=true")


def start(load: Load, statements: Sequence[str], context: Context, order: LoadOrder) -> ProcessLoad:
    """Start it, and wait until its clients are connected.

    Raises CapabilityError without a JDK or the connector, LoadFailed where it does not come so far.
    """
    java = programs.need("java", "default-jdk-headless")
    # `java FILE.java` is the compiler's doing (JEP 330), which a mere runtime has not.
    programs.need("javac", "default-jdk-headless")
    jar = context.file("connector.jar", connectors.jar(load.connector))
    program = context.file(_SOURCE, (data_dir("workloads") / "lib" / _SOURCE).read_bytes())
    argv: list[str | Path] = [java, *_JAVA, "-cp", jar, program, STDIN]
    running = ProcessLoad(argv, context, parse, stdin=properties(load, statements, context, order))
    try:
        _wait(running)
    except BaseException:
        running.kill()
        raise
    return running


def _wait(running: ProcessLoad) -> None:
    deadline_s = time.monotonic() + _READY_S
    while not re.search(r"^ready$", running.text(), re.MULTILINE):
        if not running.alive():
            running.finish(1.0)  # raises with its output
            raise LoadFailed("java ended before its clients were connected")
        if time.monotonic() > deadline_s:
            raise LoadFailed(f"java did not connect in {_READY_S:.0f} s")
        time.sleep(_POLL_S)


def properties(load: Load, statements: Sequence[str], context: Context, order: LoadOrder) -> str:
    """The runner's settings, as java.util.Properties reads them. Raises UsageError for what it cannot ask."""
    if len(statements) != 1 or load.session or load.reconnect or load.transaction:
        raise UsageError("a load of kind connector-j asks one statement, on connections that stay", "one in load.sql")
    text = _UNIFORM.sub("?", statements[0])
    if "{{" in text:
        raise UsageError(f"{statements[0][:40]!r}: connector-j knows {{{{uniform A B}}}} only", "write it so")
    login, connector = context.login, connectors.CATALOGUE[load.connector]
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
