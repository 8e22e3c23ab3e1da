# SPDX-License-Identifier: Apache-2.0
"""Finding workloads and conditions by the names that people type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powerprof.errors import UsageError
from powerprof.paths import data_dir
from powerprof.workloads.definition import DEFAULT_KIND
from powerprof.workloads.reading import LoadedWorkload, read_workload


def folders(extra: Sequence[Path] = ()) -> list[Path]:
    """Every workload's folder: the shipped ones and the user's. Raises UsageError for a bad path."""
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
    """A workload by name or path of its folder. Raises UsageError where there is none, DataError if bad."""
    if "/" in name or (Path(name) / "workload.toml").is_file():
        folder = Path(name).resolve()
        if not (folder / "workload.toml").is_file():
            raise UsageError(f"{name} has no workload.toml", "powerprof workloads lists what there is")
        return read_workload(folder)
    for folder in folders(extra):
        if folder.name == name:
            return read_workload(folder)
    raise UsageError(f"no workload is called {name}", "powerprof workloads lists what there is")


def find_one(name: str, extra: Sequence[Path] = ()) -> tuple[LoadedWorkload, str]:
    """A condition by its name, or the only condition of a workload by the workload's. Raises UsageError."""
    try:
        loaded = find_workload(name, extra)
    except UsageError:
        return find_condition(name, extra)
    conditions = list(loaded.definition.conditions)
    if name in conditions:
        return loaded, name
    if len(conditions) > 1:
        choices = ", ".join(f"{loaded.definition.name}:{condition}" for condition in conditions)
        raise UsageError(f"{name} has several conditions", f"say which: {choices}")
    return loaded, conditions[0]


def find_condition(name: str, extra: Sequence[Path] = (), beside: str | None = None) -> tuple[LoadedWorkload, str]:
    """A condition by `condition` or `workload:condition` (the workload may be a path).

    `beside` is the other condition of the comparison: of several workloads with `name`, the one that has both
    is meant. Raises UsageError where it is unknown or still ambiguous.
    """
    prefix, separator, last = name.rpartition(":")
    if separator:
        loaded = find_workload(prefix, extra)
        if last not in loaded.definition.conditions:
            raise UsageError(
                f"workload {loaded.definition.name} has no condition {last}",
                "it has: " + ", ".join(loaded.definition.conditions),
            )
        return loaded, last
    matches = [loaded for loaded in map(read_workload, folders(extra)) if name in loaded.definition.conditions]
    if len(matches) > 1 and beside is not None:
        both = [loaded for loaded in matches if beside.rpartition(":")[2] in loaded.definition.conditions]
        matches = both or matches
    # Another product's workload may ask the same under the same names: it is named with its workload.
    matches = [loaded for loaded in matches if loaded.definition.server.kind == DEFAULT_KIND] or matches
    if not matches:
        raise UsageError(f"no workload has a condition {name}", "powerprof workloads lists what there is")
    if len(matches) > 1:
        choices = ", ".join(f"{loaded.definition.name}:{name}" for loaded in matches)
        raise UsageError(f"{name} is a condition of several workloads", f"say which: {choices}")
    return matches[0], name
