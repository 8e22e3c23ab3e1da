# SPDX-License-Identifier: Apache-2.0
"""A guest's share of its host's energy, as the host offers it: a shared powercap tree or a metrics page.

Scaphandre's qemu exporter writes `DOMAIN/intel-rapl:0/energy_uj` of each guest, in µJ, every five seconds, to a folder
that the guest mounts (its docs, "How to propagate power metrics from hypervisor to virtual machine"). Kepler and
similar exporters offer counters in joules in Prometheus' text format, labelled with the name or id of a guest. Figures
without a guest are the whole host's and are kept separate.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from powerprof.energy.domains import DomainEnergy, SampledMeter, is_any_moving
from powerprof.measure.counters import CounterSample, counter_energy
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.fetching import fetch
from powerprof.system.files import not_understood, printable, read_outside_text, whole

# Exporters refresh every 5 s (Scaphandre, Kepler), some every 30 s.
_INTERVAL_S = 5.0
_TIMEOUT_S = 5.0
_LIMIT_BYTES = 8 << 20
# The largest host of many sockets. A guest cannot exceed it.
_HOST_WATTS = 20_000.0
# A megawatt for thirty years. A larger or infinite figure is not a counter of joules.
_MOST_JOULES = 1e15
# Each pattern is matched at one position, the end of the match before: the time is linear in the length of the page.
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*,?')
_VALUE = re.compile(r"\s+([0-9.eE+-]{1,64})(?:\s+-?\d{1,20})?")
# The relevant lines of a page.
_JOULES = "joules_total"
_MOST_SAMPLES = 100_000
# Kepler's names, old and new (docs/user/metrics.md). Package and dram are next to each other.
_OF_GUESTS = re.compile(r"kepler_vm_(?:cpu|package|dram|platform|other)?_?joules_total")
_OF_HOST = re.compile(r"kepler_node_(?:cpu|package|dram|platform|other)?_?joules_total|powerprof_energy_joules_total")
_NAMES = ("vm_name", "vm_id", "name", "domain_name")
# Zones that are part of another zone of the same page.
_PARTS = ("core", "uncore", "pp0", "pp1")


@dataclass(frozen=True)
class MetricSample:
    """One line of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str) -> list[MetricSample]:
    """Return the joule counters of a page in Prometheus' text format. Other lines are ignored.

    Raise PowerprofError for more counters than a host can have.
    """
    samples = []
    for line in text.split("\n"):
        if _JOULES not in line or line.startswith("#") or (sample := _parse_sample(line.strip())) is None:
            continue
        samples.append(sample)
        if len(samples) > _MOST_SAMPLES:
            raise PowerprofError(f"its page has more than {_MOST_SAMPLES:,} counters of joules", "name a smaller page")
    return samples


def _parse_sample(line: str) -> MetricSample | None:
    name = _NAME.match(line)
    if name is None:
        return None
    at, labels = name.end(), {}
    if line[at : at + 1] == "{":
        at += 1
        while (label := _LABEL.match(line, at)) is not None:
            labels[label[1]] = label[2]
            at = label.end()
        if line[at : at + 1] != "}":
            return None
        at += 1
    match = _VALUE.fullmatch(line, at)
    try:
        value = float(match[1]) if match is not None else -1.0
    except ValueError:
        return None
    return MetricSample(name[0], labels, value) if 0.0 <= value < _MOST_JOULES else None


def choose_samples(samples: list[MetricSample], guest: str | None) -> tuple[str, list[MetricSample]]:
    """Return the domain and the counters to sum: one guest's, or else the host's.

    Raise CapabilityError for a page without them, or with several guests if `guest` is None.
    """
    guests = [sample for sample in samples if _OF_GUESTS.fullmatch(sample.name)]
    names = sorted({name for sample in guests if (name := _guest_name(sample))})
    if guest is not None:
        samples_of_guest = [sample for sample in guests if guest in sample.labels.values()]
        if not samples_of_guest:
            others = f": {', '.join(names[:8])}" if names else ""
            raise CapabilityError(f"host: its page has no guest {guest!r}{others}", "name one of those: host:URL#NAME")
        return "share of host", _select_outer_zones(samples_of_guest)
    if len(names) == 1:
        return "share of host", _select_outer_zones(guests)
    if names:
        raise CapabilityError(
            f"host: its page has {len(names)} guests ({', '.join(names[:8])})", "name this one: host:URL#NAME"
        )
    host = [sample for sample in samples if _OF_HOST.fullmatch(sample.name)]
    host = [sample for sample in host if sample.labels.get("kind", "measured") == "measured"]
    if not host:
        raise CapabilityError(
            "host: its page has no joules of a guest or of the host",
            "it should have kepler_vm_…_joules_total, kepler_node_…_joules_total or powerprof_energy_joules_total",
        )
    return "host", _select_outer_zones(host)


def _guest_name(sample: MetricSample) -> str | None:
    return next((sample.labels[key] for key in _NAMES if key in sample.labels), None)


def _select_outer_zones(samples: list[MetricSample]) -> list[MetricSample]:
    """Return the samples without zones inside others. If psys or the platform is present, it includes all others."""
    zones = {
        id(sample): (sample.labels.get("zone") or sample.labels.get("domain") or sample.name) for sample in samples
    }
    outer = [sample for sample in samples if "psys" in zones[id(sample)] or "platform" in zones[id(sample)]]
    return outer or [s for s in samples if zones[id(s)].rsplit("/", 1)[-1].rstrip("0123456789-") not in _PARTS]


class HostMeter(SampledMeter[CounterSample]):
    """The host's counter, read every few seconds. `read` returns the domain and its joules so far."""

    name = "host"
    max_interval_s: float | None = _INTERVAL_S

    def __init__(self, where: str, read: Callable[[], tuple[str, float]]) -> None:
        self._domain = read()[0]
        scope = (
            "this guest's share of its host" if self._domain == "share of host" else "the whole host, other guests too"
        )
        super().__init__(
            1, [f"host: measured there, {scope}, as {where} says; seconds old: use windows of 30 s and more"]
        )
        self._read = read

    def sample(self, now_s: float) -> None:
        try:
            value: int | None = round(self._read()[1] * 1e6)
        except PowerprofError:
            value = None
        self._samples[0].append(CounterSample(now_s, value, None if value is not None else "unreadable"))

    def is_counting(self) -> bool | None:
        return is_any_moving(self._samples)

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        # The host's counter stands still between its refreshes. Only samples at which it moved have a known time.
        samples = self._samples[0]
        moved = [
            sample for index, sample in enumerate(samples) if index == 0 or sample.value != samples[index - 1].value
        ]
        energy = counter_energy(moved, start_s, end_s, joules_per_unit=1e-6, modulus=None, limit_watts=_HOST_WATTS)
        return [DomainEnergy(self._domain, "server", energy)]


def open_host(where: str) -> HostMeter:
    """Open the host's figures at a URL (`http://HOST:PORT/metrics#GUEST`) or in a folder. Raise CapabilityError."""
    try:
        if where.startswith(("http://", "https://")):
            url, _, guest = where.partition("#")
            return HostMeter(url, lambda: _read_page(url, guest or None))
        file = _find_counter(Path(where))
        return HostMeter(str(file), lambda: _read_file(file))
    except CapabilityError:
        raise
    except PowerprofError as error:
        raise CapabilityError(
            f"host: {error.message}", "is the host's exporter running, and shared with this guest?"
        ) from error


def _find_counter(path: Path) -> Path:
    """Return the counter of a shared tree: the file itself, or the first package's below a folder."""
    if path.is_file():
        return path
    counters = sorted([*path.glob("intel-rapl:0/energy_uj"), *path.glob("*/intel-rapl:0/energy_uj")])
    if not counters:
        raise CapabilityError(
            f"host: no intel-rapl:0/energy_uj in {path}",
            "mount the folder that the host shares: mount -t 9p -o trans=virtio scaphandre /var/scaphandre",
        )
    if len(counters) > 1:
        raise CapabilityError(f"host: {path} has several guests", f"name one of them: host:{counters[0].parent.parent}")
    return counters[0]


def _read_file(file: Path) -> tuple[str, float]:
    text = read_outside_text(file, _LIMIT_BYTES)
    if _JOULES in text:
        domain, chosen = choose_samples(parse_metrics(text), None)
        return domain, sum(sample.value for sample in chosen)
    energy_uj = whole(text.strip())
    if energy_uj is None:
        raise not_understood(file, f"not a number: {printable(text[:40])!r}")
    return "share of host", energy_uj * 1e-6


def _read_page(url: str, guest: str | None) -> tuple[str, float]:
    # The server of the page is not trusted: a child without privileges reads it, from that host only, with a deadline.
    page = os.memfd_create("host", os.MFD_CLOEXEC)
    try:
        fetch(url, page, limit_bytes=_LIMIT_BYTES, total_s=_TIMEOUT_S, elsewhere=False)
        text = os.pread(page, _LIMIT_BYTES, 0).decode("utf-8", "replace")
    except OSError as error:
        raise PowerprofError(f"cannot read {url} ({error})", "is the exporter up, and its address right?") from error
    finally:
        os.close(page)
    domain, chosen = choose_samples(parse_metrics(text), guest)
    return domain, sum(sample.value for sample in chosen)
