# SPDX-License-Identifier: Apache-2.0
"""Notes of a record in sentences, and the source of its energy.

Each name has a template, which is a format string. Bars in a format select a form by the value:
`{count:stack was|stacks were}` for 1 and for more, `{count:none|one|{count} of them}` for 0, 1 and more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

from powerprof.model import text
from powerprof.model.records import Conservation, Note
from powerprof.system.next_steps import command_line

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
    "call_unknown": "{count} {count:statement|statements} may belong to a CALL: until it ends, the server prints the "
    "present statement of its procedure; a longer window shows the CALL (--duration), and so does the consumer "
    "events_statements_current of performance_schema",
    "prepared_before": "statements prepared before the window, or with unknown numbers, have no text. Their text is "
    "available with performance_schema=ON, or after the clients reconnect",
    "calls_partial": "{count} {count:statement has|statements have} no call that began and ended within the window: "
    "CPU time, wake-ups, latency and waits per call are unknown; a longer window measures them (--duration)",
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
    "time ({each_us:.1f} µs per statement at {rate_hz:,.0f} statements/s), and with --max-cost {bound:g}% they would "
    "show too little of the window; --method probes uses them for that part",
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
