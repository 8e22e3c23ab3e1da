# SPDX-License-Identifier: Apache-2.0
"""Parts of the report of a run: its phases, their wake-up causes, windows, energy, drift, idle states and CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from powerprof.model import text
from powerprof.model.records import Cause, IdleRun, Phase, Run, ToolCost
from powerprof.report import balance
from powerprof.report.causes import causes_table, same_sleepers
from powerprof.report.document import NOT_HTML, NOT_TERMINAL, Drawing, Item, Items, Part, Section, Sentence, Shown
from powerprof.report.html import phases, spread
from powerprof.report.layouts import align_rows
from powerprof.report.notes import describe_blindness, word_notes
from powerprof.report.phases import (
    achieved_table,
    changes_table,
    cpus_table,
    energy_table,
    phase_title,
    phases_table,
    shown_phases,
    split_table,
)
from powerprof.report.pstates import run_frequency_sentences
from powerprof.report.table import ALL, HTML, Form, Line, Places, Table, column_lines

SETUP = (
    *(("Condition", "/condition"), ("Options", "/options"), ("Server", "/server"), ("Host", "/host")),
    ("Cost of powerprof", "/tool"),
)
"""The facts at the end of the page of a run."""


def phase_bars(run: Run) -> Drawing:
    """Return the shares of C0 and of each idle state, one bar per phase."""
    return Drawing(partial(phases.draw_phase_states, run), phases.STATES_CAPTION, "chart states")


def list_details(run: Run, places: Places, *, cpus: frozenset[Form] = HTML) -> Iterator[Section]:
    """Yield the parts below the phases. `cpus` are the forms with a row per CPU."""
    yield _causes_of(run, places)
    yield Section("Over time", [Drawing(partial(phases.draw_windows, run), phases.window_legend(run))], "course")
    yield Section("Spread of the windows", [Drawing(partial(spread.draw_run_spread, run), look="")], "spread")
    yield _energy_of(run, places)
    drift = changes_table(run.drift if isinstance(run, IdleRun) else [], places, "/drift", "end − begin")
    yield Section("Baseline drift", [Shown(drift)], "drift", NOT_TERMINAL, forms=NOT_TERMINAL)
    if (achieved := achieved_table(run, places)) is not None:
        heading = "Idle states reached by the hardware, which may be shallower than requested"
        yield Section(heading, [Shown(achieved, _achieved_lines, is_further=True)], "achieved", headed=ALL)
    sentences = [Sentence(line, look="muted") for line in run_frequency_sentences(run)]
    of_cpus = cpus_table(run, places)
    tables = [Shown(of_cpus, what="CPUs", forms=cpus, is_further=True)] if of_cpus is not None else []
    yield Section("CPUs", [*tables, *sentences], "cpus", NOT_TERMINAL)


def cost_of(tool: ToolCost | None) -> Section:
    """Return the CPU use of powerprof, if it is known. A page has it among its facts."""
    used = tool.cpu_percent if tool is not None else None
    known = [] if used is None else [Sentence(f"powerprof itself: {used:.2f} % of one CPU.")]
    return Section("", known, forms=NOT_HTML)


_TERMINAL_CAUSES = 12
_MAX_CAUSES = 100
_WHY = 24
# All sleeping threads share these timer functions, so they identify nothing.
_COMMON_TIMER_FUNCTIONS = ("hrtimer_wakeup", "process_timeout")
_TRACED = (
    "Idle exits by cause and by the thread that ran next. They were traced in separate windows, so no other figure "
    "includes the cost of tracing."
)


def _causes_of(run: Run, places: Places) -> Section:
    """Return the causes of the last traced phase, the others below a click, and the balance of each."""
    chosen = [index for index in reversed(shown_phases(run)) if run.phases[index].causes]
    if not chosen:
        return Section("Causes of wake-ups", [Sentence(_uncounted(run))], "causes")
    first, *others = ((index, phase_title(run, run.phases[index])) for index in chosen)
    parts = [Sentence(_TRACED, forms=HTML), *_list_causes(run, places, first[0])]
    parts += [Section(title, _list_causes(run, places, index), folded=True, forms=HTML) for index, title in others]
    return Section(f"Causes of wake-ups, {first[1]}", parts, "causes", headed=ALL)


def _list_causes(run: Run, places: Places, index: int) -> list[Part]:
    phase = run.phases[index]
    table = causes_table(phase.causes, places, f"/phases/{index}/causes", _MAX_CAUSES)
    layout = partial(_cause_lines, phase.causes)
    columns = ("who", "why", "every", "rate", "percent")
    shown = Shown(table, layout, "plain causes", columns, _TERMINAL_CAUSES, "causes", names=False, is_further=True)
    return [shown, Sentence(_balance(phase), look="detail")]


def _balance(phase: Phase) -> str:
    """Return the share of idle exits with a cause, and that all parts add up; empty without a trace."""
    counts = phase.conservation
    if counts is None:
        return ""
    named = f"{text.number(counts.coverage_percent, 1)} % of {text.count(counts.idle_exits_count)} idle exits named"
    return f"{named}: {balance.describe_balance(counts, '')}"


def _uncounted(run: Run) -> str:
    """Return why a traced run has no causes; empty without a trace."""
    seen = [phase.conservation for index in shown_phases(run) if (phase := run.phases[index]).conservation is not None]
    blind = next((counts for counts in seen if counts is not None and describe_blindness(counts)), None)
    if blind is not None:
        return balance.describe_accounting(blind)
    return balance.describe_balance(seen[-1], "") if seen and seen[-1] is not None else ""


def _cause_lines(causes: Sequence[Cause], table: Table, width: int) -> list[str]:
    """Return the largest causes for a terminal, and the sum of the others."""
    rows = [["/s", "%", "every", "why", "who"]]
    for row in table.rows[:_TERMINAL_CAUSES]:
        why, who = row.words("why"), row.words("who")
        named = f"{why.text} {why.more}".rstrip() if why.text == "device" else why.text
        more = who.more or ("" if why.more in _COMMON_TIMER_FUNCTIONS else why.more)
        figures = (row.words("rate").text, row.words("percent").text, row.words("every").text.removeprefix("every "))
        rows.append([*figures, text.shorten(named, _WHY), f"{who.text}  {more}".rstrip()])
    left = same_sleepers(causes)[_TERMINAL_CAUSES:]
    if left:
        rest = text.number(sum(cause.wakeups_hz for group in left for cause in group), 1)
        rows.append([rest, "", "", "", text.plural(len(left), "more cause")])
    return align_rows(rows, width, left=(3,))


def _energy_of(run: Run, places: Places) -> Section:
    parts: list[Part] = []
    for index, phase in enumerate(run.phases):
        if (split := phase.energy_split) is None:
            continue
        title = phase_title(run, phase)
        shown = Shown(split_table(split, places, f"/phases/{index}/energy_split"), look="plain split")
        notes = Items([Item(note) for note in word_notes(split.notes)])
        parts.append(Section(f"{title}, by cause", [shown, notes], folded=True, forms=HTML))
        if index == shown_phases(run)[-1]:
            parts.append(Sentence(balance.describe_energy(split, f", {title}"), forms=NOT_HTML))
    return Section("Energy", [Shown(energy_table(run, places), forms=NOT_TERMINAL), *parts], "energy", NOT_TERMINAL)


def _achieved_lines(table: Table, width: int) -> list[str]:
    """Return the states that the hardware reached in lines of several."""
    gap = "\N{NO-BREAK SPACE}"
    named = (f"{row.words('of').text} {row.words('state').text} {row.words('share').text} %" for row in table.rows)
    joined = " · ".join(each.replace(" ", gap) for each in named)
    return [line.replace(gap, " ") for line in text.wrap(joined, width, "  ")]


def list_rows(run: Run, *means: Table) -> Iterator[Line]:
    """Yield one line per figure of the metrics, of each phase, its energy and its wake-up causes."""
    yield ["phase", "figure", "unit", "kind", "value", "low", "high", "mechanism", "process", "thread"]
    for table in means:
        yield from (["", *line] for line in column_lines(table, "mean"))
    figures = phases_table(run, Places(run), range(len(run.phases))) if run.phases else Table([], [])
    for number, phase in enumerate(run.phases):
        yield from ([phase.name, *line] for line in column_lines(figures, str(number)))
        for reading in phase.energy:
            where = f"{reading.source} {reading.domain}"
            yield [phase.name, where, "W", reading.kind, reading.watts, reading.low_watts, reading.high_watts]
            yield [phase.name, where, "J", reading.kind, reading.joules]
        for cause in phase.causes:
            figure: Line = (f"wakeups {cause.name or ''}".rstrip(), "1/s", "measured", cause.wakeups_hz, None, None)
            yield [phase.name, *figure, cause.mechanism, cause.process, cause.thread]
