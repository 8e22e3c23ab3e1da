# SPDX-License-Identifier: Apache-2.0
"""Pure: what the system did beside a load, for each query where there are some: a faster server does more of all."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.experiment.measure.oslayer import OsRates
from powerprof.records import Estimate, RunMetric
from powerprof.statistics import mean_interval

# Rates of the system by name, what one of them is called for each query, and its unit.
_RATES = (
    ("page_faults_hz", "page_faults", "1"),
    ("major_faults_hz", "major_faults", "1"),
    ("disk_reads_hz", "disk_reads", "1"),
    ("disk_writes_hz", "disk_writes", "1"),
    ("disk_read_bytes_hz", "disk_read_bytes", "B"),
    ("disk_write_bytes_hz", "disk_write_bytes", "B"),
    ("network_packets_hz", "network_packets", "1"),
)
_STATES = ("waiting_tasks", "cpu_pressure_percent", "disk_busy_percent")
_SHARES = ("user", "system", "irq")


def system_values(metrics: Sequence[RunMetric], rates: Sequence[OsRates], cpus: int | None) -> list[RunMetric]:
    """User, system and interrupt time, switches, wake-ups, faults, packets and disk of each query (of each second where
    no queries were counted), and how full CPUs and disks were; what was not measured in any window is left out.
    """
    named = {metric.name: metric.values for metric in metrics}
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
        if queries is None:
            add(f"{name}_hz", f"{unit}/s", values)
        elif len(queries) == len(values):
            add(f"{name}_per_query", unit, _divided(values, queries))

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
    metric_values += [metric for metric in metrics if metric.name.startswith(("residency_percent:", "c0_percent"))]
    return metric_values


def _picked(rates: Sequence[OsRates], attribute: str) -> list[float | None]:
    return [getattr(rate, attribute) for rate in rates]


def _divided(values: Sequence[float | None], by: Sequence[float | None]) -> list[float | None]:
    return [None if a is None or not b else a / b for a, b in zip(values, by, strict=True)]
