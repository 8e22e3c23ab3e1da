# SPDX-License-Identifier: Apache-2.0
"""What can this host do, and what fixes the rest?

Looks at every capability that powerprof can use and really tries the ones that often fail, such as loading a
BPF program. Needs no privileges, changes nothing and always ends with 0 when it could look.

ok: works. missing: the command after the arrow provides it. none: this host has no such hardware. limited:
works in part, or for root.
"""

from __future__ import annotations

from powerprof.cli.options import Json
from powerprof.cli.output import check_targets, say, write_json


def command(json: Json = None) -> None:
    """Survey, then print."""
    check_targets(json)
    from powerprof.host import capabilities, describe
    from powerprof.report.catalogue import render

    capabilities_here = capabilities()
    write_json({"schema": "powerprof.doctor/1", "host": describe(), "capabilities": capabilities_here}, json)
    if json != "-":
        say(render(capabilities_here))
