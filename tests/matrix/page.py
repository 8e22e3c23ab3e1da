# SPDX-License-Identifier: Apache-2.0
"""docs/reference/machines.md, from the newest outcome of each cell that is kept beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from powerprof.model.text import join_words
from tests.matrix.cells import CELLS, Cell
from tests.matrix.outcome import Outcome, load, save
from tests.matrix.roots import REPOSITORY

PAGE = REPOSITORY / "docs/reference/machines.md"
KEPT = REPOSITORY / "docs/reference/machines.jsonl"

_HEAD = """# Machines that powerprof is tried on

Written by `make matrix` (`python -m tests.matrix --write`), never by hand. Each line is a machine that QEMU emulates,
with a kernel of Debian's own packages, or a root of a Debian suite on the kernel of the host. In each:

* `doctor` finds tracing to work, by the BPF programs that powerprof carries: the root has no bcc and no headers,
* a program that sleeps in known functions logs every sleep, and `attribute` finds each function's wakings within 3 %
  of the *program's own count* (emulated time is slow, the host's clock proves nothing), at least 99 % of all idle
  exits have a cause, and they are as many as cpuidle counted, where a driver counts,
* `functions` counts calls exactly, `profile` finds known shares of CPU time (not asked again
  where only the CPUs or their idle states are others),
* `idle --clients 4` on a real mariadbd finds wake-ups, and the server among their causes,
* and no BPF program or link is left.

The two whose name ends in sweep are for another question, what a kernel does to a server's throughput
([two kernels](../studies/two-kernels.md)).

"""
_COLUMNS = (
    "cell", "kernel", "CPUs", "driver", "programs", "worst rate", "coverage", "stacks", "idle", "result", "date"
)  # fmt: skip


def _row(cell: Cell, found: Outcome | None) -> tuple[str, ...]:
    if found is None:
        return (cell.name, *["–"] * 8, "not run yet", "–")
    machine, attribute, idle = found.facts("machine"), found.facts("attribute"), found.facts("idle")
    sockets = machine.get("sockets", 1)
    cpus = f"{machine.get('cpus', '?')}" + (f" in {sockets} sockets" if sockets > 1 else "")
    balance = attribute.get("conservation", {})
    # Of a day on which the roots had bcc, doctor may not have said it.
    programs = re.search(r"carried|compiled by bcc", found.facts("doctor").get("tracing", ""))

    def percent(value: float | None, digits: int) -> str:
        return "–" if value is None else f"{value:.{digits}f} %"

    return (
        cell.name,
        machine.get("kernel", "?"),
        cpus,
        machine.get("driver") or "–",
        programs[0] if programs else "–",
        percent(attribute.get("worst_percent"), 1),
        percent(balance.get("coverage_percent"), 1),
        percent(attribute.get("stacks_complete_percent"), 0),
        f"{idle['clients']['wakeups_hz']:.0f}/s" if idle else "–",
        "green" if found.is_green else "**red**",
        found.date,
    )


def _swept(found: Outcome | None) -> str:
    """What a sweep over clients measured."""
    rates = found.facts("sweep").get("queries_hz", {}) if found else {}
    if not rates:
        return ""
    measured = join_words([f"{rate:.1f}" for rate in rates.values()])
    return f"; {measured} transactions/s with {join_words(list(rates))} clients"


def _text(outcomes: dict[str, Outcome]) -> str:
    lines = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    lines += [f"| {' | '.join(_row(cell, outcomes.get(cell.name)))} |" for cell in CELLS]
    lines += [
        "",
        "*Worst rate*: of all functions, the largest distance to the program's count. *Stacks*: how many were unwound",
        "to the thread's start. *Idle*: wake-ups with four silent clients.",
        "",
        "## What each cell is",
        "",
        *(f"* **{cell.name}**: {cell.why}{_swept(outcomes.get(cell.name))}." for cell in CELLS),
    ]
    red = [(name, found) for name, found in outcomes.items() if not found.is_green]
    if red:
        lines += ["", "## Why a cell is red", ""]
        for name, found in red:
            lines += [f"* **{name}**: " + "; ".join(reason.replace("|", "/")[:400] for reason in found.reasons())]
    return _HEAD + "\n".join(lines) + "\n"


def keep(outcomes: Iterable[Outcome]) -> None:
    """Add outcomes to those that are kept, and write the page anew."""
    known = {cell.name for cell in CELLS}
    kept = {**load(KEPT), **{one.cell: one for one in outcomes}}
    kept = {name: one for name, one in kept.items() if name in known}
    save(KEPT, kept)
    PAGE.write_text(_text(kept))
