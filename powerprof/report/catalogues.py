# SPDX-License-Identifier: Apache-2.0
"""The lists of `powerprof workloads` and `powerprof servers`: workloads, servers of other releases, and connectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from powerprof.database import catalogue
from powerprof.database.catalogue import Fetchable
from powerprof.model import text
from powerprof.report.answers import noun_of
from powerprof.system.next_steps import command_line
from powerprof.workloads.reading import Case, LoadedWorkload, resolve


def workload_records(workloads: Sequence[LoadedWorkload]) -> list[dict[str, Any]]:
    """Return the JSON of workloads: the folder, and the content of workload.toml."""
    return [{"folder": str(loaded.folder), **msgspec.to_builtins(loaded.definition)} for loaded in workloads]


def workload_lines(workloads: Sequence[LoadedWorkload], width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Return each workload with its conditions."""
    printed = [f"{len(workloads)} workloads. For details: {command_line('workloads NAME')}"]
    for workload in workloads:
        printed += ["", text.shorten(f"{workload.definition.name}: {workload.definition.title}", width)]
        printed += text.wrap(", ".join(workload.definition.conditions), width, "  ")
    return printed


def explain_workload(workload: LoadedWorkload, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Return one workload: the question, the published figures, data, load and conditions."""
    definition = workload.definition
    printed = text.wrap(f"{definition.name}: {definition.title}.", width)
    printed += text.wrap(" ".join(definition.description.split()), width) if definition.description else []
    if definition.origin:
        printed += ["", *text.wrap(f"Published: {definition.origin}", width)]
    printed.append("")
    printed += text.wrap(
        f"Primary metric: {noun_of(definition.primary_metric).rstrip(',')} ({definition.primary_metric}).", width
    )
    printed += text.wrap(_dataset_text(workload), width)
    for name in definition.conditions:
        case = resolve(workload, name)
        printed += ["", text.shorten(f"{name}: {case.title}", width)]
        for line in _case_lines(case):
            printed += text.wrap(line, width, "  ")
    first = next(iter(definition.conditions))
    if definition.parameters:
        printed.append("")
        for name, parameter in definition.parameters.items():
            values = ",".join(str(value) for value in parameter.values)
            command = command_line("sweep {} --set {}", f"{definition.name}:{first}", f"{name}={values}")
            printed.append(f"To vary {parameter.key}: {command}")
    names = list(definition.conditions)
    if len(names) > 1:
        printed += ["", command_line("compare {}", [f"{definition.name}:{name}" for name in names[:2]])]
    else:
        printed += ["", command_line("run {}", f"{definition.name}:{names[0]}")]
    printed.append(f"Folder: {workload.folder}")
    return printed


def _dataset_text(workload: LoadedWorkload) -> str:
    dataset = workload.definition.dataset
    if dataset.kind == "world":
        return f"Data: the generated world dataset, {dataset.engine}, city_huge = {dataset.huge_copies} copies of City."
    if dataset.kind == "sql":
        return f"Data: {', '.join(dataset.files)}."
    return "Data: no tables."


def _case_lines(case: Case) -> list[str]:
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
        printed.append(f"{load.clients} idle connections")
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


def server_record(entry: Fetchable) -> dict[str, object]:
    """Return a server or a connector of `powerprof.servers/1`."""
    return {
        "name": entry.name,
        "version": entry.version,
        "description": entry.description,
        "licence": entry.licence,
        "download_bytes": entry.source.download_bytes,
        **({"machine": entry.machine} if entry.scheme is None else {}),
        "fetched": entry.is_fetched,
        "path": str(entry.place) if entry.is_fetched else None,
    }


def server_lines(entries: Iterable[Fetchable]) -> list[str]:
    """Return two lines per server or connector: description and availability."""
    printed = []
    for entry in entries:
        size = f"{entry.machine}, {entry.size_text}" if entry.machine else entry.size_text
        state = f"fetched: {entry.place}" if entry.is_fetched else command_line("servers fetch {}", entry.name)
        printed += [f"{entry.name}  {entry.description}", f"  {size} to download, {entry.licence} · {state}"]
    return printed


def fetched_lines(entry: Fetchable, state: str) -> list[str]:
    """Return the location of a fetched server or connector, and the licence of a server."""
    if entry.scheme is not None:
        return [f"{entry.name}: {entry.place}"]
    build = catalogue.load_build(entry.name)
    return [f"{entry.name} {state}: {entry.place}", f"{build.name}, licence {entry.terms}."]
