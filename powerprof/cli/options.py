"""Options that every measuring command shares, and how results leave the process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from powerprof.errors import Interrupted, PowerprofError, UsageError

if TYPE_CHECKING:
    import msgspec
    from rich.console import Console

R = TypeVar("R", bound="msgspec.Struct")

MAX_DURATION_S = 7 * 24 * 3600.0


def _duration(value: float | None) -> float | None:
    if value is not None and not 0.05 <= value <= MAX_DURATION_S:
        raise typer.BadParameter("must be between 0.05 s and 7 days")
    return value


Duration = Annotated[
    float, typer.Option("--duration", metavar="S", callback=_duration, help="Length of a window in seconds.")
]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is stdout and nothing else goes there."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No report and no progress.")]
RunsDir = Annotated[
    Path | None, typer.Option("--runs-dir", metavar="DIR", help="Where runs are saved (default: the state directory).")
]
NoSave = Annotated[bool, typer.Option("--no-save", help="Do not save the run.")]


ResidencySource = Annotated[
    str, typer.Option("--residency-source", metavar="NAME", help="cpuidle (default), powertop, turbostat or procfs.")
]
EnergySource = Annotated[
    str, typer.Option("--energy-source", metavar="NAME[,NAME]", help="auto, or the meters to read (powerprof doctor).")
]
MeterLog = Annotated[
    Path | None, typer.Option("--meter-log", metavar="FILE", help="CSV log that an external meter is writing.")
]
ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Your server: mysql://user@host:port/ (password: --defaults-file, MYSQL_PWD, prompt).",
    ),
]
Socket = Annotated[Path | None, typer.Option("--socket", metavar="PATH", help="Your server's unix socket.")]
DefaultsFile = Annotated[
    Path | None, typer.Option("--defaults-file", metavar="FILE", help="Option file with user, password, socket.")
]


def console(stream: IO[str] | None = None) -> Console:
    """A console that wraps at the terminal's width, keeps long lines in pipes, and obeys NO_COLOR."""
    from rich.console import Console

    out = stream or sys.stdout
    is_terminal = out.isatty()
    return Console(file=out, highlight=False, soft_wrap=not is_terminal, width=None if is_terminal else 100)


def write_json(record: Any, target: str) -> None:
    """Write `record` to a file, or to stdout for `-`. Raises PowerprofError where the file cannot be written."""
    from powerprof.runs import encode

    data = encode(record)
    if target == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        Path(target).write_bytes(data)
    except OSError as error:
        raise PowerprofError(f"cannot write {target} ({(error.strerror or str(error)).lower()})") from error


def terminal_width() -> int:
    """Columns of the terminal; 80 in a pipe."""
    import shutil

    return max(40, shutil.get_terminal_size((80, 24)).columns) if sys.stdout.isatty() else 80


def save_and_show(
    run: R,
    command: str,
    lines: Callable[[R, int], list[str]],
    *,
    json: str | None,
    quiet: bool,
    runs_dir: Path | None,
    no_save: bool,
    next_step: str | None = None,
    extra: dict[str, bytes] | None = None,
    failure: PowerprofError | None = None,
    also: Callable[[R], None] | None = None,
) -> R:
    """Save a measured run, write its JSON, print its report; an interrupted one then ends with 130.

    `also` writes what else was asked for. What was measured is shown even where it cannot be saved, or where `failure`
    broke it off: that error comes last.
    """
    from powerprof import interrupts
    from powerprof.runs import RunStore

    problem = failure
    if not no_save:
        try:
            run = RunStore(runs_dir).save(command, run, extra)
        except PowerprofError as error:
            problem = problem or error
    saved = getattr(run, "id", None)
    kept = f"what was measured is saved as {saved}" if saved else None
    if failure is not None:
        failure.hint = failure.hint or kept
    interrupted = Interrupted("interrupted", kept)
    try:
        interrupts.release()
    except Interrupted:
        raise interrupted from None
    try:
        if json is not None:
            write_json(run, json)
        if also is not None:
            also(run)
    except PowerprofError as error:
        problem = problem or error
    if json != "-" and not quiet:
        found = lines(run, terminal_width())
        last = " ".join(part for part in (f"Saved as {saved}." if saved else None, next_step) if part)
        show([*found, *([last] if last else [])])
    if problem is not None:
        raise problem
    if getattr(run, "interrupted", False):
        raise interrupted
    return run


def printable(text: str) -> str:
    """Names come from other processes and from other people's files: no escape sequence of theirs gets out."""
    return "".join(char if char.isprintable() or char == "\xa0" else "?" for char in text)


def show(lines: Sequence[str]) -> None:
    """Print a report: the first line, the answer, is bold on a terminal that has colours."""
    from rich.text import Text

    out = console()
    for number, line in enumerate(lines):
        out.print(Text(printable(line), style="bold" if number == 0 else ""), soft_wrap=True)


def check_json_target(target: str | None) -> None:
    """Refuse before the measuring what could not be written after it. Raises UsageError."""
    if target in (None, "-"):
        return
    path = Path(str(target))
    if path.is_dir():
        raise UsageError(f"--json {target} is a directory", "name a file, or - for stdout")
    if not path.parent.is_dir():
        raise UsageError(f"--json {target}: no such directory {path.parent}", "create it first")


def check_runs_dir(runs_dir: Path | None, no_save: bool) -> None:
    """Refuse before the measuring where its run could not be saved. Raises PowerprofError."""
    if not no_save:
        from powerprof.runs import RunStore

        RunStore(runs_dir).prepare()


def progress(text: str, quiet: bool = False) -> None:
    """A line of progress: on stderr, and only to a terminal."""
    if not quiet and sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
