# SPDX-License-Identifier: Apache-2.0
"""Published studies: the commands that measure one again, and its published figures.

A study is a file `workloads/studies/NAME.toml`; adding one needs no Python.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from powerprof.system.errors import DataError, UnknownNameError
from powerprof.system.foreign_data import loader, parse_toml
from powerprof.system.outside_files import read_outside_text
from powerprof.system.paths import data_dir
from powerprof.workloads.definition import Name, StrictTable, Value

_SUFFIX = ".toml"

Text = Annotated[str, Meta(min_length=1, max_length=300)]
Side = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,62}(:[A-Za-z0-9_.-]{1,63})?$")]
Expected = Literal["higher", "lower", "same"]
Basis = Literal["finding", "expectation"]


class StudyCommand(StrictTable, frozen=True, kw_only=True):
    """One command of a study.

    It is `idle` with `clients`, `run` of one condition, `compare` of two, or `sweep` of one over `values` of
    `parameter`. `build` is a fetched server (`powerprof servers`). `on_cpu` needs root.
    """

    name: Name
    command: Literal["idle", "run", "compare", "sweep"]
    conditions: list[str] = msgspec.field(default_factory=list)
    clients: Annotated[int, Meta(ge=1, le=60_000)] = 16
    parameter: str = "clients"
    values: list[Value] = msgspec.field(default_factory=list)
    rate_hz: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    load_percent: Annotated[float, Meta(ge=0, le=85)] | None = None
    attribute_s: Annotated[float, Meta(ge=0.5, le=3600)] | None = None
    build: str | None = None
    on_cpu: bool = False

    @property
    def typed(self) -> str:
        """The command line that measures it alone."""
        words = [self.command, *self.conditions]
        if self.command == "idle":
            words += ["--clients", str(self.clients)]
        if self.command == "sweep":
            values = ",".join(str(value) for value in self.values)
            chosen = f"={values}" if values else ""
            by_name = ["--set", f"{self.parameter}{chosen}"]
            words += ["--clients", values] if self.parameter == "clients" and values else by_name
        for option, value in (
            ("--rate", self.rate_hz),
            ("--load", self.load_percent),
            ("--attribute", self.attribute_s),
        ):
            words += [] if value is None else [option, f"{value:g}"]
        words += ["--server-build", self.build] if self.build else []
        return " ".join(["powerprof", *words, *(["--on-cpu"] if self.on_cpu else [])])


class StudyFinding(StrictTable, frozen=True, kw_only=True):
    """A finding and the place of today's figures: `b` compared with `a`, or `b` alone.

    A side is `STEP:PART`: a phase of idle, a or b of compare, a value of sweep. For run it is `STEP` alone. `then` is
    the published figures in words. `expected` is the relation of b to a, if there is one. Its `basis` is a finding
    that somebody measured and published, or an expectation: a promise of documentation, or a finding about another
    server. A difference up to `within`, in the metric's unit, counts as the same.
    """

    label: Text
    then: Text
    metric: Annotated[str, Meta(pattern="^[a-z][A-Za-z0-9_.:-]{0,80}$")]
    b: Side
    a: Side | None = None
    expected: Expected | None = None
    basis: Basis = "finding"
    within: Annotated[float, Meta(gt=0)] | None = None


class Study(StrictTable, frozen=True, kw_only=True):
    """A published study: its title, steps in order, and findings. `page` is its page in docs/studies."""

    title: Text
    published: Annotated[str, Meta(min_length=1, max_length=1000)]
    page: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,60}\.md$")]
    steps: Annotated[list[StudyCommand], Meta(min_length=1, max_length=50)]
    findings: Annotated[list[StudyFinding], Meta(min_length=1, max_length=200)]


def list_studies() -> list[str]:
    """Return the names of all studies."""
    return sorted(path.stem for path in (data_dir("workloads") / "studies").glob(f"*{_SUFFIX}"))


def find_study(name: str) -> Study:
    """Return a study by name. Raise UsageError if there is none."""
    if name not in list_studies():
        raise UnknownNameError(f"no study is called {name}", name, list_studies())
    return read_study(data_dir("workloads") / "studies" / f"{name}{_SUFFIX}")


@loader(0)
def read_study(path: Path) -> Study:
    """Read and check a study's file. Raise DataError with the key."""
    raw: dict[str, Any] = parse_toml(read_outside_text(path), path)
    try:
        study = msgspec.convert(raw, Study)
    except msgspec.ValidationError as error:
        raise DataError(path, str(error)) from None
    _check(path, study)
    return study


_CONDITIONS = {"idle": 0, "run": 1, "compare": 2, "sweep": 1}


def _check(path: Path, study: Study) -> None:
    steps = {step.name: step for step in study.steps}
    if len(steps) < len(study.steps):
        raise DataError(path, "two steps have one name")
    for step in study.steps:
        if len(step.conditions) != _CONDITIONS[step.command]:
            raise DataError(path, f"step {step.name}: {step.command} takes {_CONDITIONS[step.command]} conditions")
    for finding in study.findings:
        for side in filter(None, (finding.a, finding.b)):
            name = side.partition(":")[0]
            if name not in steps:
                raise DataError(path, f"{finding.label}: there is no step {name}")
            if (steps[name].command != "run") != (":" in side):
                raise DataError(path, f"{finding.label}: {side} is not a side of {steps[name].command}")
        if finding.expected is not None and finding.a is None:
            raise DataError(path, f"{finding.label}: nothing that it could be {finding.expected} than")
        if (finding.expected == "same") != (finding.within is not None):
            raise DataError(path, f'{finding.label}: `within` belongs to `expected = "same"`')
