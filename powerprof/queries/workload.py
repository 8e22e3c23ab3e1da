# SPDX-License-Identifier: Apache-2.0
"""A workload.toml made of statements that a server executed, for `compare` after somebody has changed something."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

from powerprof.errors import PowerprofError, UsageError
from powerprof.queries.samples import LeftOut, StatementSample
from powerprof.untrusted import printable

_MOST_SLOTS, _MOST_SHOWN = 200, 120
_ELSEWHERE = "in another schema than the workload's"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def check_name(name: str) -> None:
    """Raises UsageError for a folder that no workload can be called by."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--save-workload: no workload can be called {name[:60]!r}",
            "a folder's name of lower case letters, digits and -, such as ./slow-orders",
        )


def workload_toml(
    name: str, label: str, samples: Sequence[StatementSample], clients: int, others: LeftOut | None = None
) -> str:
    """The text of workload.toml; `others` are named in it with the reason why they are not its. Raises PowerprofError
    where there is nothing to put into it."""
    usable = [sample for sample in samples if "{{" not in sample.text]
    if not usable:
        raise PowerprofError(
            "no statement for a workload: none only reads and was seen whole, with its values",
            "a longer --duration, or write one (docs/how-to/write-a-workload.md)",
        )
    schema = Counter(sample.statement.schema_name for sample in usable).most_common(1)[0][0]
    missing = {**(others or {}), _ELSEWHERE: [one.statement for one in usable if one.statement.schema_name != schema]}
    usable = [sample for sample in usable if sample.statement.schema_name == schema]
    rate = sum(sample.statement.calls_hz or 0.0 for sample in usable)
    texts = "".join(f"  {_text(sample.text)},\n" for sample in mixed(usable))
    database = f"database = {_text(schema)}\n" if schema else "# database = the schema of these statements\n"
    return f"""schema = "powerprof.workload/1"
name = {_text(name)}
title = {_text(f"Statements of {label}")}
description = \"\"\"
{len(usable)} statements as clients sent them, with their values, each as often
as it was seen beside the others. Change something for the second condition (a table
with an index, another statement), then: powerprof compare as-is changed --workloads DIR --socket PATH\"\"\"

# The tables are those of the server that --socket or --server names. For a private server put their SQL into files:
# [dataset]
# kind = "sql"
# files = ["tables.sql"]
[dataset]
kind = "none"

[load]
{database}sql = [
{texts}]
{_comments(missing)}clients = {max(1, min(clients, 64))}
rate_hz = {max(rate, 0.1):.6g}
# On a server of yours these run under an account that may only SELECT, made for it and dropped afterwards.
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


def _comments(missing: LeftOut) -> str:
    """A line for each statement that is not in the workload, without its values."""
    lines = []
    for reason, statements in missing.items():
        for statement in statements:
            share = "" if statement.c0_percent is None else f", {statement.c0_percent:.1f} % of the server's CPU time"
            shown = printable(" ".join(statement.text.split()))[:_MOST_SHOWN]
            lines.append(f"# left out: {shown} (#{statement.id}{share}): {reason}\n")
    return "".join(lines)


def mixed(samples: Sequence[StatementSample]) -> list[StatementSample]:
    """Each as often as its rate is to the others', spread evenly; the rarest at least once."""
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


def _text(value: str) -> str:
    """A basic string of TOML, whose escapes are JSON's."""
    return json.dumps(value)
