# SPDX-License-Identifier: Apache-2.0
"""A diagnosis for a terminal: the answer first, then what shows it, then what ends it."""

from __future__ import annotations

from powerprof import text
from powerprof.diagnosis.findings import Diagnosis, Finding

_FRAMES = 14


def lines(diagnosis: Diagnosis, width: int = text.DEFAULT_WIDTH, *, all_notes: bool = False) -> list[str]:
    """The report, at most `width` columns. Notes on a healthy server's habits only with `all_notes`."""
    faults = [finding for finding in diagnosis.findings if finding.severity == "fault"]
    notes = [finding for finding in diagnosis.findings if finding.severity == "note"]
    found: list[str] = []
    for number, fault in enumerate(faults):
        if number:
            found.append("")
        found += _finding(fault, width)
    if not faults:
        found += text.wrap(_healthy(diagnosis), width)
    if all_notes and notes:
        found += ["", "What it wakes for as it should"]
        for note in notes:
            found += text.wrap(note.text, width, "  ")
            for remedy in note.remedy:
                found += text.wrap(remedy, width, "    ")
    found += ["", *text.wrap(_context(diagnosis, len(notes), all_notes), width)]
    for said in dict.fromkeys([*diagnosis.evidence.notes, *diagnosis.notes]):
        found += text.wrap(f"Note: {said}", width)
    return found


def whole(diagnosis: Diagnosis, width: int) -> list[str]:
    """With the notes: who asks for a saved diagnosis wants all of it."""
    return lines(diagnosis, width, all_notes=True)


def _healthy(diagnosis: Diagnosis) -> str:
    evidence = diagnosis.evidence
    if evidence.exits_hz is None:
        return "Nothing to fix, as far as its status tells."
    return f"Nothing to fix: it woke a CPU {text.number(evidence.exits_hz, 1)} times/s, all as a healthy server does."


def _finding(finding: Finding, width: int) -> list[str]:
    found = text.wrap(finding.text, width)
    for said in finding.evidence:
        found += _item("seen", said, width)
    if finding.stack:
        found += _item("stack", " ← ".join(finding.stack[:_FRAMES]), width)
    for remedy in finding.remedy:
        found += _item("do", remedy, width)
    return found


def _item(label: str, said: str, width: int) -> list[str]:
    wrapped = text.wrap(said, max(20, width - 9))
    return [f"  {label:<6} {wrapped[0]}", *(f"{'':9}{line}" for line in wrapped[1:])]


def _context(diagnosis: Diagnosis, notes: int, shown: bool) -> str:
    server, evidence = diagnosis.server, diagnosis.evidence
    parts = [server.version or "a server"]
    if server.pid is not None:
        parts[0] += f", pid {server.pid}"
    parts.append(f"watched for {evidence.window_s:.1f} s")
    if evidence.exits_hz is not None:
        parts.append(f"{text.number(evidence.exits_hz, 1)} idle exits/s are its own")
    if diagnosis.tool is not None and diagnosis.tool.cpu_percent is not None:
        parts.append(f"powerprof used {diagnosis.tool.cpu_percent:.2f} % CPU")
    if notes and not shown:
        parts.append(f"{notes} habit{'s' if notes > 1 else ''} of a healthy server: --all")
    return " · ".join(parts)
