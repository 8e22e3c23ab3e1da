# SPDX-License-Identifier: Apache-2.0
"""Read and check a workload.toml; errors name the file, the line and the key."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from powerprof.system.errors import DataError
from powerprof.system.foreign_data import loader, parse_toml
from powerprof.system.outside_files import read_outside_text
from powerprof.workloads.definition import (
    DATASETS,
    FOREIGN,
    LOADS,
    Condition,
    Load,
    ServerDefinition,
    Topology,
    Workload,
)
from powerprof.workloads.statements import split_statements

WORKLOAD_LIMIT_BYTES = 1 << 20
# A data set, and the statements of a load.
SQL_LIMIT_BYTES, _LOAD_LIMIT_BYTES = 256 << 20, 64 << 20
# The time of tomllib grows with the square of the parts of a key: 64 KiB of `a.a.a…` take 13 s. Workloads can be
# hostile.
_MOST_DOTS = 300
_QUOTED = re.compile(r"""\"[^"\n]*"|'[^'\n]*'""")


class LoadedWorkload(msgspec.Struct, frozen=True):
    """A workload, its folder, and its tables as written."""

    folder: Path
    definition: Workload
    raw: Mapping[str, Any]

    @property
    def path(self) -> Path:
        return self.folder / "workload.toml"


@loader(0)
def read_workload(folder: Path) -> LoadedWorkload:
    """Read and check FOLDER/workload.toml. Raise DataError with file, line and key."""
    folder = folder.resolve()
    path = folder / "workload.toml"
    text = read_outside_text(path, WORKLOAD_LIMIT_BYTES)
    loaded = LoadedWorkload(folder, *_parsed(path, text))
    _check(loaded, text)
    return loaded


@lru_cache(maxsize=64)
def _parsed(path: Path, text: str) -> tuple[Workload, Mapping[str, Any]]:
    """Parse a workload, cached by its text: the plan of a study looks up hundreds of conditions in all workloads."""
    for number, line in enumerate(_QUOTED.sub("", text).split("\n"), 1):
        if line.count(".") > _MOST_DOTS:
            raise DataError(
                path, f"more than {_MOST_DOTS} dots in a line outside of quotes", number, "keep SQL in files"
            )
    raw = parse_toml(text, path)
    return _convert(path, text, raw), raw


def _convert(path: Path, text: str, raw: Mapping[str, Any]) -> Workload:
    try:
        return msgspec.convert(raw, Workload)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `")
        keys = _path_of(where.rstrip("`"))
        unknown = re.search(r"unknown field `([^`]+)`", reason)
        if unknown:
            keys = [*keys, unknown[1]]
            reason = "unknown key"
        missing = re.search(r"missing required field `([^`]+)`", reason)
        if missing:
            reason = f"the key {missing[1]} is missing"
        reason = reason.replace("Object", "table").replace("`", "")
        name = ".".join(str(key) for key in keys)
        problem = f"{name}: {reason[:1].lower() + reason[1:]}" if name else reason[:1].lower() + reason[1:]
        raise DataError(path, problem, line_of(text, keys), "docs/reference/workloads.md lists the keys") from None


def _path_of(where: str) -> list[str | int]:
    """Parse `$.load.sql[0]` into ["load", "sql", 0]; `[...]`, any key of a mapping, is left out."""
    keys: list[str | int] = []
    for word, index in re.findall(r"\.([A-Za-z0-9_-]+)|\[(\d+|\.\.\.)\]", where):
        if word:
            keys.append(word)
        elif index != "...":
            keys.append(int(index))
    return keys


def line_of(text: str, keys: Sequence[str | int]) -> int | None:
    """Return the line of the key, or of the nearest table around it; None if neither is found."""
    wanted = [str(key) for key in keys if isinstance(key, str)]
    table: list[str] = []
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        header = re.match(r"\[\[?([^\[\]]+)\]\]?\s*(#.*)?$", stripped)
        if header:
            table = [part.strip().strip("\"'") for part in header[1].split(".")]
            here = table
        else:
            key = re.match(r"([A-Za-z0-9_.\"'-]+)\s*=", stripped)
            if not key:
                continue
            here = table + [part.strip("\"'") for part in key[1].split(".")]
        # Compare a part of the path: tables in between can be mappings, whose keys the error does not contain.
        rest = iter(here)
        depth = 0
        for word in wanted:
            if word in rest:
                depth += 1
            else:
                break
        if here and depth and here[-1] == wanted[depth - 1] and (best is None or depth > best[0]):
            best = (depth, number)
    return best[1] if best else None


def _check(loaded: LoadedWorkload, text: str) -> None:
    """Check the rules that the types cannot express."""
    definition, path = loaded.definition, loaded.path
    if definition.name != loaded.folder.name:
        raise DataError(
            path, f"name: is {definition.name}, but the folder is {loaded.folder.name}", line_of(text, ["name"])
        )
    if definition.dataset.kind == "sql" and not definition.dataset.files:
        raise DataError(path, "dataset.files: kind sql needs a file", line_of(text, ["dataset", "kind"]))
    _check_files(loaded, text, definition.dataset.files, ["dataset", "files"])
    for name in definition.conditions:
        case = resolve(loaded, name)
        where: list[str | int] = ["conditions", name]
        own = "files" in loaded.raw["conditions"][name].get("load", {})
        _check_files(loaded, text, case.load.files, [*where, "load", "files"] if own else ["load", "files"])
        _check_kind(case, text)
        if case.load.kind in ("statements", "slap", "pgbench", "connector-j") and not (
            case.load.sql or case.load.files
        ):
            raise DataError(path, f"conditions.{name}: the load has neither sql nor files", line_of(text, where))
        if (case.load.is_silent or case.load.kind == "tpcc") and (
            case.load.sql or case.load.files or case.load.session
        ):
            problem = f"conditions.{name}: a load of kind {case.load.kind} runs no statements of yours"
            raise DataError(path, problem, line_of(text, where))
        if case.load.kind == "command" and not case.load.argv:
            raise DataError(path, f"conditions.{name}: a load of kind command needs argv", line_of(text, where))
    for name, parameter in definition.parameters.items():
        try:
            msgspec.convert(_with(loaded.raw, parameter.key, (parameter.values or [1])[0]), Workload)
        except msgspec.ValidationError as error:
            raise DataError(
                path,
                f"parameters.{name}: {parameter.key} cannot be set ({error})".replace("`", ""),
                line_of(text, ["parameters", name]),
            ) from None


def _check_kind(case: Case, text: str) -> None:
    """Check that this kind of server supports the condition."""
    kind, path = case.server.kind, case.workload.path
    where = ["conditions", case.name]
    definition = case.workload.definition
    foreign = next((key for key in FOREIGN[kind] if getattr(case.server, key)), None)
    if foreign is not None:
        raise DataError(path, f"conditions.{case.name}: server.{foreign} is not for kind {kind}", line_of(text, where))
    if case.load.kind not in LOADS[kind]:
        problem = f"conditions.{case.name}: a load of kind {case.load.kind} does not know a server of kind {kind}"
        raise DataError(path, problem, line_of(text, where), f"of kind {', '.join(LOADS[kind])}")
    if definition.dataset.kind not in DATASETS[kind]:
        problem = f"dataset.kind: {definition.dataset.kind} is not for servers of kind {kind}"
        raise DataError(path, problem, line_of(text, ["dataset", "kind"]), f"of kind {', '.join(DATASETS[kind])}")
    alone = case.topology.kind != "standalone" or definition.storm is not None or case.condition.counters
    if alone and kind == "postgresql":
        problem = f"conditions.{case.name}: topologies, storms and counters are not for servers of kind {kind}"
        raise DataError(path, problem, line_of(text, where))


def _check_files(loaded: LoadedWorkload, text: str, names: Sequence[str], keys: Sequence[str | int]) -> None:
    root = loaded.folder.resolve()
    for name in names:
        file = (root / name).resolve()
        if not file.is_relative_to(root):
            raise DataError(loaded.path, f"{name} lies outside the workload's folder", line_of(text, keys))
        if not file.is_file():
            raise DataError(loaded.path, f"{name}: no such file in the workload's folder", line_of(text, keys))


def read_sql(folder: Path, name: str, limit_bytes: int = SQL_LIMIT_BYTES) -> str:
    """Return the text of a workload's SQL file. `folder` was without links when it was checked. Raise DataError.

    The files are read seconds after `_check_files`: by then a name can be a link to a file that only root may read.
    """
    return read_outside_text(folder / name, limit_bytes, below=folder)


class Case(msgspec.Struct, frozen=True):
    """One condition of one workload, ready to run: its own keys override [server] and [load]."""

    workload: LoadedWorkload
    name: str
    title: str
    topology: Topology
    server: ServerDefinition
    load: Load
    condition: Condition

    @property
    def qualified(self) -> str:
        """The name as workload:condition."""
        return f"{self.workload.definition.name}:{self.name}"

    def load_statements(self, folder: Path | None = None) -> list[str]:
        """Return the statements of the load, inline ones first. Raise DataError for an unreadable file.

        `folder` is the copy of the workload's folder that was checked, if there is one.
        """
        all_statements = [text.strip().rstrip(";") for text in self.load.sql]
        for name in self.load.files:
            place = folder or self.workload.folder
            statements = split_statements(read_sql(place, name, _LOAD_LIMIT_BYTES))
            if not statements:
                raise DataError(place / name, "has no statement")
            all_statements += statements
        return all_statements


def _merge(base: Any, over: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {**base, **{key: _merge(base.get(key), value) for key, value in over.items()}}
    return over


def _with(raw: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    inner = raw.get(first, {})
    return {**raw, first: _with(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value}


def _scaled(server: Any) -> Any:
    """Replace `{{cpus}}` by the number of usable CPUs: studies scaled some settings to their own machine."""
    if isinstance(server, Mapping):
        return {key: _scaled(value) for key, value in server.items()}
    return len(os.sched_getaffinity(0)) if server == "{{cpus}}" else server


def resolve(loaded: LoadedWorkload, condition: str, overrides: Mapping[str, Any] | None = None) -> Case:
    """Return one condition; `overrides` maps dotted keys (`load.clients`) to values that have precedence.

    Raises DataError for a value that the key cannot take.
    """
    written = loaded.raw["conditions"][condition]
    merged: dict[str, Any] = {
        "topology": _merge(loaded.raw.get("topology", {}), written.get("topology", {})),
        "server": _merge(loaded.raw.get("server", {}), written.get("server", {})),
        "load": _merge(loaded.raw.get("load", {}), written.get("load", {})),
    }
    try:
        for key, value in (overrides or {}).items():
            merged = _with(merged, key, value)
        merged["server"] = _scaled(merged["server"])
        topology = msgspec.convert(merged["topology"], Topology)
        server = msgspec.convert(merged["server"], ServerDefinition)
        load = msgspec.convert(merged["load"], Load)
    except msgspec.ValidationError as error:
        raise DataError(loaded.path, f"conditions.{condition}: {str(error).replace('`', '')}") from None
    own = loaded.definition.conditions[condition]
    return Case(loaded, condition, own.title or condition, topology, server, load, own)
