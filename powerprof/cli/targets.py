# SPDX-License-Identifier: Apache-2.0
"""What the verbs about a target share: which processes, how many rows, which backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from powerprof.errors import UsageError

Top = Annotated[int, typer.Option("--top", metavar="N", min=1, max=100_000, help="Rows to print.")]
Lines = Annotated[bool, typer.Option("--lines", help="Show stacks with file and line of the source.")]
Backend = Annotated[str, typer.Option("--backend", metavar="NAME", help="auto (BPF, else DTrace), bpf or dtrace.")]


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Which processes."""

    pid: Annotated[
        list[str] | None, typer.Option("--pid", metavar="ID|NAME", help="Process ids or names, with commas between.")
    ] = None
    cgroup: Annotated[
        str | None, typer.Option("--cgroup", metavar="PATH|UNIT", help="All processes of a cgroup or unit.")
    ] = None
    system: Annotated[bool, typer.Option("--system", help="Every process of this host.")] = False


def check_by(by: str | None, choices: Sequence[str], *, sources: bool = False, default: str = "stack") -> None:
    """Refuse a `--by` that the report does not have, and --lines where it has no stacks. Raises UsageError."""
    if sources and (by or default) != "stack":
        raise UsageError(f"--lines has no effect on rows by {by or default}", "add --by stack")
    if by is not None and by not in choices:
        raise UsageError(f"--by {by} is not a choice here", f"one of {', '.join(choices)}")
