# SPDX-License-Identifier: Apache-2.0
"""Command lines that are refused, in this process: exit code, one line of error, and one line of remedy.

Each is refused before anything is measured, started or connected to. Refusals of a server or program are in
tests/system/errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.programs.in_process import Ended, Run, the_commands, up_to_the_first_window

__all__ = ["the_commands", "up_to_the_first_window"]

LONG = ("--duration", "120")
CITY = ("city:index", *LONG)
CURE = ("cure", "--pid", "1")
IDLE = ("idle", "--clients", "0")


def _each(words: Sequence[str], option: str, values: Sequence[str], error: str, hint: str = "") -> list[Row]:
    return [(2, error, hint, (*words, option, value)) for value in values]


# Exit code, start of the error, a part of the remedy, command line.
Row = tuple[int, str, str, tuple[str, ...]]
NO_TIME = r"--duration \S+: (must be at (least 0\.05|most 604,800) s|not a time)"
VALUES: list[Row] = [
    *(
        row
        for command in ("idle", "residency")
        for row in _each([command], "--duration", ["0", "-1", "nan", "inf", "1e9", "1e-9", "ten", "٣"], NO_TIME)
    ),
    # 0 clients are allowed: the server alone is measured.
    *_each(["idle"], "--clients", ["-1"], r"--clients -1: must be at least 0"),
    *_each(["idle"], "--clients", ["10000000", "60001"], r"--clients \S+: must be at most 60,000"),
    *_each(["idle"], "--clients", ["1.5", "many"], r"--clients \S+: not a whole number"),
    *_each(["idle"], "--clients", ["9" * 400], r"--clients 99"),
    *_each(["idle"], "--repeat", ["0", "-1", "1001", "x"], r"--repeat"),
    *_each(IDLE, "--residency-source", ["nonsense", "cpuidle;ls", "../../etc", "\x1b[31m"], r"no residency source"),
    *_each(IDLE, "--meter", ["nonsense", "cpuidle;ls", "\x1b[31m"], r"--meter .*: .* is not a choice"),
    *_each(["residency"], "--residency-source", ["nonsense"], r"no residency source 'nonsense'"),
    *_each(["residency"], "--residency-source", ["9" * 5000], r"no residency source '9+…9+'"),
    *_each(IDLE, "--meter", ["auto,rapl"], r"--meter auto,rapl: auto stands alone$"),
    *_each(IDLE, "--meter", ["none,none"], r"--meter none,none names none twice$"),
    *_each(IDLE, "--meter", ["rapl,"], r"--meter rapl,: an empty name is not a choice$"),
    *_each(IDLE, "--meter", ["rapl,x"], r"--meter rapl,x: x is not a choice$"),
    (2, r"--elapsed", "", ("residency", "--from", "/proc/stat", "--elapsed", "0")),
    # Arguments that do not fit.
    (2, r"", "", ("idle", "more")),
    (2, r"", "", ("idle", "--clients")),
    (2, r"", "", ("residency", "after-without-from")),
    (2, r"", "", ("residency", "--elapsed", "5")),
    (2, r"", "", ("residency", "--from")),
    (2, r"", "", ("report",)),
    (2, r"", "", ("runs", "a", "b")),
    (2, r"unexpected argument: word word", "", ("compare", "index", "no-index", *["word"] * 200)),
    # Servers.
    *(
        row
        for row in _each(
            IDLE,
            "--server",
            [
                *("nonsense", "http://root@127.0.0.1/", "mysql://", "mysql://root@/", "mysql://root@127.0.0.1:0/"),
                *("mysql://root@127.0.0.1:99999/", "mysql://root@127.0.0.1:port/", "mysql://root@[::1/"),
                "mysql://root@h/?a=b",
            ],
            r"--server .*(is not an address|does not name)",
        )
    ),
    *_each(IDLE, "--server", ["mysql://root:s3cret@127.0.0.1/"], r"a password in --server would show", "option file"),
    (
        2,
        r"--server and --socket name two servers",
        "",
        (*IDLE, "--server", "mysql://root@127.0.0.1/", "--socket", "/x"),
    ),
    (
        *(2, r"--server-binary has no effect with --socket", ""),
        (*IDLE, "--server-binary", "/bin/true", "--socket", "/x"),
    ),
    (
        *(2, r"--server-build has no effect with --server-binary", ""),
        (*IDLE, "--server-build", "mysql-9.7", "--server-binary", "/bin/true"),
    ),
    (2, r"--server-build: no server is called 'nonsense'", "", (*IDLE, "--server-build", "nonsense")),
    (1, r"/nonexistent: no such file|--defaults-file /nonexistent", "", (*IDLE, "--defaults-file", "/nonexistent")),
    (1, r"cannot start the server /nonexistent \(no such file\)", "", (*IDLE, "--server-binary", "/nonexistent")),
    (1, r"cannot start the server /tmp \(not an executable file\)", "", (*IDLE, "--server-binary", "/tmp")),
    # Runs and recordings.
    *((2, r"no run ", "powerprof runs", ("report", name)) for name in ("nosuch", "idle-0001", "../nosuch")),
    *((2, r"no run ", "powerprof runs", ("report", name)) for name in ("x" * 5000, "idle-" + "9" * 5000)),
    (2, r"/tmp is a directory without a run\.json", "", ("report", "/tmp")),
    (2, r"/dev/zero is not a regular file", "", ("report", "/dev/zero")),
    (1, r"(--from )?/nonexistent: no such file", "", ("residency", "--from", "/nonexistent")),
    (1, r"(--from )?/dev/zero: not a regular file", "", ("residency", "--from", "/dev/zero")),
    # Places.
    *(
        (2, error, "", (*command, "--json", place))
        for command in (IDLE, ("residency", "--duration", "0.05"), ("doctor",), ("runs",))
        for place, error in (
            ("/tmp", r"--json /tmp is a directory"),
            ("/nonexistent/run.json", r"--json .*: no such directory /nonexistent"),
        )
    ),
    (1, r"cannot create /proc/runs \(", "--runs-dir", ("--runs-dir", "/proc/runs", *IDLE)),
]
# One of each kind of value, and of each place that declares an option. An unset variable gives such a value:
# `--json "$FILE"`. As a path it would mean the working folder.
EMPTY = {
    "idle": ("--duration", "--clients", "--residency-source", "--meter", "--server", "-o"),
    "run": ("--workloads", "--server-binary", "--server-cpus", "--world-sql"),
    "attribute": ("--pid", "--cgroup", "--from", "-o"),
    "functions": ("--backend",),
    "compare": ("--precision",),
    "queries": ("--save-workload",),
    "energy": ("--output",),
    "export": ("--web-config",),
}
VALUES += [
    (2, rf"{option} has an empty value$", "", (command, *words))
    for command, options in EMPTY.items()
    for option in options
    for words in ((option, ""), (f"{option}=",))
]
TABLE: list[tuple[int, str, tuple[str, ...]]] = [
    # Values.
    (2, r"--rate \S+: not a finite number", ("compare", "index", "no-index", *LONG, "--rate", "nan")),
    (2, r"--rate \S+: must be above 0", ("sweep", *CITY, "--clients", "1,2", "--rate", "0")),
    (2, r"--queries", ("run", *CITY, "--queries", "0")),
    (2, r"--clients a,b: not a whole number", ("idle", *LONG, "--clients", "a,b")),
    (2, r"^error: --clients a: must be a whole number", ("sweep", *CITY, "--clients", "a,b")),
    (2, r"^error: --clients 0: must be a whole number, 1 or more$", ("sweep", *CITY, "--clients", "1,0")),
    (2, r"^error: --clients 100000: must be a whole number, at most 10000$", ("sweep", *CITY, "--clients", "1,100000")),
    (2, r"^error: --clients 1,1 names 1 twice", ("sweep", *CITY, "--clients", "1,1")),
    (2, r"^error: --clients , has an empty value", ("sweep", *CITY, "--clients", ",")),
    (2, r"two turns do not fit", ("compare", "index", "no-index", "--duration", "60", "--turn", "40")),
    (2, r"--precision nan", ("compare", "index", "no-index", *LONG, "--precision", "nan")),
    (2, r"no residency source 'nonsense'", ("compare", "index", "no-index", *LONG, "--residency-source", "nonsense")),
    (2, r"no residency source 'nonsense'", ("sweep", *CITY, "--clients", "1", "--residency-source", "nonsense")),
    # What has no effect.
    (2, r"--duration has no effect with --quick", ("idle", *LONG, "--quick")),
    (2, r"--duration and --pairs have no effect with --quick", ("compare", "a", "b", *LONG, "--quick", "--pairs", "9")),
    (2, r"--network-namespaces has no effect", ("run", *CITY, "--network-namespaces")),
    # No interval can be had.
    (2, r"^error: --pairs 1: an interval", ("compare", "--pairs", "1", "--", "true", "--", "true")),
    (2, r"^error: --repeat 0: an interval needs at least 2$", ("idle", "--repeat", "0")),
    (2, r"^error: --pairs 0: an interval needs at least 3$", ("compare", "index", "no-index", "--pairs", "0")),
    (
        2,
        r"^error: --pairs -1: an interval needs at least 3$",
        (*CURE, "--thread", "x", "--slack", "1ms", "--pairs", "-1"),
    ),
    (2, r"^error: --repeat 2: an interval needs at least 3$", ("sweep", *CITY, "--repeat", "2")),
    (2, r"^error: --until p95: not a limit$", ("sweep", "city:index", "--until", "p95")),
    (2, r"^error: --until cpu=120%: must be between 0 and 100 %$", ("sweep", "city:index", "--until", "cpu=120%")),
    (2, r"^error: city:index and index are the same condition$", ("sweep", *CITY, "index", "--until", "p95=5ms")),
    (
        2,
        r"^error: --repeat 2: an interval needs at least",
        ("sweep", "index", "no-index", "--until", "cpu=80%", "--repeat", "2"),
    ),
    (2, r"^error: no-index has no effect without --until$", ("sweep", "index", "no-index")),
    (2, r"^error: -o x.folded: this command has no .folded file", ("sweep", *CITY, "-o", "x.folded")),
    (2, r"^error: no study is called nonsense$", ("study", "nonsense")),
    (2, r"^error: --only x: power-efficiency has no such step$", ("study", "power-efficiency", "--only", "x")),
    (2, r"cannot run at a given rate \(load idle\)", ("sweep", "sixteen-connections", "--until", "p95=5ms")),
    (2, r"--quiet and --no-save discard the result", ("--quiet", "idle", *LONG, "--no-save")),
    (2, r"--event nonsense is not a choice", ("profile", "--system", *LONG, "--event", "nonsense")),
    (2, r"--backend nonsense is not a choice", ("functions", "x", "--pid", "1", *LONG, "--backend", "nonsense")),
    (2, r"--backend nonsense is not a choice", ("offcpu", "--pid", "1", *LONG, "--backend", "nonsense")),
    (2, r"no such option: --stack-buffer", ("profile", "--system", "--stack-buffer", "64")),
    (2, r"--fetch needs a server in DEBUGINFOD_URLS", ("doctor", "--pid", "1", "--fetch", "--yes")),
    (2, r"--yes has no effect without --fetch", ("doctor", "--pid", "1", "--yes")),
    (2, r"a saved run and a target exclude each other", ("doctor", "--from", "attribute-0001", "--pid", "1")),
    (
        2,
        r"--rate 0.1: less than one query in a window of 5 s",
        ("run", "city:index", "--duration", "5", "--rate", "0.1"),
    ),
    (2, r"^error: city:index and a command after -- exclude each other", ("run", "city:index", "--", "true")),
    (2, r"^error: --clients ١: must be a whole number$", ("sweep", *CITY, "--clients", "١,٢")),
    (2, r"^error: --workloads /proc: no workload.toml in it", ("workloads", "--workloads", "/proc")),
    (2, r"^error: --workloads /proc: no workload.toml in it", ("run", *CITY, "--workloads", "/proc")),
    (1, r"^error: cannot run /etc/passwd \(not executable\)", ("run", "--", "/etc/passwd")),
    (2, r"^error: --listen \[::1:9477: \[::1 is not an IP address", ("export", "--listen", "[::1:9477")),
    (2, r"^error: --pid kthreadd: 2 \(kthreadd\) is a kernel thread", ("attribute", "--pid", "kthreadd")),
    # Files.
    (2, r"-o flame:-: this command has no .flame.html file", ("functions", "x", "--pid", "1", *LONG, "-o", "flame:-")),
    (2, r"-o perfetto:-: this command has no .perfetto.json file", ("profile", "--system", *LONG, "-o", "perfetto:-")),
    (2, r"-o .*no such directory", ("idle", *LONG, "-o", "/nonexistent/page.html")),
    (2, r"only one file can be stdout", ("idle", *LONG, "-o", "html:-", "--json", "-")),
    (1, r"cannot write /proc/page.html \(", ("idle", *LONG, "-o", "/proc/page.html")),
    (1, r"cannot write /dev/full \(no space left on device\)", ("idle", *LONG, "-o", "html:/dev/full")),
    (1, r"cannot write /dev/full \(no space left on device\)", ("compare", "index", "no-index", "--json", "/dev/full")),
    (1, r"cannot write /dev/fd/999 \(bad file descriptor\)", ("sweep", *CITY, "--clients=1", "-o", "csv:/dev/fd/999")),
    (1, r"cannot save the run in /proc \(", ("--runs-dir", "/proc", "idle", *LONG)),
    (1, r"cannot save the run in /proc \(", ("--runs-dir", "/proc", "residency", *LONG)),
    # Targets and servers.
    (2, r"--pid '-1' is not a process id", ("attribute", "--pid", "-1", *LONG)),
    (
        1,
        r"cannot start the server /nonexistent \(",
        ("sweep", *CITY, "--clients", "1", "--server-binary", "/nonexistent"),
    ),
    (1, r"/nonexistent: no such file", ("compare", "index", "no-index", *LONG, "--world-sql", "/nonexistent")),
    (1, r"/nonexistent: no such file", ("watch", "--plain", "--defaults-file", "/nonexistent")),
    # Refused at its first point: no empty run is left to go on with.
    (3, r"no log was named", ("sweep", *CITY, "--clients", "1,2", "--meter", "meter_log")),
]
# The first line names the option and the value as typed, the second one what was meant.
MEANT: list[tuple[str, str, tuple[str, ...]]] = [
    # A value that was forgotten.
    (r"-o has no value: --quick is the next option", "give -o its value first", ("idle", "-o", "--quick")),
    (r"--label has no value", "--label NAME: Label of the run", ("run", "city:index", "--label")),
    # A name that there is not: only those that are nearly the same are proposed.
    (r"no such option: --duraton", r"did you mean --duration\?", ("attribute", "--duraton", "5")),
    (r"no such option: --dur", r"did you mean --duration\?", ("attribute", "--dur", "5")),
    (r"no such option: --html", r"powerprof syscalls --help", ("syscalls", "--pid", "1", "--html", "x")),
    (r"option '--explain' does not take a value", "powerprof queries --help", ("queries", "--pid", "1", "--explain=x")),
    (r"--label \? is not UTF-8", "type it in UTF-8", ("residency", "--label", "\udcff")),
    # An argument too many.
    (r"unexpected argument: 60ms", "powerprof cure --help", (*CURE, "60ms", "--thread", "x")),
    (r"unexpected argument: releases", "powerprof study --help", ("study", "read-buffer", "releases")),
    # The value as it was typed.
    (r"--attribute 0: must be at least 0.5", "", ("run", "city:index", "--attribute", "0")),
    (r"--wait -5: must be at least 0", "", (*CURE, "--keep", "--wait", "-5")),
    (r"--step 00.1: must be at least 0.2", "", ("energy", "--calibrate", "--step=00.1")),
    # What is swept.
    (r"--set server needs values", "--set server=mariadb", ("sweep", "city:index", "--set", "server")),
    (r"--set nosuch: city has no such parameter", "one of clients", ("sweep", "city:index", "--set", "nosuch=1,2")),
    (r"--clients 1-4: must be a whole number", "such as --clients 1,2,4", ("sweep", "city:index", "--clients", "1-4")),
    # Meters.
    (r"--meter rapl,rapl names rapl twice", "once", ("energy", "--meter", "rapl,rapl")),
    (r"--meter auto,rapl: auto stands alone", "", ("energy", "--meter", "auto,rapl")),
    # Conditions that do not do the same kind of work, before a server is started.
    (
        r"city:index and idle-connections:sixteen-connections have loads of different kinds, statements and idle",
        "conditions of one workload",
        ("compare", "city:index", "idle-connections:sixteen-connections"),
    ),
    # Runs.
    (r"no run 'run-0001' in /\S+", "powerprof runs", ("compare", "run-0001", "run-0002")),
    # A list of what can be tried is no trial.
    *(
        (rf"{option} has no effect without .*, --set, --host or --finding", "leave it out", (*CURE, option, *value))
        for option, *value in (
            ("--pairs", "9"),
            ("--duration", "9"),
            ("--seed", "5"),
            ("--meter", "none"),
            ("--yes",),
            ("--no-save",),
        )
    ),
    (
        r"--set: \S+ \(1\) is not a MariaDB, MySQL or PostgreSQL server",
        "--thread NAME --slack TIME",
        (*CURE, "--set", "a=1"),
    ),
    (r"--pid 1: \S+ is not a MariaDB, MySQL or PostgreSQL server", "powerprof profile", ("queries", "--pid", "1")),
]
ROWS = [
    *VALUES,
    *((code, error, "", words) for code, error, words in TABLE),
    *((2, error, hint, words) for error, hint, words in MEANT),
]


def check_refusal(ended: Ended, code: int, error: str, hint: str) -> None:
    """Check exit code, error and remedy: at most two printable lines, no output, no further step."""
    assert (ended.code, ended.out, ended.began, ended.broke) == (code, "", None, None), ended
    first, *rest = ended.err.splitlines()
    assert re.match(f"error: .*{error.removeprefix('^error: ')}", first), first
    assert len(rest) <= 1 and all(line.startswith("hint: ") for line in rest), ended.err
    assert re.search(hint, "".join(rest)), rest
    assert rest or code == 1, "a wrong command line has a remedy, and exit code 3 the command that provides it"
    assert len(ended.err) < 1000 and all(char.isprintable() for line in (first, *rest) for char in line)
    assert "s3cret" not in ended.err and "Traceback" not in ended.err


def _id(words: object) -> str | None:
    return " ".join(words).replace("/", "|")[:90] if isinstance(words, tuple) else ""


@pytest.mark.parametrize(("code", "error", "hint", "words"), ROWS, ids=_id)
def test_a_command_line_is_refused(
    up_to_the_first_window: Run, code: int, error: str, hint: str, words: tuple[str, ...]
) -> None:
    check_refusal(up_to_the_first_window(words), code, error, hint)
    assert not list(Path().resolve().parent.glob("state/powerprof/runs/[a-z]*")), "no run is saved"


FILES = {
    "outside.cnf": b"port=1\n",
    "port.cnf": b"[client]\nport=yes\n",
    "binary.cnf": b"\xff\xfe\0",
    "empty.cnf": b"[client]\n",
    "zeros": bytes(100),
    "file": b"",
    "damaged/run.json": b"[" * 1_000_000,
    "other/run.json": b'{"schema": "' + b"x" * 5000 + b'"}',
    "none/run.json": b"{}",
}


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (1, r":1: an option outside of a group", (*IDLE, "--defaults-file", "outside.cnf")),
        (1, r":2: not a port", (*IDLE, "--defaults-file", "port.cnf")),
        (1, r"not text|:1:", (*IDLE, "--defaults-file", "binary.cnf")),
        (2, r"no server is named", (*IDLE, "--defaults-file", "empty.cnf")),
        (1, r"zeros", ("residency", "--from", "zeros")),
        (1, r"zeros", ("residency", "--from", "zeros", "zeros", "--elapsed", "5")),
        (1, r"run\.json: not a record of powerprof", ("report", "damaged")),
        (1, r"run\.json: no report exists for|run\.json: ", ("report", "other/run.json")),
        (1, r"run\.json: ", ("runs", "none/run.json")),
        (2, r"pipe is not a regular file", ("report", "pipe")),
        (2, r"none-here is a directory without a run.json", ("attribute", "--from", "none-here")),
        (2, r"pipe is not a regular file", ("doctor", "--from", "pipe")),
        (1, r"pipe: not a regular file", ("export", "--web-config", "pipe")),
        (1, r"pipe: not a regular file", ("idle", "--meter", "./pipe")),
        (1, r"pipe: not a regular file", ("idle", "--defaults-file", "pipe")),
        (1, r"cannot create .*file/runs \(not a directory\)", ("--runs-dir", "file/runs", *IDLE)),
        *(
            (1, r"cannot save the run in .*file \(not a directory\)", ("--runs-dir", "file", *words))
            for words in (
                *(IDLE, ("attribute", "--system"), ("diagnose", "--pid", "1"), ("compare", "index", "no-index")),
                *(("run", "city:index"), ("sweep", "city:index", "--clients", "1,2")),
            )
        ),
    ],
    ids=_id,
)
def test_a_file_is_refused(up_to_the_first_window: Run, code: int, error: str, words: tuple[str, ...]) -> None:
    Path("none-here").mkdir()
    os.mkfifo("pipe")
    for name, content in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
        Path(name).chmod(0o600)
    check_refusal(up_to_the_first_window(words), code, error, "")


@pytest.mark.parametrize(
    ("code", "error", "words", "places"),
    [
        # A tree without powercap makes any host one without RAPL.
        (3, r"rapl: no RAPL energy counters", ("energy", "--meter", "rapl"), {"SYSFS": "."}),
        *(
            (2, rf"POWERPROF_{name}=\S+{place}: {reason}", words, {name: place})
            for name in ("SYSFS", "PROCFS")
            for place, reason in (("nowhere", "no such directory"), ("file", "not a directory"))
            for words in (("residency",), ("doctor",), ("energy",), IDLE)
        ),
    ],
    ids=_id,
)
def test_a_host_is_refused(
    up_to_the_first_window: Run,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    error: str,
    words: tuple[str, ...],
    places: Mapping[str, str],
) -> None:
    Path("file").touch()
    for name, place in places.items():
        monkeypatch.setenv(f"POWERPROF_{name}", str(Path(place).absolute()))
    check_refusal(up_to_the_first_window(words), code, error, "")


def test_an_option_that_is_a_value_can_be_given(up_to_the_first_window: Run) -> None:
    assert up_to_the_first_window(("workloads", "--json=--workloads")).code == 0
    assert Path("--workloads").is_file()
