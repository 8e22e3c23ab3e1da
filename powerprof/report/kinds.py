# SPDX-License-Identifier: Apache-2.0
"""The kinds of saved records and the functions that write each as text, page, table or stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from powerprof.model.records import Run
from powerprof.model.runs import RunStore, decode_record, read_head
from powerprof.model.text import DEFAULT_WIDTH, join_words
from powerprof.report.document import Document, View
from powerprof.report.files import SUFFIXES
from powerprof.report.wording import word_answer
from powerprof.system.errors import DataError, UsageError

if TYPE_CHECKING:
    from powerprof.report.document import Extras
    from powerprof.report.stacks import StackSet
    from powerprof.report.table import Line


class RecordKind(msgspec.Struct, frozen=True):
    """A type of record and the functions that write it; `None` for a form that the record does not have.

    Attributes:
        record: The type of the record.
        lines: Returns the terminal report of a record for a number of columns.
        options: The keyword arguments of `lines` that `powerprof report` may set.
        html: Returns the page of a record.
        markdown: Returns the lines below the answer; receives the context as a Markdown sentence.
        csv: Returns the rows of the main table, head first.
        stacks: Returns the weighted stacks of a record.
        document: Returns the report, from which every form is drawn.
    """

    record: type[msgspec.Struct]
    lines: Callable[..., list[str]]
    options: tuple[str, ...] = ()
    html: Callable[[Any, Extras], str] | None = None
    markdown: Callable[[Any, str], list[str]] | None = None
    csv: Callable[[Any], Iterable[Line]] | None = None
    stacks: Callable[[Any], StackSet] | None = None
    document: Callable[[Any, View], Document] | None = None

    def file_kinds(self) -> list[str]:
        """Return the kinds of files that this kind of record has."""
        return [
            *(["html"] if self.html or self.document else []),
            *(["md"] if self.markdown or self.document else []),
            *(["csv"] if self.csv or self.document else []),
            "json",
            *(["flame", "folded", "pprof", "otlp"] if self.stacks else []),
            *(["perfetto"] if self.record.__name__ == "Attribution" else []),
        ]


# The report of each kind by names: reading one kind of record must not load the code of all. `prefix` begins the
# names of its functions `render_terminal`, `render_html`, `render_markdown` and `render_csv`.


class _Names(NamedTuple):
    record: str
    report: str
    files: str = ""
    options: tuple[str, ...] = ()
    prefix: str = "render"
    lines: str | None = None
    stacks: str | None = None
    defaults: Mapping[str, Any] = {}
    document: bool = False


def _load(names: _Names) -> RecordKind:
    def find(name: str) -> Any:
        return resolve_name(f"powerprof.{name if ':' in name else f'{names.report}:{name}'}")

    if names.document:
        return _load_document(names, find)
    render = find(names.lines or f"{names.prefix}_terminal")
    return RecordKind(
        resolve_name(f"powerprof.{names.record}"),
        partial(render, **names.defaults) if names.defaults else render,
        names.options,
        stacks=find(names.stacks) if names.stacks else None,
        **{form: find(f"{names.prefix}_{form}") for form in names.files.split()},
    )


def _load_document(names: _Names, find: Callable[[str], Any]) -> RecordKind:
    """Return the kind of a record whose forms are drawn from one document."""
    document = find(names.lines or ("document" if names.prefix == "render" else f"{names.prefix}_document"))

    def draw_lines(record: Any, width: int = DEFAULT_WIDTH, **options: Any) -> list[str]:
        from powerprof.report.render.terminal import render_terminal

        return render_terminal(document(record, View(**{**names.defaults, **options})), width)

    return RecordKind(
        resolve_name(f"powerprof.{names.record}"),
        draw_lines,
        names.options,
        stacks=find(names.stacks) if names.stacks else None,
        document=document,
    )


# Runs are distinguished by their command.
_NAMES: Mapping[str, _Names] = {
    "powerprof.run/1 residency": _Names("model.records:Run", "report.residency", document=True),
    "powerprof.run/1 idle": _Names("model.records:IdleRun", "report.idle", document=True),
    "powerprof.run/1 run": _Names("experiment.records:LoadRun", "report.run", document=True),
    "powerprof.comparison/1": _Names(
        "experiment.records:Comparison", "report.comparison", options=("everything",), document=True
    ),
    "powerprof.sweep/1": _Names("experiment.sweep_rounds:Sweep", "report.sweep", document=True),
    "powerprof.sweepcomparison/1": _Names(
        "experiment.sweep_comparison:SweepComparison", "report.sweep_comparison", document=True
    ),
    "powerprof.saturation/1": _Names(
        "experiment.sweep_until:Saturation", "report.sweep", prefix="saturation", document=True
    ),
    "powerprof.study/1": _Names("experiment.study:StudyRun", "report.study", document=True),
    "powerprof.attribution/1": _Names(
        "model.attribution:Attribution",
        "report.attribution",
        options=("by", "top"),
        stacks="report.stacks:attribution_stacks",
        document=True,
    ),
    "powerprof.oncpu/1": _Names(
        "attribution.profile:OnCpuProfile",
        "report.profile",
        options=("by", "top"),
        stacks="report.stacks:profile_stacks",
        document=True,
    ),
    "powerprof.functions/1": _Names(
        "attribution.profile:FunctionProfile", "report.profile", "", ("top",), "functions", document=True
    ),
    "powerprof.offcpu/1": _Names("attribution.offcpu:OffCpuProfile", "report.offcpu", options=("top",), document=True),
    "powerprof.syscalls/1": _Names(
        "attribution.offcpu:SyscallProfile", "report.syscalls", options=("top",), document=True
    ),
    # Versions before `offcpu` saved these two.
    "powerprof.queries/1": _Names(
        "queries.records:Queries",
        "report.queries",
        options=("by", "columns", "is_whole", "top"),
        stacks="report.stacks:query_stacks",
        document=True,
    ),
    "powerprof.queries-comparison/1": _Names(
        "queries.comparison:QueriesComparison", "report.queries_comparison", options=("top",), document=True
    ),
    "powerprof.diagnosis/1": _Names(
        "diagnosis.evidence:Diagnosis", "report.diagnosis", defaults={"everything": True}, document=True
    ),
    "powerprof.cure/1": _Names("cure.records:Cure", "report.cure", document=True),
    "powerprof.trend/1": _Names("experiment.sweep_comparison:Trend", "report.trend", document=True),
    "powerprof.energy/1": _Names("energy.domains:EnergyResult", "report.energy", document=True),
}
KIND_LOADERS: Mapping[str, Callable[[], RecordKind]] = {key: partial(_load, names) for key, names in _NAMES.items()}


def kind_of(record: Any) -> RecordKind | None:
    """Return the kind of a record, or of the head of a saved one; `None` if it has no report."""
    schema = getattr(record, "schema", "")
    load = KIND_LOADERS.get(schema) or KIND_LOADERS.get(f"{schema} {getattr(record, 'command', None)}")
    return load() if load else None


def missing_form(record: Any, file: str) -> UsageError:
    """Return the error for a record that has no file of a kind; its hint lists the available kinds."""
    kind = kind_of(record)
    suffixes = [SUFFIXES[each] for each in kind.file_kinds()] if kind else [SUFFIXES["json"]]
    return UsageError(f"{name_of(record)} has no {SUFFIXES[file]} file", f"available: {join_words(suffixes)}")


def name_of(record: Any) -> str:
    """Return the name of a record in errors: its id if it is saved."""
    return getattr(record, "id", None) or "this record"


def reported_kind(record: Any) -> RecordKind:
    """Return the kind of a record. Raises UsageError if it has no report."""
    kind = kind_of(record)
    if kind is None:
        raise UsageError(f"{name_of(record)} has no report", "-o FILE.json writes it")
    return kind


def lines_of(record: Any, width: int = DEFAULT_WIDTH, **options: Any) -> list[str]:
    """Return the terminal report of a record for `width` columns. Raises UsageError if it has none."""
    return reported_kind(record).lines(record, width, **options)


def load_saved(name: str, runs_dir: Path | None = None) -> msgspec.Struct:
    """Return a saved record that has a report, in today's words, by id, folder or file.

    Raises UsageError and DataError.
    """
    path = RunStore(runs_dir).find(name)
    head = read_head(path)
    kind = kind_of(head)
    if kind is None:
        raise DataError(path, f"no report exists for {head.schema[:40]!r}")
    record = decode_record(path, kind.record)
    if isinstance(record, Run):
        if not record.phases:
            raise DataError(path, "a run without phases")
        if record.command == "residency" and not record.phases[0].windows:
            raise DataError(path, "a residency run without windows")
    return word_answer(record)
