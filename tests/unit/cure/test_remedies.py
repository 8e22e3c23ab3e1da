# SPDX-License-Identifier: Apache-2.0
"""Options that choose a remedy, the remedies of findings, and timer slack that stays."""

from __future__ import annotations

import ast
import configparser
import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import powerprof.diagnosis
from powerprof.cli.app import run_app
from powerprof.cure import slack
from powerprof.cure.candidates import (
    choice_of,
    find_finding,
    list_finding_candidates,
    list_thread_candidates,
    select_candidates,
)
from powerprof.cure.remedies import CureRequest, FindingChoice, VariableChoice, parse_choice, parse_guard, parse_slack
from powerprof.cure.slack import slack_text
from powerprof.cure.threads import SlackChoice, loop_warning
from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import (
    TRIED_RULES,
    DiagnosedServer,
    Diagnosis,
    Evidence,
    Finding,
    LiveRemedy,
    ThreadWakeups,
)
from powerprof.diagnosis.rules_threads import find_polling_waits
from powerprof.model.attribution import Thread
from powerprof.report.cure import candidate_lines
from powerprof.reversible.journal import is_same_value
from powerprof.system.errors import UsageError
from powerprof.system.targets import Target
from tests.unit.layers import sources


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("50ms", 50_000_000), ("1s", 1_000_000_000), ("0.5 ms", 500_000), ("50us", 50_000), ("50µs", 50_000), ("1ns", 1)],
)
def test_parse_slack_with_its_unit(text: str, nanoseconds: int) -> None:
    assert parse_slack(text) == nanoseconds
    assert parse_slack(slack_text(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    "text", ["", "50", "ms", "-1ms", "1e5ms", "nanms", "infs", "٣ms", "1min", "0ms", "0.1ns", "10.1s", "9" * 400 + "s"]
)
def test_refuse_invalid_slack(text: str) -> None:
    with pytest.raises(UsageError):
        parse_slack(text)


@pytest.mark.parametrize(
    ("text", "guard"), [("p99=5%", (99, 5.0)), ("p50=12.5", (50, 12.5)), ("p95=0.25 %", (95, 0.25))]
)
def test_parse_a_guard_of_a_percentile_and_a_limit(text: str, guard: tuple[int, float]) -> None:
    assert parse_guard(text) == guard


@pytest.mark.parametrize("words", ["", "p99", "p90=5", "p99=-1", "p99=x", "99=5%", "p99=5%%", "p99=5,p95=3"])
def test_refuse_invalid_guards(words: str) -> None:
    with pytest.raises(UsageError, match="--guard"):
        parse_guard(words)


def test_parse_one_remedy_or_none() -> None:
    assert parse_choice(None, None, None) is None
    assert parse_choice("a", "1ms", None) == SlackChoice("a", 1_000_000)
    assert parse_choice(None, None, "sync_binlog=0") == VariableChoice("sync_binlog", "0")
    assert parse_choice(None, None, "init_connect=") == VariableChoice("init_connect", "")


@pytest.mark.parametrize(
    ("thread", "slack", "variable", "finding_word"),
    [
        ("a", None, None, None),
        (None, "1ms", None, None),
        ("a", None, "b=1", None),
        ("a", "1ms", "b=1", None),
        (" ", "1ms", None, None),
        ("a\n", "1ms", None, None),
        ("a" * 200, "1ms", None, None),
        (None, None, "b", None),
        (None, None, "=1", None),
        (None, None, "b c=1", None),
        (None, None, "b, GLOBAL c=1", None),
        (None, None, "b=1\x1b[31m", None),
        (None, None, "b=" + "1" * 600, None),
        ("a", "1ms", None, "polling_wait"),
        (None, None, "b=1", "polling_wait"),
        (None, "1ms", None, "polling_wait"),
    ],
)
def test_refuse_inconsistent_choices(
    thread: str | None, slack: str | None, variable: str | None, finding_word: str | None
) -> None:
    with pytest.raises(UsageError):
        parse_choice(thread, slack, variable, finding_word)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1", "ON", True),
        ("0", "off", True),
        ("0.500000", "0.5", True),
        ("ROW", "row", True),
        ("7", "8", False),
        ("", "0", False),
        ("ON", "2", False),
    ],
)
def test_compare_two_notations_of_a_value(one: str, other: str, same: bool) -> None:
    assert is_same_value(one, other) is same


def finding(rule: str, *tries: LiveRemedy, remedy: str = "KILL 7") -> Finding:
    return Finding(rule=rule, severity="fault", text=f"It {rule}s.", evidence=[], remedy=[remedy], tries=list(tries))


_FINDINGS = [
    finding("poll", LiveRemedy(variable="b", value="x y"), LiveRemedy(tid=7, slack_ns=50_000_000)),
    finding("events", LiveRemedy(variable="event_scheduler", value="0")),
    finding("monitor", remedy="SET GLOBAL server_id=ANOTHER"),
    finding("again", LiveRemedy(tid=7, slack_ns=50_000_000)),
    finding("again", LiveRemedy(tid=8, slack_ns=1_000_000)),
]


def test_list_each_remedy_of_findings_once() -> None:
    assert [(each.options, each.tid) for each in list_finding_candidates(3, _FINDINGS)] == [
        (["--set", "b=x y"], None),
        (["--thread", "7", "--slack", "50ms"], 7),
        (["--set", "event_scheduler=0"], None),
        (["--thread", "8", "--slack", "1ms"], 8),
    ]


@pytest.mark.parametrize(
    ("word", "choice"),
    [
        ("poll", VariableChoice("b", "x y")),
        ("1", VariableChoice("b", "x y")),
        ("events", VariableChoice("event_scheduler", "0")),
        ("5", SlackChoice("8", 1_000_000)),
    ],
)
def test_choose_a_finding_by_rule_or_number(word: str, choice: object) -> None:
    assert choice_of(find_finding(word, _FINDINGS)[1]) == choice


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("nothing", "no finding matches 'nothing'", "found now: 1 poll, 2 events, 3 monitor, 4 again, 5 again"),
        ("6", "no finding matches '6'", "found now: 1 poll"),
        ("again", "2 findings match again", "name one by its number: 4, 5"),
        ("monitor", "has no remedy to try on the live server", "Advice: SET GLOBAL server_id=ANOTHER"),
    ],
)
def test_refuse_findings_without_one_live_remedy(word: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        choice_of(find_finding(word, _FINDINGS)[1])
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize("word", ["7", *TRIED_RULES])
def test_accept_numbers_and_rules_with_remedies(word: str) -> None:
    assert parse_choice(None, None, None, word) == FindingChoice(word)


@pytest.mark.parametrize(
    "word", ["nosuch", "monitoring_client", "event_cpu", "cpu_time", "polling", "polling_waits", "all"]
)
def test_refuse_rules_without_remedies_before_measuring(word: str) -> None:
    with pytest.raises(UsageError, match=f"no finding '{word}' can be tried") as refused:
        parse_choice(None, None, None, word)
    assert all(rule in (refused.value.hint or "") for rule in TRIED_RULES)


def test_rules_with_remedies_are_complete() -> None:
    calls = [
        node
        for file in Path(powerprof.diagnosis.__file__).parent.glob("rules_*.py")
        for node in sources.walk(file.read_text())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"
    ]
    words = [{word.arg: word.value for word in call.keywords} for call in calls]
    rules = {named["rule"].value for named in words if "tries" in named and isinstance(named["rule"], ast.Constant)}
    assert sorted(rules) == sorted(TRIED_RULES)


def test_every_fault_is_among_the_candidates() -> None:
    """`diagnose` finds a fault: so `cure` prints it, with the options that try it or the reason why none does."""
    threads = [
        ThreadWakeups(
            tid=tid, comm="t", name="thread/innodb/io_read_thread", origin="own_timer", rate_hz=1.9, wakings_hz=1.9,
            period_ms=None, stack=["timerfd_read"],
        )
        for tid in range(1, 9)
    ]  # fmt: skip
    evidence = Evidence(version="", family="", window_s=1.0, wakeups=threads, pid=9)
    counted = {"status_before": {"Aborted_connects": 0}, "status_after": {"Aborted_connects": 100}}
    for here in (evidence, msgspec.structs.replace(evidence, wakeups=[], **counted)):
        found = diagnose(here)
        made = Diagnosis(
            id=None, started_at="", server=DiagnosedServer(pid=9, version="", address=None), findings=found,
            evidence=here,
        )  # fmt: skip
        faults = [each for each in found if each.severity == "fault"]
        printed = "\n".join(candidate_lines(select_candidates(9, made)))
        assert faults
        assert all(each.text in printed for each in faults)
        assert "no thread wakes" not in printed


@pytest.mark.parametrize("word", ["", "0", "-1", "a b", "A", "1.5", "x" * 80, "٣"])
def test_refuse_invalid_names_of_findings(word: str) -> None:
    with pytest.raises(UsageError, match="neither a rule nor a number"):
        parse_choice(None, None, None, word)


def test_list_threads_with_frequent_own_timers() -> None:
    def row(tid: int, origin: str, rate_hz: float, wakings_hz: float | None = None) -> ThreadWakeups:
        return ThreadWakeups(
            tid=tid, comm=f"t{tid}", name=None, origin=origin, rate_hz=rate_hz, wakings_hz=wakings_hz,
            period_ms=None, stack=[], waker=None,
        )  # fmt: skip

    rows = [row(1, "own_timer", 1.0), row(2, "own_timer", 3.0), row(3, "device", 99.0), row(4, "own_timer", 0.0, 90.0)]
    assert [each.options for each in list_thread_candidates(9, rows)] == [
        ["--thread", "4", "--slack", "50ms"],
        ["--thread", "2", "--slack", "50ms"],
    ]


def test_threads_that_slack_does_not_help_are_named_with_the_reason() -> None:
    """`diagnose` reports the same threads at the same rates: one rule has both."""

    def row(tid: int, stack: list[str], wakings_hz: float) -> ThreadWakeups:
        return ThreadWakeups(
            tid=tid, comm=f"t{tid}", name=None, origin="own_timer", rate_hz=0.0, wakings_hz=wakings_hz,
            period_ms=None, stack=stack, waker=None,
        )  # fmt: skip

    usleep = ["runtime.usleep.abi0", "runtime.sysmon"]
    rows = [row(1, usleep, 110.0), row(1, usleep, 110.0), row(2, usleep, 1.0)]
    (candidate,) = list_thread_candidates(9, rows, "Go")
    assert (candidate.tid, candidate.options) == (1, None)
    printed = candidate_lines([candidate])
    assert printed == [
        "No changes to try on the live server:",
        "  t1 (thread 1) wakes 110.0 times a second by its own timers; it is a program of Go: timer slack would delay "
        "all its own timers",
    ]
    # Rows of one stack share one count of wakings.
    assert [each.why for each in list_thread_candidates(9, rows)] == [
        "t1 (thread 1) wakes 110.0 times a second by its own timers"
    ]
    evidence = Evidence(version="", family="", window_s=1.0, wakeups=rows, pid=9, language="Go")
    (polling,) = find_polling_waits(evidence)
    assert polling.rate_hz == 110.0 and not polling.tries
    assert "it is a program of Go: timer slack would delay all its own timers" in polling.remedy
    assert "no thread wakes 2 times a second or more by its own timers" in candidate_lines([])[0]


@pytest.mark.parametrize("percent", [0.0, -1.0, 100.0, float("nan"), float("inf")])
def test_refuse_invalid_precision(percent: float) -> None:
    with pytest.raises(UsageError, match="must be between 0 and 100 %"):
        CureRequest(pid="1", choice=None, pairs=4, window_s=5.0, seed=1, precision_percent=percent)


_SLEEPER = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print(1, flush=True); "
_EVENT_LOOP = "import select; e = select.epoll(); print(1, flush=True); e.poll(60)"
_PR_SET_TIMERSLACK = 29
CHOICE = SlackChoice("governor", 50_000_000)


def start(code: str, slack_ns: int = 0) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        if slack_ns:
            libc.prctl(_PR_SET_TIMERSLACK, slack_ns)

    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, preexec_fn=prepare)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def slacks(pid: int) -> set[str]:
    tids = [entry.name for entry in Path(f"/proc/{pid}/task").iterdir()]
    return {Path(f"/proc/{tid}/timerslack_ns").read_text().strip() for tid in tids}


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = start(_SLEEPER + "time.sleep(60)")
    yield process
    end(process)


def test_refuse_an_unknown_thread_after_the_wait(sleeper: subprocess.Popen[bytes]) -> None:
    with pytest.raises(UsageError, match="has no thread 'nobody'"):
        slack.keep_slack(str(sleeper.pid), SlackChoice("nobody", 1), 0.1)


def test_command_keeps_slack_and_releases_it(
    sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cure", "--pid", str(sleeper.pid), "--thread", str(sleeper.pid)]
    assert run_app([*words, "--slack", "50ms", "--keep"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith(": 50us → 50ms, verified.")
    assert "powerprof cure --pid" in printed[-1] and printed[-1].endswith("--release")
    assert slacks(sleeper.pid) == {"50000", "50000000"}
    assert run_app([*words, "--release"]) == 0
    assert capsys.readouterr().out.endswith(": 50ms → 50us, verified.\n")
    assert slacks(sleeper.pid) == {"50000"}


def test_threads_inherit_slack_across_exec() -> None:
    process = start(_SLEEPER + "time.sleep(60)", 50_000_000)
    try:
        assert slacks(process.pid) == {"50000000"}
    finally:
        end(process)


def test_warn_about_an_event_loop() -> None:
    loop = start(_EVENT_LOOP)
    try:
        while not (said := loop_warning(loop.pid, Thread(tid=loop.pid, comm="python"))):
            assert loop.poll() is None
        assert "is an event loop: this delays every timer of its program" in said
    finally:
        end(loop)


def texts(monkeypatch: pytest.MonkeyPatch, unit: str | None, pid: str = "mysqld", name: str = "governor") -> str:
    monkeypatch.setattr(slack, "service_of", lambda _pid: unit)
    thread = Thread(tid=7, comm="ib_log", server_name=None)
    return slack.unit_text("/usr/bin/powerprof", pid, SlackChoice(name, 50_000_000), Target((5,), "mysqld"), thread)


def test_service_follows_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    read = configparser.RawConfigParser()
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(texts(monkeypatch, "mysql.service"))
    assert read["Unit"]["BindsTo"] == read["Unit"]["After"] == read["Install"]["WantedBy"] == "mysql.service"
    assert (
        read["Service"]["ExecStart"]
        == "/usr/bin/powerprof cure --pid mysqld --thread governor --slack 50ms --keep --wait 120"
    )
    by_number = texts(monkeypatch, "mysql.service", "5", "7")
    assert "cure --pid mysqld --thread ib_log --slack" in by_number  # numbers change at a restart


def test_refuse_targets_unsuitable_for_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is not part of a systemd service"):
        texts(monkeypatch, None)
    with pytest.raises(UsageError, match="is not allowed in a unit"):
        texts(monkeypatch, "mysql.service", name="a\nExecStart=/bin/sh")


def test_drop_in_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slack, "service_of", lambda _pid: "mysql.service")
    text = slack.drop_in_text(CHOICE, Target((5,), "mysqld"))
    assert text.endswith("[Service]\nTimerSlackNSec=50ms\n")
    assert "systemctl edit mysql.service" in text
