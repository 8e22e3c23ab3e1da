# SPDX-License-Identifier: Apache-2.0
"""The kinds of saved records and the functions that write each as text, page, table or stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgspec

from powerprof.model.records import Note, Run
from powerprof.model.runs import RunStore, decode_record, read_head
from powerprof.report.labels import word_notes
from powerprof.system.errors import DataError, UsageError

if TYPE_CHECKING:
    from powerprof.report.html.page import Extras
    from powerprof.report.stacks import StackSet
    from powerprof.report.text_forms import Line

R = TypeVar("R")


@dataclass(frozen=True)
class RecordKind:
    """A type of record and the functions that write it; `None` for a form that the record does not have.

    Attributes:
        record: The type of the record.
        lines: Returns the terminal report of a record for a number of columns.
        options: The keyword arguments of `lines` that `powerprof report` may set.
        html: Returns the page of a record.
        markdown: Returns the lines below the answer; receives the context as a Markdown sentence.
        csv: Returns the rows of the main table, head first.
        stacks: Returns the weighted stacks of a record.
        sentences: Returns the record with its answer in words.
    """

    record: type[msgspec.Struct]
    lines: Callable[..., list[str]]
    options: tuple[str, ...] = ()
    html: Callable[[Any, Extras], str] | None = None
    markdown: Callable[[Any, str], list[str]] | None = None
    csv: Callable[[Any], Iterable[Line]] | None = None
    stacks: Callable[[Any], StackSet] | None = None
    sentences: Callable[[Any], Any] | None = None

    def file_names(self) -> list[str]:
        """Return the file options that this kind supports; --perfetto and --json are not among them."""
        return [
            *(["html"] if self.html else []),
            *(["markdown"] if self.markdown else []),
            *(["csv", "csv-bom"] if self.csv else []),
            *(["flame", "folded", "pprof", "otlp"] if self.stacks else []),
        ]


# Each loader imports the code of one kind: reading one kind of record must not load the code of all.


def _residency() -> RecordKind:
    from powerprof.report import residency, run

    return RecordKind(
        Run, residency.render_terminal, html=run.render_html, markdown=run.render_markdown, csv=run.render_csv
    )


def _idle() -> RecordKind:
    from powerprof.model.records import IdleRun
    from powerprof.report import idle, run

    return RecordKind(
        IdleRun, idle.render_terminal, html=run.render_html, markdown=run.render_markdown, csv=run.render_csv
    )


def _run() -> RecordKind:
    from powerprof.experiment.records import LoadRun
    from powerprof.report import run

    return RecordKind(
        LoadRun, run.render_terminal, html=run.render_html, markdown=run.render_markdown, csv=run.render_csv
    )


def _comparison() -> RecordKind:
    from powerprof.experiment.records import Comparison
    from powerprof.report import comparison

    return RecordKind(
        Comparison,
        comparison.render_terminal,
        options=("everything",),
        html=comparison.render_html,
        markdown=comparison.render_markdown,
        csv=comparison.render_csv,
        sentences=comparison.word_comparison,
    )


def _sweep() -> RecordKind:
    from powerprof.experiment.sweep_rounds import Sweep
    from powerprof.report import sweep

    return RecordKind(
        Sweep, sweep.render_terminal, html=sweep.render_html, markdown=sweep.render_markdown, csv=sweep.render_csv
    )


def _sweep_comparison() -> RecordKind:
    from powerprof.experiment.sweep_comparison import SweepComparison
    from powerprof.report import sweep_comparison

    return RecordKind(
        SweepComparison,
        sweep_comparison.render_terminal,
        html=sweep_comparison.render_html,
        markdown=sweep_comparison.render_markdown,
        csv=sweep_comparison.render_csv,
        sentences=sweep_comparison.word_sweep_comparison,
    )


def _saturation() -> RecordKind:
    from powerprof.experiment.sweep_until import Saturation
    from powerprof.report import sweep

    return RecordKind(Saturation, sweep.render_saturation_terminal, csv=sweep.render_saturation_csv)


def _study() -> RecordKind:
    from powerprof.experiment.study import StudyRun
    from powerprof.report import study

    return RecordKind(
        StudyRun, study.render_terminal, html=study.render_html, markdown=study.render_markdown, csv=study.render_csv
    )


def _attribution() -> RecordKind:
    from powerprof.model.attribution import Attribution
    from powerprof.report import attribution, stacks

    return RecordKind(
        Attribution,
        attribution.render_terminal,
        options=("by", "top"),
        html=attribution.render_html,
        markdown=attribution.render_markdown,
        csv=attribution.render_csv,
        stacks=stacks.attribution_stacks,
    )


def _on_cpu_profile() -> RecordKind:
    from powerprof.attribution.profile import OnCpuProfile
    from powerprof.report import profile, stacks

    return RecordKind(
        OnCpuProfile,
        profile.render_terminal,
        options=("by", "top"),
        html=profile.render_html,
        csv=profile.render_csv,
        stacks=stacks.profile_stacks,
    )


def _function_profile() -> RecordKind:
    from powerprof.attribution.profile import FunctionProfile
    from powerprof.report import profile

    return RecordKind(
        FunctionProfile, profile.render_functions_terminal, options=("top",), csv=profile.render_functions_csv
    )


def _off_cpu_profile() -> RecordKind:
    from powerprof.attribution.offcpu import OffCpuProfile
    from powerprof.report import offcpu

    return RecordKind(OffCpuProfile, offcpu.render_terminal, options=("top",), csv=offcpu.render_csv)


def _syscall_profile() -> RecordKind:
    from powerprof.attribution.offcpu import SyscallProfile
    from powerprof.report import offcpu

    return RecordKind(SyscallProfile, offcpu.render_syscalls_terminal, options=("top",), csv=offcpu.render_syscalls_csv)


def _wakers_profile() -> RecordKind:
    from powerprof.attribution.offcpu import WakersProfile
    from powerprof.report import offcpu

    return RecordKind(WakersProfile, offcpu.render_older_terminal, options=("top",))


def _sleeps_profile() -> RecordKind:
    from powerprof.attribution.offcpu import SleepsProfile
    from powerprof.report import offcpu

    return RecordKind(SleepsProfile, offcpu.render_older_terminal, options=("top",))


def _queries() -> RecordKind:
    from powerprof.queries.records import Queries
    from powerprof.report import queries, stacks

    return RecordKind(
        Queries,
        queries.render_terminal,
        options=("by", "columns", "is_whole", "top"),
        html=queries.render_html,
        markdown=queries.render_markdown,
        csv=queries.render_csv,
        stacks=stacks.query_stacks,
    )


def _queries_history() -> RecordKind:
    from powerprof.queries.comparison import QueriesHistory
    from powerprof.report import queries_comparison

    return RecordKind(
        QueriesHistory,
        queries_comparison.render_history_terminal,
        options=("top",),
        html=queries_comparison.render_history_html,
        csv=queries_comparison.render_history_csv,
    )


def _queries_comparison() -> RecordKind:
    from powerprof.queries.comparison import QueriesComparison
    from powerprof.report import queries_comparison

    return RecordKind(
        QueriesComparison,
        queries_comparison.render_terminal,
        options=("top",),
        html=queries_comparison.render_html,
        markdown=queries_comparison.render_markdown,
        csv=queries_comparison.render_csv,
    )


def _diagnosis() -> RecordKind:
    from powerprof.diagnosis.evidence import Diagnosis
    from powerprof.report import diagnosis

    return RecordKind(
        Diagnosis,
        partial(diagnosis.render_terminal, everything=True),
        html=diagnosis.render_html,
        markdown=diagnosis.render_markdown,
        csv=diagnosis.render_csv,
    )


def _cure() -> RecordKind:
    from powerprof.cure.records import Cure
    from powerprof.report import cure

    return RecordKind(Cure, cure.render_terminal, html=cure.render_html, sentences=cure.word_cure)


def _trend() -> RecordKind:
    from powerprof.experiment.sweep_comparison import Trend
    from powerprof.report import sweep_comparison

    return RecordKind(
        Trend,
        sweep_comparison.render_trend_terminal,
        html=sweep_comparison.render_trend_html,
        sentences=sweep_comparison.word_trend,
    )


def _energy() -> RecordKind:
    from powerprof.energy.domains import EnergyResult
    from powerprof.report import energy

    return RecordKind(EnergyResult, energy.render_terminal, csv=energy.render_csv)


# Runs are distinguished by their command.
KIND_LOADERS: Mapping[str, Callable[[], RecordKind]] = {
    "powerprof.run/1 residency": _residency,
    "powerprof.run/1 idle": _idle,
    "powerprof.run/1 run": _run,
    "powerprof.comparison/1": _comparison,
    "powerprof.sweep/1": _sweep,
    "powerprof.sweepcomparison/1": _sweep_comparison,
    "powerprof.saturation/1": _saturation,
    "powerprof.study/1": _study,
    "powerprof.attribution/1": _attribution,
    "powerprof.oncpu/1": _on_cpu_profile,
    "powerprof.functions/1": _function_profile,
    "powerprof.offcpu/1": _off_cpu_profile,
    "powerprof.syscalls/1": _syscall_profile,
    # Versions before `offcpu` saved these two.
    "powerprof.wakers/1": _wakers_profile,
    "powerprof.sleeps/1": _sleeps_profile,
    "powerprof.queries/1": _queries,
    "powerprof.queries-history/1": _queries_history,
    "powerprof.queries-comparison/1": _queries_comparison,
    "powerprof.diagnosis/1": _diagnosis,
    "powerprof.cure/1": _cure,
    "powerprof.trend/1": _trend,
    "powerprof.energy/1": _energy,
}


def kind_of(record: Any) -> RecordKind | None:
    """Return the kind of a record, or of the head of a saved one; `None` if it has no report."""
    schema = getattr(record, "schema", "")
    load = KIND_LOADERS.get(schema) or KIND_LOADERS.get(f"{schema} {getattr(record, 'command', None)}")
    return load() if load else None


def check_files(schema: str, files: Iterable[str]) -> None:
    """Raise UsageError if records of a schema cannot be written as one of `files`."""
    if not (names := list(files)):
        return
    kind = KIND_LOADERS[schema]()
    available = [*kind.file_names(), *(["perfetto"] if schema == "powerprof.attribution/1" else [])]
    for name in names:
        if name not in available:
            raise UsageError(f"--{name} is not available for this command", _available_hint(kind))


def _available_hint(kind: RecordKind | None) -> str:
    return f"available: {', '.join(f'--{name}' for name in [*(kind.file_names() if kind else []), 'json'])}"


def missing_form(record: Any, label: str) -> UsageError:
    """Return the error for a record that has no form called `label`; its hint lists the available files."""
    return UsageError(f"{label} is not available for {name_of(record)}", _available_hint(kind_of(record)))


def name_of(record: Any) -> str:
    """Return the name of a record in errors: its id if it is saved."""
    return getattr(record, "id", None) or "this record"


def reported_kind(record: Any) -> RecordKind:
    """Return the kind of a record. Raises UsageError if it has no report."""
    kind = kind_of(record)
    if kind is None:
        raise missing_form(record, "report")
    return kind


def lines_of(record: Any, width: int) -> list[str]:
    """Return the terminal report of a record for `width` columns. Raises UsageError if it has none."""
    return reported_kind(record).lines(record, width)


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
    return record if kind.sentences is None else kind.sentences(record)


# Notes and answers are values until a record is saved or shown; then they become sentences.


def word_record(record: R) -> R:
    """Return the record with its notes and its answer in words; sentences of a saved record stay."""
    worded: R = _with_notes(record)
    kind = kind_of(worded)
    if kind is not None and kind.sentences is not None:
        worded = kind.sentences(worded)
    return worded


def _with_notes(value: Any) -> Any:
    """Return the same value with every note in words."""
    if isinstance(value, Note):
        return word_notes([value])[0]
    if isinstance(value, list | tuple):
        worded = [_with_notes(each) for each in value]
        return value if all(old is new for old, new in zip(value, worded, strict=True)) else worded
    if not isinstance(value, msgspec.Struct):
        return value
    changed = {}
    for name in _fields_with_notes(type(value)):
        old = getattr(value, name)
        if (new := _with_notes(old)) is not old:
            changed[name] = new
    return msgspec.structs.replace(value, **changed) if changed else value


@cache
def _fields_with_notes(record: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(record) if _holds_notes(field.type, (record,)))


def _holds_notes(annotation: Any, outer: tuple[Any, ...]) -> bool:
    if annotation is Note:
        return True
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        # A record may hold others of its own type.
        fields = () if annotation in outer else msgspec.structs.fields(annotation)
        return any(_holds_notes(field.type, (*outer, annotation)) for field in fields)
    return any(_holds_notes(part, outer) for part in get_args(annotation))


# The JSON Schema of each document is made from the types that write and read it.

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = "#/$defs/{name}"


def schema_names() -> list[str]:
    """Return the names of the documents: `powerprof.run/1` and others."""
    return list(dict.fromkeys(key.partition(" ")[0] for key in KIND_LOADERS))


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document; that of a run accepts the records of all commands that save runs."""
    records = [load().record for key, load in KIND_LOADERS.items() if key.partition(" ")[0] == name]
    schemas, parts = msgspec.json.schema_components(list(dict.fromkeys(records)), ref_template=_REFERENCE)
    # Notes are sentences in every written record.
    parts.pop("Note", None)
    schemas, parts = _without_notes(schemas), _without_notes(parts)
    body: dict[str, Any] = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return {"$schema": _DRAFT, "title": name, **body, "$defs": dict(sorted(parts.items()))}


def _without_notes(schema: Any) -> Any:
    if isinstance(schema, dict):
        choices = [choice for choice in schema.get("anyOf", ()) if choice != {"$ref": _REFERENCE.format(name="Note")}]
        if len(choices) == 1:
            return _without_notes(choices[0])
        return {key: _without_notes(value) for key, value in schema.items()}
    return [_without_notes(part) for part in schema] if isinstance(schema, list | tuple) else schema
