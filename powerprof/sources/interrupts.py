# SPDX-License-Identifier: Apache-2.0
"""Interrupts that no tracepoint shows, by the kernel's own count in /proc/interrupts.

Linux traces the vectors of x86 that belong to APIC and kernel (arch/x86/kernel/irq.c), and every interrupt with a
handler. It does not trace hypervisors' callbacks (Xen's events, Hyper-V's bus, page faults that KVM completes later),
Hyper-V's timer, posted interrupts and NMIs. They end idle periods too; what ended those is then seen by what they did
(a timer that expired, a softirq, a thread that was woken), or unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from powerprof.files import try_text
from powerprof.paths import procfs
from powerprof.untrusted import whole

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


_TIMERS = ("LOC", "HVS")  # of x86, and those of Hyper-V instead


def timer_interrupts() -> int | None:
    """Interrupts of the CPUs' own timers since boot, over all CPUs; None where no row is known to be theirs."""
    total = None
    for line in (try_text(procfs() / "interrupts") or "").splitlines()[1:]:
        name, _, rest = line.partition(":")
        if name.strip() in _TIMERS or "arch_timer" in rest:
            figures = [whole(word) for word in rest.split()]
            total = (total or 0) + sum(
                figure for figure in takewhile(lambda one: one is not None, figures) if figure is not None
            )
    return total


def unseen_counts() -> dict[str, int]:
    """How many of each there were since boot, over all CPUs; rows that this machine lacks are left out."""
    counts = {}
    for line in (try_text(procfs() / "interrupts") or "").splitlines()[1:]:
        name, colon, rest = line.partition(":")
        if colon and name.strip() in UNSEEN:
            figures = [whole(word) for word in rest.split()]
            counts[name.strip()] = sum(figure for figure in figures if figure is not None)
    return counts


def unseen_between(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """How many came meanwhile, by what they are, of those that came."""
    came = {UNSEEN[name]: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in came.items() if count > 0}
