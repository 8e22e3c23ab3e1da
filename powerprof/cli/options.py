"""Options that every measuring command shares, and how results leave the process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from powerprof.errors import PowerprofError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

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


def check_json_target(target: str | None) -> None:
    """Refuse before the measuring what could not be written after it. Raises UsageError."""
    if target in (None, "-"):
        return
    path = Path(str(target))
    if path.is_dir():
        raise UsageError(f"--json {target} is a directory", "name a file, or - for stdout")
    if not path.parent.is_dir():
        raise UsageError(f"--json {target}: no such directory {path.parent}", "create it first")


def progress(text: str, quiet: bool = False) -> None:
    """A line of progress: on stderr, and only to a terminal."""
    if not quiet and sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
