# SPDX-License-Identifier: Apache-2.0
"""Write the workload.toml of executed statements, for `compare` before and after a change."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

from powerprof.queries.client_texts import LeftOutStatements, StatementSample
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.foreign_text import printable
from powerprof.system.next_steps import command_line

_MOST_SLOTS, _MOST_SHOWN = 200, 120
_ELSEWHERE = "in another schema than the workload's"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def check_workload_name(name: str) -> None:
    """Raise UsageError if no workload can have the name of this folder."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--save-workload: no workload can be called {name[:60]!r}",
            "a folder's name of lower case letters, digits and -, such as ./slow-orders",
        )


def format_workload(
    name: str, label: str, samples: Sequence[StatementSample], clients: int, others: LeftOutStatements | None = None
) -> str:
    """Return the text of workload.toml, with the reasons for the statements that were left out.

    Raises PowerprofError if no statement is usable.
    """
    usable = [sample for sample in samples if "{{" not in sample.text]
    if not usable:
        raise PowerprofError(
            "no statement for a workload: no read-only statement was seen complete with its values",
            "a longer --duration, or write one (docs/how-to/write-a-workload.md)",
        )
    schema = Counter(sample.statement.schema_name for sample in usable).most_common(1)[0][0]
    missing = {**(others or {}), _ELSEWHERE: [one.statement for one in usable if one.statement.schema_name != schema]}
    usable = [sample for sample in usable if sample.statement.schema_name == schema]
    rate = sum(sample.statement.calls_hz or 0.0 for sample in usable)
    texts = "".join(f"  {_quote(sample.text)},\n" for sample in interleave_by_rate(usable))
    database = f"database = {_quote(schema)}\n" if schema else "# database = the schema of these statements\n"
    return f"""schema = "powerprof.workload/1"
name = {_quote(name)}
title = {_quote(f"Statements of {label}")}
description = \"\"\"
{len(usable)} statements as clients sent them, with their values, each as often
as it was seen. Change something for the second condition (a table
with an index, another statement), then: {command_line("compare as-is changed --workloads DIR --socket PATH")}\"\"\"

# --socket or --server names the server with the tables. For a private server, put their SQL into files:
# [dataset]
# kind = "sql"
# files = ["tables.sql"]
[dataset]
kind = "none"

[load]
{database}sql = [
{texts}]
{_describe_left_out(missing)}clients = {max(1, min(clients, 64))}
rate_hz = {max(rate, 0.1):.6g}
# On your server these run under a temporary account that may only SELECT.
reads_only = true

[conditions.as-is]
title = "as the server executes them now"

[conditions.changed]
title = "after the change: put it here"
# setup = [
#   "CREATE TABLE t_indexed LIKE t", "INSERT INTO t_indexed SELECT * FROM t", "ALTER TABLE t_indexed ADD INDEX (c)",
# ]
# load.sql = ["the statements on t_indexed"]
"""  # noqa: S608  it is written for a person to read and change, not executed here


def _describe_left_out(missing: LeftOutStatements) -> str:
    """Return one comment line per omitted statement, without its values."""
    lines = []
    for reason, statements in missing.items():
        for statement in statements:
            share = "" if statement.c0_percent is None else f", {statement.c0_percent:.1f} % of the server's CPU time"
            shown = printable(" ".join(statement.text.split()))[:_MOST_SHOWN]
            lines.append(f"# left out: {shown} (#{statement.id}{share}): {reason}\n")
    return "".join(lines)


def interleave_by_rate(samples: Sequence[StatementSample]) -> list[StatementSample]:
    """Return the samples in proportion to their rates and spread evenly; the rarest appears at least once."""
    rates = [sample.statement.calls_hz or 0.0 for sample in samples]
    total, least = sum(rates), min((rate for rate in rates if rate > 0), default=0.0)
    if not total or not least:
        return list(samples)
    slots = min(total / least, _MOST_SLOTS)
    places = []
    for number, (sample, rate) in enumerate(zip(samples, rates, strict=True)):
        times = max(round(slots * rate / total), 1)
        places += [((turn + 0.5) / times, number, sample) for turn in range(times)]
    return [sample for _, _, sample in sorted(places, key=lambda place: place[:2])]


def _quote(value: str) -> str:
    """Return a basic string of TOML. It has the same escapes as JSON."""
    return json.dumps(value)
