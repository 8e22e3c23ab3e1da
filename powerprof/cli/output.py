# SPDX-License-Identifier: Apache-2.0
"""A measured result: checked before, saved, written to files and shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from powerprof.cli.outputs import OutputFile, Outputs, Saving, check_targets, json_output
from powerprof.cli.terminal import leave_terminal, print_report, print_text, report_lines, terminal_width, writing_to
from powerprof.system.errors import HungUp, Interrupted, PowerprofError, UsageError
from powerprof.system.next_steps import command_line

if TYPE_CHECKING:
    from powerprof.report.document import Extras, View

R = TypeVar("R", bound=msgspec.Struct)


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
        print_text(f"note: the run will not be saved: {error.message}", error=True)
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


class Outcome(msgspec.Struct):
    """The state of a result: the saved run, and the error of each step that failed.

    Attributes:
        run: The id of the saved run.
        hint: Where the result is, for errors: the saved run, or the command that continues the measurement.
        measuring: The failure that ended the measurement, or that of saving it.
        files: The files of the result, for the command that writes them from the saved run.
        writing: The first file that could not be written.
        showing: The reason why the report could not be printed.
    """

    run: str | None = None
    runs_dir: Path | None = None
    hint: str | None = None
    files: Outputs = ()
    measuring: PowerprofError | None = None
    writing: PowerprofError | None = None
    showing: PowerprofError | None = None

    def finish(self) -> None:
        """Raise the most important error of the steps, with the saved run in its hint."""
        if self.writing is not None and self.run is not None:
            place = [] if self.runs_dir is None else ["--runs-dir", str(self.runs_dir)]
            outputs = [word for file in self.files if file.target != "-" for word in file.typed.split(" ", 1)]
            again = command_line("{} report {} {}", place, self.run, outputs)
            self.writing.hint = f"the run is saved; write it again: {again}"
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
    if ended is not None and ended.how != "interrupted" and not signals.has_arrived():
        # After a signal the error is no reason: the signal may have ended the server too.
        hints = filter(None, [ended.resume_hint, outcome.hint])
        outcome.measuring = PowerprofError(ended.message, "; ".join(hints) or None)
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
    run = getattr(record, "id", None)
    return record, Outcome(run=run, runs_dir=saving.runs_dir, files=saving.files, measuring=error)


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
        with writing_to("stdout"):
            print_report(printed)
            sys.stdout.flush()
    except PowerprofError as error:
        return PowerprofError(error.message, hint or "measure again with --json FILE")
    return None
