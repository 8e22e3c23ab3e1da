# SPDX-License-Identifier: Apache-2.0
"""Find workloads, conditions and studies by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from powerprof.system.errors import DataError, SeveralNamesError, UnknownNameError, UsageError
from powerprof.system.next_steps import command_line
from powerprof.system.paths import data_dir
from powerprof.workloads.definition import DEFAULT_KIND
from powerprof.workloads.reading import LoadedWorkload, read_workload


def list_folders(extra: Sequence[Path] = ()) -> list[Path]:
    """Return the folders of all workloads, those of the user first. Raise UsageError for a bad path."""
    places: list[Path] = []
    for root in extra:
        if (root / "workload.toml").is_file():
            places.append(root.resolve())
            continue
        if not root.is_dir():
            raise UsageError(f"--workloads {root}: no such directory", "name a folder that holds workload folders")
        below = sorted(entry.parent.resolve() for entry in root.glob("*/workload.toml"))
        if not below:
            raise UsageError(f"--workloads {root}: no workload.toml in it", "name a folder that holds workload folders")
        places += below
    shipped = data_dir("workloads")
    taken = {path.name for path in places}
    places += sorted(path.parent for path in shipped.glob("*/workload.toml") if path.parent.name not in taken)
    return places


def find_workload(name: str, extra: Sequence[Path] = ()) -> LoadedWorkload:
    """Return a workload by name or folder. Raise UsageError if there is none, DataError for a bad file.

    Only a word with a slash is a folder: else a folder of the working directory, which can be another account's, would
    take the place of a workload with its name.
    """
    if "/" in name:
        folder = Path(name).resolve()
        if not (folder / "workload.toml").is_file():
            raise UsageError(f"{name} has no workload.toml", f"to list them: {command_line('workloads')}")
        return read_workload(folder)
    for folder in list_folders(extra):
        if folder.name == name:
            return read_workload(folder)
    # A condition, or a workload with its condition.
    prefix = name.partition(":")[0]
    meant = [folder.name for folder in list_folders(extra) if folder.name == prefix or name in _conditions_of(folder)]
    if meant:
        raise SeveralNamesError(f"no workload is called {name}", name, meant)
    raise UnknownNameError(f"no workload is called {name}", name, list_names(extra), _hint(name))


def _conditions_of(folder: Path) -> Collection[str]:
    """Return the names of a workload's conditions; none of a damaged one."""
    try:
        return read_workload(folder).definition.conditions
    except DataError:
        return ()


def list_names(extra: Sequence[Path] = ()) -> list[str]:
    """Return the names of the workloads."""
    return [folder.name for folder in list_folders(extra)]


def list_conditions(extra: Sequence[Path] = ()) -> list[str]:
    """Return the names of the conditions of all workloads."""
    loaded = map(read_workload, list_folders(extra))
    return list(dict.fromkeys(condition for each in loaded for condition in each.definition.conditions))


def _hint(name: str) -> str:
    listed = f"to list them: {command_line('workloads')}"
    return f"for the folder: ./{name}; {listed}" if (Path(name) / "workload.toml").is_file() else listed


def find_one(name: str, extra: Sequence[Path] = ()) -> tuple[LoadedWorkload, str]:
    """Return a condition by name, or the only condition of a workload by the workload's name. Raise UsageError."""
    try:
        loaded = find_workload(name, extra)
    except UsageError:
        return find_condition(name, extra)
    conditions = list(loaded.definition.conditions)
    if name in conditions:
        return loaded, name
    if len(conditions) > 1:
        choices = [f"{loaded.definition.name}:{condition}" for condition in conditions]
        raise SeveralNamesError(f"{name} has several conditions", name, choices)
    return loaded, conditions[0]


def find_condition(name: str, extra: Sequence[Path] = (), beside: str | None = None) -> tuple[LoadedWorkload, str]:
    """Return a condition by `condition` or `workload:condition` (the workload can be a path).

    `beside` is the other condition of a comparison. Of several workloads with `name`, the one with both is chosen.
    Raises UsageError for an unknown or ambiguous name.
    """
    prefix, separator, last = name.rpartition(":")
    if separator and not prefix:
        raise SeveralNamesError(f"{name} has no workload", name, [last])
    if separator:
        loaded = find_workload(prefix, extra)
        if not last:
            choices = [f"{prefix}:{condition}" for condition in loaded.definition.conditions]
            raise SeveralNamesError(f"{name} has no condition", name, choices)
        if last not in loaded.definition.conditions:
            message = f"workload {loaded.definition.name} has no condition {last}"
            raise UnknownNameError(message, last, loaded.definition.conditions)
        return loaded, last
    matches = [loaded for loaded in map(read_workload, list_folders(extra)) if name in loaded.definition.conditions]
    if len(matches) > 1 and beside is not None:
        both = [loaded for loaded in matches if beside.rpartition(":")[2] in loaded.definition.conditions]
        matches = both or matches
    # Workloads of other products can have the same condition names. They need the name of the workload.
    matches = [loaded for loaded in matches if loaded.definition.server.kind == DEFAULT_KIND] or matches
    if not matches:
        names = [*list_conditions(extra), *list_names(extra)]
        raise UnknownNameError(f"no workload has a condition {name}", name, names, _hint(name))
    if len(matches) > 1:
        choices = [f"{loaded.definition.name}:{name}" for loaded in matches]
        raise SeveralNamesError(f"{name} is a condition of several workloads", name, choices)
    return matches[0], name
