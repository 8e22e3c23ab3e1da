# SPDX-License-Identifier: Apache-2.0
"""The kinds of saved records: the type of each, its report, and its stacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import msgspec

from powerprof.model.records import Run
from powerprof.model.runs import RunStore, decode_record, read_head
from powerprof.model.text import DEFAULT_WIDTH, join_words
from powerprof.report.document import Document, View
from powerprof.report.files import SUFFIXES
from powerprof.report.wording import word_answer
from powerprof.system.errors import DataError, UsageError

if TYPE_CHECKING:
    from powerprof.report.stacks import StackSet

_PERFETTO = "powerprof.attribution/1"


class RecordKind(msgspec.Struct, frozen=True):
    """A kind of record.

    Attributes:
        record: The type of the record.
        document: Returns its report, from which every form is drawn.
        stacks: Returns its weighted stacks; None if it has none.
    """

    record: type[msgspec.Struct]
    document: Callable[[Any, View], Document]
    stacks: Callable[[Any], StackSet] | None = None

    def file_kinds(self) -> list[str]:
        """Return the kinds of files that this kind of record has."""
        stacks = ["flame", "folded", "pprof", "otlp"] if self.stacks else []
        fields = {field.name: field.default for field in msgspec.structs.fields(self.record)}
        return ["html", "md", "csv", "json", *stacks, *(["perfetto"] if fields["schema"] == _PERFETTO else [])]


# The type, the document and the stacks of each kind by their names: reading one kind must not load the code of all.
# Runs are distinguished by their command.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "powerprof.run/1 residency": ("model.records:Run", "report.residency:document"),
    "powerprof.run/1 idle": ("model.records:IdleRun", "report.idle:document"),
    "powerprof.run/1 run": ("experiment.records:LoadRun", "report.run:document"),
    "powerprof.comparison/1": ("experiment.records:Comparison", "report.comparison:document"),
    "powerprof.sweep/1": ("experiment.sweep_record:Sweep", "report.sweep:document"),
    "powerprof.sweepcomparison/1": ("experiment.sweep_comparison:SweepComparison", "report.sweep_comparison:document"),
    "powerprof.saturation/1": ("experiment.sweep_until:Saturation", "report.saturation:document"),
    "powerprof.study/1": ("experiment.study:StudyRun", "report.study:document"),
    "powerprof.attribution/1": (
        "model.attribution:Attribution",
        "report.attribution:document",
        "report.stacks:attribution_stacks",
    ),
    "powerprof.oncpu/1": (
        "attribution.profile:OnCpuProfile",
        "report.profile:document",
        "report.stacks:profile_stacks",
    ),
    "powerprof.functions/1": ("attribution.profile:FunctionProfile", "report.functions:document"),
    "powerprof.offcpu/1": ("attribution.offcpu:OffCpuProfile", "report.offcpu:document"),
    "powerprof.syscalls/1": ("attribution.offcpu:SyscallProfile", "report.syscalls:document"),
    "powerprof.queries/1": ("queries.records:Queries", "report.queries:document", "report.stacks:query_stacks"),
    "powerprof.queries-comparison/1": ("queries.comparison:QueriesComparison", "report.queries_comparison:document"),
    "powerprof.diagnosis/1": ("diagnosis.evidence:Diagnosis", "report.diagnosis:document"),
    "powerprof.cure/1": ("cure.records:Cure", "report.cure:document"),
    "powerprof.trend/1": ("experiment.trend:Trend", "report.trend:document"),
    "powerprof.energy/1": ("energy.total:EnergyResult", "report.energy:document"),
}


def _load(names: tuple[str, ...]) -> RecordKind:
    return RecordKind(*(resolve_name(f"powerprof.{name}") for name in names))


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


def document_of(record: Any, view: View | None = None) -> Document:
    """Return the report of a record as a user asked to see it. Raises UsageError if it has none."""
    return reported_kind(record).document(record, view or View())


def lines_of(record: Any, width: int = DEFAULT_WIDTH, **asked: Any) -> list[str]:
    """Return the report of a record for a terminal of `width` columns; `asked` are fields of a view.

    Raises UsageError if the record has no report.
    """
    from powerprof.report.render.terminal import render_terminal

    return render_terminal(document_of(record, View(**asked)), width)


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
