# SPDX-License-Identifier: Apache-2.0
"""Numbers of the pages are those of the program: each phrase is built from a constant."""

from __future__ import annotations

import re

import pytest

from powerprof.attribution import capture, deep_what_if
from powerprof.cli import app, sweep
from powerprof.cure import candidates, judge, replicas
from powerprof.database import preparation
from powerprof.diagnosis import (
    collect,
    consumers,
    cpu_times,
    process_starts,
    rules_clients,
    rules_connections,
    rules_logins,
    rules_processes,
    rules_replication,
    rules_threads,
    rules_vacuum,
    server_queries,
    statement_window,
    thread_pace,
)
from powerprof.experiment import function_samples, options
from powerprof.live import exporter, metrics, metrics_server, servers
from powerprof.live import statements as live_statements
from powerprof.model import runs
from powerprof.queries import comparison, probes, release, session
from powerprof.report import recent_profiles
from powerprof.report.html import queries as html_queries
from powerprof.report.html import text as html_text
from powerprof.statistics import verdicts
from powerprof.system import foreign_data, open_files, outside_files
from powerprof.tracing import (
    followed,
    functions,
    idle_program,
    idle_stacks,
    idle_tables,
    offcpu,
    profile,
    statement_samples,
    statement_tables,
)
from powerprof.tracing.bpf import cost_meter
from tests.conftest import REPOSITORY
from tests.unit.docs.test_statements import DOCS, _flat
from tools.pages.cli import commands

_OBJECTS = [file.stat().st_size for file in (REPOSITORY / "probes/compiled").iterdir()]
_PARTS = {3.0: "third", 4.0: "quarter", 5.0: "fifth"}
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def _word(number: float) -> str:
    return _WORDS[int(number)]


def _default(command: str, name: str) -> object:
    return next(one.default for one in commands()[command].options if one.name == name)


def _pythons() -> list[str]:
    """Return the releases of Python that the package names."""
    return re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (REPOSITORY / "pyproject.toml").read_text("utf-8")
    )


# Page, phrase. A phrase is compared without line ends.
PHRASES = [
    ("cost-and-safety.md", f"{profile.SAMPLE_HZ} samples per second and CPU"),
    ("cost-and-safety.md", f"2 µs per sample, {statement_samples.SAMPLE_HZ} per second and CPU"),
    ("cost-and-safety.md", "`queries` tries probes for half a second" if probes._TRIAL_S == 0.5 else ""),
    ("cost-and-safety.md", f"({_default('idle', '--clients')} by default)"),
    ("reference/attribute.md", f"At most {idle_stacks.STACK_BYTES >> 20} MiB of stacks per window"),
    ("reference/attribute.md", f"{idle_program.THREAD_STACKS} call paths per thread"),
    ("reference/attribute.md", f"Up to {10 * idle_program.LOADED_PER_100MS:,} sleeps and wakings"),
    ("reference/attribute.md", f"one in {idle_program.SAMPLE_1_IN} is inspected"),
    ("reference/attribute.md", f"more than {idle_program._CAUSES_WITH_STACKS:,} combinations of call site and origin"),
    ("reference/attribute.md", f"copied up to {capture._STACK_LIMIT_BYTES >> 10} KiB"),
    ("reference/attribute.md", f"up to {idle_tables.EVERY_PERIOD_LIMIT:,}"),
    ("reference/attribute.md", f"the scatter of {deep_what_if._BLOCKS} blocks of the window"),
    ("reference/attribute.md", f"look for new processes every {followed.LOOK_S} s"),
    ("how-to/attribute-wakeups.md", f"powerprof samples every CPU {profile.SAMPLE_HZ} times a second"),
    ("how-to/attribute-wakeups.md", f"is sampled again within {followed.LOOK_S} s"),
    ("how-to/attribute-wakeups.md", f"in {_word(function_samples.SAMPLED_WINDOWS)} windows of "
     f"{function_samples.SAMPLED_WINDOW_S} s per condition"),
    ("reference/functions-offcpu-syscalls.md", f"More than {functions.MAX_FUNCTIONS} functions are refused"),
    ("reference/functions-offcpu-syscalls.md", f"At most {offcpu._THREADS:,} threads and {offcpu._WAKERS:,} pairs"),
    ("how-to/costly-statements.md", f"EXPLAIN on the {_word(session._MAX_EXPLAINED)} most expensive statements"),
    ("how-to/costly-statements.md", f"with up to {session._MAX_SAVED} of them"),
    ("how-to/costly-statements.md", f"texts longer than {statement_tables.TEXT_BYTES - 1:,} bytes"),
    ("how-to/costly-statements.md", f"each of the {_word(html_queries._MAX_FLAMES)} statements with most samples"),
    ("how-to/costly-statements.md", f"It needs {_word(comparison._FEWEST_STATEMENTS)} statements with known ratios"),
    ("how-to/costly-statements.md", f"{statement_samples.SAMPLE_HZ} times a second on each CPU"),
    ("how-to/costly-statements.md", f"known statements for {release.SELF_TEST_S:g} s"),
    ("reference/diagnose.md", f"The traced window takes {float(str(_default('diagnose', '--duration'))):g} s"),
    ("reference/diagnose.md", f"watch of new processes {process_starts.WATCH_S:g} s"),
    ("reference/diagnose.md", f"at most {server_queries._MOST_LOGGED} events of the binary log"),
    ("reference/diagnose.md", f"{_word(collect._SAMPLES)} samples of process list, replication status and replicas "
     "within a third of a second" if collect._SAMPLES * collect._SAMPLE_S < 0.34 else ""),
    ("reference/diagnose.md", f"the last {collect._LOG_END_BYTES >> 10} KiB of the error log"),
    ("reference/diagnose.md", f"in {collect._LOG_SPAN_S / 60:g} minutes, one of them in the last two"
     if rules_logins._RECENT_S == 120 else ""),
    ("reference/diagnose.md", f"{_word(rules_logins._MIN_FAILURES)} or more refused logins of a replication account"),
    ("reference/diagnose.md", f"failed logins {rules_logins._FAILED_LOGINS_HZ:g} times/s or more; or "
     f"{rules_connections._CONNECTS_HZ:g} connections/s or more with at most "
     f"{_word(rules_connections._FEW_STATEMENTS)} statements each ({_word(rules_connections._MOST_STATEMENTS)} if they "
     f"use {consumers.MAIN_PERCENT:g} % of a CPU)"),
    ("reference/diagnose.md", f"`Threads_connected` rises {rules_connections._LEAKED_HZ:g} times/s or more, and the "
     f"new connections, {_word(rules_connections._MIN_LEAKED)} or more"),
    ("reference/diagnose.md", "four of five new processes of clients stay"
     if rules_connections._MIN_LASTING == 0.8 else ""),
    ("reference/diagnose.md", f"uses a {_PARTS[100 / cpu_times._NEIGHBOUR_PERCENT]} of a CPU or more"),
    ("reference/diagnose.md", f"transactions that are idle for {server_queries._LEAST_OPEN_S} s or more"),
    ("reference/diagnose.md", f"use {100 * statement_window._COSTLY_SHARE:g} % of the server's CPU time and "
     f"{statement_window._COSTLY_PERCENT:g} % of a CPU, or wake it {rules_clients._WOKEN_HZ:g} times/s or more"),
    ("reference/diagnose.md", f"half of all calls or more, {rules_clients._WOKEN_HZ:g} times/s or more"
     if rules_clients._MIN_SHARE == 0.5 else ""),
    ("reference/diagnose.md", f"repeated or with {rules_clients._RARE_PERCENT:g} % of a CPU. PostgreSQL: a "
     f"{_PARTS[100 / rules_clients._SCAN_PERCENT]} of the statement's CPU time"),
    ("reference/diagnose.md", "recurring events start once in two seconds or more often"
     if rules_threads._EVENTS_HZ == 0.5 else ""),
    ("reference/diagnose.md", f"half of the server's CPU time or more, and {consumers.MAIN_PERCENT:g} % of a CPU"
     if consumers.MAIN_SHARE == 0.5 else ""),
    ("reference/diagnose.md", f"the relay log changes {rules_replication._EVICTED_HZ} times/s or more"),
    ("reference/diagnose.md", f"the same GTID {_word(rules_replication._MIN_ROUNDS)} times, or a statement of an "
     f"unknown server {_word(rules_replication._MIN_SAME_TEXT)} times"),
    ("reference/diagnose.md", f"its own timer wakes {thread_pace.POLLING_HZ:g} times/s or more"),
    ("reference/diagnose.md", f"{_word(rules_threads._MANY_THREADS)} or more of one kind count together"),
    ("reference/diagnose.md", f"events of the scheduler use {rules_threads._EVENT_PERCENT:g} % of a CPU"),
    ("reference/diagnose.md", f"threads that use {rules_threads._NOTED_PERCENT:g} % of a CPU"),
    ("reference/diagnose.md", f"{_word(rules_processes._MIN_STARTS)} or more processes of one kind start"),
    ("reference/diagnose.md", f"counts {_word(rules_processes._MIN_ERRORS)} errors in the window"),
    ("reference/diagnose.md", f"{_word(rules_vacuum._STARTS_HZ)} workers start per second"),
    ("reference/diagnose.md", "uses at most a fifth of a CPU" if process_starts._MAX_SHARE == 0.2 else ""),
    ("reference/diagnose.md", f"as root the CPU time of statements for {statement_window.WINDOW_S:g} s"),
    ("support.md", f"runs on Linux with Python {_pythons()[0]} to {_pythons()[-1]}"),
    ("reference/environment.md", f"less than {runs._NEEDED_BYTES >> 20} MiB free"),
    ("reference/environment.md", f"less than {preparation._SERVER_BYTES >> 20} MiB in `$TMPDIR`"),
    ("reference/environment.md", f"below {open_files._NEEDED} open files and {open_files._NEEDED_PER_CPU} per CPU"),
    ("reference/environment.md", f"less than {app._LEAST_MIB} MiB of memory (`ulimit -v`)"),
    ("reference/metrics.md", f"at most {live_statements._MAX_TEXT} characters"),
    ("reference/metrics.md", f"The `--top` rows ({metrics.TOP})"),
    ("reference/metrics.md", f"A row ends after {metrics.STALE_S:g} s without activity"),
    ("reference/metrics.md", f"by default above {exporter._MAX_SEPARATE_CPUS} CPUs"),
    ("reference/metrics.md", f"counted by the kernel until {cost_meter.ENOUGH:,} events"),
    ("reference/metrics.md", f"late by more than {_word(exporter._LATE_INTERVALS - 1)} of its lengths and "
     f"{exporter._LATE_S:g} s"),
    ("reference/metrics.md", "for ten minutes" if live_statements._RETRY_S == 600 else ""),
    ("how-to/prometheus.md", f"(at most {recent_profiles._KEPT_S:g} s and {recent_profiles._MOST_STACKS:,} stacks)"),
    ("how-to/prometheus.md", "once a minute" if servers.ASK_EVERY_S == 60 else ""),
    ("dev/reports.md", f"have a place by cost, which halves every {metrics._HALF_LIFE_S:g} s"),
    ("dev/tracing.md", f"{len(_OBJECTS)} objects of {sum(_OBJECTS) / 1000:.0f} kB in place of"),
    ("../CHANGELOG.md", f"{len(_OBJECTS)} compiled objects of {sum(_OBJECTS) / 1000:.0f} kB are carried"),
    ("dev/reports.md", f"A server without an answer after {servers._TIMEOUT_S:g} s is down"),
    ("dev/reports.md", f"names cut at {html_text.NAME_LIMIT} characters"),
    ("dev/security.md", f"{metrics_server._MAX_WAITING} waiting connections"),
    ("dev/security.md", f"saved runs have {runs._LIMIT_BYTES >> 20} MiB and "
     f"{foreign_data._MAX_DECODED_BYTES >> 20} MiB in memory"),
    ("dev/security.md", f"gzip unpacks to {outside_files._MAX_RATIO} times its size or "
     f"{outside_files._LEAST_BYTES >> 20} MiB"),
    ("dev/security.md", f"recordings have {foreign_data._MAX_LINES:,} lines, "
     f"{foreign_data._MAX_CELLS // 10**6} million cells"),
    ("how-to/cure.md", f"{_default('cure', '--pairs')} windows without the change and "
     f"{_default('cure', '--pairs')} with it"),
    ("how-to/cure.md", "wake at least twice a second" if candidates._MIN_RATE_HZ == 2 else ""),
    ("how-to/cure.md", f"a false positive in {100 - 100 * judge._LEVEL:.1f} % of tests"),
    ("how-to/cure.md", f"It is read {_word(1 / replicas._INTERVAL_S)} times a second"),
    ("how-to/cure.md", f"up to {_word(options.MOST_PAIRS_FACTOR)} times `--pairs`"),
    ("how-to/compare-a-setting.md", f"A round has {sweep._STEPS} windows of 2 s"),
    ("how-to/track-cost.md", f"A window lasts `--duration` seconds ({options.COMMAND_WINDOW_S:g})"),
    ("dev/experiments.md", f"a p-value of at most {100 - 100 * verdicts.PRIMARY_LEVEL:.1f} %"),
    ("dev/experiments.md", f"survive Holm at {100 * verdicts.FAMILY_LEVEL:.1f} % together"),
    ("dev/experiments.md", f"are replaced (at most {100 * options.REPLACED_SHARE:.0f} %)"),
    ("concepts.md", "every 0.05 s if the conditions allow it" if options.TURN_S == 0.05 else ""),
]  # fmt: skip


@pytest.mark.parametrize(("page", "phrase"), PHRASES, ids=lambda value: value[:60])
def test_a_number_on_a_page_is_that_of_the_program(page: str, phrase: str) -> None:
    assert phrase and phrase.lower() in _flat(DOCS / page).lower()
