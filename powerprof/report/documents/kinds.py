# SPDX-License-Identifier: Apache-2.0
"""The one table of record types: what a schema is read as, and every form that its record has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from powerprof.errors import UsageError

_ONE_LINE = 100_000


@dataclass(frozen=True)
class Kind:
    """A type of record and the functions that write it, as module:name; empty where it has no such form.

    Names rather than functions, since reading one kind of record must not load the code of all. A test loads them.
    """

    record: str
    lines: str
    html: str = ""
    markdown: str = ""
    csv: str = ""
    stacks: str = ""
    sentences: str = ""

    def load(self, form: str) -> Any:
        """The type, or the function of a form."""
        module, _, name = getattr(self, form).partition(":")
        return getattr(import_module(f"powerprof.{module}"), name)


_RUN = {"html": "report.html.run:render", "markdown": "report.forms.markdown:run", "csv": "report.forms.csvfile:run"}
# The form of a record that each kind of file is made of; perfetto and json are no form of their own.
_FORM_OF = {
    "html": "html",
    "markdown": "markdown",
    "csv": "csv",
    "csv-bom": "csv",
    "flame": "stacks",
    "folded": "stacks",
    "pprof": "stacks",
    "otlp": "stacks",
    "speedscope": "stacks",
}
_TIMELINE = "powerprof.attribution/1"
# Runs are distinguished by their command.
KINDS = {
    "powerprof.run/1 residency": Kind("records:Run", "report.terminal.residency:lines", **_RUN),
    "powerprof.run/1 idle": Kind("idle_records:IdleRun", "report.terminal.idle:lines", **_RUN),
    "powerprof.run/1 run": Kind("experiment.records:LoadRun", "report.terminal.load:lines", **_RUN),
    "powerprof.comparison/1": Kind(
        "experiment.records:Comparison",
        "report.terminal.compare:lines",
        "report.html.comparison:render",
        "report.forms.markdown:comparison",
        "report.forms.csvfile:comparison",
        sentences="report.wording.answers:of_comparison",
    ),
    "powerprof.sweep/1": Kind(
        "experiment.sweep_record:Sweep",
        "report.terminal.sweep:lines",
        "report.html.sweep:render",
        "report.forms.markdown:sweep",
        "report.forms.csvfile:sweep",
    ),
    "powerprof.sweepcomparison/1": Kind(
        "experiment.sweepcomparison:SweepComparison",
        "report.terminal.sweepcomparison:lines",
        "report.html.sweepcomparison:render",
        "report.forms.markdown:sweep_comparison",
        "report.forms.csvfile:sweep_comparison",
        sentences="report.wording.series:of_sweeps",
    ),
    "powerprof.saturation/1": Kind(
        "experiment.saturation_record:Saturation",
        "report.terminal.saturate:lines",
        csv="report.forms.csvfile:saturation",
    ),
    "powerprof.study/1": Kind(
        "experiment.study_record:StudyRun",
        "report.terminal.study:lines",
        "report.html.study:render",
        "report.forms.studies:markdown",
        "report.forms.studies:csv_lines",
    ),
    "powerprof.attribution/1": Kind(
        "attribution.records:Attribution",
        "report.terminal.attribution:lines",
        "report.html.attribution:render",
        "report.forms.markdown:attribution",
        "report.forms.csvfile:attribution",
        "report.stacks.weighted:of_attribution",
    ),
    "powerprof.oncpu/1": Kind(
        "attribution.oncpu:OnCpuProfile",
        "report.terminal.oncpu:lines",
        "report.html.oncpu:render",
        csv="report.terminal.oncpu:csv_lines",
        stacks="report.stacks.weighted:of_on_cpu_profile",
    ),
    "powerprof.functions/1": Kind(
        "attribution.functions:FunctionProfile", "report.terminal.functions:lines", csv="report.forms.csvfile:functions"
    ),
    "powerprof.offcpu/1": Kind(
        "attribution.offcpu:OffCpuProfile", "report.terminal.offcpu:lines", csv="report.forms.csvfile:off_cpu"
    ),
    "powerprof.syscalls/1": Kind(
        "attribution.syscalls:SyscallProfile", "report.terminal.syscalls:lines", csv="report.forms.csvfile:system_calls"
    ),
    # Written before there was `offcpu`.
    "powerprof.wakers/1": Kind("attribution.sleepers:WakersProfile", "report.terminal.offcpu:of_before"),
    "powerprof.sleeps/1": Kind("attribution.sleepers:SleepsProfile", "report.terminal.offcpu:of_before"),
    "powerprof.queries/1": Kind(
        "queries.records:Queries",
        "report.terminal.queries:lines",
        "report.html.queries:render",
        "report.terminal.queries:markdown",
        "report.terminal.queries:csv_lines",
        "report.stacks.weighted:of_queries",
    ),
    "powerprof.queries-history/1": Kind(
        "queries.history:QueriesHistory",
        "report.terminal.querieshistory:lines",
        "report.html.querieshistory:render",
        csv="report.terminal.querieshistory:csv_lines",
    ),
    "powerprof.queries-comparison/1": Kind(
        "queries.comparison:QueriesComparison",
        "report.terminal.queriescomparison:lines",
        "report.html.queriescomparison:render",
        markdown="report.terminal.queriescomparison:markdown",
        csv="report.terminal.queriescomparison:csv_lines",
    ),
    "powerprof.diagnosis/1": Kind(
        "diagnosis.findings:Diagnosis",
        "report.terminal.diagnosis:whole",
        "report.html.diagnosis:render",
        "report.terminal.diagnosis:markdown",
        "report.terminal.diagnosis:csv_lines",
    ),
    "powerprof.cure/1": Kind(
        "cure.records:Cure",
        "report.terminal.cure:lines",
        "report.html.cure:render",
        sentences="report.wording.cures:of_cure",
    ),
    "powerprof.trend/1": Kind(
        "experiment.trend:Trend",
        "report.terminal.trend:lines",
        "report.html.trend:render",
        sentences="report.wording.series:of_trend",
    ),
    "powerprof.energy/1": Kind(
        "energy.result:EnergyResult", "report.terminal.energy:lines", csv="report.terminal.energy:csv_lines"
    ),
}


def kind_of(record: Any) -> Kind | None:
    """The kind of a record, or of the head of a saved one; None for one that has no report."""
    schema = getattr(record, "schema", "")
    return KINDS.get(schema) or KINDS.get(f"{schema} {getattr(record, 'command', None)}")


def called(record: Any) -> str:
    """What errors call a record: as it is saved."""
    return getattr(record, "id", None) or "this record"


def check_files(schema: str, files: Iterable[str]) -> None:
    """Refuse kinds of files that records of a schema are not written as. Raises UsageError."""
    kind = KINDS[schema]
    for name in files:
        wanted = _FORM_OF.get(name)
        if not (getattr(kind, wanted) if wanted else schema == _TIMELINE):
            raise UsageError(f"there is no --{name} of what this measures", _what_it_has(kind))


def _what_it_has(kind: Kind | None) -> str:
    can = [option for option, form_name in _FORM_OF.items() if kind and getattr(kind, form_name)]
    return f"it has: {', '.join(f'--{name}' for name in [*can, 'json'])}"


def form(record: Any, name: str, label: str) -> Callable[..., Any]:
    """The function that writes a record in a form, which errors call `label`. Raises UsageError where it has none."""
    kind = kind_of(record)
    if kind is None or not getattr(kind, name):
        raise UsageError(f"there is no {label} of {called(record)}", _what_it_has(kind))
    written: Callable[..., Any] = kind.load(name)
    return written


def lines_of(record: Any, width: int) -> list[str]:
    """The report of a record for a terminal of `width` columns."""
    printed: list[str] = form(record, "lines", "report")(record, width)
    return printed


def answer_and_context(record: Any) -> tuple[str, str]:
    """The first two lines of its report, unwrapped: the answer, and what it is about."""
    printed = [*lines_of(record, _ONE_LINE), "", ""]
    return printed[0], printed[1]
