# SPDX-License-Identifier: Apache-2.0
"""Pure: what the system did beside a load, for each query where there are some: a faster server does more of all."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.experiment.records import Block
from powerprof.figures import Figures, RunMetric
from powerprof.records import Estimate, metric_of
from powerprof.statistics import mean_interval
from powerprof.system_records import OsRates

# Rates of the system by name, what one of them is called for each query, and its unit.
_RATES = (
    ("page_faults_hz", "page_faults", "1"),
    ("major_faults_hz", "major_faults", "1"),
    ("disk_reads_hz", "disk_reads", "1"),
    ("disk_writes_hz", "disk_writes", "1"),
    ("disk_read_bytes_hz", "disk_read_bytes", "B"),
    ("disk_write_bytes_hz", "disk_write_bytes", "B"),
    ("network_packets_hz", "network_packets", "1"),
    ("migrations_hz", "migrations", "1"),
)
_STATES = ("waiting_tasks", "cpu_pressure_percent", "io_pressure_percent", "disk_busy_percent")
_SHARES = ("user", "system", "irq")
# Figures of one device, and their units; the first is what a study's proof was.
_OF_DISK = (("service_ms", "ms"), ("read_ms", "ms"), ("write_ms", "ms"), ("queue_count", "1"), ("busy_percent", "%"))
# Devices that interrupt less often say nothing.
_LEAST_INTERRUPTS_HZ = 1.0


def accounted(blocks: Sequence[Block]) -> list[Figures]:
    """C0 split in user, system and interrupts, and context switches."""
    units = {"user_percent": "%", "system_percent": "%", "irq_percent": "%", "context_switches_hz": "1/s"}
    every = [
        Figures(name=name, unit=unit, kind="measured", values=[getattr(block.window, name) for block in blocks])
        for name, unit in units.items()
    ]
    return [figures for figures in every if figures.known]


def blocks_system(queries: Sequence[Figures | RunMetric], blocks: Sequence[Block]) -> list[RunMetric]:
    """`system_values` of these blocks, with `queries` a second if known; nothing where none knows its system."""
    if all(block.window.system is None for block in blocks):
        return []
    rates = [block.window.system or OsRates() for block in blocks]
    return system_values([*queries, *accounted(blocks)], rates, blocks[0].window.cpus)


def system_values(known: Sequence[Figures], rates: Sequence[OsRates], cpus: int | None) -> list[RunMetric]:
    """User, system and interrupt time, switches, wake-ups, faults, packets and disk of each query (of each second where
    no queries were counted), how full CPUs and disks were and how long requests took, as far as any window knows.
    """
    named = {figures.name: figures.values for figures in known}
    queries = named.get("queries_hz")
    metric_values = []

    def add(name: str, unit: str, values: Sequence[float | None]) -> None:
        known = [value for value in values if value is not None]
        if not known:
            return
        interval = mean_interval(known, seed=1)
        low, high = (interval.low, interval.high) if interval else (None, None)
        mean = sum(known) / len(known)
        estimate = Estimate(mean=mean, low=low, high=high)
        metric_values.append(RunMetric(name=name, unit=unit, kind="measured", estimate=estimate, values=list(values)))

    def add_rate(name: str, unit: str, values: Sequence[float | None]) -> None:
        what, colon, of = name.partition(":")
        if queries is None:
            add(f"{what}_hz{colon}{of}", f"{unit}/s", values)
        elif len(queries) == len(values):
            add(f"{what}_per_query{colon}{of}", unit, _divided(values, queries))

    for share in _SHARES:
        percent = named.get(f"{share}_percent")
        if percent is None:
            continue
        if queries is None or cpus is None or len(queries) != len(percent):
            add(f"{share}_percent", "%", percent)
        else:
            # Percent of all CPUs' time, as milliseconds a second: 10 for each CPU.
            ms = [None if value is None else value * 10 * cpus for value in percent]
            add(f"{share}_ms_per_query", "ms", _divided(ms, queries))
    if "context_switches_hz" in named:
        add_rate("context_switches", "1", named["context_switches_hz"])
    if "wakeups_hz" in named:
        add_rate("wakeups", "1", named["wakeups_hz"])
    for attribute, name, unit in _RATES:
        add_rate(name, unit, _picked(rates, attribute))
    for name in _STATES:
        add(name, "%" if name.endswith("_percent") else "1", _picked(rates, name))
    for disk in _disks(rates):
        for figure, unit in _OF_DISK:
            add(metric_of(f"disk_{figure}", disk), unit, _of_disk(rates, disk, figure))
    for device in dict.fromkeys(each.device for rate in rates for each in rate.interrupts):
        came = [next((each.rate_hz for each in rate.interrupts if each.device == device), 0.0) for rate in rates]
        if sum(came) >= _LEAST_INTERRUPTS_HZ * len(came):
            add_rate(metric_of("interrupts", device), "1", came)
    if any(len(rate.cpus) > 1 for rate in rates):
        add("busiest_cpu_percent", "%", [max((c.busy_percent for c in rate.cpus), default=None) for rate in rates])
        add("idlest_cpu_percent", "%", [min((c.busy_percent for c in rate.cpus), default=None) for rate in rates])
    add("busy_mhz", "MHz", [rate.frequencies.busy_mhz if rate.frequencies else None for rate in rates])
    for mhz in _frequencies(rates):
        add(metric_of("pstate_percent", f"{mhz:g} MHz"), "%", [_pstate(rate, mhz) for rate in rates])
    return metric_values


def _disks(rates: Sequence[OsRates]) -> list[str]:
    """The devices that hold the server's files; where they are unknown, all."""
    every = [disk for rate in rates for disk in rate.disks]
    return list(dict.fromkeys(disk.name for disk in [disk for disk in every if disk.of_server] or every))


def _frequencies(rates: Sequence[OsRates]) -> list[float]:
    """Frequencies that were requested in any window."""
    states = [state for rate in rates if rate.frequencies for state in rate.frequencies.states]
    return sorted({state.mhz for state in states if state.residency_percent})


def _pstate(rate: OsRates, mhz: float) -> float | None:
    """The share of one frequency; one that is not listed was not requested."""
    if rate.frequencies is None or not rate.frequencies.states:
        return None
    return next((state.residency_percent for state in rate.frequencies.states if state.mhz == mhz), 0.0)


def _of_disk(rates: Sequence[OsRates], name: str, figure: str) -> list[float | None]:
    disks = [next((disk for disk in rate.disks if disk.name == name), None) for rate in rates]
    return [None if disk is None else getattr(disk, figure) for disk in disks]


def _picked(rates: Sequence[OsRates], attribute: str) -> list[float | None]:
    return [getattr(rate, attribute) for rate in rates]


def _divided(values: Sequence[float | None], by: Sequence[float | None]) -> list[float | None]:
    return [None if a is None or not b else a / b for a, b in zip(values, by, strict=True)]
