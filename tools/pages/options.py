# SPDX-License-Identifier: Apache-2.0
"""Count the options of all commands, and list those that are on no guide page: python -m tools.pages.options."""

from __future__ import annotations

import re
from pathlib import Path

from powerprof.cli.parameters import EXPERT_HEADING
from tools.pages.cli import commands

_REPOSITORY = Path(__file__).parents[2]
_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")


def guide_pages() -> list[Path]:
    """Return the pages of the guide: README, tutorial and how-tos."""
    return [
        _REPOSITORY / "README.md",
        _REPOSITORY / "docs/tutorial.md",
        *sorted((_REPOSITORY / "docs/how-to").glob("*.md")),
    ]


def guided_options() -> frozenset[str]:
    """Return the options that the guide names."""
    return frozenset(word for page in guide_pages() for word in _OPTION.findall(page.read_text(encoding="utf-8")))


def option_places() -> list[tuple[str, str, str]]:
    """Return the command, the option and the heading of every option."""
    return [(command.name, each.name, each.heading) for command in commands().values() for each in command.options]


def unguided_places() -> list[tuple[str, str]]:
    """Return the options, by command, that are neither in the guide nor under "Expert"."""
    guided = guided_options()
    return [(name, flag) for name, flag, heading in option_places() if flag not in guided and heading != EXPERT_HEADING]


if __name__ == "__main__":
    places = option_places()
    print(f"{len(places)} places, {len({flag for _, flag, _ in places})} distinct options")
    by_option: dict[str, list[str]] = {}
    for name, flag in unguided_places():
        by_option.setdefault(flag, []).append(name)
    for flag, names in sorted(by_option.items()):
        print(f"{flag}: {', '.join(names)}")
