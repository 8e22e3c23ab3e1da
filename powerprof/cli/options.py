# SPDX-License-Identifier: Apache-2.0
"""Options that commands share: the base of each command's options, and the rows of its report."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from powerprof.cli.parameters import EXPERT_HEADING, Mode, finite_number, flag, no_effect, option, whole_number
from powerprof.system.errors import UnknownNameError, UsageError

_DEFAULT_COST = 0.02
_LEAST_COST_PERCENT, _MOST_COST_PERCENT = 0.01, 100.0


class CommandOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The base of the options of one command.

    Attributes:
        typed: options of the command line: field name → option.
        command_words: words after --.
    """

    MODES: ClassVar[tuple[Mode, ...]] = ()

    typed: Mapping[str, str] = msgspec.field(default_factory=dict)
    command_words: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise UsageError for words that contradict each other, before any file, process or server is read."""

    def refuse_without_effect(
        self, circumstance: str, names: Collection[str] | None = None, *, but: Collection[str] = ()
    ) -> None:
        """Raise UsageError if one of the options `names` (None: any), except `but`, was typed.

        It is for circumstances that only the command knows; others are declared (`Mode`, needs, excludes).
        """
        refused = [words for words in self.typed.values() if (names is None or words in names) and words not in but]
        if refused:
            raise no_effect(refused, circumstance)


def parse_percent(words: str, typed: str | None) -> float | None:
    """Return `2%` or `2` as 2.0, and None without a text. Raises UsageError."""
    try:
        return None if typed is None else float(typed.strip().removesuffix("%"))
    except ValueError:
        raise UsageError(f"{words} {typed} is not a percentage", "such as 2%") from None


def max_cost(base: str, remedy: str = "slices are traced") -> Any:
    """Return the field of --max-cost. `base`: the CPU time of which the bound is a share. See `cost_bound`."""
    text = f"Most CPU time that tracing may cost, of that of {base}; above it, {remedy} (default: 2%)."
    return option("--max-cost", "P%|none", text, convert=_parse_cost)


def _parse_cost(text: str) -> float:
    if text == "none":
        return math.inf
    percent = finite_number(text.removesuffix("%"))
    if not _LEAST_COST_PERCENT <= percent <= _MOST_COST_PERCENT:
        raise ValueError(f"must be none, or {_LEAST_COST_PERCENT:g}% to {_MOST_COST_PERCENT:g}%")
    return percent / 100.0


def cost_bound(typed: float | None) -> float | None:
    """Return the bound of the field of --max-cost as a share; None without a bound."""
    share = _DEFAULT_COST if typed is None else typed
    return None if math.isinf(share) else share


def top(text: str = "Rows to print.", default: int | None = 20, **declared: Any) -> Any:
    """Return the field of --top."""
    return whole_number("--top", "N", text, default=default, low=1, high=100_000, **declared)


def source_lines() -> Any:
    """Return the field of --lines."""
    return flag("--lines", "Show source file and line in stacks.")


def backend() -> Any:
    """Return the field of --backend."""
    return option(
        "--backend", "NAME", "auto (BPF, or DTrace without BPF), bpf or dtrace.", default="auto", heading=EXPERT_HEADING
    )


def check_by(by: str | None, choices: Sequence[str], *, lines: bool = False, default: str = "stack") -> None:
    """Raise UsageError if the report has no rows by `by`, or --lines has no stacks to show."""
    if lines and (by or default) != "stack":
        raise UsageError(f"--lines has no effect on rows by {by or default}", "add --by stack")
    if by is not None and by not in choices:
        raise UnknownNameError(f"--by {by} is not a choice here", by, choices)
