# SPDX-License-Identifier: Apache-2.0
"""Whether all idle exits of a window are accounted for, on hosts with a cpuidle driver and on those without."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from powerprof.measure.cpuidle import CpuidleReader
from powerprof.model.records import Conservation
from powerprof.system import files


def counts_idle_exits() -> bool:
    """Does this host have a cpuidle driver, which counts idle exits independently of the trace?"""
    with CpuidleReader() as reader:
        return bool(reader.cpus)


def polls_before_it_halts() -> bool:
    """Can this host's CPUs be told to poll before they halt, and one wake another?"""
    limit = Path("/sys/module/haltpoll/parameters/guest_halt_poll_ns")
    governor = files.try_text(Path("/sys/devices/system/cpu/cpuidle/current_governor"))
    polls = os.access(limit, os.W_OK) and governor == "haltpoll" and len(os.sched_getaffinity(0)) > 1
    return polls and counts_idle_exits()


def check_balance(balance: Conservation | Mapping[str, Any], *, share: float = 0.01, exits: float = 4) -> None:
    """classified + unknown + lost are all exits, and within `share` and `exits` as many as cpuidle counted.

    Without a driver nothing but perf can count them, where the host has its event: then no count may be shown.
    """
    found = balance if isinstance(balance, Mapping) else msgspec.to_builtins(balance)
    total = found["idle_exits_count"]
    assert found["classified_count"] + found["unknown_count"] + found["lost_count"] == total
    usage, reference = found["cpuidle_usage_delta_count"], found["reference_count"]
    assert (usage is not None) == counts_idle_exits()
    assert found["checked_against"] in (("cpuidle",) if usage is not None else ("perf", None))
    assert reference == usage or usage is None
    if reference is not None:
        assert abs(total - reference) <= share * reference + exits, (total, reference)
