# SPDX-License-Identifier: Apache-2.0
"""Results leave the process here: as a saved run, as files, and as a report on stdout."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from powerprof.cli.outputs import OutputFile, Outputs, check_targets, json_output
from powerprof.cli.progress import CLEAR_LINE, clear_progress, progress
from powerprof.system.errors import HungUp, Interrupted, PowerprofError, UsageError
from powerprof.system.files import printable, printable_lines, reason_of
from powerprof.system.next_steps import command_line

if TYPE_CHECKING:
    import msgspec

    from powerprof.cli.options import Saving
    from powerprof.report.document import Extras, View

R = TypeVar("R", bound="msgspec.Struct")


# Checks before anything is measured.


def check_saving(saving: Saving, outputs: Outputs = (), *, judged: bool = False) -> Saving:
    """Return how the result will be saved, with its files. Raise UsageError or PowerprofError if it could not be kept.

    If the default folder of runs cannot be written (no HOME, a read-only one), print a note and do not save.

    Args:
        saving: The options of the command.
        outputs: The files of -o.
        judged: Whether the exit code is an answer.
    """
    saving = replace(saving, files=(*json_output(saving.json), *outputs))
    check_targets(saving.files)
    if saving.label:
        from powerprof.model.runs import check_label

        for label in saving.label:
            check_label(label)
    if saving.no_save:
        if saving.quiet and not judged and not saving.files:
            raise UsageError("--quiet and --no-save discard the result", "add --json FILE")
        if not saving.files:
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
    """Raise PowerprofError if stdout cannot be written; a reader that has left (head) is no error."""
    from powerprof.report.files import check_output

    if getattr(sys.stdout, "name", "") == os.devnull:  # as `main` opens a closed stdout
        raise PowerprofError("stdout is closed, and no file gets the result", "add --json FILE")
    try:
        check_output("-")
    except PowerprofError as error:
        if not isinstance(error.__cause__, BrokenPipeError):
            raise


# Files.


def write_files(record: Any, files: Sequence[OutputFile], extras: Extras | None = None) -> None:
    """Write every file that can be written. Raise the first PowerprofError; UsageError if the record has no such form.

    All are rendered before the first is written.
    """
    if not files:
        return
    from powerprof.report.files import write_output

    first_error: PowerprofError | None = None
    rendered: list[tuple[OutputFile, bytes]] = []
    for file in files:
        try:
            rendered.append((file, _render(record, file.kind, extras)))
        except PowerprofError as error:
            first_error = first_error or error
    for file, data in rendered:
        try:
            write_output(file.target, data)
        except PowerprofError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error


def _render(record: Any, kind: str, extras: Extras | None) -> bytes:
    if kind == "json":
        from powerprof.model.runs import encode_record

        return encode_record(record)
    from powerprof.report.exports import export

    return export(record, kind, extras)


def write_json(record: Any, target: str | None) -> None:
    """Write a record as JSON to `target`, if there is one. Raise PowerprofError if it cannot be written."""
    write_files(record, json_output(target))


# A measured result: saved, written and shown.


class Outcome(msgspec.Struct):
    """The state of a result: the saved run, and the error of each step that failed.

    Attributes:
        run: The id of the saved run.
        hint: Where the result is, for errors: the saved run, or the command that continues the measurement.
        measuring: The failure that ended the measurement, or that of saving it.
        writing: The first file that could not be written.
        showing: The reason why the report could not be printed.
    """

    run: str | None = None
    runs_dir: Path | None = None
    hint: str | None = None
    measuring: PowerprofError | None = None
    writing: PowerprofError | None = None
    showing: PowerprofError | None = None

    def finish(self) -> None:
        """Raise the most important error of the steps, with the saved run in its hint."""
        if self.writing is not None and self.run is not None:
            place = [] if self.runs_dir is None else ["--runs-dir", str(self.runs_dir)]
            self.writing.hint = f"the run is saved; write it again: {command_line('{} report {}', place, self.run)}"
        error = self.measuring or self.writing or self.showing
        if error is not None:
            raise error


def deliver(
    record: R,
    command: str,
    saving: Saving,
    *,
    view: View | None = None,
    raw: dict[str, bytes] | None = None,
    extras: Callable[[], Extras] | None = None,
    next_step: str | None = None,
    resumed_by: str | None = None,
) -> R:
    """Save a result, write its files and print its report; return the record as it was saved.

    A step that fails does not stop the following ones; its error is raised at the end. A result that is not saved and
    not written is printed even with --quiet.

    Args:
        record: The result.
        command: The command that measured it.
        saving: Where it is saved, and its files.
        view: What the user asked to see of it.
        raw: Further files of the saved run.
        extras: Returns the stacks or the timeline for its page.
        next_step: The last line of the report.
        resumed_by: The command that continues an interrupted measurement.

    Raises:
        Interrupted: A signal ended the measurement.
        PowerprofError: A step failed.
    """
    from powerprof.system import signals

    signals.hold()
    record, outcome = _save(record, command, saving, raw)
    outcome.hint = resumed_by or (f"the measured part is saved as {outcome.run}" if outcome.run else None)
    ended = getattr(record, "ended", None)
    if ended is not None and ended.how == "failed" and not signals.has_arrived():
        # After a signal the error is no reason: the signal may have ended the server too.
        outcome.measuring = PowerprofError(ended.why, outcome.hint)
    interruption = _release_signals(outcome.hint)

    last_line = " ".join(part for part in (f"Saved as {outcome.run}." if outcome.run else None, next_step) if part)
    try:
        outcome.writing = _write(record, saving.files, extras)
        is_lost = outcome.run is None and outcome.writing is not None
        if not any(file.target == "-" for file in saving.files) and (is_lost or not saving.quiet):
            outcome.showing = _show(record, view, last_line, outcome.hint)
    except Interrupted as late:
        late.hint = late.hint or outcome.hint
        raise
    outcome.finish()
    if ended is not None:
        raise interruption
    return record


def _save(record: R, command: str, saving: Saving, raw: dict[str, bytes] | None) -> tuple[R, Outcome]:
    """Word a record and save it. Return the saved record, with its id."""
    from powerprof.model.runs import RunStore
    from powerprof.report import history
    from powerprof.report.wording import word_record

    record, error = word_record(record), None
    if not saving.no_save:
        try:
            about = history.about(record, saving.label or ())
            record = RunStore(saving.runs_dir).save(command, record, raw, about)
        except PowerprofError as not_saved:
            error = not_saved
    return record, Outcome(run=getattr(record, "id", None), runs_dir=saving.runs_dir, measuring=error)


def _release_signals(hint: str | None) -> Interrupted:
    """Let signals raise again, and return the error of an interrupted command. Raise it if a signal is waiting."""
    from powerprof.system import signals

    interruption = signals.interruption(hint)
    if isinstance(interruption, HungUp):
        leave_terminal()
    try:
        signals.release()
    except Interrupted:
        raise interruption from None
    return interruption


def _write(
    record: msgspec.Struct, files: Sequence[OutputFile], extras: Callable[[], Extras] | None
) -> PowerprofError | None:
    """Write every file that can be written. Return the first error."""
    try:
        write_files(record, files, extras() if extras and files else None)
    except PowerprofError as error:
        return error
    return None


def _show(record: R, view: View | None, last_line: str, hint: str | None) -> PowerprofError | None:
    """Print the report. Return the error of a stdout that cannot be written.

    Raises BrokenPipeError if the reader of stdout has left.
    """
    printed = report_lines(record, view)
    if last_line and printed and printed[-1].endswith(": --all"):
        joined = f"{printed[-1]} · {last_line}"
        printed, last_line = (printed[:-1], joined) if len(joined) <= terminal_width() else (printed, last_line)
    printed += [last_line] if last_line else []
    try:
        with _writing_to("stdout"):
            print_report(printed)
            sys.stdout.flush()
    except PowerprofError as error:
        return PowerprofError(error.message, hint or "measure again with --json FILE")
    return None


def leave_terminal() -> None:
    """Discard the output of a terminal that has hung up; output to a file or a pipe continues."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            os.dup2(nowhere, stream)
    os.close(nowhere)


# Text on the terminal.


def report_lines(record: Any, view: View | None = None) -> list[str]:
    """Return the report of a record for this terminal; in a pipe, statements are not cut.

    Raises UsageError if the record has no report.
    """
    from powerprof.report.document import View
    from powerprof.report.kinds import document_of
    from powerprof.report.render.terminal import render_terminal

    asked = replace(view or View(), is_whole=not sys.stdout.isatty())
    return render_terminal(document_of(record, asked), terminal_width())


def progress_printer(saving: Saving) -> Callable[[str], None]:
    """Return the function that prints a line of progress unless --quiet was given."""
    return lambda text: print_progress(text, saving.quiet)


def print_progress(text: str, quiet: bool = False) -> None:
    """Print a line of progress on stderr, if that is a terminal. The next line replaces it."""
    if quiet or not sys.stderr.isatty():
        return
    if os.environ.get("TERM") == "dumb":
        print_text(text, error=True)
        return

    with _writing_to("stderr"):
        print(
            f"{CLEAR_LINE}{fit_progress(printable(text), terminal_size()[0] - 1)}", file=sys.stderr, end="", flush=True
        )
    progress.is_shown = True


def fit_progress(text: str, width: int) -> str:
    """Return a line of progress of at most `width` characters. The step and the end are first and last in it."""
    from powerprof.model.text import shorten

    *parts, last = text.split(" · ")
    if len(text) > width:
        last = last.rpartition(" left, ")[2]
    # The figures so far are less important.
    while len(parts) > 1 and len(" · ".join([*parts, last])) > width:
        parts.pop()
    room = width - len(last) - 3
    return shorten(" · ".join([shorten(" · ".join(parts), room), last]) if parts and room > 8 else last, width)


def print_text(text: str, *, error: bool = False, end: str = "\n") -> None:
    """Print plain text on stdout or stderr.

    Names come from other processes and from files of other users: their escape sequences are replaced.
    """
    clear_progress()
    with _writing_to("stderr" if error else "stdout"):
        print(printable_lines(text), file=sys.stderr if error else sys.stdout, end=end, flush=error)


@contextmanager
def _writing_to(stream: str) -> Iterator[None]:
    """Name the stream in the error of a full disk. A reader that has left (head) stays a BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise PowerprofError(f"cannot write to {stream} ({reason_of(error)})", "redirect it to another file") from None


def ask_consent(question: str, yes: bool) -> bool:
    """Return whether the user agrees to a download: by --yes, or by an answer at the terminal.

    Raises PowerprofError if there is neither.
    """
    if yes:
        print_text(f"{question}: confirmed by --yes", error=True)
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise PowerprofError("the download needs confirmation on a terminal", "add --yes")
    print_text(f"{question}. Fetch it? [y/N] ", error=True, end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_report(lines: Iterable[str]) -> None:
    """Print a report, at a terminal in lines of its width.

    The first line, the answer, is bold on a terminal with colours; NO_COLOR is obeyed.
    """
    printed = [printable(line) for line in lines]
    clear_progress()
    with _writing_to("stdout"):
        if sys.stdout.isatty() and printed:
            from rich.console import Console
            from rich.text import Text

            from powerprof.model.text import fit_lines

            width = terminal_width()
            first, *printed = fit_lines(printed, width)
            # rich would print nothing if COLUMNS is 0.
            console = Console(file=sys.stdout, highlight=False, width=width)
            console.print(Text(first, style="bold"), soft_wrap=True)
        for line in printed:
            print(line)


# In fewer columns no figure has a place.
_LEAST_COLUMNS = 20


def terminal_width() -> int:
    """Return the columns of the terminal, at least 20; 80 in a pipe."""
    return max(_LEAST_COLUMNS, terminal_size()[0]) if sys.stdout.isatty() else 80


def terminal_size(*, obey_environment: bool = True) -> tuple[int, int]:
    """Return the columns and lines of the terminal: 80 and 24 if it does not know them (serial lines report 0 × 0).

    COLUMNS and LINES are preferred unless a screen must follow a resized window.
    """
    import shutil

    if obey_environment:
        return shutil.get_terminal_size((80, 24))
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return 80, 24
    return columns or 80, rows or 24
