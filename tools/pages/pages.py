# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation as tests read them: links, headings, and the command lines in code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.conftest import REPOSITORY

_FENCE = re.compile(r"^(```+)[^`\n]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|(?<=^))(?:(?: {4}|\t)[^\n]*\n?|\n(?= {4}|\t))+")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Link:
    """A link between pages: where it leads as written."""

    page: Path
    target: str


@dataclass(frozen=True)
class CommandLine:
    """A command line of powerprof as a page shows it."""

    page: Path
    text: str


def pages() -> list[Path]:
    """Every page that a reader may come by."""
    return [
        REPOSITORY / "README.md",
        *sorted((REPOSITORY / "docs").rglob("*.md")),
        REPOSITORY / "probes/README.md",
        REPOSITORY / "monitoring/README.md",
    ]


def name_of(page: Path) -> str:
    """As tests call it: `docs/how-to/share-a-report.md`."""
    return str(page.relative_to(REPOSITORY))


@cache
def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _prose(page: Path) -> str:
    return _FENCE.sub("", _text(page))


def blocks(page: Path) -> list[str]:
    """The code blocks, fenced and indented, without the indentation."""
    fenced = [found[2] for found in _FENCE.finditer(_text(page))]
    indented = [re.sub(r"^(?: {4}|\t)", "", found[0], flags=re.MULTILINE) for found in _INDENTED.finditer(_prose(page))]
    return fenced + indented


def links(page: Path) -> list[Link]:
    """The links to other pages, files and headings of the project; not those to the web."""
    targets = [found[1] for found in _LINK.finditer(_SPAN.sub("", _prose(page)))]
    return [Link(page, target) for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """What the headings are called in links: lower case, blanks as hyphens, without punctuation."""
    words = [re.sub(r"[^\w\- ]", "", found[1].lower()) for found in _HEADING.finditer(_prose(page))]
    return {word.replace(" ", "-") for word in words}


def command_lines(page: Path) -> list[CommandLine]:
    """Every line of a code block that runs powerprof, and every span of code in the text that begins with it."""
    found = []
    for block in blocks(page):
        lines = re.sub(r"\\\n\s*", " ", block).splitlines()
        typed = [line.lstrip()[2:] for line in lines if line.lstrip().startswith("$ ")]
        for line in typed or lines:  # where a block has prompts, the rest of it is output
            # "sudo .venv/bin/powerprof idle --clients 16   # what it is for"
            shown = re.match(r"\s*(?:sudo )?(?:\.venv/bin/)?powerprof +(?=[a-z\-])(.*)", line)
            if shown:
                found.append(CommandLine(page, re.split(r"\s+(?:#|\||&&|>|→|·)(?:\s|$)|;", shown[1])[0].strip()))
    for span in _SPAN.finditer(_prose(page)):
        shown = re.match(r"(?:sudo )?(?:\.venv/bin/)?powerprof +([a-z\-].*)", span[1])
        if shown:
            found.append(CommandLine(page, shown[1].strip()))
    return found
