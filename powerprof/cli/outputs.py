# SPDX-License-Identifier: Apache-2.0
"""Files of a result: `-o FILE`, whose suffix is the kind, and `--json FILE`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from powerprof.cli.parameters import flag, option, program_value
from powerprof.model.text import join_words
from powerprof.report.files import SUFFIXES, check_output
from powerprof.system.errors import PowerprofError, UsageError

TABLES = ("html", "md", "csv", "json")
STACKS = ("flame", "folded", "pprof", "otlp")


class OutputFile(msgspec.Struct, frozen=True):
    """A file to write: its kind, its name or - for stdout, and the words that requested it."""

    kind: str
    target: str
    typed: str

    @property
    def option(self) -> str:
        """The option that named it."""
        return self.typed.partition(" ")[0]


Outputs = Sequence[OutputFile]


def output_files(*kinds: str, **declared: Any) -> Any:
    """Return the field of -o, for these kinds of files."""
    text = f"Write a file; repeatable. The kind is its suffix: {' '.join(SUFFIXES[kind] for kind in kinds)}"
    return option(
        "-o",
        "FILE",
        f"{text} (stdout: {_example(kinds)}:-).",
        convert=lambda typed: parse_output(typed, kinds),
        default=(),
        is_repeatable=True,
        heading="Output",
        **declared,
    )


def parse_output(typed: str, kinds: Sequence[str]) -> OutputFile:
    """Return the file of `-o`. Raise UsageError if it is not one of `kinds`."""
    kind, colon, target = typed.partition(":")
    if not colon or kind not in SUFFIXES:
        target = typed
        fitting = [kind for kind, suffix in SUFFIXES.items() if typed.lower().endswith(suffix)]
        if not fitting:
            reason = "stdout has no suffix" if typed == "-" else "no kind of file has this suffix"
            raise UsageError(f"-o {typed}: {reason}", _available(kinds))
        kind = max(fitting, key=lambda each: len(SUFFIXES[each]))
    if not target:
        raise UsageError(f"-o {typed} has no name after the colon", f"such as {kind}:-, for stdout")
    output = OutputFile(kind, target, f"-o {typed}")
    check_kinds([output], kinds, "this command")
    return output


def json_output(target: str | None) -> list[OutputFile]:
    """Return the file of --json."""
    return [] if target is None else [OutputFile("json", target, f"--json {target}")]


def check_kinds(outputs: Outputs, kinds: Sequence[str], of: str) -> None:
    """Raise UsageError if one of the files is not of the kinds of `of`: a command or a record."""
    for output in outputs:
        if output.kind not in kinds:
            raise UsageError(f"{output.typed}: {of} has no {SUFFIXES[output.kind]} file", _available(kinds))


def _available(kinds: Sequence[str]) -> str:
    return f"available: {join_words([SUFFIXES[kind] for kind in kinds])}; for stdout such as -o {_example(kinds)}:-"


def _example(kinds: Sequence[str]) -> str:
    return "csv" if "csv" in kinds else "json"


def check_targets(outputs: Outputs) -> None:
    """Raise UsageError or PowerprofError if one of the files could not be written after the measurement."""
    if [output.target for output in outputs].count("-") > 1:
        raise UsageError("only one file can be stdout", "give the others names")
    by_path: dict[str, OutputFile] = {}
    for output in outputs:
        typed, target = output.typed, output.target
        if target == "-":
            continue
        folder = os.path.dirname(target) or "."  # noqa: PTH120 - Path raises if a name is too long
        if os.path.isdir(target):  # noqa: PTH112
            raise UsageError(f"{typed} is a directory", "name a file, or - for stdout")
        if not os.path.isdir(folder):  # noqa: PTH112
            if os.path.lexists(folder):
                raise UsageError(f"{typed}: {folder} is not a directory", "name a file in another place")
            raise UsageError(f"{typed}: no such directory {folder}", "create it first")
        other = by_path.setdefault(os.path.realpath(target), output)
        if other is not output:
            raise UsageError(f"{other.typed} and {typed} name the same file", "name two files")
    for output in outputs:
        try:
            check_output(output.target)
        except PowerprofError as error:
            raise PowerprofError(f"{output.option}: {error.message}", error.hint) from error.__cause__


def json_file() -> Any:
    """Return the field of --json."""
    return option("--json", "FILE", "Write the result as JSON; - for stdout, without the report.")


def labels(**declared: Any) -> Any:
    """Return the field of --label."""
    text = "Label of the run, such as a release; repeatable."
    return option("--label", "NAME", text, is_repeatable=True, **declared)


# Options of the destinations of a result, in every command that has some.
DESTINATIONS = ("-o", "--json", "--no-save", "--label")


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """The destinations of a result besides the terminal.

    Attributes:
        files: the files of --json and -o, after their check.
    """

    HEADING: ClassVar[str] = "Output"

    json: str | None = json_file()
    quiet: bool = program_value("quiet", False)
    runs_dir: Path | None = program_value("runs_dir")
    no_save: bool = flag("--no-save", "Do not save the run.")
    label: list[str] | None = labels(excludes=("--no-save",))
    files: tuple[OutputFile, ...] = ()
