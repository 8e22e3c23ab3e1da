# SPDX-License-Identifier: Apache-2.0
"""What the system beneath the server did between two moments: disks, network, faults, interrupts, waiting for a CPU."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from powerprof.measure import cpufreq, disks
from powerprof.measure.perf_events import TYPE_SOFTWARE, open_counter, read_counter
from powerprof.measure.procfs import Stat, read_stat
from powerprof.model.records import CpuLoad, DeviceInterrupts, OsRates
from powerprof.system.errors import PowerprofError
from powerprof.system.files import try_text
from powerprof.system.paths import is_this_host, procfs, sysfs

_MIGRATIONS = 4  # PERF_COUNT_SW_CPU_MIGRATIONS, include/uapi/linux/perf_event.h
# Vectors of one device have suffixes behind its name: virtio1-req.0, eth0-TxRx-3, nvme0q12.
_VECTOR = re.compile(
    r"(?P<device>.*?\w)(?:[-_](?:tx|rx|txrx|req|input|output|event|config|comp|queue|[a-z]+_vq)\b.*|(?<=\d)q\d+)$",
    re.IGNORECASE,
)
_MOST_DEVICES = 20


@dataclass(frozen=True)
class OsReading:
    """The counters at one moment of CLOCK_MONOTONIC. `run_delay_ns` is how long tasks have waited for each CPU."""

    at_s: float
    disks: dict[str, disks.DiskCounters] | None = None
    network: tuple[int, int, int] | None = None
    faults: tuple[int, int] | None = None
    run_delay_ns: dict[int, int] | None = None
    pressure_us: int | None = None
    stat: Stat | None = None
    migrations: int | None = None
    frequencies: cpufreq.FrequencyReading | None = None
    io_pressure_us: int | None = None


class Migrations:
    """Counts how often tasks moved to another CPU, all over the host; None where the kernel does not let us."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self._descriptors: list[int] = []
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8  # the others are for what the windows are for
        try:
            for cpu in cpus if is_this_host() and len(cpus) <= most else ():
                self._descriptors.append(open_counter(TYPE_SOFTWARE, _MIGRATIONS, cpu))
        except OSError:
            self.close()

    def total(self) -> int | None:
        """Since they were opened; a CPU that has gone counts no more."""
        try:
            counts = [read_counter(descriptor) for descriptor in self._descriptors]
        except OSError:
            return None
        return sum(count for count in counts if count is not None) if counts else None

    def close(self) -> None:
        """Give the descriptors back."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


def networks_of(pids: Iterable[int]) -> tuple[Path, ...]:
    """Return the interface counters of each network other than ours that one of these processes is in."""
    found: dict[str, Path] = {}
    for process in (procfs() / str(pid) for pid in pids):
        with suppress(OSError):
            found.setdefault(os.readlink(process / "ns/net"), process / "net/dev")
    with suppress(OSError):
        found.pop(os.readlink(procfs() / "self/ns/net"), None)
    return tuple(found.values())


def read_counters(
    root: Path | None = None,
    migrations: Migrations | None = None,
    clocks: cpufreq.PerfClocks | None = None,
    networks: Sequence[Path] = (),
) -> OsReading:
    """This moment's counters, with those of further `networks` (see `networks_of`); what cannot be read is None."""
    base = root or procfs()
    try:
        stat = read_stat(base)
    except PowerprofError:
        stat = None
    return OsReading(
        time.monotonic(),
        disks.parse_disks(try_text(base / "diskstats")),
        _network([base / "net/dev", *networks]),
        parse_faults(try_text(base / "vmstat")),
        parse_run_delay(try_text(base / "schedstat")),
        parse_pressure(try_text(base / "pressure/cpu")),
        stat,
        migrations.total() if migrations else None,
        cpufreq.read_frequencies(clocks),
        parse_pressure(try_text(base / "pressure/io")),
    )


def _network(places: Sequence[Path]) -> tuple[int, int, int] | None:
    """Sum the counters of several networks; None if one is unknown."""
    counters = [counts for place in places if (counts := parse_network(try_text(place))) is not None]
    if len(counters) < len(places):
        return None
    received, sent, packets = (sum(column) for column in zip(*counters, strict=True))
    return received, sent, packets


def parse_network(text: str | None) -> tuple[int, int, int] | None:
    """Bytes received, bytes sent, packets both ways, over all interfaces, loopback too: local clients use it."""
    if text is None:
        return None
    received = sent = packets = 0
    for line in text.splitlines():
        _, colon, rest = line.partition(":")
        words = rest.split()
        if not colon or len(words) < 10 or not words[0].isdigit():
            continue
        received, sent = received + int(words[0]), sent + int(words[8])
        packets += int(words[1]) + int(words[9])
    return received, sent, packets


def parse_faults(text: str | None) -> tuple[int, int] | None:
    """Page faults, and those that had to read."""
    if text is None:
        return None
    values = dict(line.split(None, 1) for line in text.splitlines() if len(line.split()) == 2)
    try:
        return int(values["pgfault"]), int(values["pgmajfault"])
    except (KeyError, ValueError):
        return None


def parse_run_delay(text: str | None) -> dict[int, int] | None:
    """Nanoseconds that tasks have waited for each CPU (Documentation/scheduler/sched-stats.rst)."""
    waited = {}
    for line in (text or "").splitlines():
        words = line.split()
        if words and re.fullmatch(r"cpu\d+", words[0]) and len(words) >= 10 and words[8].isdigit():
            waited[int(words[0][3:])] = int(words[8])
    return waited or None


def parse_pressure(text: str | None) -> int | None:
    """Microseconds in which at least one task waited for it."""
    match = re.search(r"^some .*total=(\d+)", text or "", re.MULTILINE)
    return int(match[1]) if match else None


def compute_os_rates(before: OsReading, after: OsReading, of_server: frozenset[str] = frozenset()) -> OsRates:
    """The rates between two readings; `of_server` are the numbers of the devices that hold the server's files."""
    seconds = after.at_s - before.at_s
    if seconds <= 0:
        return OsRates()
    whole: set[str] = set()
    each = []
    if before.disks is not None and after.disks is not None:
        whole = disks.whole_disks(set(before.disks) & set(after.disks))
        each = disks.compute_disk_rates(before.disks, after.disks, seconds, whole, of_server)
    of_whole = [disk for disk in each if disk.name in whole]
    known = before.disks is not None and after.disks is not None
    net: list[float | None] = [None] * 3
    if before.network is not None and after.network is not None:
        net = [(new - old) / seconds for old, new in zip(before.network, after.network, strict=True)]
    faults: list[float | None] = [None] * 2
    if before.faults is not None and after.faults is not None:
        faults = [(new - old) / seconds for old, new in zip(before.faults, after.faults, strict=True)]
    waited = _waited(before.run_delay_ns, after.run_delay_ns, seconds)
    return OsRates(
        disk_reads_hz=sum((disk.reads_hz for disk in of_whole), 0.0) if known else None,
        disk_writes_hz=sum((disk.writes_hz for disk in of_whole), 0.0) if known else None,
        disk_read_bytes_hz=sum((disk.read_bytes_hz for disk in of_whole), 0.0) if known else None,
        disk_write_bytes_hz=sum((disk.write_bytes_hz for disk in of_whole), 0.0) if known else None,
        disk_busy_percent=max((disk.busy_percent for disk in of_whole), default=0.0) if known else None,
        network_receive_bytes_hz=net[0],
        network_send_bytes_hz=net[1],
        network_packets_hz=net[2],
        page_faults_hz=faults[0],
        major_faults_hz=faults[1],
        waiting_tasks=sum(waited.values()) if waited is not None else None,
        cpu_pressure_percent=_rate(before.pressure_us, after.pressure_us, 1e4 * seconds),
        io_pressure_percent=_rate(before.io_pressure_us, after.io_pressure_us, 1e4 * seconds),
        migrations_hz=_rate(before.migrations, after.migrations, seconds),
        disks=each,
        interrupts=_interrupts(before.stat, after.stat, seconds),
        cpus=_loads(before.stat, after.stat, waited or {}),
        frequencies=cpufreq.compute_frequencies(before.frequencies, after.frequencies)
        if before.frequencies and after.frequencies
        else None,
    )


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    return None if before is None or after is None else (after - before) / seconds


def _waited(before: dict[int, int] | None, after: dict[int, int] | None, seconds: float) -> dict[int, float] | None:
    if before is None or after is None:
        return None
    return {cpu: (after[cpu] - before[cpu]) / 1e9 / seconds for cpu in sorted(set(before) & set(after))}


def _loads(before: Stat | None, after: Stat | None, waited: Mapping[int, float]) -> list[CpuLoad]:
    loads = []
    for cpu in sorted(set(before.cpus) & set(after.cpus)) if before and after else ():
        spent = {
            name: max(0.0, value - before.cpus[cpu].get(name, 0.0))  # type: ignore[union-attr]
            for name, value in after.cpus[cpu].items()  # type: ignore[union-attr]
            if not name.startswith("guest")
        }
        if total := sum(spent.values()):
            idle = spent.get("idle", 0.0) + spent.get("iowait", 0.0)
            loads.append(CpuLoad(cpu=cpu, busy_percent=100 * (1 - idle / total), waiting_tasks=waited.get(cpu)))
    return loads


def _interrupts(before: Stat | None, after: Stat | None, seconds: float) -> list[DeviceInterrupts]:
    """By device, most first. Those without a number (timers, other CPUs) are no device's."""
    counts: dict[str, int] = {}
    for number, count in after.interrupts.items() if before and after else ():
        came = count - before.interrupts.get(number, 0)  # type: ignore[union-attr]
        actions = try_text(sysfs() / f"kernel/irq/{number}/actions") if came > 0 else None
        if actions:
            device = "+".join(dict.fromkeys(map(device_of, actions.split(","))))
            counts[device] = counts.get(device, 0) + came
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_MOST_DEVICES]
    return [DeviceInterrupts(device=device, rate_hz=count / seconds) for device, count in most]


def device_of(action: str) -> str:
    """The device of an interrupt's handler as the kernel names it, without vector and queue."""
    match = _VECTOR.match(action)
    return match["device"] if match else action


def join_os_rates(first: OsRates, first_s: float, second: OsRates, second_s: float) -> OsRates:
    """Two windows that follow one another as one."""
    total = first_s + second_s

    def mean(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else (a * first_s + b * second_s) / total

    lists = ("disks", "interrupts", "cpus", "frequencies")
    plain = [name for name in OsRates.__struct_fields__ if name not in lists]
    came = {each.device: each.rate_hz * first_s for each in first.interrupts}
    for each in second.interrupts:
        came[each.device] = came.get(each.device, 0.0) + each.rate_hz * second_s
    loads = {load.cpu: load for load in first.cpus}
    both = [(loads[load.cpu], load) for load in second.cpus if load.cpu in loads]
    return OsRates(
        **{name: mean(getattr(first, name), getattr(second, name)) for name in plain},
        disks=disks.join_disk_rates(first.disks, first_s, second.disks, second_s),
        interrupts=[
            DeviceInterrupts(device=device, rate_hz=count / total)
            for device, count in sorted(came.items(), key=lambda item: (-item[1], item[0]))[:_MOST_DEVICES]
        ],
        cpus=[
            CpuLoad(
                cpu=a.cpu,
                busy_percent=(a.busy_percent * first_s + b.busy_percent * second_s) / total,
                waiting_tasks=mean(a.waiting_tasks, b.waiting_tasks),
            )
            for a, b in both
        ],
        frequencies=cpufreq.join_frequencies(first.frequencies, first_s, second.frequencies, second_s)
        if first.frequencies and second.frequencies
        else None,
    )
