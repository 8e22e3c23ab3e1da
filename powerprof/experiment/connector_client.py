# SPDX-License-Identifier: Apache-2.0
"""Start a Java connector as the client: one source file that the JDK compiles, a fetched jar, open loop with a rate.

They run as the account of the servers and are copied to a folder that it can read, the password in a separate file.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from powerprof.database import catalogue
from powerprof.experiment.command_client import parse_command
from powerprof.experiment.load import STDIN, Context, LoadFailed, LoadOrder, ProcessLoad
from powerprof.system import program_search
from powerprof.system.errors import UsageError
from powerprof.system.paths import data_dir
from powerprof.workloads.definition import Load

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
    java = program_search.need("java", "default-jdk-headless")
    # `java FILE.java` needs the compiler (JEP 330), which a mere runtime lacks.
    program_search.need("javac", "default-jdk-headless")
    jar = context.file("connector.jar", catalogue.read_jar(load.connector))
    program = context.file(_SOURCE, (data_dir("workloads") / "lib" / _SOURCE).read_bytes())
    argv: list[str | Path] = [java, *_JAVA, "-cp", jar, program, STDIN]
    running = ProcessLoad(
        argv, context, parse_command, stdin=format_connector_properties(load, statements, context, order)
    )
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


def format_connector_properties(load: Load, statements: Sequence[str], context: Context, order: LoadOrder) -> str:
    """Return the runner's settings for java.util.Properties. Raise UsageError for unsupported statements."""
    if len(statements) != 1 or load.session or load.reconnect or load.transaction:
        raise UsageError("a load of kind connector-j runs one statement on persistent connections", "one in load.sql")
    text = _UNIFORM.sub("?", statements[0])
    if "{{" in text:
        raise UsageError(f"{statements[0][:40]!r}: connector-j knows {{{{uniform A B}}}} only", "write it so")
    login, connector = context.login, catalogue.find_entry(load.connector)
    database = load.database or login.database or ""
    on_server, kept = _PREPARING[load.protocol]
    options = {
        "user": login.user,
        "password": login.password,
        "useServerPrepStmts": on_server,
        "cachePrepStmts": kept,
        **connector.options,
    }
    values = {
        "url": f"jdbc:{connector.scheme}://{login.host or '127.0.0.1'}:{login.tcp_port}/{database}",
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
