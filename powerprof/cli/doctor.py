"""What can this host do, and what mends the rest?

Looks at every capability that powerprof can use and really tries the ones that often fail, such as loading a
BPF program. Needs no privileges, changes nothing and always ends with 0 when it could look.

ok: works. missing: the command after the arrow provides it. none: this host has no such hardware. limited:
works in part, or for root.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerprof.cli.options import Json, check_json_target, write_json

if TYPE_CHECKING:
    from powerprof.host.capability import Capability

_WIDTH = 80


def command(json: Json = None) -> None:
    """Survey, then print."""
    check_json_target(json)
    from powerprof.host import capabilities, describe

    found = capabilities()
    if json is not None:
        write_json({"schema": "powerprof.doctor/1", "host": describe(), "capabilities": found}, json)
    if json != "-":
        print(render(found))


def render(found: Sequence[Capability]) -> str:
    """Three aligned columns within 80; a command that fits stands on one line, so that it can be copied."""
    names = max(len(capability.name) for capability in found)
    indent = names + 2 + len("missing") + 2
    lines: list[str] = []
    for capability in found:
        text = textwrap.wrap(capability.detail, _WIDTH - indent, break_on_hyphens=False) or [""]
        if capability.remedy:
            remedy = f"→ {capability.remedy}"
            if len(text[-1]) + 1 + len(remedy) <= _WIDTH - indent:
                text[-1] += f" {remedy}"
            else:
                text += textwrap.wrap(remedy, _WIDTH - indent, break_on_hyphens=False, break_long_words=False)
        start = f"{capability.name:<{names}}  {capability.status:<7}  "
        lines.append(start + text[0])
        lines += [" " * indent + line for line in text[1:]]
    return "\n".join(lines)
