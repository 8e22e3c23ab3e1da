# SPDX-License-Identifier: Apache-2.0
"""`powerprof workloads` for a terminal: all of them in a list, or one explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from powerprof import text
from powerprof.report.wording.answers import words
from powerprof.workloads.reading import Case, LoadedWorkload, resolve


def records(workloads: Sequence[LoadedWorkload]) -> list[dict[str, Any]]:
    """What `--json` says of them: the folder, and what its workload.toml declares."""
    return [{"folder": str(loaded.folder), **msgspec.to_builtins(loaded.definition)} for loaded in workloads]


def listing(workloads: Sequence[LoadedWorkload], width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Each workload with its conditions."""
    printed = [f"{len(workloads)} workloads. One of them explained: powerprof workloads NAME"]
    for workload in workloads:
        printed += ["", text.cut(f"{workload.definition.name}: {workload.definition.title}", width)]
        printed += text.wrap(", ".join(workload.definition.conditions), width, "  ")
    return printed


def explain(workload: LoadedWorkload, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """One workload: the question, the published figures, data, load and what each condition changes."""
    definition = workload.definition
    printed = text.wrap(f"{definition.name}: {definition.title}.", width)
    printed += text.wrap(" ".join(definition.description.split()), width) if definition.description else []
    if definition.origin:
        printed += ["", *text.wrap(f"Published: {definition.origin}", width)]
    printed.append("")
    printed += text.wrap(
        f"Judged by {words(definition.primary_metric).rstrip(',')} ({definition.primary_metric}).", width
    )
    printed += text.wrap(_dataset(workload), width)
    for name in definition.conditions:
        case = resolve(workload, name)
        printed += ["", text.cut(f"{name}: {case.title}", width)]
        for line in _case(case):
            printed += text.wrap(line, width, "  ")
    if definition.parameters:
        printed.append("")
        for name, parameter in definition.parameters.items():
            values = ",".join(str(value) for value in parameter.values)
            printed += text.wrap(f"powerprof sweep … --set {name}={values} varies {parameter.key}.", width)
    names = list(definition.conditions)
    if len(names) > 1:
        printed += ["", f"powerprof compare {definition.name}:{names[0]} {definition.name}:{names[1]}"]
    else:
        printed += ["", f"powerprof run {definition.name}:{names[0]}"]
    printed.append(f"Folder: {workload.folder}")
    return printed


def _dataset(workload: LoadedWorkload) -> str:
    dataset = workload.definition.dataset
    if dataset.kind == "world":
        return f"Data: the generated world dataset, {dataset.engine}, city_huge = {dataset.huge_copies} copies of City."
    if dataset.kind == "sql":
        return f"Data: {', '.join(dataset.files)}."
    return "Data: none."


def _case(case: Case) -> list[str]:
    load, server = case.load, case.server
    printed = []
    if case.topology.kind != "standalone":
        printed.append(f"servers: {case.topology.kind}" + (f", {case.topology.count}" if case.topology.count else ""))
        printed += [
            f"{name}: server id {own.server_id}" for name, own in case.topology.members.items() if own.server_id
        ]
    if load.kind == "none":
        printed.append("no clients")
    elif load.kind == "idle":
        printed.append(f"{load.clients} connections that send nothing")
    elif load.kind == "tpcc":
        printed.append(
            f"{load.clients} clients run TPC-C's transactions" + (f", think × {load.think:g}" if load.think else "")
        )
    elif load.kind == "command":
        printed.append(f"command: {' '.join(load.argv)}")
    else:
        how = {"text": "", "prepare-once": ", prepared once", "prepare-each": ", prepared for each execution"}
        fresh = ", a connection for each" if load.reconnect else ""
        statements = case.load_statements()
        printed.append(f"{load.clients} clients{how[load.protocol]}{fresh}:")
        printed += [" ".join(statement.split())[:300] + ";" for statement in statements[:4]]
        if len(statements) > 4:
            printed.append(f"… and {len(statements) - 4} more")
    printed += [f"{name} = {value}" for name, value in server.settings.items()]
    printed += [f"SET GLOBAL {name} = {value}" for name, value in server.set_global.items()]
    if server.disk_operations_hz is not None:
        printed.append(
            f"disk: {server.disk_operations_hz} reads/s and as many direct writes/s at most, by control group"
        )
    printed += [f"environment {name}={value}" for name, value in server.environment.items()]
    printed += [f"each connection first: {statement}" for statement in load.session]
    return printed
