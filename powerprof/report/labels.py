# SPDX-License-Identifier: Apache-2.0
"""Names of metrics, units, sentences of notes, and terms of the field, as reports print them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import floor, log10
from string import Formatter
from typing import Any

import msgspec

from powerprof.model import text
from powerprof.model.metrics import MetricDefinition, find_metric
from powerprof.model.records import Conservation, CpuFrequency, Frequencies, FrequencyLimits, Note, Run
from powerprof.system.next_steps import command_line

_UNIT_SUFFIX = re.compile(r"_(s|ms|us|ns|hz|percent|joules|watts|bytes|count|mhz)$")
_UNITS = {"us": "µs", "hz": "/s", "percent": "%", "joules": "J", "watts": "W", "count": "", "mhz": "MHz"}
_PREFIXED = {"J", "s", "J·s", "W"}
# Less than any meter or clock resolves, in every unit of a report: the rounding error of equal figures.
_NOTHING = 1e-12


def define_metric(name: str) -> MetricDefinition:
    """Return the definition of a metric; an unknown name of a saved record becomes words by `key_label`."""
    if (known := find_metric(name)) is not None:
        return known
    kind, colon, owner = name.partition(":")
    label, unit = key_label(name)
    return MetricDefinition(name, unit, label, f"  {owner}: {kind}" if colon else name, f"the {label}")


def metric_words(name: str) -> str:
    """Return the name of a metric in tables and on pages."""
    return define_metric(name).label


def key_label(name: str) -> tuple[str, str]:
    """Return a JSON key as words, and the unit of its suffix: `cpu_percent` → ("cpu", "%")."""
    suffix = _UNIT_SUFFIX.search(name)
    if suffix is None:
        return name.replace("_", " "), ""
    return name[: suffix.start()].replace("_", " "), _UNITS.get(suffix[1], suffix[1])


def format_significant(value: float | None) -> str:
    """Return a value with three significant digits, from 1,000 on as a whole number."""
    if value is None:
        return text.UNKNOWN
    if abs(value) < _NOTHING:
        return "0"
    if abs(value) < 0.0001:
        return f"{value:.2e}".replace("-", "−")
    places = 0 if abs(value) >= 1000 else max(0, 3 - len(str(int(abs(value)))) + (1 if abs(value) < 1 else 0))
    return text.number(value, 4 if 0 < abs(value) < 0.1 else places)


def choose_prefix(unit: str, largest: float) -> tuple[str, float]:
    """Return the unit with m or µ if the figures are small, and the factor for them."""
    if unit not in _PREFIXED or not 0 < abs(largest) < 0.1:
        return ("" if unit == "1" else unit), 1.0
    return (f"m{unit}", 1e3) if abs(largest) >= 1e-4 else (f"µ{unit}", 1e6)


def count_decimals(largest: float, significant: int = 3) -> int:
    """Return the number of decimals that shows `significant` digits of the largest figure of a row, at most six."""
    if not largest:
        return 0 if significant < 3 else 2
    return min(6, max(0, significant - 1 - floor(log10(abs(largest)))))


def separate(decimals: int, values: Iterable[float]) -> int:
    """Return as many decimals as different values need to be printed differently; `decimals` if four are too few."""
    distinct = set(values)
    enough = (more for more in range(decimals, 5) if len({round(each, more) for each in distinct}) == len(distinct))
    return next(enough, decimals)


class NumberFormat(msgspec.Struct, frozen=True):
    """The unit, the factor and the number of decimals of the figures of one row."""

    unit: str
    factor: float
    decimals: int


def choose_format(unit: str, values: Iterable[float | None]) -> NumberFormat:
    """Return how to show the figures of a row.

    The largest figure has three significant digits, the smallest has two if four decimals suffice.
    """
    known = [abs(value) for value in values if value]
    largest = max(known, default=0.0)
    name, factor = choose_prefix(unit, largest)
    if largest * factor >= 1000:
        return NumberFormat(name, factor, 0)
    least = count_decimals(min(known, default=0.0) * factor, 2)
    return NumberFormat(name, factor, max(count_decimals(largest * factor), min(4, least)))


# Sentences of notes: one template per name.
# A template is a format string. Bars in a format select a form by the value: `{count:stack was|stacks were}` for 1 and
# for more, `{count:none|one|{count} of them}` for 0, 1 and more.

UNPAIRED = (
    "measured at different times: a verdict assumes that the level of a run varies by twice the deviation of its "
    "windows; to detect smaller differences, compare in pairs"
)
WORDS: dict[str, str] = {
    "pairs_left_out": "other programs ran during {count} of the pairs, which {count:is|are} left out (the JSON has "
    "{count:it|them})",
    "crowded": "other programs used {percent:.0f} % of the CPUs: figures of the whole host include them",
    "sources_differ": "{metric} comes from different sources: steps between them have no verdict",
    "unpaired": UNPAIRED,
    "not_in_both": "{parameter} {values}: not measured in both sweeps",
    "energy": "energy: {why}",
    "estimate": "estimate: {doubt}",
    "process_ended": "process {pid} ended during the window",
    "group_unseen": "the control group used {used_ms:,.0f} ms of CPU time, {missing_ms:,.0f} ms of them in processes "
    "that joined it and ended unobserved. No figure includes them",
    "running_without_row": "{ms:,.0f} ms of CPU time of {count:one thread is|{count} threads are} in no row, because "
    "{count:it|they} did not wake in the window ({count:|mostly }thread {tid}). To see the functions, use profile",
    "threads_by_start": "the server reports no thread names (performance_schema is off, or the login is refused). "
    "{named} threads have names by their start functions, {unnamed} {unnamed:has|have} none",
    "tick_hidden": "the kernel hides the addresses of its functions (kptr_restrict=2): wake-ups by the tick are "
    "counted as other timers of the kernel",
    "no_registers": "no stacks: the registers of threads were not found in this kernel",
    "runtime_java_code": "Java: `{as_account}jcmd {pid} Compiler.perfmap` (JDK 17 or later) writes the method "
    "names; then run again. Callers can be missing unless it was started with -XX:+PreserveFramePointer",
    "runtime_java_waits": "Java: interpreted methods have no names, and callers of compiled methods can be missing "
    "unless it was started with -XX:+PreserveFramePointer",
    "runtime_node_code": "Node: functions have names if it is started with --perf-basic-prof "
    "--interpreted-frames-native-stack",
    "runtime_node_waits": "Node: its event loop waits outside JavaScript, so the function that a timer or packet calls "
    "is unknown (node --cpu-prof shows the running functions)",
    "runtime_go_waits": "Go: in runtime.findRunnable, stopm and sysmon its scheduler waits, so the next goroutine is "
    "unknown (go tool trace shows goroutines)",
    "runtime_luajit_code": "LuaJIT: only C functions are visible (Lua functions: luajit -jp, or "
    "require('jit.p').start())",
    "runtime_dotnet_code": ".NET: methods have names if it is started with DOTNET_PerfMapEnabled=1 in its environment",
    "runtime_mono_code": "Mono: methods have names if it is started with mono --jitmap",
    "runtime_ruby_code": "Ruby: compiled methods have names if it is started with ruby --yjit-perf (3.3 or later)",
    "runtime_php_code": "PHP: compiled functions have names with opcache.jit_debug=16 in php.ini",
    "runtime_erlang_code": "Erlang: functions have names if it is started with erl +JPperf true",
    "runtime_postgres_jit_code": "PostgreSQL: code compiled for a query has no name here (jit_profiling_support "
    "writes it for perf); SET jit = off shows the executor's functions",
    "runtime_openj9_code": "OpenJ9: methods have names if it is started with -XX:+PerfTool",
    "wakings_not_counted": "the load was too high to trace every sleep and waking of the target: wakings_count is "
    "unknown",
    "sites_left_out": "too many call sites to count wakings at: {count} {count:was|were} left out",
    "stacks_lost": "{count} {count:stack was|stacks were} lost to a full buffer: "
    "{count:that exit has|those exits have} no complete stack (a larger --stack-buffer)",
    "sampled_exits": "every idle exit is counted; the timeline samples one idle period in {one_in}"
    "{lost_count:| (1 of these was lost)| ({lost_count:,} of these were lost)}",
    "interrupts_unseen": "{count:,} {count:interrupt|interrupts} without a tracepoint came in the window ({named}): "
    "idle periods that {count:it|they} ended are named by their effect, or unknown",
    "ended_threads": "{count} idle {count:exit of a thread|exits of threads} that had ended {count:is|are} grouped by "
    "name, because there were too many causes",
    "causes_lost": "too many causes: {count} idle {count:exit is|exits are} not in any row",
    "stacks_not_copied": "too many call paths: {count} {count:stack was|stacks were} not copied",
    "wakeups_of_traced_window": "this host counts wake-ups only while tracing: the figures are from the traced window",
    "within_call": "statements in a stored procedure are part of its CALL and not listed separately",
    "prepared_before": "statements prepared before the window, or with unknown numbers, have no text. Their text is "
    "available with performance_schema=ON, or after the clients reconnect",
    "ends_by_do_command": "this kernel does not report when a socket is written: latency lasts to the next wait for a "
    "packet",
    "ends_by_report": "this kernel does not report when a socket is written: a statement ends just before its last "
    "packet",
    "messages_alike": "the messages of this build are indistinguishable: preparing a statement counts as a call, and "
    "a pipeline of one statement counts as one call",
    "cpus_not_sampled": "CPU {cpus} went offline or came back during the window: the samples miss up to "
    "{seconds:.2f} s of its work",
    "samples_miss_clock": "samples found {sampled_ms:,.0f} ms ({low_ms:,.0f} – {high_ms:,.0f}, 95 %), but the process "
    "ran for {clock_ms:,.0f} ms by its CPU clock: the samples may miss part of its work, so their shares are "
    "unreliable; measure again",
    "below_idle": "an interval net of idle starts below 0: the work used hardly more than the idle host. Its true cost "
    "is between 0 and the upper end",
    "shares_of_samples": "shares are those of {count:,} {count:sample|samples} ({hz} per second and CPU) and have 95 % "
    "intervals; each CPU was woken for them, which is included in the energy figure",
    "samples_count_calls": "samples show neither wake-ups, page faults nor latencies of statements; calls are the "
    "server's own count, from just before the window to just after it; preparing a statement counts as executing it",
    "samples_without_calls": "samples show neither wake-ups, page faults nor latencies of statements; calls are "
    "unknown; preparing a statement counts as executing it",
    "samples_without_digests": "samples show neither wake-ups, page faults nor latencies of statements; calls are "
    "unknown, because performance_schema is off or does not collect statements (set performance_schema=ON in the "
    "server's configuration and restart); preparing a statement counts as executing it",
    "samples_without_statistics": "samples show neither wake-ups, page faults nor latencies of statements; calls are "
    "unknown, because pg_stat_statements is not loaded or not readable (set shared_preload_libraries, restart, and "
    "CREATE EXTENSION pg_stat_statements in the database postgres); preparing a statement counts as executing it",
    "digests_lost": "performance_schema had no room for {count:,} {count:call|calls}: calls and rows of their "
    "statements are unknown (increase performance_schema_digests_size and restart; the status variable "
    "Performance_schema_digest_lost counts them)",
    "postgresql_not_asked": "PostgreSQL was not queried: schemas are the databases in process titles at the start or "
    "end of the window; rows are unknown; statements in functions are part of the calling statement",
    "postgresql_counted": "rows sent and query ids come from pg_stat_statements, from just before the window to just "
    "after it; schemas are databases; statements in functions are part of the calling statement",
    "no_login": "the server refuses this user on its socket: threads have the kernel's names; schemas and rows "
    "are unknown (name an account with --defaults-file)",
    "rows_unknown": "rows examined and sent are unknown: performance_schema is off, or does not collect statements",
    "rows_counted": "rows examined and sent are the server's own counts, from just before the window to just after it",
    "texts_cut": "{count:,} {count:text is|texts are} longer than {bytes:,} bytes: statements that differ only after "
    "that count as one",
    "probes_unfit": "method samples: {reason}",
    "probes_left": "a process that maps the server's program keeps its memory map locked: a helper process removes the "
    "probes, which count nothing, as soon as it is unlocked",
    "probes_costly": "method samples: in a trial of half a second, probes used {percent:.1f} % of the server's CPU "
    "time ({each_us:.1f} µs per statement at {rate_hz:,.0f} statements/s); --method probes uses them anyway",
    "windows_apart": "each window is one sample: a statement is compared with the median ratio of all statements, and "
    "its interval includes the scatter of these ratios. To judge a common change, measure several windows of each "
    "state alternately",
    "scatter_unknown": "fewer than {statements} statements have a known ratio, so the scatter between the windows is "
    "unknown. To judge a few statements, measure several windows of each state alternately",
    "methods_differ": "A was measured by {a} and B by {b}",
    "servers_differ": "the servers differ: {a} and {b}",
    "spread_unknown": "the interval is unknown for statements with fewer than {calls} calls",
    "texts_unreadable": "{count:,} {count:text|texts} could not be read",
    "names_missing": "{percent:.0f} % of the frames have no name, in {files}: these files are stripped. To get the "
    "names:\n{command}",
    "names_stripped": "{percent:.0f} % of the frames have no name, in {files}: these files are stripped, and no "
    "package has their debug information (build them with -g, or keep their symbols)",
    "table_full": "a table of the tracer had no room {count:once|{count:,} times}: figures are too low",
}


class _Counting(Formatter):
    """Format strings in which a figure selects the form of a word."""

    def format_field(self, value: Any, format_spec: str) -> str:
        forms = format_spec.split("|")
        if len(forms) == 1:
            return str(super().format_field(value, format_spec))
        none, one, many = forms if len(forms) == 3 else (forms[1], *forms)
        return none if value == 0 else one if value == 1 else many


_COUNTING = _Counting()


def fill_template(template: str, values: Mapping[str, Any]) -> str:
    """Return a template with its values.

    A saved note may hold any values: if they do not fit, they are printed after the beginning of the template.
    """
    try:
        return _COUNTING.vformat(template, (), values)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError):
        return f"{template.partition('{')[0].strip()} {dict(values)}".strip()


def word_notes(notes: Iterable[Note | str]) -> list[str]:
    """Return notes as sentences; sentences of saved records stay."""
    return [
        note if isinstance(note, str) else fill_template(WORDS.get(note.name, note.name), note.values) for note in notes
    ]


# Notes of a record in sentences, and the source of its energy.


# Notes of the meters (powerprof.energy).
_DOUBT, _NO_METER, _NO_TOTAL = "doubt: ", "energy source: no meter on this host: ", "no total: "


def list_notes(record: Any, *, is_short: bool = False) -> list[str]:
    """Return the sentences about a record: the source of its energy, its own notes, and those of its parts.

    `is_short`: only the first doubt about an estimate, with the command that prints the others.
    """
    source = getattr(record, "energy_source", None)
    of_source = word_notes(source.notes()) if source is not None else []
    if is_short and source is not None:
        of_source = [first_doubt(source.doubts)] if not source.metered and source.doubts else []
    parts = [getattr(record, "evidence", None), record, *getattr(record, "phases", ())]
    own = [note for part in parts for note in word_notes(getattr(part, "notes", ()))]
    # The warnings have the reason of an unknown total. `powerprof doctor` explains a missing meter.
    others = [note for note in own if not note.startswith((_DOUBT, _NO_TOTAL))]
    if is_short:
        seen = f"no meter on this host ({command_line('doctor')})"
        others = [seen if note.startswith(_NO_METER) else note for note in others]
    doubts = [note.removeprefix(_DOUBT) for note in own if note.startswith(_DOUBT)]
    return list(dict.fromkeys([*of_source, *others, *([f"doubts: {'; '.join(doubts)}"] if doubts else [])]))


# With more idle time than this (/proc/stat counts in steps of 10 ms) a trace without idle exits saw nothing.
_IDLED_PERCENT = 1.0


def describe_blindness(counts: Conservation) -> str:
    """Return that a trace saw no idle exit although the CPUs idled; empty for other traces."""
    idle = counts.idle_percent
    if counts.idle_exits_count or (idle is not None and idle <= _IDLED_PERCENT):
        return ""
    idled = "" if idle is None else f" although its CPUs idled {idle:.0f} % of the time"
    return f"The trace recorded no idle exits on this host{idled}."


def first_doubt(doubts: Sequence[str]) -> str:
    """Return the first doubt of an estimate, and the command that prints the others."""
    more = f" ({command_line('energy')})" if len(doubts) > 1 else ""
    return f"estimated (no meter): {doubts[0]}{more}"


def wrap_note(note: str, width: int) -> list[str]:
    """Return a note for a terminal.

    Text after a line end is a command: it stays on one line, so that it can be copied.
    """
    sentence, *commands = note.split("\n")
    end = ":" if commands else "."
    return [*text.wrap(f"Note: {sentence.removesuffix(end)}{end}", width), *(f"  {command}" for command in commands)]


# P-states in sentences: the driver, its limits, and the P-states of each CPU.

_CHOSEN_BY_HARDWARE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
_SHOWN = 4


def frequency_sentences(found: Frequencies | None) -> list[str]:
    """Return one sentence per group of CPUs: the driver of their frequencies and its limits."""
    return [_sentence(limits, found, alone=len(found.limits) == 1) for limits in found.limits] if found else []


def run_frequency_sentences(run: Run) -> list[str]:
    """Return the `sentences` of the last phase that recorded frequencies."""
    known = [phase.system.frequencies for phase in run.phases if phase.system]
    return frequency_sentences(known[-1]) if known else []


def _sentence(limits: FrequencyLimits, found: Frequencies, *, alone: bool) -> str:
    where = "" if alone else f" of CPU {limits.cpus}"
    mode = f" ({found.status})" if found.status else ""
    by = f"{limits.driver}{mode}" if limits.driver else "an unknown driver"
    if limits.driver in _CHOSEN_BY_HARDWARE and not found.states:
        choice = f"P-states{where}: chosen by the hardware under {by}, which does not count them"
    else:
        choice = f"P-states{where}: {by}" + (
            "" if found.states else ", which does not count them (no stats/time_in_state)"
        )
    parts = [choice]
    if limits.minimum_mhz is not None and limits.maximum_mhz is not None:
        span = f"{limits.minimum_mhz:,.0f} to {limits.maximum_mhz:,.0f} MHz allowed"
        able = (limits.hardware_minimum_mhz, limits.hardware_maximum_mhz)
        if None not in able and able != (limits.minimum_mhz, limits.maximum_mhz):
            span += f" of {able[0]:,.0f} to {able[1]:,.0f}"
        parts.append(span)
    parts += [f"governor {limits.governor}"] if limits.governor else []
    parts += [f"preference {limits.preference}"] if limits.preference else []
    parts += [f"turbo {'on' if found.turbo else 'off'}"] if found.turbo is not None else []
    return ", ".join(parts) + "."


def pstate_shares(cpu: CpuFrequency) -> str:
    """Return the most used P-states of a CPU, the largest share first: `1,500 MHz 75.0 %, 2,400 MHz 25.0 %`."""
    most: Sequence[tuple[float, float]] = sorted(
        ((state.residency_percent, state.mhz) for state in cpu.states if state.residency_percent), reverse=True
    )
    parts = [f"{mhz:,.0f} MHz {percent:.1f} %" for percent, mhz in most[:_SHOWN]]
    return ", ".join(parts + ([f"{len(most) - _SHOWN} more"] if len(most) > _SHOWN else [])) or "unknown"


# Terms of the field, each with a sentence. docs/concepts.md explains all of them.

TERMS = {
    "95 % interval": "The range that contains the true value in 95 of 100 such measurements, on this host.",
    "A/A": "A condition compared with itself. A correct measurement shows no difference.",
    "C0": "The state of a CPU that runs instructions, not an idle state (C1, C6 …). Time in C0 is running time.",
    "EDP": "Energy-delay product: joules per query times mean latency. Less is better.",
    "estimated": "Computed from the running time of the CPUs and a model of this kind of CPU, without a meter.",
    "haltpoll": "The idle governor of virtual machines: it polls briefly before it halts the CPU.",
    "idle exit": "The moment at which a CPU leaves an idle state: an interrupt, or another CPU, woke it.",
    "minimum detectable": "The smallest difference that this number of windows detects with 80 % power.",
    "net of idle": "Minus the idle host's consumption over the same time: the cost of the work alone.",
    "p95": "95 of 100 queries were answered within this time.",
    "POLL": "An idle loop that runs instructions: it wakes at once, saves no energy and counts as running time.",
    "residency": "The share of the time that the CPUs spent in an idle state, as the kernel requested it.",
    "steal": "Time in which a virtual CPU wanted to run and the hypervisor gave the CPU to another guest.",
    "wake-ups": "How often CPUs left an idle state; each costs energy and prevents deeper states.",
}
_PATTERN = re.compile(r"(?<![\w-])(" + "|".join(sorted(map(re.escape, TERMS), key=len, reverse=True)) + r")(?![\w-])")


def split_terms(words: str) -> list[tuple[str, str | None]]:
    """Return the text in pieces, each with its explanation if it is a term."""
    return [(piece, TERMS.get(piece)) for piece in _PATTERN.split(words) if piece]
