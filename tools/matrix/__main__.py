# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.matrix [--quick] [CELL…]`: boots each machine of the table, and says what it found."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import msgspec

from powerprof.system import signals
from powerprof.system.errors import Interrupted, PowerprofError
from tools.matrix import bench, cells, page
from tools.matrix.outcome import outcome
from tools.matrix.running import Ended


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show_commands(ended: Ended) -> None:
    for result in (one for one in ended.results if "step" in one):
        facts = result.get("facts", {})
        print(f"$ {result['step']}\n{facts.get('out', facts)}{facts.get('err', '')}{result.get('why', '')}")


def _keep_runs(folder: Path, ended: Ended) -> None:
    """As `powerprof compare` finds it."""
    for result in (one for one in ended.results if "run" in one):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(result["run"]) + "\n")


def main() -> int:
    """1 where a cell is red."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help="names of cells (default: all)")
    parser.add_argument("--quick", action="store_true", help="the few cells that every change has to pass")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 if a cell did not run with the programs of this checkout"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cells, and end")
    parser.add_argument("--write", action="store_true", help=f"keep what was found in {page.PAGE.name}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="machines at a time (default: CPUs)")
    parser.add_argument("--console", type=Path, metavar="FOLDER", help="keep the machines' consoles there")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="keep there what sweeps measured, as saved runs")
    parser.add_argument("--command", action="append", default=[], metavar="LINE", help="run this instead of the steps")
    given = parser.parse_args()
    try:
        wanted = cells.chosen(given.cells, quick=given.quick)
    except ValueError as error:
        parser.error(str(error))
    if given.check:
        older = page.list_older()
        _say(
            f"not run with these programs: {', '.join(older)} (make matrix)"
            if older
            else "all cells ran with these programs"
        )
        return 1 if older else 0
    if given.list:
        for cell in wanted:
            print(f"{cell.name:<16} {cell.why}")
        return 0
    signals.install()
    green, outcomes = 0, []
    try:
        for cell, ended in bench.run(wanted, given.jobs, given.command, _say):
            if given.console:
                given.console.mkdir(parents=True, exist_ok=True)
                (given.console / f"{cell.name}.txt").write_text(ended.console)
            if given.runs:
                _keep_runs(given.runs / cell.name, ended)
            if given.command:
                _show_commands(ended)
                continue
            found = outcome(cell, ended)
            green += found.is_green
            outcomes.append(found)
            print(msgspec.json.encode(found).decode(), flush=True)
            _say(f"{cell.name}: {'green' if found.is_green else 'red'} in {found.seconds:g} s")
            for reason in found.reasons():
                _say(f"    {reason}")
            if given.write:
                page.keep(outcomes)
    except Interrupted:
        _say("interrupted")
        return 130
    except PowerprofError as error:
        _say(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""))
        return 1
    if not given.command:
        # The closing line that test runners' readers understand.
        _say(f"{green} passed, {len(wanted) - green} failed")
    return 0 if given.command or green == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
