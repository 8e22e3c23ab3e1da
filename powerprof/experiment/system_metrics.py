# SPDX-License-Identifier: Apache-2.0
"""Compute the figures of the system during a load, per query if queries were counted.

A faster server does more of everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from powerprof.experiment.records import Block
from powerprof.model.metrics import unit_of
from powerprof.model.records import Estimate, Figures, RunMetric, metric_name
from powerprof.model.system_activity import OsRates
from powerprof.statistics.intervals import mean_interval

# Fields of the rates of the system. Without `_hz` they are the names of the figures per query.
_RATES = (
    *("page_faults_hz", "major_faults_hz", "disk_reads_hz", "disk_writes_hz", "disk_read_bytes_hz"),
    *("disk_write_bytes_hz", "network_packets_hz", "migrations_hz"),
)
_STATES = ("waiting_tasks", "cpu_pressure_percent", "io_pressure_percent", "disk_busy_percent")
_SHARES = ("user", "system", "irq")
# Figures of one device; the first supports a published study.
_OF_DISK = ("service_ms", "read_ms", "write_ms", "queue_count", "busy_percent")
# Devices with fewer interrupts are left out.
_LEAST_INTERRUPTS_HZ = 1.0


def split_cpu_time(blocks: Sequence[Block]) -> list[Figures]:
    """Return user, system and interrupt time in percent, and context switches."""
    names = ("user_percent", "system_percent", "irq_percent", "context_switches_hz")
    every = [
        Figures(
            name=name, unit=unit_of(name), kind="measured", values=[getattr(block.window, name) for block in blocks]
        )
        for name in names
    ]
    return [figures for figures in every if figures.known]


def system_of_blocks(queries: Sequence[Figures | RunMetric], blocks: Sequence[Block]) -> list[RunMetric]:
    """Return `system_values` of these blocks; `queries` holds their queries per second if known."""
    if all(block.window.system is None for block in blocks):
        return []
    rates = [block.window.system or OsRates() for block in blocks]
    return system_values([*queries, *split_cpu_time(blocks)], rates, blocks[0].window.cpus)


def system_values(known: Sequence[Figures], rates: Sequence[OsRates], cpus: int | None) -> list[RunMetric]:
    """Return the figures of the system per query, or per second if no queries were counted.

    They are user, system and interrupt time, switches, wake-ups, faults, packets and disk requests. Utilisation of CPUs
    and disks and the duration of requests follow. Unknown figures are left out.
    """
    named = {figures.name: figures.values for figures in known}
    queries = named.get("queries_hz")
    metric_values = []

    def add(name: str, values: Sequence[float | None]) -> None:
        unit = unit_of(name)
        known = [value for value in values if value is not None]
        if not known:
            return
        bounds = mean_interval(known, seed=1)
        # None of these is negative, and no share exceeds 100 %. Cut there, the interval covers as often.
        most = 100.0 if unit == "%" else math.inf
        low, high = (max(bounds.low, 0.0), min(bounds.high, most)) if bounds else (None, None)
        mean = sum(known) / len(known)
        estimate = Estimate(mean=mean, low=low, high=high)
        metric_values.append(RunMetric(name=name, unit=unit, kind="measured", estimate=estimate, values=list(values)))

    def add_rate(name: str, values: Sequence[float | None]) -> None:
        what, colon, of = name.partition(":")
        if queries is None:
            add(f"{what}_hz{colon}{of}", values)
        elif len(queries) == len(values):
            add(f"{what}_per_query{colon}{of}", _divide(values, queries))

    for share in _SHARES:
        percent = named.get(f"{share}_percent")
        if percent is None:
            continue
        if queries is None or cpus is None or len(queries) != len(percent):
            add(f"{share}_percent", percent)
        else:
            # Percent of all CPUs' time in milliseconds per second: 10 per CPU.
            ms = [None if value is None else value * 10 * cpus for value in percent]
            add(f"{share}_ms_per_query", _divide(ms, queries))
    if "context_switches_hz" in named:
        add_rate("context_switches", named["context_switches_hz"])
    if "wakeups_hz" in named:
        add_rate("wakeups", named["wakeups_hz"])
    for name in _RATES:
        add_rate(name.removesuffix("_hz"), _pick(rates, name))
    for name in _STATES:
        add(name, _pick(rates, name))
    for disk in _list_disks(rates):
        for figure in _OF_DISK:
            add(metric_name(f"disk_{figure}", disk), _list_disk_figures(rates, disk, figure))
    for device in dict.fromkeys(each.device for rate in rates for each in rate.interrupts):
        came = [next((each.rate_hz for each in rate.interrupts if each.device == device), 0.0) for rate in rates]
        if sum(came) >= _LEAST_INTERRUPTS_HZ * len(came):
            add_rate(metric_name("interrupts", device), came)
    if any(len(rate.cpus) > 1 for rate in rates):
        add("busiest_cpu_percent", [max((c.busy_percent for c in rate.cpus), default=None) for rate in rates])
        add("idlest_cpu_percent", [min((c.busy_percent for c in rate.cpus), default=None) for rate in rates])
    add("busy_mhz", [rate.frequencies.busy_mhz if rate.frequencies else None for rate in rates])
    for mhz in _list_frequencies(rates):
        add(metric_name("pstate_percent", f"{mhz:g} MHz"), [_find_pstate(rate, mhz) for rate in rates])
    return metric_values


def _list_disks(rates: Sequence[OsRates]) -> list[str]:
    """Return the devices that hold the server's files; all devices if those are unknown."""
    every = [disk for rate in rates for disk in rate.disks]
    return list(dict.fromkeys(disk.name for disk in [disk for disk in every if disk.of_server] or every))


def _list_frequencies(rates: Sequence[OsRates]) -> list[float]:
    """Return the frequencies that were requested in any window."""
    states = [state for rate in rates if rate.frequencies for state in rate.frequencies.states]
    return sorted({state.mhz for state in states if state.residency_percent})


def _find_pstate(rate: OsRates, mhz: float) -> float | None:
    """Return the share of one frequency; 0 for one that is not listed, because it was not requested."""
    if rate.frequencies is None or not rate.frequencies.states:
        return None
    return next((state.residency_percent for state in rate.frequencies.states if state.mhz == mhz), 0.0)


def _list_disk_figures(rates: Sequence[OsRates], name: str, figure: str) -> list[float | None]:
    disks = [next((disk for disk in rate.disks if disk.name == name), None) for rate in rates]
    return [None if disk is None else getattr(disk, figure) for disk in disks]


def _pick(rates: Sequence[OsRates], attribute: str) -> list[float | None]:
    return [getattr(rate, attribute) for rate in rates]


def _divide(values: Sequence[float | None], by: Sequence[float | None]) -> list[float | None]:
    return [None if a is None or not b else a / b for a, b in zip(values, by, strict=True)]
