# SPDX-License-Identifier: Apache-2.0
"""`powerprof workloads` for a terminal: all of them in a list, or one explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from powerprof import text
from powerprof.experiment.judge.answer import words
from powerprof.workloads.reading import Case, Loaded, resolve


def records(workloads: Sequence[Loaded]) -> list[dict[str, Any]]:
    """What `--json` says of them: the folder, and what its workload.toml declares."""
    return [{"folder": str(loaded.folder), **msgspec.to_builtins(loaded.definition)} for loaded in workloads]


def listing(workloads: Sequence[Loaded], width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Each workload with its conditions."""
    found = [f"{len(workloads)} workloads. One of them explained: powerprof workloads NAME"]
    for workload in workloads:
        found += ["", text.cut(f"{workload.definition.name}: {workload.definition.title}", width)]
        found += text.wrap(", ".join(workload.definition.conditions), width, "  ")
    return found


def explain(workload: Loaded, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """One workload: the question, the published figures, data, load and what each condition changes."""
    definition = workload.definition
    found = text.wrap(f"{definition.name}: {definition.title}.", width)
    found += text.wrap(" ".join(definition.description.split()), width) if definition.description else []
    if definition.origin:
        found += ["", *text.wrap(f"Published: {definition.origin}", width)]
    found.append("")
    found += text.wrap(
        f"Judged by {words(definition.primary_metric).rstrip(',')} ({definition.primary_metric}).", width
    )
    found += text.wrap(_dataset(workload), width)
    for name in definition.conditions:
        case = resolve(workload, name)
        found += ["", text.cut(f"{name}: {case.title}", width)]
        for line in _case(case):
            found += text.wrap(line, width, "  ")
    if definition.parameters:
        found.append("")
        for name, parameter in definition.parameters.items():
            values = ",".join(str(value) for value in parameter.values)
            found += text.wrap(f"powerprof sweep … --set {name}={values} varies {parameter.key}.", width)
    names = list(definition.conditions)
    if len(names) > 1:
        found += ["", f"powerprof compare {definition.name}:{names[0]} {definition.name}:{names[1]}"]
    else:
        found += ["", f"powerprof run {definition.name}:{names[0]}"]
    found.append(f"Folder: {workload.folder}")
    return found


def _dataset(workload: Loaded) -> str:
    dataset = workload.definition.dataset
    if dataset.kind == "world":
        return f"Data: the generated world dataset, {dataset.engine}, city_huge = {dataset.huge_copies} copies of City."
    if dataset.kind == "sql":
        return f"Data: {', '.join(dataset.files)}."
    return "Data: none."


def _case(case: Case) -> list[str]:
    load, server = case.load, case.server
    found = []
    if case.topology.kind != "standalone":
        found.append(f"servers: {case.topology.kind}" + (f", {case.topology.count}" if case.topology.count else ""))
        found += [f"{name}: server id {own.server_id}" for name, own in case.topology.members.items() if own.server_id]
    if load.kind == "none":
        found.append("no clients")
    elif load.kind == "idle":
        found.append(f"{load.clients} connections that send nothing")
    elif load.kind == "tpcc":
        found.append(
            f"{load.clients} clients run TPC-C's transactions" + (f", think × {load.think:g}" if load.think else "")
        )
    elif load.kind == "command":
        found.append(f"command: {' '.join(load.argv)}")
    else:
        how = {"text": "", "prepare-once": ", prepared once", "prepare-each": ", prepared for each execution"}
        fresh = ", a connection for each" if load.reconnect else ""
        statements = case.load_statements()
        found.append(f"{load.clients} clients{how[load.protocol]}{fresh}:")
        found += [" ".join(statement.split())[:300] + ";" for statement in statements[:4]]
        if len(statements) > 4:
            found.append(f"… and {len(statements) - 4} more")
    found += [f"{name} = {value}" for name, value in server.settings.items()]
    found += [f"SET GLOBAL {name} = {value}" for name, value in server.set_global.items()]
    found += [f"environment {name}={value}" for name, value in server.environment.items()]
    found += [f"each connection first: {statement}" for statement in load.session]
    return found
