# SPDX-License-Identifier: Apache-2.0
"""Values of options and arguments for the completion of the shell.

A shell evaluates what it gets, so only names of plain characters are listed. Without names, the shell lists files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import msgspec

from powerprof.system.errors import PowerprofError

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+=/-]{0,200}")
_WORDS = re.compile(r"[a-z-]+(\|[a-z-]+)+")


class Typed(msgspec.Struct, frozen=True, kw_only=True):
    """The words before the one that is completed.

    Attributes:
        command: the command.
        values: its options and arguments by field.
        runs_dir: the value of --runs-dir.
    """

    command: str
    values: Mapping[str, Any]
    runs_dir: str | None = None

    @property
    def folders(self) -> list[Path]:
        """The additional directories with workloads."""
        return [Path(text) for text in self.values.get("workloads") or ()]


def list_values(flag: str, metavar: str, typed: Typed, incomplete: str) -> list[str]:
    """Return the possible values of an option, or of an argument without a flag, that begin with `incomplete`.

    After a comma the next name of a list is completed.
    """
    source = _SOURCES.get(f"{typed.command} {flag or metavar}") or _SOURCES.get(flag or metavar.strip("[]"))
    before, comma, _ = incomplete.rpartition(",") if flag in ("--pid", "--meter") else ("", "", "")
    names: list[str] = metavar.split("|") if source is None and _WORDS.fullmatch(metavar) else []
    with suppress(PowerprofError, OSError, ValueError):
        names += source(typed) if source is not None else ()
    listed = [f"{before}{comma}{name}" for name in dict.fromkeys(names) if _PLAIN.fullmatch(name)]
    return [name for name in listed if name.startswith(incomplete)]


def _list_runs(typed: Typed) -> Iterable[str]:
    from powerprof.model.runs import RunStore

    return RunStore(Path(typed.runs_dir) if typed.runs_dir else None).names()


def _list_studies(_: Typed) -> Iterable[str]:
    from powerprof.workloads.studies import list_studies

    return list_studies()


def _list_workloads(typed: Typed) -> Iterable[str]:
    from powerprof.workloads.catalogue import list_names

    return list_names(typed.folders)


def _list_conditions(typed: Typed) -> Iterable[str]:
    from powerprof.workloads.catalogue import list_conditions

    return list_conditions(typed.folders)


def _list_conditions_and_runs(typed: Typed) -> Iterable[str]:
    return [*_list_conditions(typed), *_list_runs(typed)]


def _list_releases(typed: Typed) -> Iterable[str]:
    from powerprof.database.catalogue import load_catalogue

    is_fetch = typed.values.get("action") == "fetch"
    return [entry.name for entry in load_catalogue().values() if entry.is_fetched != is_fetch]


def _list_builds(typed: Typed) -> Iterable[str]:
    from powerprof.database.catalogue import load_catalogue

    fetched = (entry.name for entry in load_catalogue().values() if entry.scheme is None and entry.is_fetched)
    return ["mysql", "postgresql", *fetched]


def _list_processes(_: Typed) -> Iterable[str]:
    """Return the names of the database servers of this host; ids for servers of one name."""
    from powerprof.system.processes import name_of
    from powerprof.system.targets import list_servers

    servers = [(pid, name_of(pid) or str(pid)) for pid in list_servers()]
    names = [name for _, name in servers]
    return [name if names.count(name) == 1 else str(pid) for pid, name in servers]


def _list_meters(_: Typed) -> Iterable[str]:
    from powerprof.energy.request import NAMES

    return ["auto", "none", "model", *NAMES]


def _list_sources(_: Typed) -> Iterable[str]:
    from powerprof.measure.residency_sources import SourceName

    return get_args(SourceName)


def _list_host_settings(_: Typed) -> Iterable[str]:
    from powerprof.experiment.host_settings import list_host_settings

    return [f"{name}=" for name in list_host_settings()]


def _list_stack_groups(_: Typed) -> Iterable[str]:
    from powerprof.report.wakeup_groups import BY

    return BY


def _list_profile_groups(_: Typed) -> Iterable[str]:
    from powerprof.report.profile import BY

    return BY


def _list_client_groups(_: Typed) -> Iterable[str]:
    from powerprof.queries.askers import GROUPINGS

    return GROUPINGS


# By option or metavar, or by those of one command.
_SOURCES: dict[str, Callable[[Typed], Iterable[str]]] = {
    "RUN": _list_runs,
    "RUN|prune": lambda typed: [*_list_runs(typed), "prune"],
    "attribute --from": _list_runs,
    "deep-idle --from": _list_runs,
    "doctor --from": _list_runs,
    "--resume": _list_runs,
    "STUDY": _list_studies,
    "workloads [NAME]": _list_workloads,
    "CONDITION": _list_conditions,
    "OTHER": _list_conditions,
    "A": _list_conditions_and_runs,
    "B": _list_conditions_and_runs,
    "ACTION": lambda _: ("list", "fetch", "remove"),
    "servers [NAME]": _list_releases,
    "--server-build": _list_builds,
    "--pid": _list_processes,
    "--statements": _list_processes,
    "--meter": _list_meters,
    "--residency-source": _list_sources,
    "--host": _list_host_settings,
    "attribute --by": _list_stack_groups,
    "profile --by": _list_profile_groups,
    "queries --by": _list_client_groups,
    "report --by": _list_client_groups,
}
