# SPDX-License-Identifier: Apache-2.0
"""List the workloads and their conditions, or explain one.

A workload is a folder with a workload.toml; the how-to "Write a workload" in the documentation shows how to write one.
"""

from __future__ import annotations

from typing import Annotated

import typer

from powerprof.cli.options import Json, Workloads
from powerprof.cli.output import check_targets, show, terminal_width, write_json
from powerprof.system.errors import UsageError

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="A workload, or the path of its folder.", show_default=False)
]
Schema = Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a workload.toml.")]


def command(name: Name = None, schema: Schema = False, workloads: Workloads = None, json: Json = None) -> None:
    """List or explain."""
    check_targets(json)
    from powerprof.report import catalogue
    from powerprof.workloads.catalogue import find_workload, folders
    from powerprof.workloads.definition import json_schema
    from powerprof.workloads.reading import read_workload

    if schema and (name is not None or workloads):
        raise UsageError("--schema is the same for every workload", "leave out NAME and --workloads")
    if schema:
        write_json(json_schema(), json or "-")
        return
    extra = workloads or []
    listed = [find_workload(name, extra)] if name else [read_workload(folder) for folder in folders(extra)]
    write_json({"schema": "powerprof.workloads/1", "workloads": catalogue.workload_records(listed)}, json)
    if json != "-":
        show(
            catalogue.explain_workload(listed[0], terminal_width())
            if name
            else catalogue.workload_lines(listed, terminal_width())
        )
