# SPDX-License-Identifier: Apache-2.0
"""The one table of record types: what a schema is read as, and every form that its record has."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import stat
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from powerprof.model import text
from powerprof.model.records import Run
from powerprof.model.runs import About, RunInfo, RunStore, decode, head_of
from powerprof.system.caller import as_caller, caller, is_delegated
from powerprof.system.errors import DataError, PowerprofError, UsageError
from powerprof.system.files import printable, printable_lines, reason_of
from powerprof.system.folders import Folder, check_free, locate, write_all

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


_RUN = {"html": "report.run:render", "markdown": "report.markdown:run", "csv": "report.csv_file:run"}
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
    "powerprof.run/1 residency": Kind("model.records:Run", "report.residency:lines", **_RUN),
    "powerprof.run/1 idle": Kind("model.records:IdleRun", "report.idle:lines", **_RUN),
    "powerprof.run/1 run": Kind("experiment.records:LoadRun", "report.run:lines", **_RUN),
    "powerprof.comparison/1": Kind(
        "experiment.records:Comparison",
        "report.comparison:lines",
        "report.comparison:render",
        "report.markdown:comparison",
        "report.csv_file:comparison",
        sentences="report.answers:of_comparison",
    ),
    "powerprof.sweep/1": Kind(
        "experiment.sweep_record:Sweep",
        "report.sweep:lines",
        "report.sweep:render",
        "report.markdown:sweep",
        "report.csv_file:sweep",
    ),
    "powerprof.sweepcomparison/1": Kind(
        "experiment.sweep_comparison:SweepComparison",
        "report.sweep_comparison:lines",
        "report.sweep_comparison:render",
        "report.markdown:sweep_comparison",
        "report.csv_file:sweep_comparison",
        sentences="report.answers:of_sweeps",
    ),
    "powerprof.saturation/1": Kind(
        "experiment.saturate:Saturation", "report.sweep:saturate_lines", csv="report.csv_file:saturation"
    ),
    "powerprof.study/1": Kind(
        "experiment.study_record:StudyRun",
        "report.study:lines",
        "report.study:render",
        "report.study:markdown",
        "report.study:csv_lines",
    ),
    "powerprof.attribution/1": Kind(
        "model.attribution:Attribution",
        "report.attribution:lines",
        "report.attribution:render",
        "report.markdown:attribution",
        "report.csv_file:attribution",
        "report.stacks:of_attribution",
    ),
    "powerprof.oncpu/1": Kind(
        "attribution.profile:OnCpuProfile",
        "report.profile:lines",
        "report.profile:render",
        csv="report.profile:csv_lines",
        stacks="report.stacks:of_on_cpu_profile",
    ),
    "powerprof.functions/1": Kind(
        "attribution.functions:FunctionProfile", "report.functions:lines", csv="report.csv_file:functions"
    ),
    "powerprof.offcpu/1": Kind(
        "attribution.offcpu:OffCpuProfile", "report.offcpu:lines", csv="report.csv_file:off_cpu"
    ),
    "powerprof.syscalls/1": Kind(
        "attribution.syscalls:SyscallProfile", "report.syscalls:lines", csv="report.csv_file:system_calls"
    ),
    # Written before there was `offcpu`.
    "powerprof.wakers/1": Kind("attribution.offcpu:WakersProfile", "report.offcpu:of_before"),
    "powerprof.sleeps/1": Kind("attribution.offcpu:SleepsProfile", "report.offcpu:of_before"),
    "powerprof.queries/1": Kind(
        "queries.records:Queries",
        "report.queries:lines",
        "report.queries:render",
        "report.queries:markdown",
        "report.queries:csv_lines",
        "report.stacks:of_queries",
    ),
    "powerprof.queries-history/1": Kind(
        "queries.history:QueriesHistory",
        "report.queries_history:lines",
        "report.queries_history:render",
        csv="report.queries_history:csv_lines",
    ),
    "powerprof.queries-comparison/1": Kind(
        "queries.comparison:QueriesComparison",
        "report.queries_comparison:lines",
        "report.queries_comparison:render",
        markdown="report.queries_comparison:markdown",
        csv="report.queries_comparison:csv_lines",
    ),
    "powerprof.diagnosis/1": Kind(
        "diagnosis.evidence:Diagnosis",
        "report.diagnosis:whole",
        "report.diagnosis:render",
        "report.diagnosis:markdown",
        "report.diagnosis:csv_lines",
    ),
    "powerprof.cure/1": Kind(
        "cure.records:Cure", "report.cure:lines", "report.cure:render", sentences="report.cure:of_cure"
    ),
    "powerprof.trend/1": Kind(
        "experiment.sweep_comparison:Trend",
        "report.sweep_comparison:trend_lines",
        "report.sweep_comparison:render_trend",
        sentences="report.answers:of_trend",
    ),
    "powerprof.energy/1": Kind("energy.domains:EnergyResult", "report.energy:lines", csv="report.energy:csv_lines"),
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


# Writes a report where it was asked for: whole or not at all, and with no more than the caller's rights.

# What is open already is written to as it is: these names lead to links that are no paths (proc(5)).
_OPEN_ALREADY = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d{1,9})")
# The largest pages and profiles seen were some MB; a host with less than this free is about to fail elsewhere too.
_NEEDED_BYTES = 1 << 20


def check_output(target: str) -> None:
    """Raises PowerprofError where `write_output` could not write there now; called before anything is measured.

    A pipe with a name is not opened: its reader would take the closing for the end. It may come later, too.
    """
    try:
        number = _number_of(target)
        if number is not None:
            _check_open(number)
            return
        with as_caller():
            folder, name = locate(target)
            with folder:
                info = _what_is_there(folder, name)
                if info is None:
                    folder.check_room(_NEEDED_BYTES)
                elif not stat.S_ISFIFO(info.st_mode):
                    handle = _open(folder, name)
                    try:
                        _check_open(handle)
                    finally:
                        os.close(handle)
    except OSError as error:
        raise _cannot_write(target, error) from error


def _number_of(target: str) -> int | None:
    """The descriptor that is meant by - or by the name of what is open already."""
    if target == "-":
        return 1
    match = _OPEN_ALREADY.fullmatch(target)
    if match is None:
        return None
    return int(match[2]) if match[2] else {"stdout": 1, "stderr": 2}[match[1]]


def _check_open(number: int) -> None:
    """Raises OSError where what is open could not be written to now."""
    info = os.fstat(number)
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "open for reading only")
    if stat.S_ISREG(info.st_mode):
        check_free(number, _NEEDED_BYTES)
    elif stat.S_ISCHR(info.st_mode):
        os.write(number, b"")  # a device is asked too where nothing is to be written: /dev/full refuses
    else:
        poll = select.poll()
        poll.register(number, 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            raise BrokenPipeError(errno.EPIPE, "nobody reads it any more")


def write_output(target: str, data: bytes) -> None:
    """To stdout for `-`, else to a file that is replaced at once. Raises PowerprofError where it cannot be written.

    The file is the caller's, with the permissions that its umask gives to any new file. A link is followed where
    root or the caller made it; a pipe or a device of theirs is written to as it is.
    """
    if target == "-":
        if sys.stdout.isatty():
            data = printable_lines(data.decode("utf-8", "replace")).encode()
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise  # a reader that has enough (head) is no failure
        except OSError as error:
            raise _cannot_write(target, error) from error
        return
    try:
        number = _number_of(target)
        if number is not None:
            write_all(number, data)
            return
        with as_caller():
            folder, name = locate(target)
            with folder:
                if _what_is_there(folder, name) is None:
                    folder.write(name, data, 0o666)
                    return
                handle = _open(folder, name)
                try:
                    write_all(handle, data)
                finally:
                    os.close(handle)
    except OSError as error:
        raise _cannot_write(target, error) from error


def _cannot_write(target: str, error: OSError) -> PowerprofError:
    shown = "to stdout" if target == "-" else target
    if is_delegated() and error.errno in (errno.EACCES, errno.EPERM):
        hint = f"under sudo files are written as {caller().name}: choose a place of theirs, or run as root itself"
    else:
        hint = "name another place"
    return PowerprofError(f"cannot write {shown} ({reason_of(error)})", hint)


def _what_is_there(folder: Folder, name: str) -> os.stat_result | None:
    """What is written to as it is; None for a file, which is replaced, and for nothing. Raises OSError."""
    try:
        info = folder.stat(name)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(info.st_mode):
        return None
    if info.st_uid not in (0, caller().uid):
        raise OSError(errno.ENXIO, f"it is not a file, and belongs to user {info.st_uid}")
    if stat.S_ISBLK(info.st_mode):
        raise OSError(errno.ENXIO, "it is a disk")
    if stat.S_ISSOCK(info.st_mode):
        raise OSError(errno.ENXIO, "it is a socket")
    return info


def _open(folder: Folder, name: str) -> int:
    """What is no file, for writing. Raises OSError."""
    return os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder.handle)


# Saved records, read as what they are.


def load_saved(name: str, runs_dir: Path | None = None) -> msgspec.Struct:
    """A saved record that has a report, by id, folder or file. Raises UsageError and DataError."""
    path = RunStore(runs_dir).find(name)
    head = head_of(path)
    kind = kind_of(head)
    if kind is None:
        raise DataError(path, f"there is no report for {head.schema[:40]!r}")
    record: msgspec.Struct = decode(path, kind.load("record"))
    if isinstance(record, Run):
        _check_phases(path, record)
    return record


def _check_phases(path: Path, run: Run) -> None:
    if not run.phases:
        raise DataError(path, "a run without phases")
    if run.command == "residency" and not run.phases[0].windows:
        raise DataError(path, "a residency run without windows")


# The JSON Schema of every document, made from the types that write and read it.

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PLACE = "#/$defs/{name}"


def names() -> list[str]:
    """The documents: `powerprof.run/1`, …"""
    return list(dict.fromkeys(kind.partition(" ")[0] for kind in KINDS))


def json_schema(name: str) -> dict[str, Any]:
    """The schema of a document; a run is that of any of the commands that save one."""
    commands = {kind.partition(" ")[2]: entry.load("record") for kind, entry in KINDS.items() if _is(kind, name)}
    schemas, parts = msgspec.json.schema_components(list(dict.fromkeys(commands.values())), ref_template=_PLACE)
    # A note is a sentence by the time that it is written.
    parts.pop("Note", None)
    schemas, parts = _without_notes(schemas), _without_notes(parts)
    whole: dict[str, Any] = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return {"$schema": _DRAFT, "title": name, **whole, "$defs": dict(sorted(parts.items()))}


def _without_notes(schema: Any) -> Any:
    if isinstance(schema, dict):
        either = [one for one in schema.get("anyOf", ()) if one != {"$ref": _PLACE.format(name="Note")}]
        if len(either) == 1:
            return _without_notes(either[0])
        return {key: _without_notes(value) for key, value in schema.items()}
    return [_without_notes(one) for one in schema] if isinstance(schema, list | tuple) else schema


def _is(kind: str, name: str) -> bool:
    return kind == name or kind.startswith(f"{name} ")


# The saved runs as a history: what each measured and answered, how old it is, and which of them may go.

_CELL = 200
_DAY_S = 86_400.0
_AGES = ((365 * _DAY_S, "y"), (_DAY_S, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def about(record: Any, labels: Sequence[str] = ()) -> About:
    """What is kept beside a record: what it measured and its answer, as its report begins."""
    answer = None
    if kind_of(record) is not None:
        answer = printable(answer_and_context(record)[0])[:_ONE_LINE] or None
    return About(labels=list(labels), target=_target(record), answer=answer)


def _target(record: Any) -> str | None:
    """The condition, the conditions, the process or the server."""
    a, b, condition = (getattr(record, name, None) for name in ("a", "b", "condition"))
    if a is not None and b is not None:
        return f"{a.name} / {b.name}"
    if (study := getattr(record, "study", None)) is not None:
        return str(study)
    if condition is not None:
        name = str(condition.name)
        return name if condition.workload == "command" else f"{condition.workload}:{name}"
    executable = getattr(getattr(record, "target", None), "executable", None)
    if executable:
        return Path(executable).name
    server = getattr(record, "server", None)
    version = server.get("version") if isinstance(server, dict) else getattr(server, "version", None)
    return str(version) if version else None


def age(started_at: str | None, now: datetime) -> str:
    """`3 h`, `12 d`; ? where the time cannot be read."""
    seconds = _seconds_ago(started_at, now)
    if seconds is None:
        return text.UNKNOWN
    return next((f"{int(seconds / unit)} {name}" for unit, name in _AGES if seconds >= unit), "now")


def _seconds_ago(started_at: str | None, now: datetime) -> float | None:
    try:
        then = datetime.fromisoformat((started_at or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    return (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds()


def lines(runs: Sequence[RunInfo], directory: Path, width: int, now: datetime | None = None) -> list[str]:
    """Two lines a run, or that there is none: id, age, what was measured and labels; then the answer."""
    if not runs:
        return [f"No runs in {directory}."]
    moment = now or datetime.now(UTC)
    rows, states = [], []
    for run in runs:
        state = run.problem or (("interrupted: " if run.interrupted else "") + (run.answer or run.schema or ""))
        labelled = " ".join(f"[{label}]" for label in run.labels)
        cells = (run.id, age(run.started_at, moment), run.target or "", labelled)
        # Cleaned before it is padded: a line end in a record must not begin a line of the list.
        rows.append([printable(cell)[:_CELL] for cell in cells])
        states.append(printable(state)[:_CELL])
    heads = text.columns(rows, left=len(rows[0]))
    pairs = zip(heads, states, strict=True)
    return [text.cut(line, width) for head, state in pairs for line in (head, f"    {state}")]


def superfluous(
    runs: Sequence[RunInfo], keep: int | None, older_than_days: float | None, now: datetime | None = None
) -> list[RunInfo]:
    """The runs that may go: beyond the newest `keep` of each command, or older than that. Labelled ones never do.

    Raises UsageError where neither is given.
    """
    if keep is None and older_than_days is None:
        raise UsageError("prune needs --keep N or --older-than DAYS", "labelled runs are kept in any case")
    moment = now or datetime.now(UTC)
    by_command: dict[str, list[RunInfo]] = defaultdict(list)
    for run in runs:
        by_command[run.id.rpartition("-")[0]].append(run)
    newest = {run.id for same in by_command.values() for run in (same[-keep:] if keep else [])}
    unneeded = []
    for run in runs:
        seconds = _seconds_ago(run.started_at, moment)
        old = older_than_days is None or (seconds is not None and seconds > older_than_days * _DAY_S)
        if not run.labels and old and (keep is None or run.id not in newest):
            unneeded.append(run)
    return unneeded


def same_before(runs: Sequence[RunInfo], this: RunInfo, label: str) -> RunInfo:
    """The newest run before `this` of the same command and target: with that label, or (`last`) any.

    Raises PowerprofError where there is none.
    """
    kind = this.id.rpartition("-")[0]
    before = [run for run in runs if run.id.rpartition("-")[0] == kind and run.id != this.id and run.problem is None]
    if label == "last":
        at = (this.started_at or "", this.id)
        before = [run for run in before if (run.started_at or "", run.id) < at]
    else:
        before = [run for run in before if label in run.labels]
    same = [run for run in before if run.target == this.target]
    if not same:
        what = "earlier run" if label == "last" else f"run with the label {label}"
        raise PowerprofError(
            f"there is no {what} of the same command and target as {this.id}", "powerprof runs lists them"
        )
    return same[-1]


# The terms of the field that reports use, each in a sentence; docs/reference/glossary.md is written from it.

TERMS = {
    "95 % interval": "The range that holds the true value in 95 of 100 such measurements, on this host.",
    "A/A": "A condition compared with itself: it must show no difference.",
    "C0": "The state of a CPU that runs instructions, not an idle state (C1, C6 …). Time in C0 is running time.",
    "EDP": "Energy-delay product: joules of a query times its mean latency. Less is better in both.",
    "estimated": "Computed from how long the CPUs ran and a model of this kind of CPU; no meter was read.",
    "haltpoll": "The idle governor of virtual machines: it polls for a moment before it halts the CPU.",
    "idle exit": "The moment at which a CPU leaves an idle state: an interrupt, or another CPU, woke it.",
    "minimum detectable": "The smallest true difference that so many windows would have found four times in five.",
    "net of idle": "Less what the idle host uses in as long a time: what the work adds.",
    "p95": "95 of 100 queries were answered within this time.",
    "POLL": "An idle loop that runs instructions: it wakes at once and saves nothing, and counts as running time.",
    "residency": "The share of the time that the CPUs spent in an idle state, as the kernel requested it.",
    "steal": "Time in which a virtual CPU wanted to run and the hypervisor gave the CPU to another guest.",
    "wake-ups": "How often CPUs left an idle state; each costs energy and keeps deeper states away.",
}
_PATTERN = re.compile(r"(?<![\w-])(" + "|".join(sorted(map(re.escape, TERMS), key=len, reverse=True)) + r")(?![\w-])")


def terms_in(words: str) -> list[tuple[str, str | None]]:
    """The words in pieces: each with the explanation of the term that it is, or None."""
    return [(piece, TERMS.get(piece)) for piece in _PATTERN.split(words) if piece]
