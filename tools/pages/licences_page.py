# SPDX-License-Identifier: Apache-2.0
"""Writes THIRD_PARTY.md, the licences of imported libraries: `python -m tools.pages.licences_page`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution

from packaging.requirements import Requirement

from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "THIRD_PARTY.md"
COMMAND = "python -m tools.pages.licences_page"
# What a package says in its own words → a name; none other is taken: an unknown licence has to be read by somebody.
_NAMES = (
    (r"LGPL-?v?3|Lesser General Public License v3", "LGPL-3.0"),
    (r"LGPL-?v?2\.1|Lesser General Public License v2", "LGPL-2.1"),
    (r"\bGPL|General Public License", "GPL"),
    (r"Apache", "Apache-2.0"),
    (r"0BSD", "0BSD"),
    (r"BSD", "BSD"),
    (r"\bMIT\b", "MIT"),
    (r"\bISC\b", "ISC"),
    (r"\bZlib\b", "Zlib"),
    (r"CC0-1\.0", "CC0-1.0"),
    (r"PSF|Python Software Foundation", "PSF-2.0"),
)
# Libraries that powerprof imports and does not change: the LGPL asks no more of that. GPL is not among them.
ALLOWED = frozenset(name for _, name in _NAMES if name != "GPL")


def _name(said: str) -> str | None:
    return next((name for pattern, name in _NAMES if re.search(pattern, said)), None)


def licence(found: Distribution) -> str:
    """The names of its licences. Raises ValueError where it says one that is not known, or none."""
    about = found.metadata
    expression = about.get("License-Expression")
    classified = [line for line in about.get_all("Classifier") or [] if line.startswith("License :: OSI Approved ::")]
    parts = re.split(r" AND | OR |[()]", expression) if expression else classified or [about.get("License") or ""]
    names = [_name(part) for part in parts if part.strip() or not expression]
    if None in names or not names:
        raise ValueError(f"{found.name} names a licence that is not known: {parts}")
    return " and ".join(dict.fromkeys(name for name in names if name is not None))


def closure(name: str = "powerprof") -> Iterator[tuple[Distribution, list[Requirement]]]:
    """What is installed because powerprof wants it, each with what it wants itself."""
    waiting, seen = [name], set()
    while waiting:
        found = distribution(waiting.pop())
        if found.name.lower() in seen:
            continue
        seen.add(found.name.lower())
        wanted = [Requirement(line) for line in found.requires or []]
        wanted = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
        waiting += [one.name for one in wanted]
        yield found, wanted


def rows() -> dict[str, str]:
    """Each library and its licences."""
    return {found.name.lower(): licence(found) for found, _ in closure() if found.name != "powerprof"}


def render() -> str:
    """The page as it has to be."""
    head = (
        "# Third-party licences\n\n"
        "powerprof is licensed under the Apache License 2.0, its BPF programs under Apache-2.0 or GPL-2.0. It imports\n"
        "these libraries from PyPI without changes. `make test` compares this list with the installed libraries.\n\n"
        "| library | licence |\n|---|---|"
    )
    return "\n".join([head, *(f"| {name} | {said} |" for name, said in sorted(rows().items()))]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
