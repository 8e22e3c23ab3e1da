# SPDX-License-Identifier: Apache-2.0
"""List the workloads and their conditions, or explain one.

A workload is a folder with a workload.toml. The how-to "Write a workload" explains the format.
"""

from __future__ import annotations

from pathlib import Path

from powerprof.cli.bench_options import workload_folders
from powerprof.cli.options import CommandOptions
from powerprof.cli.output import write_json
from powerprof.cli.outputs import check_targets, json_file, json_output
from powerprof.cli.parameters import EXPERT_HEADING, argument, flag
from powerprof.cli.terminal import print_report, terminal_width
from powerprof.system.errors import UsageError


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `workloads`."""

    name: str | None = argument("[NAME]", "Workload, or the path of its folder.")
    schema: bool = flag("--schema", "Print the JSON Schema of a workload.toml.", heading=EXPERT_HEADING)
    workloads: list[Path] | None = workload_folders()
    json: str | None = json_file()


def command(options: Options) -> None:
    """List the workloads, or explain one."""
    name, json = options.name, options.json
    check_targets(json_output(json))
    from powerprof.report.catalogues import explain_workload, workload_lines, workload_records
    from powerprof.workloads.catalogue import find_workload, list_folders
    from powerprof.workloads.definition import json_schema
    from powerprof.workloads.reading import read_workload

    if options.schema and (name is not None or options.workloads):
        raise UsageError("NAME and --workloads have no effect with --schema", "leave them out")
    if options.schema:
        write_json(json_schema(), json or "-")
        return
    extra = options.workloads or []
    listed = [find_workload(name, extra)] if name else [read_workload(folder) for folder in list_folders(extra)]
    write_json({"schema": "powerprof.workloads/1", "workloads": workload_records(listed)}, json)
    if json != "-":
        print_report(
            explain_workload(listed[0], terminal_width()) if name else workload_lines(listed, terminal_width())
        )
