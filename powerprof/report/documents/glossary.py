# SPDX-License-Identifier: Apache-2.0
"""The terms of the field that reports use, each in a sentence; docs/reference/glossary.md is written from it."""

from __future__ import annotations

import re

TERMS = {
    "95 % interval": "The range that holds the true value in 95 of 100 such measurements, on this host.",
    "A/A": "A condition compared with itself: it must show no difference.",
    "C0": "The state of a CPU that runs instructions, not an idle state (C1, C6 …). Time in C0 is running time.",
    "EDP": "Energy-delay product: joules of a query times its mean latency. Less is better in both.",
    "estimated": "Computed from how long the CPUs ran and a model of this kind of CPU; no meter was read.",
    "haltpoll": "The idle governor of virtual machines: it polls for a moment before it halts the CPU.",
    "idle exit": "The moment at which a CPU leaves an idle state: an interrupt, or another CPU, woke it.",
    "minimum detectable": "The smallest true difference that so many windows would have found four times in five.",
    "net of idle": "Less what the idle host uses in as long a time: what the work adds.",
    "p95": "95 of 100 queries were answered within this time.",
    "POLL": "An idle loop that runs instructions: it wakes at once and saves nothing, and counts as running time.",
    "residency": "The share of the time that the CPUs spent in an idle state, as the kernel requested it.",
    "steal": "Time in which a virtual CPU wanted to run and the hypervisor gave the CPU to another guest.",
    "wake-ups": "How often CPUs left an idle state; each costs energy and keeps deeper states away.",
}
_PATTERN = re.compile(r"(?<![\w-])(" + "|".join(sorted(map(re.escape, TERMS), key=len, reverse=True)) + r")(?![\w-])")


def terms_in(words: str) -> list[tuple[str, str | None]]:
    """The words in pieces: each with the explanation of the term that it is, or None."""
    return [(piece, TERMS.get(piece)) for piece in _PATTERN.split(words) if piece]
