# SPDX-License-Identifier: Apache-2.0
"""Text of a page: names from outside, sentences with explained terms, and figures with their exact values."""

from __future__ import annotations

import json
import re

from markupsafe import Markup

from powerprof.model import text
from powerprof.report.table import Figure
from powerprof.system.foreign_text import printable

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|ms\b|s\b|J\b|W\b|mJ\b|points\b))|(?<=[±×–]) (?=\d)")
# Only after a blank, so that the parameters of functions stay. Process ids and counts stay too.
_QUALIFIED = re.compile(r"\s\((?!95.%\))((?:[\d−+±<]|estimated|or )[^()]*(?:%|possible)[^()]*)\)")
_UNKNOWN = Markup('<span class="unknown" title="unknown">?</span>')
_FIGURE = Markup('<data value="{}" data-at="{}" {}>{}</data>{}')
NAME_LIMIT = 200


def clean_name(name: object, limit: int = NAME_LIMIT) -> str:
    """Return a name from outside as one line of at most `limit` characters, without control or direction characters."""
    return printable(text.shorten(str(name), limit), "\N{REPLACEMENT CHARACTER}")


def tidy(sentence: str) -> str:
    """Return a sentence in which no line ends between a figure and its unit."""
    return _BEFORE_UNIT.sub("\u00a0", sentence)


def brief(sentence: Markup) -> Markup:
    """Return an escaped answer for the headline, without the parentheses that hold intervals and shares."""
    return Markup(_QUALIFIED.sub("", sentence))  # noqa: S704  a part of what is escaped


def qualified(sentence: Markup) -> Markup:
    """Return the parentheses that `brief` leaves out, for the line below the headline."""
    return Markup(" · ").join(Markup(found) for found in _QUALIFIED.findall(sentence))  # noqa: S704  as `brief`


def explain_terms(words: str) -> Markup:
    """Return text of powerprof in which terms have their explanations."""
    term = Markup('<abbr title="{}">{}</abbr>')
    return Markup().join(
        term.format(meaning, piece) if meaning else Markup("{}").format(piece) for piece, meaning in split_terms(words)
    )


def figure_html(shown: Figure, *, unit: bool = True) -> Markup:
    """Return `<data value="exact" data-at="pointer">rounded</data>` with its unit; `?` for an unknown value."""
    if shown.value is None:
        return _UNKNOWN
    how = Markup('data-scale="{:g}"').format(shown.scale)
    if shown.words:
        how = Markup('data-words="{}"').format(shown.words)
    tail = shown.whole.removeprefix(shown.text) if unit else ""
    words = shown.words.removeprefix("every ") or shown.text
    return _FIGURE.format(json.dumps(shown.value), shown.at, how, words, tail)


def interval_html(shown: Figure) -> Markup:
    """Return `[low, high]`, or an empty text without an interval."""
    if shown.ends is None:
        return Markup()
    return Markup('<span class="ci">[{}, {}]</span>').format(*(figure_html(end, unit=False) for end in shown.ends))


# docs/concepts.md explains all of them.
TERMS = {
    "95 % interval": "The range that contains the true value in 95 of 100 such measurements, on this host.",
    "A/A": "A condition compared with itself. A correct measurement shows no difference.",
    "C0": "The state of a CPU that runs instructions, not an idle state (C1, C6 …). Time in C0 is running time.",
    "EDP": "Energy-delay product: joules per query times mean latency. Less is better.",
    "estimated": "Computed from the running time of the CPUs and a model of this kind of CPU, without a meter.",
    "haltpoll": "The idle governor of virtual machines: it polls briefly before it halts the CPU.",
    "idle exit": "The moment at which a CPU leaves an idle state: an interrupt, or another CPU, woke it.",
    "minimum detectable": "The smallest difference that this number of windows detects with 80 % power.",
    "net of idle": "Minus the idle host's consumption over the same time: the cost of the work alone.",
    "p95": "95 of 100 queries were answered within this time.",
    "POLL": "An idle loop that runs instructions: it wakes at once, saves no energy and counts as running time.",
    "residency": "The share of the time that the CPUs spent in an idle state, as the kernel requested it.",
    "steal": "Time in which a virtual CPU wanted to run and the hypervisor gave the CPU to another guest.",
    "wake-ups": "How often CPUs left an idle state; each costs energy and prevents deeper states.",
}
_PATTERN = re.compile(r"(?<![\w-])(" + "|".join(sorted(map(re.escape, TERMS), key=len, reverse=True)) + r")(?![\w-])")


def split_terms(words: str) -> list[tuple[str, str | None]]:
    """Return the text in pieces, each with its explanation if it is a term."""
    return [(piece, TERMS.get(piece)) for piece in _PATTERN.split(words) if piece]
