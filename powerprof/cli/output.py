# SPDX-License-Identifier: Apache-2.0
"""How results leave the process: progress, files, the report, the saved run."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from powerprof.system.errors import HungUp, Interrupted, PowerprofError, UsageError
from powerprof.system.files import printable, printable_lines, reason_of

if TYPE_CHECKING:
    import msgspec
    from rich.console import Console

    from powerprof.cli.options import Saving
    from powerprof.report.html.page import Extras

R = TypeVar("R", bound="msgspec.Struct")
Targets = Mapping[str, str | None]


def check_targets(json: str | None = None, files: Targets | None = None) -> None:
    """Refuse what could not be written, before anything is measured. Raises UsageError."""
    targets = {**(files or {}), "json": json}
    if list(targets.values()).count("-") > 1:
        raise UsageError("only one of the files can be stdout", "give the others names")
    asked = {name: file for name, file in targets.items() if file is not None and not _is_sent(name, file)}
    for option, target in asked.items():
        place = Path(target)
        if target != "-" and os.path.isdir(place):  # noqa: PTH112 - Path's raises where a name is too long
            raise UsageError(f"--{option} {target} is a directory", "name a file, or - for stdout")
        if target != "-" and not os.path.isdir(place.parent):  # noqa: PTH112
            raise UsageError(f"--{option} {target}: no such directory {place.parent}", "create it first")
    by_path: dict[str, str] = {}
    for option, target in asked.items():
        other = by_path.setdefault(os.path.realpath(target), option) if target != "-" else option
        if other != option:
            raise UsageError(f"--{other} and --{option} name the same file, {target}", "give each its own")
    if asked:
        from powerprof.report.files import check_output

        for option, target in asked.items():
            try:
                check_output(target)
            except PowerprofError as error:
                raise PowerprofError(f"--{option}: {error.message}", error.hint) from error.__cause__


def check(saving: Saving, files: Targets | None = None, *, reads_runs: bool = False, judged: bool = False) -> Saving:
    """Refuse what could be neither written nor saved after the measuring; returns how it is going to be saved.

    Where nobody chose a place for runs and the usual one cannot be written (no HOME, a read-only one), that is reported
    and measuring continues on. `reads_runs`: --runs-dir also says where runs are read; `judged`: the exit code is an
    answer by itself. Raises UsageError, PowerprofError.
    """
    check_targets(saving.json, files)
    if saving.label:
        from powerprof.model.runs import check_label

        for label in saving.label:
            check_label(label)
    if saving.no_save:
        if saving.label:
            raise UsageError("--label names a saved run and --no-save says not to save", "leave one of the two out")
        if saving.runs_dir is not None and not reads_runs:
            raise UsageError("--runs-dir says where to save and --no-save not to", "leave one of the two out")
        if saving.quiet and not judged and not any((saving.json, *(files or {}).values())):
            raise UsageError("--quiet and --no-save would leave nothing of the result", "add --json FILE")
        if not any((saving.json, *(files or {}).values())):
            _check_stdout()
        return saving
    from powerprof.model.runs import RunStore

    try:
        RunStore(saving.runs_dir).check()
    except PowerprofError as error:
        if saving.runs_dir is not None:
            raise
        print(printable(f"note: the run will not be saved: {error.message}"), file=sys.stderr)
        return replace(saving, no_save=True)
    return saving


def _check_stdout() -> None:
    """Refuse a stdout that takes nothing where nothing else would be left; a reader that has gone (head) is no loss.

    Raises PowerprofError.
    """
    from powerprof.report.files import check_output

    try:
        check_output("-")
    except PowerprofError as error:
        if not isinstance(error.__cause__, BrokenPipeError):
            raise


def write_json(record: Any, target: str | None) -> None:
    """Write `record` where it was asked for. Raises PowerprofError where the file cannot be written."""
    if target is not None:
        from powerprof.model.runs import encode_record
        from powerprof.report.files import write_output

        write_output(target, encode_record(record))


def write_exports(record: msgspec.Struct, files: Targets, extras: Extras | None = None) -> None:
    """Write every file that was asked for.

    Raises UsageError where the record has no such form, PowerprofError where one can be neither written nor sent.
    """
    asked = {kind: target for kind, target in files.items() if target is not None}
    if asked:
        from powerprof.report.exports import export
        from powerprof.report.files import write_output
        from powerprof.system.sending import send

        # All are made before the first is written: a refusal leaves nothing half done. One that cannot be written
        # keeps none of the others back.
        problem: PowerprofError | None = None
        made = [(kind, target, export(record, kind, extras)) for kind, target in asked.items()]
        for kind, target, data in made:
            try:
                if _is_sent(kind, target):
                    send(target, data)
                else:
                    write_output(target, data)
            except PowerprofError as error:
                problem = problem or error
        if problem is not None:
            raise problem


def deliver(
    record: R,
    command: str,
    saving: Saving,
    files: Targets | None = None,
    *,
    lines: Callable[[R, int], list[str]] | None = None,
    raw: dict[str, bytes] | None = None,
    extras: Callable[[], Extras] | None = None,
    next_step: str | None = None,
    resumed_by: str | None = None,
) -> R:
    """Save what was measured, write its files, print its report; an interrupted one then ends with 130.

    `raw` is kept beside the run, `extras` belong on its page, `lines` are a report other than the record's own,
    `resumed_by` is the command that continues it. What was measured is shown even where it cannot be saved, or where
    a failure broke it off: that error comes last.
    """
    from powerprof.model.runs import RunStore
    from powerprof.report import history
    from powerprof.report.kinds import word_record
    from powerprof.system import signals

    signals.hold()
    record = word_record(record)
    problem: PowerprofError | None = None
    if not saving.no_save:
        try:
            record = RunStore(saving.runs_dir).save(command, record, raw, history.about(record, saving.label or ()))
        except PowerprofError as error:
            problem = error
    saved = getattr(record, "id", None)
    kept = resumed_by or (f"what was measured is saved as {saved}" if saved else None)
    failure = getattr(record, "failure", None)
    if failure is not None and not signals.has_arrived():  # a signal may have ended the server too
        problem = PowerprofError(failure, kept)
    interrupted = signals.interruption(kept)
    if isinstance(interrupted, HungUp):
        leave_terminal()
    try:
        signals.release()
    except Interrupted:
        raise interrupted from None
    try:
        sent = {kind: target for kind, target in (files or {}).items() if _is_sent(kind, target)}
        written = {kind: target for kind, target in (files or {}).items() if kind not in sent}
        last = " ".join(part for part in (f"Saved as {saved}." if saved else None, next_step) if part)
        unwritten = _write_files(record, saving, written, extras)
        free = "-" not in (saving.json, *written.values())
        # Where nothing else is left of it, the report is shown also to who asked for silence.
        wanted = free and (not saving.quiet or (unwritten is not None and saved is None))
        try:
            unshown = _shown(record, lines, last, kept) if wanted else None
        except BrokenPipeError:
            if (unsent := _send(record, sent)) is not None:
                raise unsent from None
            raise
        # When all else is done: a collector that does not answer keeps nothing back.
        unsent = _send(record, sent)
        if unsent is not None and saved is None and not (wanted or saving.json or any(written.values())):
            unshown = _shown(record, lines, last, kept)
        for failed in (unwritten, unsent):
            if failed is not None and saved is not None:
                failed.hint = f"the run is saved: powerprof report {saved} writes it elsewhere"
        problem = problem or unwritten or unshown or unsent
    except Interrupted as late:
        late.hint = late.hint or kept  # what is shown may be cut short, what was measured is not
        raise
    if problem is not None:
        raise problem
    if getattr(record, "interrupted", False):
        raise interrupted
    return record


def _is_sent(kind: str, target: str | None) -> bool:
    """Whether a file that was asked for is no file but a collector. Raises UsageError for an address of none."""
    if kind != "otlp" or target is None:
        return False
    from powerprof.system import sending

    return sending.is_address(target)


def _send(record: msgspec.Struct, sent: Targets) -> PowerprofError | None:
    """Send what is for a collector; why it could not be."""
    try:
        write_exports(record, sent)
    except PowerprofError as error:
        return error
    return None


def _shown(
    record: R, lines: Callable[[R, int], list[str]] | None, last: str, kept: str | None
) -> PowerprofError | None:
    """Print the report; why it could not be. A reader that has enough (head) is no failure, and is raised."""
    printed = [*report(record, lines), *([last] if last else [])]
    try:
        with _written("stdout"):
            show(printed)
            sys.stdout.flush()
    except PowerprofError as error:
        return PowerprofError(error.message, kept or "measure again with --json FILE")
    return None


def _write_files(
    record: msgspec.Struct, saving: Saving, files: Targets, extras: Callable[[], Extras] | None
) -> PowerprofError | None:
    """Write every file that can be written; why the first one that cannot be."""
    problem: PowerprofError | None = None
    try:
        write_json(record, saving.json)
    except PowerprofError as error:
        problem = error
    try:
        write_exports(record, files, extras() if extras and any(files.values()) else None)
    except PowerprofError as error:
        problem = problem or error
    return problem


def leave_terminal() -> None:
    """The terminal has hung up: what was for it goes nowhere, what is for a file or a pipe goes there."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            os.dup2(nowhere, stream)
    os.close(nowhere)


def report(record: R, lines: Callable[[R, int], list[str]] | None = None) -> list[str]:
    """The record's report for this terminal; in a pipe long texts are whole, where a report has any."""
    from powerprof.report.kinds import kind_of, missing_form

    kind = kind_of(record)
    if kind is None:
        raise missing_form(record, "report")
    uncut = {"is_whole": True} if "is_whole" in kind.options and not sys.stdout.isatty() else {}
    printed: list[str] = (lines or kind.lines)(record, terminal_width(), **uncut)
    return printed


def say_to(saving: Saving) -> Callable[[str], None]:
    """What says a line of progress, unless --quiet."""
    return lambda text: progress(text, saving.quiet)


def progress(text: str, quiet: bool = False) -> None:
    """A line of progress: on stderr, and only to a terminal."""
    if not quiet and sys.stderr.isatty():
        say(text, error=True)


def say(text: str, *, error: bool = False, end: str = "\n") -> None:
    """The one way of plain text to stdout or stderr. Names come from other processes and from other people's files: no
    escape sequence of theirs gets out.
    """
    with _written("stderr" if error else "stdout"):
        print(printable_lines(text), file=sys.stderr if error else sys.stdout, end=end, flush=error)


@contextmanager
def _written(where: str) -> Iterator[None]:
    """A full disk under what is printed has its name in the error. A reader that has enough (head) is no failure."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise PowerprofError(f"cannot write to {where} ({reason_of(error)})", "redirect it to another place") from None


def consent(question: str, yes: bool) -> bool:
    """Whether a download is agreed to: asked at a terminal, elsewhere only --yes agrees. Raises PowerprofError."""
    if yes:
        say(f"{question}: agreed by --yes", error=True)
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise PowerprofError("a download needs consent, and there is no terminal to ask on", "use --yes")
    say(f"{question}. Fetch it? [y/N] ", error=True, end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def show(lines: Iterable[str]) -> None:
    """Print a report: the first line, the answer, is bold on a terminal that has colours."""
    from rich.text import Text

    out = console()
    with _written("stdout"):
        for number, line in enumerate(lines):
            out.print(Text(printable(line), style="bold" if number == 0 else ""), soft_wrap=True)


def console() -> Console:
    """A console that wraps at the terminal's width, keeps long lines in pipes, and obeys NO_COLOR."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, highlight=False, soft_wrap=not is_terminal, width=None if is_terminal else 100)


def terminal_width() -> int:
    """Columns of the terminal; 80 in a pipe."""
    import shutil

    return max(40, shutil.get_terminal_size((80, 24)).columns) if sys.stdout.isatty() else 80
