# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/json.md from the types of the records: `python -m tools.pages.json_page`.

The rules are written by hand; keys, values and descriptions come from the types that write and read the documents.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

import msgspec

from powerprof.attribution.symbols import Symbols
from powerprof.model.metrics import METRICS, OWNED_METRICS, MetricDefinition
from powerprof.report.kinds import KIND_LOADERS
from tests.conftest import REPOSITORY
from tools.pages.schemas import schema_names

PAGE = REPOSITORY / "docs/reference/json.md"
COMMAND = "python -m tools.pages.json_page"
Struct = type[msgspec.Struct]

_HEAD = """# JSON

`--json FILE` writes the result as JSON; `--json -` prints it, and nothing else, on stdout. A saved run is the same
document (`run.json` in its folder). This page is generated from the types that write and read the documents; the
[schemas](schemas) (JSON Schema, draft 2020-12) have the type of every key.

    powerprof idle --json - | jq '.phases[] | {name, wakeups_hz, c0_percent}'

## Rules

- **Units.** The key of a quantity ends in its unit: `_s` `_ms` `_us` `_hz` `_mhz` `_percent` `_joules` `_watts`
  `_bytes` `_count`; `joules`, `watts`, `percent` and `count` alone are units too. Identities, numbers of CPUs
  and ratios have no unit: `cpus`, `cpu`, `pid`, `tid`, `cpu_family`, `cpu_model_number`, `cpu_stepping`, `odds_low`,
  `odds_high`.
- **Null.** An unknown value is `null`, never 0. A 0 was measured.
- **Intervals** (`low`, `high`, `ci95`, `intervals`) cover 95 %: Student's t over windows, Welch's t for differences.
  They have the unit of their metric, and are null for a single window.
- **Percentages** are of all CPUs' wall time unless the key names another base. Rates are over all CPUs.
- **Times** are RFC 3339 in UTC.
- **Energy** has a `kind`, `measured` or `estimated`, and a `source`. The two kinds are never added.
- **Verdicts**: `b_lower`, `b_higher`, or `inconclusive` if the interval contains 0. An `arm` is `a` or `b`.
- **Sentences.** The report writes the `text` of answers, threats, controls and trends.
- **Versions.** The number after the slash is the version of a document. It increases if the meaning of a key changes;
  new keys do not change it. Earlier versions are still read.
- **Limits.** Files above 64 MiB (unpacked) or about a million values are refused.

Each document begins with its commands. A key that is a link holds an object, or a list of objects, of that type. A type
that extends another also has its keys. Keys without a description are named by their quantity and unit.

## Keys of all documents

- `schema`, `command`: document, and command that wrote it
- `id`: saved run; null if not saved
- `started_at`: start of the measurement
- `host`: kernel, CPU, `cpus`, `memory_bytes`, drivers, mitigations: runs are comparable only if equal
- `server`, `options`: database server, if any; options of the command
- `tool`, `energy_source`: [cost of powerprof](#toolcost); [meter or model](#energysource)
- `notes`: facts to know before using a figure
- `ended`: [early end](#ended) of a measurement, whose complete part the record has; null if complete

## Metrics

{metrics}

The suffix of a name is a device, an idle state, a server or a domain of a meter: `interrupts_per_query:eth0`,
`residency_percent:C1`.
"""
_COMMON = {
    *("schema", "command", "id", "started_at", "host", "server", "options", "tool", "energy_source", "notes"),
    "ended",
}
_COMMANDS = {
    "powerprof.run/1": "`idle`, `run`, `residency`",
    "powerprof.comparison/1": "`compare`",
    "powerprof.sweep/1": "`sweep`",
    "powerprof.sweepcomparison/1": "`compare SWEEP1 SWEEP2`",
    "powerprof.saturation/1": "`sweep --until`",
    "powerprof.study/1": "`study`",
    "powerprof.attribution/1": "`attribute`",
    "powerprof.oncpu/1": "`profile`",
    "powerprof.functions/1": "`functions`",
    "powerprof.offcpu/1": "`offcpu`",
    "powerprof.syscalls/1": "`syscalls`",
    "powerprof.queries/1": "`queries`",
    "powerprof.queries-comparison/1": "`compare QUERIES1 QUERIES2`",
    "powerprof.diagnosis/1": "`diagnose`",
    "powerprof.cure/1": "`cure`",
    "powerprof.trend/1": "`runs RUN --trend`",
    "powerprof.energy/1": "`energy`",
    "powerprof.symbols/1": "`doctor --pid`",
}
_TAIL = """
## powerprof.runs/1

`runs`. The saved runs by `id`, `path`, `schema`, `started_at`, `ended`, `labels`, `target` and `answer` (first
line of the report). `problem`: why a run cannot be read.

## powerprof.doctor/1

[`doctor`](environment.md#doctor). `host`, and `capabilities` by `name`, `status`, `detail` and `remedy`.
"""
# Values that the head of the page explains.
_COMMON_VALUES = {("measured", "estimated"), ("b_lower", "b_higher", "inconclusive"), ("a", "b")}
# The input of the rules of `diagnose` and the server's own replication status follow other programs: no contract.
_OPEN = {
    "Evidence": "the input of the rules, which can change in any version; see the schema.",
    "ReplicationStatus": "as the replica reports it; see the schema.",
}


@dataclass
class _Page:
    """The parts of the page; every type is described where it first appears."""

    lines: list[str] = field(default_factory=list)
    described: set[Struct] = field(default_factory=set)

    def add_document(self, name: str, records: list[Struct]) -> None:
        """Describe a document, and then the new types that it contains."""
        self.lines += ["", f"## {name}", "", f"{_COMMANDS[name]}."]
        written: set[str] = set()
        for record in records:
            if record in self.described:
                self.lines += ["", f"The keys of [{record.__name__}](#{record.__name__.lower()})."]
                continue
            self.described.add(record)
            text, meanings = _documentation(record)
            lead = f"`{record.__name__}`: " if len(records) > 1 else ""
            self.lines += ["", f"{lead}{text}", *_keys(record, meanings, _COMMON | written)]
            written |= {each.encode_name for each in msgspec.structs.fields(record)}
        for record in records:
            self._add_parts(record)

    def _add_parts(self, record: Struct) -> None:
        for part in _parts(record):
            self._add_part(part)

    def _add_part(self, part: Struct) -> None:
        if part in self.described:
            return
        base, inherited = _base_of(part)
        if "schema" in {each.encode_name for each in msgspec.structs.fields(part)}:
            inherited |= _COMMON
        if base:
            self._add_part(base)
        self.described.add(part)
        text, meanings = _documentation(part)
        also = f" Extends [{base.__name__}](#{base.__name__.lower()})." if base else ""
        self.lines += ["", f"### {part.__name__}", "", text + also, *_keys(part, meanings, inherited)]
        self._add_parts(part)


def _structs(kind: Any) -> Iterator[Struct]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in get_args(kind):
        yield from _structs(part)


def _parts(record: Struct) -> Iterator[Struct]:
    for each in msgspec.structs.fields(record):
        yield from (part for part in _structs(each.type) if part.__name__ not in {*_OPEN, "Note"})


def _base_of(record: Struct) -> tuple[Struct | None, set[str]]:
    """Return the record that a type extends, and its keys. (None, no keys) without one."""
    base = record.__base__
    if base is None or base is msgspec.Struct or not issubclass(base, msgspec.Struct):
        return None, set()
    return base, {each.encode_name for each in msgspec.structs.fields(base)}


def _documentation(record: Struct) -> tuple[str, dict[str, str]]:
    """Return the description of a type, and that of its keys: (keys as written, meaning)."""
    text, _, attributes = inspect.cleandoc(record.__doc__ or "").partition("\n\nAttributes:\n")
    entries = re.split(r"\n(?=    \S)", attributes) if attributes else []
    meanings = dict(" ".join(entry.split()).split(": ", 1) for entry in entries)
    return _plain(" ".join(text.split())), {names: _plain(meaning) for names, meaning in meanings.items()}


def _plain(text: str) -> str:
    return re.sub(r"\bNone\b", "null", re.sub(r"(^|[.] )None\b", r"\1Null", text))


def _keys(record: Struct, meanings: dict[str, str], left_out: set[str]) -> list[str]:
    """Return the list of the keys: one item for each that has a description, then the others together."""
    shown = {each.encode_name: _key(each) for each in msgspec.structs.fields(record)}
    lines, described = [], set()
    for names, meaning in meanings.items():
        keys = names.split(", ")
        described |= set(keys)
        lines.append(f"- {', '.join(shown[key] for key in keys)}: {meaning}")
    others = [text for key, text in shown.items() if key not in described | left_out]
    if others:
        lines.append(f"{'- ' if lines else ''}{', '.join(others)}")
    return ["", *lines]


def _key(each: msgspec.structs.FieldInfo) -> str:
    """Return the key as a link to its type, or with the values that it can have."""
    name = f"`{each.encode_name}`"
    inner = [part.__name__ for part in _structs(each.type) if part.__name__ != "Note"]
    if inner and inner[0] in _OPEN:
        return f"{name} ({_OPEN[inner[0]].rstrip('.')})"
    if inner:
        return f"[{name}](#{inner[0].lower()})"
    values = [value for value in _values(each.type) if isinstance(value, str)]
    shown = 1 < len(values) < 8 and tuple(values) not in _COMMON_VALUES
    return f"{name} ({' '.join(f'`{value}`' for value in values)})" if shown else name


def _values(kind: Any) -> Iterator[object]:
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for part in get_args(kind):
            yield from _values(part)


def render() -> str:
    """Return the page."""
    page = _Page()
    for name in schema_names():
        loaded = [load().record for key, load in KIND_LOADERS.items() if key.partition(" ")[0] == name]
        page.add_document(name, list(dict.fromkeys(loaded)))
    page.add_document("powerprof.symbols/1", [Symbols])
    head = _HEAD.replace("{metrics}", "\n".join(map(_metric, (*METRICS.values(), *OWNED_METRICS.values()))))
    return head + "\n".join(page.lines) + "\n" + _TAIL


def _metric(metric: MetricDefinition) -> str:
    owner = ":…" if "{}" in metric.noun else ""
    unit = "" if metric.unit == "1" else f", {metric.unit}"
    formula = f": {metric.formula}" if metric.formula else ""
    return f"- `{metric.name}{owner}`{unit}: {metric.thing.replace('{}', '…')}{formula}"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
