# SPDX-License-Identifier: Apache-2.0
"""The sentences of what threatens a comparison, and of its control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from powerprof.experiment.records import ControlRecord, Threat
from powerprof.report.wording.notes import filled

WORDS = {
    "steal": "steal {percent:.2g} %",
    "steal_varies": "steal {percent:.2g} %, up to {most_percent:.2g} %",
    "no_frequency": "no frequency data on this host",
    "frequency": "frequency {a_mhz:.0f} and {b_mhz:.0f} MHz",
    "other_load": "other CPU use {a_percent:.1f} % and {b_percent:.1f} % (interrupts included), at most "
    "{above_points:.1f} points above its median",
    "no_baseline": "no idle baseline at both ends",
    "drift": "idle baseline drift {points:+.2f} points of C0",
    "drift_failed": "idle baseline drift {points:+.2f} points of C0: too much",
    "rises": "C0 rises from block to block (Kendall's tau {tau:+.2f})",
    "falls": "C0 falls from block to block (Kendall's tau {tau:+.2f})",
    "saturated": "{condition} completed only {percent:.0f} % of the offered load",
    "repeats": "{count} {count:block|blocks} failed and {count:was|were} repeated",
    "unpaired": "measured at different times: a drift of the host is not cancelled out",
    "interrupted": "{run} was ended early",
    "unfinished": "{run} is not finished",
    "others": "{run}: {percent:.0f} % of the CPUs were used by neither the server nor the client",
    "no_pairs": "no complete pair was measured",
}


def worded(threats: Sequence[Threat], names: Mapping[str, str]) -> list[Threat]:
    """Each with its sentence; one that has it already stays as it is. `names`: the conditions' names by their arms."""
    return [threat if threat.text else msgspec.structs.replace(threat, text=_text(threat, names)) for threat in threats]


def _text(threat: Threat, names: Mapping[str, str]) -> str:
    values = dict(threat.values)
    if "arm" in values:
        values["condition"] = names.get(str(values["arm"]), "")
    # A threat of a saved run has its text from there.
    template = "{text}" if "text" in values else WORDS.get(threat.form or threat.name, threat.name)
    if "run" in values and "{run}" not in template:
        template = f"{{run}}: {template}"
    return filled(template, values).replace(" -", " −")


def of_control(control: ControlRecord) -> str:
    """What A against A showed."""
    width, difference = control.half_width_percent, control.difference_percent
    if width is None:
        return "the A/A control has too few pairs to judge"
    if control.sound or difference is None:
        return f"A/A ±{width:.2g} %"
    return f"the A/A control differs by {difference:+.2g} %: something else changes, trust no verdict"
