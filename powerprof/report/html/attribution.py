# SPDX-License-Identifier: Apache-2.0
"""The page of an attribution."""

from __future__ import annotations

from powerprof.attribution.records import Attribution
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.flames import flame_view
from powerprof.report.html.lanes import MECHANISMS, lanes
from powerprof.report.html.page import page
from powerprof.report.html.tables import opened
from powerprof.report.stacks.flamegraph import flame
from powerprof.report.stacks.weighted import modules_of, stacks_of
from powerprof.report.tables import notes
from powerprof.report.tables.blamed import headline
from powerprof.report.tables.causes import causes_table
from powerprof.report.tables.phases import split_table
from powerprof.report.tables.table import Places
from powerprof.report.tables.wakeups import beyond, elsewhere_table, ran_anyway_table, wakeups_table
from powerprof.report.wording.helps import helps

# The page has to stay below 6 MiB whatever the names are.
MAX_ROWS = 100
_FRAMES = 2000
_OPEN_ROWS = 20
_CAUSES = 50


def render(record: Attribution, extras: Extras) -> str:
    """The page."""
    places = Places(record)
    modules = modules_of(record.wakeups)
    exits, c0 = (stacks_of(record.wakeups, by) for by in ("count", "c0_ms"))
    root = clean(record.target.label, 80)
    views = [
        flame_view(flame(stacks, unit=unit, root=root, limit=_FRAMES), title, modules)
        for stacks, unit, title in ((exits, "idle exits", "Idle exits"), (c0, "ms of C0", "C0 time that followed"))
    ]
    shown = ran_anyway_table(record, places, MAX_ROWS) or wakeups_table(record, places, MAX_ROWS)
    first, more = opened(shown, _OPEN_ROWS)
    split = record.energy_split
    return page(
        "attribution.html.j2",
        record,
        places,
        derived=extras.derived,
        title=clean(headline(record)),
        answer=headline(record),
        rows=first,
        more=more,
        beyond=beyond(record, MAX_ROWS),
        elsewhere=elsewhere_table(record, places),
        others=opened(causes_table(record.other_causes, places, "/other_causes", _CAUSES, "other causes"), _OPEN_ROWS),
        energy=split_table(split, places, "/energy_split") if split else None,
        flames=[view for view in views if view],
        helps=helps(record),
        lanes=lanes(extras.timeline),
        mechanisms=MECHANISMS,
        notes=notes.all_of(record),
    )
