# SPDX-License-Identifier: Apache-2.0
"""The sentences of notes: one template a name.

A template is a format string. A figure decides between forms of a word where its format has bars: `{count:stack was|
stacks were}` for 1 and for more, `{count:none|one|{count} of them}` where 0 has a form of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import Formatter
from typing import Any

from powerprof.records import Note

WORDS: dict[str, str] = {
    "pairs_left_out": "other programs ran during {count} of the pairs, which {count:is|are} left out (the JSON has "
    "{count:it|them})",
    "crowded": "other programs used {percent:.0f} % of the CPUs: figures of the whole host include them",
    "sources_differ": "{metric} comes from different sources: steps between them are not judged",
    "unpaired": "measured at different times: a drift of the host is not cancelled out",
    "not_in_both": "{parameter} {values}: not measured in both sweeps",
    "energy": "energy: {why}",
    "estimate": "estimate: {doubt}",
    "process_ended": "process {pid} ended during the window",
    "group_unseen": "the control group used {used_ms:,.0f} ms of CPU time, {missing_ms:,.0f} ms of them in processes "
    "that joined it and ended before they were looked for: they are in no figure",
    "no_registers": "no stacks: this kernel keeps the registers of its threads where they were not found",
    "runtime_java_code": "Java: `{as_account}jcmd {pid} Compiler.perfmap` (JDK 17 or later) writes the names of its "
    "methods, then run again; callers can be missing unless it was started with -XX:+PreserveFramePointer",
    "runtime_java_waits": "Java: interpreted methods have no names, and callers of compiled ones can be missing unless "
    "it was started with -XX:+PreserveFramePointer",
    "runtime_node_code": "Node: functions have names where it is started with --perf-basic-prof "
    "--interpreted-frames-native-stack",
    "runtime_node_waits": "Node: its event loop waits without a function of JavaScript: which one a timer or a packet "
    "calls next is not known yet (node --cpu-prof says where it runs)",
    "runtime_go_waits": "Go: in runtime.findRunnable, stopm and sysmon its scheduler waits, no goroutine ran: which is "
    "next is not known yet (go tool trace shows goroutines)",
    "runtime_luajit_code": "LuaJIT: only functions of C are seen (luajit -jp, or require('jit.p').start(), shows those "
    "of Lua)",
    "runtime_dotnet_code": ".NET: methods have names where it is started with DOTNET_PerfMapEnabled=1 in its "
    "environment",
    "runtime_mono_code": "Mono: methods have names where it is started with mono --jitmap",
    "runtime_ruby_code": "Ruby: compiled methods have names where it is started with ruby --yjit-perf (3.3 or later)",
    "runtime_php_code": "PHP: compiled functions have names with opcache.jit_debug=16 in php.ini",
    "runtime_erlang_code": "Erlang: functions have names where it is started with erl +JPperf true",
    "runtime_postgres_jit_code": "PostgreSQL: what it compiled for a query has no name here (jit_profiling_support "
    "writes it for perf); with SET jit = off the executor's functions are seen",
    "runtime_openj9_code": "OpenJ9: methods have names where it is started with -XX:+PerfTool",
    "wakings_not_counted": "the load was too high to look at every sleep and waking of the target: wakings_count is "
    "unknown",
    "sites_left_out": "too many call sites to count wakings at: {count} {count:was|were} left out",
    "stacks_lost": "{count} {count:stack was|stacks were} lost to a full buffer: "
    "{count:that exit has|those exits have} no complete stack (a larger --stack-buffer)",
    "sampled_exits": "every idle exit is counted; single periods (timeline) are one in {one_in} of them"
    "{lost_count:| (1 of these was lost)| ({lost_count:,} of these were lost)}",
    "interrupts_unseen": "{count:,} {count:interrupt|interrupts} without a tracepoint came in the window ({named}): "
    "idle periods that {count:it|they} ended are named by what they did, or unknown",
    "ended_threads": "{count} idle {count:exit of a thread|exits of threads} that had ended {count:is|are} grouped by "
    "name: there were too many causes",
    "causes_lost": "there were more causes than are kept: {count} idle {count:exit is|exits are} not in any row",
    "stacks_not_copied": "there were more call paths than are kept: the {count:stack|stacks} of {count} "
    "{count:was|were} not copied",
    "wakeups_of_traced_window": "without tracing nothing counts wake-ups here: those shown are of the traced window",
    "within_call": "what a stored procedure executes is within its CALL: the statements inside are not listed",
    "prepared_before": "statements that were prepared before the window, or whose numbers were not seen, have no text: "
    "performance_schema has it (performance_schema=ON at the server's start), and so have clients that reconnect",
    "ends_by_do_command": "this kernel does not report when a socket is written: latency lasts to the next wait for a "
    "packet",
    "ends_by_report": "this kernel does not report when a socket is written: a statement ends just before its last "
    "packet",
    "messages_alike": "messages of this build cannot be distinguished: preparing a statement counts as a call, a "
    "pipeline of one statement as one call",
    "shares_of_samples": "shares are those of {count:,} {count:sample|samples} ({hz} a second and CPU) and have 95 % "
    "intervals; each CPU was woken for them, which joules contain",
    "samples_count_calls": "samples show neither wake-ups, page faults nor latencies of statements; calls are the "
    "server's own count, from just before the window to just after it; preparing a statement counts as executing it",
    "samples_without_calls": "samples show neither wake-ups, page faults nor latencies of statements; calls are "
    "unknown; preparing a statement counts as executing it",
    "postgresql_not_asked": "PostgreSQL itself is not asked: schemas are the databases in the titles of processes that "
    "live at one end of the window; rows are unknown; what functions execute is within the statement that calls them",
    "postgresql_counted": "rows sent and query ids are those of pg_stat_statements, from just before the window to "
    "just after it; schemas are databases; what functions execute is within the statement that calls them",
    "no_login": "the server does not let this user in by its socket: threads have the kernel's names, schemas and rows "
    "are unknown (name an account with --defaults-file)",
    "rows_unknown": "rows examined and sent are unknown: performance_schema is off, or does not collect statements",
    "rows_counted": "rows examined and sent are the server's own counts, from just before the window to just after it",
    "texts_cut": "{count:,} {count:text is|texts are} longer than {bytes:,} bytes: statements that differ only beyond "
    "that count as one",
    "probes_costly": "samples were chosen: in a trial of half a second probes took {percent:.1f} % of the server's CPU "
    "time ({each_us:.1f} µs a statement at {rate_hz:,.0f} statements/s); --method probes measures with them anyway",
    "windows_apart": "the intervals are those of the calls within the two windows: a busier host makes all statements "
    "more expensive, which several windows of each show (queries --watch, or repeat it)",
    "all_changed": "statements that are compared ({count}) changed by × {ratio:.2f} in the median: the host or "
    "the server changed, not one statement",
    "methods_differ": "A was measured by {a} and B by {b}",
    "servers_differ": "the servers differ: {a} and {b}",
    "spread_unknown": "of statements with fewer than {calls} calls, and of runs that an older powerprof saved, the "
    "interval is unknown",
    "texts_unreadable": "{count:,} {count:text|texts} could not be read",
    "names_missing": "{percent:.0f} % of the frames have no name, in {files}: these files are stripped. To get the "
    "names:\n{command}",
    "names_stripped": "{percent:.0f} % of the frames have no name, in {files}: these files are stripped, and no "
    "package has their debug information (build them with -g, or keep their symbols)",
    "table_full": "a table of the tracer had no room {count:once|{count:,} times}: figures are too low",
}


class _Counting(Formatter):
    """Format strings whose figures choose between forms of a word."""

    def format_field(self, value: Any, format_spec: str) -> str:
        forms = format_spec.split("|")
        if len(forms) == 1:
            return str(super().format_field(value, format_spec))
        none, one, many = forms if len(forms) == 3 else (forms[1], *forms)
        return none if value == 0 else one if value == 1 else many


_COUNTING = _Counting()


def filled(template: str, values: Mapping[str, Any]) -> str:
    """A template with its figures. A saved note may hold anything: what does not fit is shown as it is."""
    try:
        return _COUNTING.vformat(template, (), values)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError):
        return f"{template.partition('{')[0].strip()} {dict(values)}".strip()


def texts(notes: Iterable[Note | str]) -> list[str]:
    """Notes as sentences; those that are words already stay."""
    return [note if isinstance(note, str) else filled(WORDS.get(note.name, note.name), note.values) for note in notes]
