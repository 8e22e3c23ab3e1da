# SPDX-License-Identifier: Apache-2.0
"""Tables of a run's phases: figures side by side, changes, frequencies, disks and energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from powerprof.model import text
from powerprof.model.records import Delta, EnergySplit, IdleRun, Phase, Run, StateResidency, metric_name
from powerprof.report import labels
from powerprof.report.pstates import pstate_shares
from powerprof.report.table import (
    ALL,
    CSV,
    HTML,
    Cell,
    Column,
    Figure,
    Form,
    Places,
    Table,
    TableRow,
    Words,
    escape_pointer,
    figure_columns,
    word_columns,
)

_MAIN = ("baseline", "server", "clients")
_MAX_LOOKS = 6
_MIN_PSTATE_PERCENT = 1.0
_DISK_FIGURES = (
    ("reads, {}", "reads_hz", "/s", 1),
    ("writes, {}", "writes_hz", "/s", 1),
    ("service time, {}", "service_ms", "ms", 2),
    ("queue, {}", "queue_count", "", 2),
    ("busy, {}", "busy_percent", "%", 2),
)


def shown_phases(run: Run) -> list[int]:
    """Return the indexes of the compared phases: baseline, server and clients of an idle run, else all phases."""
    indexes = [index for name in _MAIN for index, phase in enumerate(run.phases) if phase.name == name]
    return indexes if indexes and isinstance(run, IdleRun) else list(range(len(run.phases)))


def phase_title(run: Run, phase: Phase) -> str:
    """Return the phase's name; `16 clients` instead of `clients`."""
    count = run.options.clients_count if isinstance(run, IdleRun) else None
    return f"{text.count(count)} clients" if phase.name == "clients" and count is not None else phase.name


def looks_of(states: Sequence[StateResidency]) -> dict[str, str]:
    """Return one style per idle state, from the shallowest to the deepest. A polling state looks like C0."""
    looks: dict[str, str] = {}
    for state in states:
        number = sum(look != "poll" for look in looks.values())
        looks.setdefault(state.name, "poll" if state.polling else f"s{min(number, _MAX_LOOKS - 1)}")
    return looks


class _PhaseRows(msgspec.Struct, frozen=True):
    """The rows of a phases table.

    `chosen` has the indexes of the shown phases. `changes` maps a metric to the index of its change between the first
    and the last of them.
    """

    run: Run
    places: Places
    chosen: Sequence[int]
    changes: dict[str, int]

    def row(
        self,
        name: Words,
        pointers: Sequence[str],
        unit: str,
        digits: int,
        *,
        interval: str = "",
        change: str = "",
        short: str = "",
        key: str = "",
        look: str = "",
        inner: bool = False,
        forms: frozenset[Form] = ALL,
    ) -> TableRow:
        """Return a row with one figure per phase and its change.

        `pointers` are relative to the phases; an empty pointer leaves the cell unknown.
        """
        cells: dict[str, Cell] = {"name": name}
        for index, pointer in zip(self.chosen, pointers, strict=True):
            ends = f"/phases/{index}/intervals/{escape_pointer(interval)}" if interval else ""
            at = f"/phases/{index}/{pointer}" if pointer else ""
            cells[str(index)] = self.places.figure(at, digits, unit, ends=ends)
        if change in self.changes:
            at = f"/deltas/{self.changes[change]}/difference"
            unit_of_change = "pt" if unit == "%" else unit
            cells["change"] = self.places.figure(f"{at}/mean", digits, unit_of_change, ends=at, sign=True)
        exact = "1/s" if unit == "/s" else unit
        return TableRow(cells, key, short or name.text, unit, exact, look=look, inner=inner, forms=forms)

    def plain(
        self, label: str, field: str, unit: str, digits: int, *, look: str = "", forms: frozenset[Form]
    ) -> TableRow:
        """Return the row of a field that every phase has."""
        return self.row(
            Words(label, ours=True),
            [field] * len(self.chosen),
            unit,
            digits,
            interval=field,
            change=field,
            key=field.rpartition("_")[0],
            look=look,
            forms=forms,
        )

    def server_exits(self) -> Iterator[TableRow]:
        """Yield the idle exits that the trace counted for the server, if a phase was traced."""
        cells: dict[str, Cell] = {"name": Words("by the server, counted", ours=True)}
        for index in self.chosen:
            at = f"/phases/{index}/server_exits/wakeups_hz"
            counted = self.run.phases[index].server_exits is not None
            cells[str(index)] = (
                self.places.figure(f"{at}/mean", 1, "/s", ends=at) if counted else Figure(None, "", words="–")
            )
        if any(self.run.phases[index].server_exits is not None for index in self.chosen):
            yield TableRow(cells, "server_wakeups", "  by the server, counted", "/s", "1/s", inner=True)

    def pstates(self) -> Iterator[TableRow]:
        """Yield the share of time per requested frequency. A terminal shows only shares of at least 1 %."""
        os_rates = [self.run.phases[index].system for index in self.chosen]
        systems = [system.frequencies if system else None for system in os_rates]
        states = [system.states if system else [] for system in systems]
        for mhz in sorted({state.mhz for each in states for state in each if state.residency_percent}):
            at = [next((i for i, state in enumerate(each) if state.mhz == mhz), None) for each in states]
            shares = [each[i].residency_percent for i, each in zip(at, states, strict=True) if i is not None]
            yield self.row(
                Words(f"P-state {mhz:g} MHz", ours=True),
                ["" if i is None else f"system/frequencies/states/{i}/residency_percent" for i in at],
                "%",
                2,
                key=f"P-state {mhz:g} MHz",
                forms=ALL if max(shares, default=0.0) >= _MIN_PSTATE_PERCENT else CSV | HTML,
            )
        if any(system and system.busy_mhz is not None for system in systems):
            places = ["system/frequencies/busy_mhz" if system else "" for system in systems]
            yield self.row(Words("frequency while running", ours=True), places, "MHz", 0, key="busy frequency")

    def disks(self) -> Iterator[TableRow]:
        """Yield the requests and service time of each disk, and the task migrations."""
        phases = [self.run.phases[index] for index in self.chosen]
        systems = [phase.system.disks if phase.system else [] for phase in phases]
        for name in dict.fromkeys(disk.name for disks in systems for disk in disks):
            at = [next((i for i, disk in enumerate(disks) if disk.name == name), None) for disks in systems]
            for label, field, unit, digits in _DISK_FIGURES:
                places = ["" if i is None else f"system/disks/{i}/{field}" for i in at]
                yield self.row(
                    Words(label.format(name), ours=True),
                    places,
                    unit,
                    digits,
                    key=f"{field} of {name}",
                    forms=CSV | HTML,
                )
        if any(phase.system and phase.system.migrations_hz is not None for phase in phases):
            places = ["system/migrations_hz" if phase.system else "" for phase in phases]
            title = Words("moves of tasks to another CPU", ours=True)
            yield self.row(title, places, "/s", 1, key="migrations", forms=CSV | HTML)

    def states(self) -> Iterator[TableRow]:
        """Yield two rows per idle state, and one per polling state that was entered."""
        phases = [self.run.phases[index] for index in self.chosen]
        for name, look in looks_of([state for phase in phases for state in phase.states]).items():
            at = [next((i for i, state in enumerate(phase.states) if state.name == name), None) for phase in phases]
            states = [None if i is None else phase.states[i] for phase, i in zip(phases, at, strict=True)]
            if all(state is None or (state.polling and not state.entries_count) for state in states):
                continue
            polling = any(state is not None and state.polling for state in states)
            share = "polling_percent" if polling else "residency_percent"
            yield self.row(
                Words(name, "polling, in C0" if polling else ""),
                ["" if i is None else f"states/{i}/{share}" for i in at],
                "%",
                2,
                interval=metric_name("residency_percent", name),
                change="" if polling else metric_name("residency_percent", name),
                key=f"{'polling' if polling else 'residency'} in {name}",
                look=look,
                forms=ALL - {"markdown"} if polling else ALL,
            )
            if not polling:
                yield self.row(
                    Words("average residency", ours=True),
                    ["" if i is None else f"states/{i}/average_residency_ms" for i in at],
                    "ms",
                    1,
                    key=f"average residency in {name}",
                    short="  average residency",
                    inner=True,
                    forms=ALL - {"markdown"},
                )


def phases_table(run: Run, places: Places, chosen: Sequence[int]) -> Table:
    """Return C0, the idle states and wake-ups, with one column per phase and one for the change."""
    first, last = run.phases[chosen[0]], run.phases[chosen[-1]]
    changes = {
        delta.metric: index
        for index, delta in reversed(list(enumerate(run.deltas if isinstance(run, IdleRun) else [])))
        if len(chosen) > 1 and (delta.from_phase, delta.to_phase) == (first.name, last.name)
    }
    phases = _PhaseRows(run, places, chosen, changes)
    stolen = any(run.phases[index].steal_percent for index in chosen)
    rows = [
        phases.plain("C0 (running)", "c0_percent", "%", 2, look="c0", forms=ALL),
        phases.plain("idle", "idle_percent", "%", 2, forms=CSV),
        *phases.states(),
        phases.plain("wake-ups from idle", "wakeups_hz", "/s", 1, forms=ALL),
        *phases.server_exits(),
        *phases.pstates(),
        *phases.disks(),
        phases.plain("stolen by the hypervisor", "steal_percent", "%", 2, forms=CSV | HTML if stolen else CSV),
    ]
    columns = [Column("name", "all CPUs", left=True)]
    columns += [Column(str(index), name=phase_title(run, run.phases[index])) for index in chosen]
    if any("change" in row.cells for row in rows):
        title = f"{phase_title(run, last)} − {phase_title(run, first)}"
        short = f"{last.name} − {first.name}"
        columns.append(Column("change", name=title, short=short, forms=HTML | {"terminal"}))
    return Table(columns, rows, "phases")


def changes_table(deltas: Sequence[Delta], places: Places, at: str, heading: str) -> Table:
    """Return one row per figure that changed between two phases."""
    rows = []
    for index, delta in enumerate(deltas):
        place, unit = f"{at}/{index}/difference", labels.define_metric(delta.metric).unit
        cells: dict[str, Cell] = {
            "name": Words(labels.metric_words(delta.metric), ours=True),
            "of": Words(f"{delta.to_phase} − {delta.from_phase}"),
            "mean": places.figure(f"{place}/mean", 2, unit, ends=place, sign=True),
        }
        rows.append(TableRow(cells))
    columns = [
        Column("name", heading, left=True),
        Column("of", left=True, forms=frozenset(("markdown",))),
        Column("mean", "mean", interval="95 %"),
    ]
    return Table(columns, rows, heading)


def energy_table(run: Run, places: Places) -> Table:
    """Return one row per energy domain and phase."""
    rows = []
    for number, phase in enumerate(run.phases):
        for index, reading in enumerate(phase.energy):
            place = f"/phases/{number}/energy/{index}"
            ends = (f"{place}/low_watts", f"{place}/high_watts")
            cells: dict[str, Cell] = {
                "phase": Words(phase_title(run, phase)),
                "domain": Words(reading.domain, f"inside {reading.contained_in}" if reading.contained_in else ""),
                "kind": Words(reading.kind, ours=True),
                "watts": places.figure(f"{place}/watts", 2, ends=ends),
                "joules": places.figure(f"{place}/joules", 2),
                "by": Words(reading.source, reading.model or ""),
            }
            rows.append(TableRow(cells))
    columns = [*word_columns("phase", "domain", "kind"), *figure_columns(watts="W", joules="J"), *word_columns("by")]
    return Table(columns, rows, "energy")


def split_table(split: EnergySplit, places: Places, at: str) -> Table:
    """Return the energy consumers of a window. The rows sum to the total."""

    def row(name: Words, place: str, **more: Figure) -> TableRow:
        return TableRow({"what": name, "joules": places.figure(place, 3), **more})

    rows = [row(Words("idle floor", ours=True), f"{at}/idle_joules")] if split.idle_joules is not None else []
    for index, part in enumerate(split.parts):
        here = f"{at}/parts/{index}"
        wakeups = places.figure(f"{here}/wakeups_count", 0)
        rows.append(row(Words(part.name), f"{here}/joules", c0=places.figure(f"{here}/c0_s", 3), wakeups=wakeups))
    rows += [
        row(Words("cannot be attributed", ours=True), f"{at}/residual_joules"),
        row(Words("all", ours=True, strong=True), f"{at}/total_joules"),
    ]
    columns = [*word_columns("what"), *figure_columns(joules="J", c0="C0 s", wakeups="wake-ups")]
    return Table(columns, rows, "energy by cause", f"{split.kind} by {split.source}; the lines sum to the whole.")


def cpus_table(run: Run, places: Places) -> Table | None:
    """Return load and frequencies per CPU in the last phase; None if they are unknown."""
    index = len(run.phases) - 1
    system = run.phases[index].system if run.phases else None
    frequencies = system.frequencies.cpus if system is not None and system.frequencies is not None else []
    if system is None or not frequencies:
        return None
    loads = {load.cpu: i for i, load in enumerate(system.cpus)}
    rows = []
    for i, cpu in enumerate(frequencies):
        at = f"/phases/{index}/system"
        cells: dict[str, Cell] = {"cpu": Words(str(cpu.cpu), ours=True), "states": Words(pstate_shares(cpu), ours=True)}
        if cpu.cpu in loads:
            cells["busy"] = places.figure(f"{at}/cpus/{loads[cpu.cpu]}/busy_percent", 1)
        cells["mhz"] = places.figure(f"{at}/frequencies/cpus/{i}/busy_mhz", 0)
        rows.append(TableRow(cells))
    columns = [Column("cpu", "CPU"), *figure_columns(busy="busy, %")]
    columns += figure_columns(mhz="running at, MHz") if any(cpu.busy_mhz is not None for cpu in frequencies) else []
    columns.append(Column("states", "P-states requested", left=True))
    return Table(columns, rows, "each CPU")


def achieved_table(run: Run, places: Places) -> Table | None:
    """Return the idle states that the hardware reached; None if no source counts them."""
    windows = run.phases[0].windows if run.phases else []
    rows = [
        TableRow(
            {
                "of": Words(state.scope, ours=True),
                "state": Words(state.name),
                "share": places.figure(f"/phases/0/windows/0/achieved/{index}/residency_percent", 2, "%"),
            }
        )
        for index, state in enumerate(windows[0].achieved if windows else [])
    ]
    return (
        Table([*word_columns("of", "state"), *figure_columns(share="residency")], rows, "achieved states")
        if rows
        else None
    )
