# SPDX-License-Identifier: Apache-2.0
"""`powerprof doctor` for a terminal: what this host can do, and what fixes the rest."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from powerprof.host.capability import Capability

_WIDTH = 80


def render(capabilities: Sequence[Capability]) -> str:
    """Three aligned columns within 80; a command that fits stands on one line, so that it can be copied."""
    names = max(len(capability.name) for capability in capabilities)
    indent = names + 2 + len("missing") + 2
    lines: list[str] = []
    for capability in capabilities:
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
