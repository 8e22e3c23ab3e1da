# SPDX-License-Identifier: Apache-2.0
"""Text on the terminal: reports, the line of progress, questions, and the size of the screen."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from powerprof.system.errors import Declined, PowerprofError, UsageError, reason_of
from powerprof.system.foreign_text import printable, printable_lines

if TYPE_CHECKING:
    from powerprof.cli.outputs import Saving
    from powerprof.report.document import View


CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Whether a line of progress is on the terminal."""

    is_shown = False


progress = Progress()


def clear_progress() -> None:
    """Remove the line of progress before other text."""
    if progress.is_shown:
        progress.is_shown = False
        with suppress(OSError, ValueError):  # the terminal may be gone
            print(CLEAR_LINE, file=sys.stderr, end="", flush=True)


def leave_terminal() -> None:
    """Discard the output of a terminal that has hung up; output to a file or a pipe continues."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            os.dup2(nowhere, stream)
    os.close(nowhere)


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

    with writing_to("stderr"):
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
    with writing_to("stderr" if error else "stdout"):
        print(printable_lines(text), file=sys.stderr if error else sys.stdout, end=end, flush=error)


def print_sentence(sentence: str) -> None:
    """Print a sentence on stderr, on a terminal in lines of its width."""
    from powerprof.model.text import fit_lines

    lines = fit_lines([sentence], max(_LEAST_COLUMNS, _error_width())) if sys.stderr.isatty() else [sentence]
    print_text("\n".join(lines), error=True)


def _error_width() -> int:
    """Return the columns of the terminal of stderr."""
    if "COLUMNS" in os.environ or sys.stdout.isatty():
        return terminal_size()[0]
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


@contextmanager
def writing_to(stream: str) -> Iterator[None]:
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

    The first line, the answer, is bold, except with NO_COLOR and on terminals without capabilities.
    """
    printed = [printable(line) for line in lines]
    clear_progress()
    with writing_to("stdout"):
        if sys.stdout.isatty() and printed:
            from powerprof.model.text import fit_lines

            first, *printed = fit_lines(printed, terminal_width())
            print(f"\x1b[1m{first}\x1b[0m" if _is_bold_shown() else first)
        for line in printed:
            print(line)


def _is_bold_shown() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


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


def require_terminal(hint: str) -> None:
    """Raise UsageError if no question can be asked; a command with a question calls this before it measures."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("confirmation needs a terminal", hint)


def confirm(question: str, *, without_terminal: str, declined: str) -> None:
    """Ask on the terminal whether to continue.

    Raises:
        UsageError: there is no terminal, with the hint `without_terminal`.
        Declined: the answer is no; `declined` is the state after it.
    """
    import typer

    require_terminal(without_terminal)
    clear_progress()
    try:
        is_agreed = typer.confirm(question, err=True)
    except typer.Abort:  # end of input
        is_agreed = False
    if not is_agreed:
        raise Declined(f"Declined: {declined}.")
