# SPDX-License-Identifier: Apache-2.0
"""The page of a profile of C0 or of page faults: the functions, and the flame graph of their stacks."""

from __future__ import annotations

from powerprof.attribution.oncpu import OnCpuProfile
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.flames import flame_view
from powerprof.report.html.page import page
from powerprof.report.stacks.flamegraph import flame
from powerprof.report.stacks.weighted import of_on_cpu_profile
from powerprof.report.tables.table import Places
from powerprof.report.terminal.oncpu import functions_table, headline

_ROWS = 60


def render(record: OnCpuProfile, extras: Extras) -> str:
    """The page."""
    stack_set = of_on_cpu_profile(record)
    places = Places(record)
    sentence = headline(record)
    return page(
        "oncpu.html.j2",
        record,
        places,
        title=clean(sentence),
        answer=sentence,
        functions=functions_table(record, places, _ROWS),
        view=flame_view(
            flame(stack_set.stacks, unit=stack_set.unit, root=stack_set.root), stack_set.title, stack_set.modules
        ),
    )
