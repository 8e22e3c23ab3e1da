# SPDX-License-Identifier: Apache-2.0
"""A DTrace that runs a script, and the parsing of its output."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from powerprof.host.program_probes import probe_dtrace
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.paths import data_dir
from powerprof.tracing.dtrace import (
    Dtrace,
    ProbedFunction,
    find_dtrace,
    read_script,
    render_probes,
    render_script,
    run_dtrace,
)
from powerprof.tracing.dtrace_output import parse_latency

SCRIPTS = sorted((data_dir("probes") / "dtrace").glob("*.d"))
FakeDtrace = Callable[[str], Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDtrace:
    """`program(body)` compiles a C main into a `dtrace` that is the only one on PATH."""
    if shutil.which("gcc") is None:
        pytest.skip("no capability: a C compiler (apt install gcc)")
    compiler = shutil.which("gcc")

    def make(body: str) -> Path:
        source = tmp_path / "dtrace.c"
        source.write_text(
            "#include <signal.h>\n#include <stdio.h>\n#include <string.h>\n#include <stdlib.h>\n"
            f"int main(int argc, char **argv) {{ {body} return 0; }}\n"
        )
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        subprocess.run([str(compiler), "-o", folder / "dtrace", source], check=True)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return folder / "dtrace"

    return make


def test_systemtaps_header_generator_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "dtrace"
    fake.write_text("#!/usr/bin/python3\nprint('Usage /usr/bin/dtrace [--help] [-h | -G] -s File.d [-o File]')\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CapabilityError, match="SystemTap's header generator, not DTrace") as refused:
        find_dtrace()
    assert refused.value.exit_code == 3
    assert "attribute and profile need none" in str(refused.value.hint)


def test_a_missing_dtrace_is_reported_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if any(Path(folder, "dtrace").exists() for folder in ("/usr/sbin", "/sbin", "/usr/local/sbin")):
        pytest.skip("no capability: a host without dtrace")
    with pytest.raises(CapabilityError, match="dtrace is not installed") as refused:
        find_dtrace()
    assert (refused.value.exit_code, "dnf install dtrace" in str(refused.value.hint)) == (3, True)


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("dtrace: D 2.0.7\\nThis is DTrace 2.0.7", (2, 0, 7)),  # Debian's
        ("dtrace: D 2.0\\nThis is DTrace 2.0.1", (2, 0, 1)),
        ("dtrace: Oracle D 2.0\\nThis is DTrace 2.0.3", (2, 0, 3)),
    ],
)
def test_the_version_is_the_release_if_dtrace_prints_it(
    program: FakeDtrace, output: str, version: tuple[int, int, int]
) -> None:
    path = program(f'if (strcmp(argv[1], "-Vv")) return 2; puts("{output}");')
    assert find_dtrace() == Dtrace(path, version)


def test_old_and_foreign_programs_are_refused(program: FakeDtrace) -> None:
    program('puts("dtrace: Sun D 1.13");')
    with pytest.raises(CapabilityError, match=r"dtrace 1\.13 on Linux is not supported"):
        find_dtrace()
    program('puts("anything else");')
    with pytest.raises(CapabilityError, match="does not name its D language"):
        find_dtrace()


@pytest.mark.parametrize(
    ("output", "is_ok"),
    [
        ("", False),
        ("anything else", False),
        ("dtrace: Sun D 1.13", False),
        ("dtrace: D 2.0\\nThis is DTrace 2.0.1", True),
    ],
)
def test_doctor_accepts_a_dtrace_that_the_backend_accepts(program: FakeDtrace, output: str, is_ok: bool) -> None:
    path = program(f'printf("{output}");')
    capability = probe_dtrace()
    assert (capability.status in ("ok", "limited")) is is_ok
    if is_ok:
        assert find_dtrace().path == path
    else:
        with pytest.raises(CapabilityError) as refused:
            find_dtrace()
        assert capability.detail == f"optional: {refused.value.message}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_have_a_header_and_render_without_placeholders(script: Path) -> None:
    text = script.read_text()
    for heading in ("Question:", "Cost:", "Privileges:", "Runs on:", "Executed:"):
        assert heading in text
    if "@ENTRIES@" in text:
        rendered = render_probes(text, pid=4711, probes=[ProbedFunction("a.out", "handle_slave_io", (0x10, 0x2F))])
    else:
        rendered = render_script(text, pid=4711)
    assert not re.search(r"@[A-Z]+@", rendered)
    assert "4711" in rendered
    # The window is timed from outside: a tick is late on an idle CPU.
    assert "tick-" not in rendered
    assert rendered.count('printf("begin\\t%d\\n"') == rendered.count('printf("end\\t%d\\n"') == 1
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    assert code.count("{") == code.count("}") and code.count("(") == code.count(")")
    # dtrace 2.x lacks these or builds them upon fbt, which kernels without kprobes do not have.
    assert "vtimestamp" not in code and "sched:::" not in code and "fbt:" not in code
    # A return probe on Linux is a uretprobe, and an exception that passes it ends the process.
    assert ":return" not in code
    # Setting 0 deletes; before 2.0.4 a new element could then alias a live one.
    assert not re.search(r"[^=!<>]= 0;", code)


def test_every_question_has_a_script() -> None:
    assert "@calls" in read_script("function-profile")
    assert "wakeup" in read_script("wakeups")
    assert "latency" in read_script("sleep-wake-latency")


@pytest.mark.parametrize("pid", [0, -1, 1 << 31])
def test_an_invalid_pid_is_refused(pid: int) -> None:
    with pytest.raises(UsageError):
        render_script("x", pid=pid)


def test_each_entry_and_each_exit_is_a_probe() -> None:
    probes = [
        ProbedFunction("a.out", "_Z3fooi", (0x1A, 0x44)),
        ProbedFunction("libc.so.6", "memcpy", ()),
        ProbedFunction("a.out", "bar", (7,)),
    ]
    assert render_probes("@ENTRIES@\n@EXITS@", pid=12, probes=probes) == (
        "pid12:a.out:_Z3fooi:entry,\npid12:libc.so.6:memcpy:entry,\npid12:a.out:bar:entry\n"
        "pid12:a.out:_Z3fooi:1a,\npid12:a.out:_Z3fooi:44,\npid12:a.out:bar:7"
    )


@pytest.mark.parametrize(
    ("module", "symbol"),
    [
        *(
            ("a.out", name)
            for name in ('x:entry{system("id")}', "a b", "", "x/1/", "x,BEGIN", "@PID@", "x\ny", "ü", "x;")
        ),
        *((name, "x") for name in ("x:y", "a b", "{")),
    ],
)
def test_names_that_could_leave_their_place_are_refused(module: str, symbol: str) -> None:
    with pytest.raises(UsageError, match="DTrace cannot name"):
        render_probes("@ENTRIES@", pid=12, probes=[ProbedFunction(module, symbol, ())])


VERSION = 'if (argc > 1 && !strcmp(argv[1], "-Vv")) { puts("dtrace: D 2.0.7"); return 0; }'


def test_a_script_is_run_to_its_end_and_its_output_parsed(program: FakeDtrace) -> None:
    program(
        VERSION
        + """
        sigset_t set; int number; sigemptyset(&set); sigaddset(&set, SIGINT); sigprocmask(SIG_BLOCK, &set, NULL);
        puts("begin\\t1000000000"); fflush(stdout);
        sigwait(&set, &number);
        fprintf(stderr, "dtrace: 12 aggregation drops on CPU 0\\n");
        fprintf(stderr, "dtrace: error in dt_clause_0 for probe ID 5: invalid address\\n");
        puts("sleep\\t101\\t10\\t5000000\\t900000");
        puts("latency\\t101\\t10\\t40000\\t9000");
        puts("end\\t3500000000");
        """
    )
    started = time.monotonic()
    run = run_dtrace(find_dtrace(), "x", 4711, 0.5)
    assert 0.5 <= time.monotonic() - started < 60
    assert (run.lost_count, len(run.losses)) == (13, 2)
    assert run.tool_cpu_s > 0
    trace = parse_latency(run)
    (row,) = trace.threads
    assert (trace.window_s, trace.lost_count) == (2.5, 13)
    assert (row.tid, row.sleeps_count, row.sleep_mean_ms, row.wait_max_ms) == (101, 10, 0.5, 0.009)


def test_messages_of_dtrace_become_one_line(program: FakeDtrace) -> None:
    program(
        VERSION
        + 'fprintf(stderr, "dtrace: failed to initialize dtrace: DTrace requires additional privileges\\n"); return 1;'
    )
    with pytest.raises(CapabilityError, match="not permitted"):
        run_dtrace(find_dtrace(), "x", 1, 1)
    program(
        VERSION
        + 'fprintf(stderr, "dtrace: failed to compile script x.d: line 3: syntax error near \\"{\\"\\n"); return 1;'
    )
    with pytest.raises(PowerprofError, match=r"dtrace 2\.0\.7 failed: dtrace: failed to compile") as refused:
        run_dtrace(find_dtrace(), "x", 1, 1)
    assert refused.value.exit_code == 1
