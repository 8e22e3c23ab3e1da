# SPDX-License-Identifier: Apache-2.0
"""Interrupts without a tracepoint, by the kernel's own count in /proc/interrupts.

Linux traces the vectors of x86 that belong to APIC and kernel (arch/x86/kernel/irq.c), and every interrupt with a
handler. It does not trace callbacks of hypervisors (Xen's events, Hyper-V's bus, page faults that KVM completes
later), Hyper-V's timer, posted interrupts and NMIs. These end idle periods too. The cause of such an exit is then
seen by its effect (an expired timer, a softirq, a woken thread), or unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from powerprof.system import paths
from powerprof.system.files import try_text
from powerprof.system.foreign_text import whole

# The kernel's names of the rows: arch_show_interrupts().
UNSEEN = {
    "HYP": "hypervisor callbacks",
    "HRE": "Hyper-V reenlightenment",
    "HVS": "Hyper-V timers",
    "PIN": "posted interrupts",
    "NPI": "nested posted interrupts",
    "PIW": "posted wake-ups",
    "NMI": "NMIs",
}
_TIMERS = ("LOC", "HVS")  # x86, and Hyper-V


def read_timer_interrupts() -> int | None:
    """Return the interrupts of the CPUs' own timers since boot, over all CPUs. None without a known row."""
    total = None
    for line in (try_text(paths.procfs() / "interrupts") or "").splitlines()[1:]:
        name, _, rest = line.partition(":")
        if name.strip() in _TIMERS or "arch_timer" in rest:
            counts = takewhile(lambda count: count is not None, (whole(word) for word in rest.split()))
            total = (total or 0) + sum(count for count in counts if count is not None)
    return total


def read_unseen_counts() -> dict[str, int]:
    """Return the count of each kind since boot, over all CPUs. Rows that this machine lacks are left out."""
    counts = {}
    for line in (try_text(paths.procfs() / "interrupts") or "").splitlines()[1:]:
        name, colon, rest = line.partition(":")
        if colon and name.strip() in UNSEEN:
            figures = [whole(word) for word in rest.split()]
            counts[name.strip()] = sum(figure for figure in figures if figure is not None)
    return counts


def count_unseen(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the positive differences of two counts by the name of the interrupt."""
    deltas = {UNSEEN[name]: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in deltas.items() if count > 0}
