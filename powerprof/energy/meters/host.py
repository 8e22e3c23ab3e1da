# SPDX-License-Identifier: Apache-2.0
"""A guest's share of its host's energy, as the host offers it on a metrics page.

Kepler offers counters in joules in Prometheus' text format for guests and for the node (its docs/user/metrics.md),
node_exporter offers the zones of RAPL (collector/rapl_linux.go), and powerprof offers one sum of its host
(docs/reference/metrics.md). Figures without a guest are the whole host's and are kept separate. Kepler also offers
figures of a trained model: they are estimated.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from powerprof.energy.meters.meter import DomainEnergy, SampledMeter, is_any_moving
from powerprof.energy.mirrors import compare_counters
from powerprof.measure.counters import CounterSample, Missing
from powerprof.measure.energy_series import EnergySeries, counter_energy
from powerprof.model.records import Kind
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.fetching import fetch
from powerprof.system.foreign_text import printable
from powerprof.system.next_steps import command_line
from powerprof.system.outside_files import read_outside_table

# Exporters refresh every 5 s (Kepler), some every 30 s.
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
# More than the dies of the largest hosts, with Kepler's two modes each.
_MOST_ZONES = 256
# powerprof's one sum for its host. Its other counters of joules may contain each other.
_SUM = "powerprof_host_energy_joules_total"
# Kepler's counters, of 0.9 and before by zone, of 0.10 and later with the label `zone`.
_KEPLER = re.compile(r"kepler_(vm|node)_(?:(cpu|package|core|uncore|dram|other|gpu|platform)_)?joules_total")
# node_exporter's zones of powercap. The number at the end of a zone's name is the label `index`.
_NODE_EXPORTER = re.compile(r"node_rapl_(\w+)_joules_total")
# Sources of Kepler's figures that a model computes, in the label `source` and in kepler_node_info.
_MODEL = re.compile(r"model|estimat|train", re.I)
_KEPLER_INFO = re.compile(r'^kepler_node_info\{[^}\n]{0,2000}\bcomponents_power_source="([^"\n]{0,80})"', re.M)
# Other exporters by the beginning of their metrics.
_OTHER_EXPORTERS = (
    (r"scaph_", "Scaphandre"),
    (r"DCGM_FI_", "dcgm-exporter"),
    (r"nvidia_(smi|gpu)_", "an exporter of NVIDIA's cards"),
    (r"ipmi_", "ipmi_exporter"),
    (r"redfish_|idrac_", "a Redfish exporter"),
    (r"node_", "node_exporter without its collector rapl"),
    (r"windows_", "windows_exporter"),
    (r"container_|machine_", "cAdvisor"),
    (r"kube_", "kube-state-metrics"),
    (r"shelly|tasmota|tplink|kasa_", "a smart plug's exporter"),
    (r"snmp_|pdu|ups|nut_|apcupsd", "an exporter of a PDU or UPS"),
    (r"mysql_", "mysqld_exporter"),
    (r"pg_", "postgres_exporter"),
)
_FIRST_METRIC = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]{0,199})(?:\{|[ \t])", re.M)
# Kepler's zones from the outside in: the first level on a page includes all later ones. `other` is the platform without
# package and dram, so the three add up to it. A card is not part of the host's figure.
_LEVELS = (
    re.compile(r""),
    re.compile(r"platform"),
    re.compile(r"psys(-\d+)?"),
    re.compile(r"package(-\d+(-die-\d+)?)?|dram(-\d+)?|other"),
    re.compile(r"(core|uncore|pp[01])(-\d+)?|gpu"),
)
_PSYS, _CPUS = 2, 3
_PACKAGE = re.compile(r"package.*")
# The control types of powercap repeat each other's zones.
_CONTROL_TYPES = ("intel-rapl:", "intel-rapl-tpmi:", "intel-rapl-mmio:")
# The labels that identify a guest, and those that identify its host.
_GUEST_LABELS = ("vm_id", "vm_name")
_HOST_LABELS = ("node_name", "instance", "exported_instance", "node")


class MetricSample(msgspec.Struct, frozen=True):
    """One line of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float

    def __str__(self) -> str:
        """Return the name and the labels, which identify a counter."""
        return f"{self.name} {sorted(self.labels.items())}"


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


class HostFigures(msgspec.Struct, frozen=True):
    """The counters of one page that add up to its figure, in joules by name and labels.

    Attributes:
        inside: counters of the packages and their memory that the figure includes. They draw no more than the figure.
        zones: the zone of each counter, for an exporter of zones.
        kind: `estimated` for figures of Kepler's trained model.
    """

    domain: str
    joules: Mapping[str, float]
    inside: Mapping[str, float] = msgspec.field(default_factory=dict)
    zones: Mapping[str, str] = msgspec.field(default_factory=dict)
    kind: Kind = "measured"


def choose_figures(samples: Sequence[MetricSample], guest: str | None) -> HostFigures:
    """Return the counters to sum: one guest's, or else the host's.

    Raise CapabilityError for a page without them, with several guests or hosts to choose from, or with counters of
    unknown containment.
    """
    kepler = [(sample, match[1]) for sample in samples if (match := _KEPLER.fullmatch(sample.name))]
    guests: dict[tuple[str, ...], list[MetricSample]] = {}
    for sample, kind in kepler:
        # Kepler shows the energy of ended guests for a while.
        if kind == "vm" and sample.labels.get("state", "running") == "running":
            guests.setdefault((_name_host(sample), *_list_guest_names(sample)[:1]), []).append(sample)
    if guests or guest is not None:
        return _sum_zones("share of host", _choose_guest(list(guests.values()), guest))
    nodes = [sample for sample, kind in kepler if kind == "node"]
    zones = [sample for sample in samples if _NODE_EXPORTER.fullmatch(sample.name)]
    sums = [sample for sample in samples if sample.name == _SUM]
    exporters = {"Kepler": nodes, "node_exporter": zones, "powerprof": sums}
    hosts = sorted({(exporter, _name_host(sample)) for exporter, of in exporters.items() for sample in of})
    if len(hosts) > 1:
        names = ", ".join(f"{exporter} {name}".strip() for exporter, name in hosts[:8])
        raise CapabilityError(
            f"host: its page has the figures of {len(hosts)} hosts or exporters ({names})",
            "name the page of this guest's host alone: host:URL",
        )
    if nodes or zones:
        return _sum_zones("host", nodes or zones)
    measured = [sample for sample in sums if sample.labels.get("kind") == "measured"]
    if measured:
        return HostFigures("host", {str(sample): sample.value for sample in measured})
    raise CapabilityError(
        "host: its page has only an estimate of the host's energy"
        if sums
        else "host: its page has no joules of a guest or of the host",
        f"it should have kepler_vm_…, kepler_node_… or node_rapl_…_joules_total, or a measured {_SUM}",
    )


def _name_host(sample: MetricSample) -> str:
    return " ".join(sample.labels[key] for key in _HOST_LABELS if key in sample.labels)


def _list_guest_names(sample: MetricSample) -> list[str]:
    """Return the id and the name of the guest of a sample, as far as it has them."""
    return [sample.labels[key] for key in _GUEST_LABELS if sample.labels.get(key)]


def _choose_guest(guests: Sequence[list[MetricSample]], guest: str | None) -> list[MetricSample]:
    """Return the counters of the only guest, or of the one with this name or id. Raise CapabilityError for others."""
    named = [samples for samples in guests if guest is None or guest in _list_guest_names(samples[0])]
    if len(named) == 1:
        return named[0]
    names = [_list_guest_names(samples[0]) or ["none"] for samples in named or guests]
    found = printable(", ".join(f"{words[-1]} (id {words[0]})" for words in sorted(names)[:8]))
    if not named:
        raise CapabilityError(
            f"host: its page has no guest {guest!r}{': ' if found else ''}{found}", "name one of those: host:URL#NAME"
        )
    if guest is None:
        raise CapabilityError(f"host: its page has {len(named)} guests: {found}", "name this one: host:URL#NAME")
    is_id_enough = len({words[0] for words in names}) == len(names) and guest not in (words[0] for words in names)
    raise CapabilityError(
        f"host: its page has {len(named)} guests {guest!r}: {found}",
        f"name this one by its id: host:URL#{names[0][0]}"
        if is_id_enough
        else "name the page of this guest's host alone",
    )


def _sum_zones(domain: str, samples: Sequence[MetricSample]) -> HostFigures:
    """Return the outermost level of zones. Raise CapabilityError for zones of unknown containment."""
    levels: list[list[MetricSample]] = [[] for _ in _LEVELS]
    for sample in samples:
        zone = _name_zone(sample)
        level = next((index for index, pattern in enumerate(_LEVELS) if pattern.fullmatch(zone)), None)
        if level is None:
            raise CapabilityError(
                f"host: its page has the zone {printable(zone)!r}, and powerprof does not know which zones contain it",
                "use another meter (--meter FILE), or the estimate (--meter model)",
            )
        levels[level].append(sample)
    packages = [s for s in levels[_CPUS] if _PACKAGE.fullmatch(_name_zone(s))]
    # A platform has one psys. Two of them may contain each other.
    if len({_name_zone(s) for s in levels[_PSYS]}) > 1 and packages:
        levels[_PSYS] = []
    used = next((index for index, level in enumerate(levels) if level), len(levels))
    chosen = levels[min(used, _CPUS)]
    if used >= _CPUS and not packages:
        raise CapabilityError(
            "host: its page has parts of the CPUs (dram, core), and no package or platform that contains them",
            "let the exporter show the zone package, or use another meter (--meter FILE)",
        )
    if len(chosen) > _MOST_ZONES:
        raise CapabilityError(
            f"host: its page has {len(chosen):,} counters for one figure, more than a host can have",
            "name the page of this guest's host alone: host:URL",
        )
    sources = {sample.labels["source"] for sample in chosen if "source" in sample.labels}
    if len(sources) > 1:
        raise CapabilityError(
            f"host: its page has the same figure by several sources ({', '.join(sorted(sources))})",
            "let the exporter use one of them",
        )
    # `other` is the difference between platform and the rest, so it is wrong if the platform is.
    inside = [s for s in levels[_CPUS] if packages and _name_zone(s) != "other"] if used < _CPUS else []
    kind: Kind = "estimated" if any(_MODEL.search(s.labels.get("source", "")) for s in chosen) else "measured"
    zones = {str(s): _name_zone(s) for s in (*chosen, *inside)}
    return HostFigures(domain, _map_labels(chosen), _map_labels(inside), zones, kind)


def _name_zone(sample: MetricSample) -> str:
    if (zone := _NODE_EXPORTER.fullmatch(sample.name)) is not None:
        number = f"-{sample.labels['index']}" if zone[1].startswith("package") and "index" in sample.labels else ""
        return zone[1].replace("_", "-") + number
    match = _KEPLER.fullmatch(sample.name)
    by_name = (match[2] or "") if match else sample.name
    return sample.labels.get("zone", by_name).rsplit("/", 1)[-1] if by_name == "cpu" else by_name


def _map_labels(samples: Sequence[MetricSample]) -> dict[str, float]:
    """Return the values by name and labels, of one control type of powercap."""
    types = [_rank_control_type(sample) for sample in samples]
    first = min(types, default=0)
    return {str(s): s.value for s, kind in zip(samples, types, strict=True) if kind in (first, len(_CONTROL_TYPES))}


def _rank_control_type(sample: MetricSample) -> int:
    path = sample.labels.get("path", "")
    return next((n for n, name in enumerate(_CONTROL_TYPES) if name in path), len(_CONTROL_TYPES))


# Counters of one machine agree closely.
_COUNTER_ERROR = 0.02


class HostMeter(SampledMeter[CounterSample]):
    """The host's counters, read every few seconds: those of its figure, and those that the figure includes."""

    name = "host"
    max_interval_s: float | None = _INTERVAL_S

    def __init__(self, where: str, read: Callable[[], HostFigures]) -> None:
        self._first = read()
        scope = (
            "this guest's share of its host"
            if self._first.domain == "share of host"
            else "the whole host, other guests too"
        )
        # One channel per counter of the figure, then those that it includes.
        self._keys = [*self._first.joules, *self._first.inside]
        super().__init__(
            len(self._keys),
            [f"host: {self._first.kind} there, {scope}, as {where} reports; seconds old: use windows of 30 s and more"],
        )
        self._read = read

    def sample(self, now_s: float) -> None:
        missing: Missing = "unreadable"
        joules: dict[str, float] = {}
        try:
            figures = self._read()
        except PowerprofError:
            pass
        else:
            # A counter that comes or goes makes a step of the sum.
            missing = "gone"
            for now, first in ((figures.joules, self._first.joules), (figures.inside, self._first.inside)):
                joules |= now if now.keys() == first.keys() else {}
        for key, samples in zip(self._keys, self._samples, strict=True):
            value = round(joules[key] * 1e6) if key in joules else None
            samples.append(CounterSample(now_s, value, missing if value is None else None))

    def is_counting(self) -> bool | None:
        return is_any_moving(self._samples)

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        """Return the figure of the page, or that of its packages if they draw more: then its platform is wrong."""
        domain, count = self._first.domain, len(self._first.joules)
        counted, flaw = self._select_distinct(range(count))
        energy, watts = _measure_page(counted, start_s, end_s), 0.0
        if len({sample.value for sample in counted}) > 1:
            watts = math.inf if energy.watts is None else energy.watts
        if self._first.inside:
            places = range(count, len(self._keys))
            packages = [n for n in places if _PACKAGE.fullmatch(self._first.zones[self._keys[n]])]
            least = _measure_page(self._select_distinct(packages)[0], start_s, end_s).watts
            if least is not None and watts < (1 - _COUNTER_ERROR) * least:
                inside, inner_flaw = self._select_distinct(places)
                inner = _measure_page(inside, start_s, end_s)
                note = f"are its packages and memory: its platform counter shows {watts:.1f} W"
                energy, flaw = msgspec.structs.replace(inner, notes=(*inner.notes, note)), inner_flaw
                domain = f"{domain}, packages"
        return [DomainEnergy(domain, "server", energy, flaw=flaw, kind=self._first.kind)]

    def _select_distinct(self, places: Sequence[int]) -> tuple[list[CounterSample], str | None]:
        """Return the sum of these counters, one of those that move alike, and a reason for no total."""
        zones = [self._first.zones.get(key, "") for key in self._keys]
        repeated: set[int] = set()
        flaw: str | None = None
        for first, second in itertools.combinations(places, 2):
            alike = compare_counters(self._samples[first], self._samples[second], 1e-6, None, is_absolute=True)
            sockets = {re.sub(r"-die-\d+", "", zones[number]) for number in (first, second)}
            if alike == "one":
                repeated.add(second)
            elif alike == "unclear" and len(sockets) == 1:
                flaw = f"{zones[first]} and {zones[second]} count alike: one counter or two"
        columns = list(zip(*(self._samples[number] for number in places if number not in repeated), strict=True))
        sums = [None if column[0].value is None else sum(s.value or 0 for s in column) for column in columns]
        return [CounterSample(c[0].time_s, value, c[0].missing) for c, value in zip(columns, sums, strict=True)], flaw


def _measure_page(samples: Sequence[CounterSample], start_s: float, end_s: float) -> EnergySeries:
    """Return the energy of a counter that does not move between two refreshes of its page."""
    # Only samples at which it moved have a known time.
    moved = [sample for index, sample in enumerate(samples) if index == 0 or sample.value != samples[index - 1].value]
    return counter_energy(moved, start_s, end_s, joules_per_unit=1e-6, modulus=None, limit_watts=_HOST_WATTS)


def open_host(where: str) -> HostMeter:
    """Open the host's figures at a URL (`http://HOST:PORT/metrics#GUEST`) or in a file. Raise CapabilityError."""
    try:
        place, _, guest = (where, "", "") if Path(where).exists() else where.partition("#")
        read = _fetch_page if where.startswith(("http://", "https://")) else _read_page
        return HostMeter(place, lambda: _read_figures(read(place), guest or None))
    except CapabilityError:
        raise
    except PowerprofError as error:
        raise CapabilityError(
            f"host: {error.message}", "is the host's exporter running, and shared with this guest?"
        ) from error


def _read_figures(text: str, guest: str | None) -> HostFigures:
    samples = parse_metrics(text)
    is_known = any(s.name == _SUM or _KEPLER.fullmatch(s.name) or _NODE_EXPORTER.fullmatch(s.name) for s in samples)
    exporter = None if is_known else _name_exporter(text)
    if exporter is not None:
        raise _explain_unread(f"its page is of {exporter}")
    figures = choose_figures(samples, guest)
    info = _KEPLER_INFO.search(text)
    if info is not None and _MODEL.search(info[1]) and any(_KEPLER.match(name) for name in figures.joules):
        figures = msgspec.structs.replace(figures, kind="estimated")
    return figures


def _name_exporter(text: str) -> str | None:
    """Return the exporter of a page by its metrics. None for Kepler's, for powerprof's and for an empty page."""
    names = dict.fromkeys(match[1] for match in itertools.islice(_FIRST_METRIC.finditer(text), _MOST_SAMPLES))
    if not names or any(name.startswith(("kepler_", "powerprof_")) for name in names):
        return None
    for pattern, title in _OTHER_EXPORTERS:
        if any(re.match(pattern, name) for name in names):
            return title
    return f"an unknown exporter ({next(iter(names))})"


def _explain_unread(what: str) -> CapabilityError:
    """Return the error for an export that powerprof cannot read."""
    return CapabilityError(
        f"host: {what}, which powerprof does not read",
        f"run Kepler, node_exporter (with its collector rapl) or {command_line('export')} on the host, and name that "
        "page: host:URL",
    )


def _read_page(file: str) -> str:
    if Path(file).is_dir():
        raise _explain_unread(f"{file} is a folder, such as Scaphandre's tree of counters")
    return read_outside_table(Path(file), _LIMIT_BYTES)


def _fetch_page(url: str) -> str:
    # The server of the page is not trusted: a child without privileges reads it, from that host only, with a deadline.
    page = os.memfd_create("host", os.MFD_CLOEXEC)
    try:
        fetch(url, page, limit_bytes=_LIMIT_BYTES, total_s=_TIMEOUT_S, elsewhere=False)
        return os.pread(page, _LIMIT_BYTES, 0).decode("utf-8", "replace")
    except OSError as error:
        raise PowerprofError(f"cannot read {url} ({error})", "is the exporter up, and its address right?") from error
    finally:
        os.close(page)
