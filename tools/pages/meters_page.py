# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/meters.md from the table of recognised layouts: `python -m tools.pages.meters_page`."""

from __future__ import annotations

from powerprof.energy.layouts import LAYOUTS, Layout
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs/reference/meters.md"
COMMAND = "python -m tools.pages.meters_page"
_HEAD = """# Recognised layouts of meters

A total needs a set of meters that this table lists, complete for the sockets and dies of the host. Any other set has
no total: each meter is shown with its own figure, and the report gives the reason.
`--meter NAME:DOMAIN+DOMAIN` names the domains that measure the machine
([energy](energy.md#totals)). Drivers and channels are regular expressions; `#1` is the first channel of a
chip.

| meter | driver | channel | measures | complete set | inside | source |
|---|---|---|---|---|---|---|
"""


def render() -> str:
    """The page as it has to be."""
    return _HEAD + "".join(f"{_row(layout)}\n" for layout in LAYOUTS)


def _row(layout: Layout) -> str:
    vendor = f"; CPUs of {layout.vendor}" if layout.vendor else ""
    condition = f"; {layout.condition}" if layout.condition else ""
    count = "in no sum" if layout.count == "-" else layout.count
    cells = [
        ", ".join(layout.sources),
        f"`{layout.driver}`",
        f"`{layout.channel}`",
        f"{layout.scope}{condition}{vendor}",
        count,
        layout.inside or "",
        layout.evidence,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
