# SPDX-License-Identifier: Apache-2.0
"""Command lines in this process: the request that each makes, or its refusal.

The function that would measure is replaced, and its arguments are the result.
"""

from __future__ import annotations

import contextlib
import io
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from powerprof.cli import app

REPOSITORY = Path(__file__).parents[3]
_FIXTURES = "tests/fixtures/saved"

# The function of each command that measures; some commands have several.
_MEASURING = (
    "attribution.attribute.attribute",
    "attribution.attribute.replay",
    "attribution.offcpu.count_syscalls",
    "attribution.offcpu.trace_off_cpu",
    "attribution.profile.count_functions",
    "attribution.profile.profile_target",
    "attribution.symbols.find_symbols",
    "cli.queries.StatementMonitor",
    "cure.candidates.list_candidates",
    "cure.candidates.resolve_finding",
    "cure.slack.find_slack_target",
    "cure.slack.keep_slack",
    "diagnosis.diagnose.run",
    "energy.calibrate.calibrate",
    "energy.energy.measure",
    "energy.replay.replay",
    "experiment.compare.compare",
    "experiment.compare.compare_commands",
    "experiment.idle.measure_idle",
    "experiment.run.run_command",
    "experiment.run.run_condition",
    "experiment.study.measure_study",
    "experiment.sweep.measure_sweep",
    "experiment.sweep_until.search_highest_rate",
    "live.exporter.export_metrics",
    "live.monitor.HostMonitor",
    "measure.residency_recordings.read_recording",
    "queries.session.run",
)
# Values of the host, of the time, and of the workloads.
# Arguments without a value.
_OBJECTS = ("SweepStore", "RecentProfiles")
_LEFT_OUT = ("read_at", "target", "store")
_NAMED = ("Case", "Study")

_METERS = "--meter 'model:EPYC 7763:256@core'"
_OWN_SERVER = "--server mysql://me@127.0.0.1:3307/ --socket /run/own.sock"
_LOAD = "--rate 123.5 --seed 41 --attribute 2.5"

REQUESTS = f"""
attribute --system
attribute --pid 17 --only --duration 2.5 --stack-buffer 512 {_METERS} {_OWN_SERVER} --no-save
deep-idle --cgroup my.service --without t1 --without t2 --slack t3=7ms --duration 3m
--runs-dir {_FIXTURES} deep-idle --from attribute-0001 --slack t3=7ms
profile --pid 17
profile --pid 17 --only --duration 1.25 --frequency 250 {_OWN_SERVER} --by stack --lines
profile --system --event page-faults
functions 'handle_*' --pid 17
functions 'a*' --pid 17 --duration 1.25 --max-functions 7 --backend bpf
offcpu --pid 17
offcpu --pid 17 --duration 1.25 --backend dtrace {_OWN_SERVER}
syscalls --pid 17
syscalls --pid 17 --duration 1.25 {_OWN_SERVER}
queries --pid 17
queries --pid 17 --only --duration 2.5 --method samples --stacks {_METERS} {_OWN_SERVER} --top 3
queries --explain --yes
queries --pid 17 --explain-as README.md --yes
queries --pid 17 --watch --plain --duration 1.5 --count 3
diagnose
diagnose --pid 17 --only --duration 2.5 {_OWN_SERVER}
run index
run index --duration 1.5 --repeat 7 {_LOAD} {_METERS} --residency-source procfs
run index --quick --queries 321
run -- gzip -p
run --duration 3 --repeat 4 --allow-failure -- gzip -p
compare index no-index
compare index no-index --duration 1.5 --pairs 7 --turn 0.25 --precision 2.5% --control --on-cpu {_LOAD} {_METERS}
compare index no-index --quick --design work
compare -- gzip -1 -- gzip -9
sweep index --clients 1,2,4
sweep index --set rate=100,200.5 --duration 1.5 --repeat 7 --seed 41 --on-cpu --residency-source procfs {_METERS}
sweep index --clients 1,3 --quick --load 35%
sweep index --until p95=5ms
sweep index no-index --until cpu=80% --duration 1.5 --repeat 7 --seed 41
sweep index --until p50=250us --quick
study power-efficiency
study power-efficiency --quick --seed 41 --no-save {_METERS} --residency-source procfs
cure --pid 17
cure --pid 17 --thread cleaner --slack 7ms --yes
cure --pid 17 --only --thread 18 --slack 500us --pairs 7 --duration 1.5 --seed 41 --precision 5% {_METERS}
cure --pid 17 --thread 18 --slack 500us --guard p95=12.5% --yes
cure --set innodb_x=7 --guard p99=3.5% --yes
cure --finding 2 --yes
cure --host latency-limit=50 --yes {_OWN_SERVER}
cure --pid 17 --thread cleaner --slack 7ms --keep --wait 2m
cure --pid 17 --only --thread cleaner --release
cure --pid 17 --thread cleaner --slack 7ms --keep --print unit
watch --system
watch --system --interval 2.5 --no-ask --count 3 {_METERS}
watch --system --ask-every 12.5 --defaults-file README.md --plain
export
export --pid 17 --only --interval 2.5 --ask-every 12.5 --listen 127.0.0.1:9999 --insecure --top 7 {_METERS}
export --no-ask --per-cpu yes --statements mysqld --web-config README.md
export --per-cpu no
doctor --pid 17
doctor --system --only --duration 2.5 --fetch --yes
--runs-dir {_FIXTURES} doctor --from attribute-0001
energy
energy --duration 2.5 {_METERS}
energy --from README.md SECURITY.md
energy --calibrate --step 1.5 --repeats 3 --output mine.toml --seed 41 --meter rapl
residency --from README.md SECURITY.md --elapsed 2.5 --residency-source turbostat
idle
idle --clients 7 --duration 2.5 --repeat 3 --no-causes --residency-source procfs {_METERS}
idle --quick --clients 0 {_OWN_SERVER}
""".strip().splitlines()

REFUSALS = """
deep-idle --from x --duration 3
attribute --pid 17 --from attribute-0001
attribute --from attribute-0001 --duration 5
attribute --pid 17 --all --top 3
deep-idle --slack t
deep-idle --slack t=1ms --slack t=2ms
deep-idle --without ' '
deep-idle --without t --slack t=1ms
attribute --pid 17 --stack-buffer 2097152
attribute --pid 17 --duration 604801
attribute --pid 17 --duration 49ms
profile --pid 17 --lines
profile --pid 17 --by function --lines
profile --pid 17 --by unit
profile --pid 17 -o x.perfetto.json
profile --pid 17 --event page-faults --frequency 9
profile --pid 17 --frequency 0
profile --pid 17 --frequency 10001
functions x --pid 17 --yes
queries --by user --columns cpu
queries --watch --by user
queries --yes
queries --plain
queries --count 3
queries --watch --plain --json-lines
queries --watch --method samples
queries --watch --stacks
queries --watch --explain
queries --watch --json x.json
queries --watch --no-save
queries --watch --label x
queries --columns nosuch
queries --save-workload nosuch/folder
run
run index -- gzip
run --
run index --quick --repeat 3
run index --repeat 1
run --seed 3 -- gzip
run index --allow-failure
run index --rate 0
run index --rate 10000001
run index --rate nan
run index --rate 5 --queries 5
run index --design both
run index --socket x --server-binary /bin/true
run index --server-build x --server-binary /bin/true
run index --label a --no-save
--quiet run index --no-save
run index --quiet
idle --runs-dir x
run index --json - -o html:-
run index --json x.json -o x.json
run index --json .
run index -o -
run index -o page
run index -o page.pdf
run index -o x.folded
run index -o csv:
run index -o nosuch:x
queries --pid 17 -o x.folded
report tests/fixtures/saved/idle-0001 -o x.pb.gz
compare
compare index
compare index --with last no-index
compare index no-index --allow-failure
compare index no-index --quick --pairs 3
compare index no-index --design work --turn 1
compare index no-index --precision x
compare index no-index --pairs 2
compare index -- gzip -- gzip
compare -- gzip
compare --seed 3 --pairs 3 --control -- gzip -- gzip
sweep
sweep index other
sweep index --resume sweep-0001
sweep --resume sweep-0001 --seed 3
sweep index --quick --repeat 3
sweep index --clients 1 --set x=1
sweep index --set =1
sweep index --clients 1,,2
sweep index --clients 1,2,1
sweep index --load 86
sweep index --load -1
sweep index --load 5 --rate 5
sweep index --set rate=1,2 --rate 5
sweep index --attribute 1
sweep index --until x
sweep index --until p95=0ms
sweep index --until p95=5
sweep index --until cpu=100%
sweep index --until cpu=0
sweep index --until p95=5ms --clients 4
sweep index index --until p95=5ms
sweep --until p95=5ms
study power-efficiency --only nosuch
study --seed 3
cure --yes
cure --json x.json
cure --keep --release
cure --keep
cure --keep --thread x
cure --keep --thread x --slack 1ms --pairs 9 --yes
cure --keep --set a=1
cure --release
cure --release --thread t --slack 1ms
cure --keep --thread t --slack 1ms --print x
cure --keep --thread t --slack 1ms --print unit --wait 1
cure --print unit
cure --thread t --slack 1ms --pairs 2
cure --thread t --slack 1ms --guard p95
watch --no-ask --ask-every 5
watch --plain --json-lines
watch --interval 0.4
export --per-cpu maybe
export --no-ask --ask-every 5
export --print unit --top 3
export --top 1001
doctor --fetch
doctor --system --yes
doctor --from x --duration 3
energy x
residency --elapsed 3
energy --from x --duration 3
energy --from x --meter rapl
energy --calibrate --meter model
energy --calibrate --duration 3
energy --step 3
residency x
residency --from x --duration 3
residency --residency-source x
idle --quick --repeat 3
idle --clients 60001
idle --clients -1
idle --repeat 1
idle --socket x --server-binary /bin/true
runs x --json x.json
runs x -o x.html
runs x --keep 3
runs --label x
runs export
runs prune
runs prune --label x --yes
runs x --trend --label y
report
report tests/fixtures/saved/idle-0001 --top 3
report tests/fixtures/saved/idle-0001 --all
report tests/fixtures/saved/idle-0001 --by user
report tests/fixtures/saved/idle-0001 --price 3
report tests/fixtures/saved/idle-0001 --grid 5001
servers list x
servers list --yes
servers fetch
servers remove
servers nosuch x
workloads x --schema
doctor --json x --json y
doctor --json --system
doctor --json=
doctor --duration 1e999
""".strip().splitlines()


class _Asked(BaseException):
    """The call of a measuring function; no Exception, so that no command handles it."""


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value if not callable(each)]
    if type(value).__name__ in _NAMED:
        return getattr(value, "qualified", type(value).__name__)
    return str(value) if isinstance(value, Path) else msgspec.to_builtins(value, enc_hook=str)


def request_of(line: str, folder: Path) -> Mapping[str, Any]:
    """Return the measuring function that a command line calls, and its arguments without functions."""
    try:
        ended = _run(line, folder)
    except _Asked as asked:
        name, given, named = asked.args
        known = {key: _plain(value) for key, value in named.items() if key not in _LEFT_OUT and not callable(value)}
        values = [_plain(value) for value in given if not callable(value) and type(value).__name__ not in _OBJECTS]
        for value in values:
            if isinstance(value, dict) and name == "HostMonitor":
                value.pop("target")
        return {name: values, **known}
    raise AssertionError(f"{line} measured nothing: {ended}")


def refusal_of(line: str, folder: Path) -> str:
    """Return the exit code of a command line, and what it prints."""
    try:
        code, printed = _run(line, folder)
    except _Asked as asked:
        return f"not refused: {asked}"
    return f"{code}\n{printed}"


def _asking(name: str) -> Any:
    def ask(*given: Any, **named: Any) -> None:
        raise _Asked(name, given, named)

    return ask


def _run(line: str, folder: Path) -> tuple[int, str]:
    out = io.StringIO()
    environment = {"XDG_STATE_HOME": str(folder), "XDG_CACHE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (
        contextlib.ExitStack() as stack,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        contextlib.chdir(REPOSITORY),
        patch.dict("os.environ", environment),
        patch.object(app, "_put_back_left_behind"),
    ):
        for name in _MEASURING:
            stack.enter_context(patch(f"powerprof.{name}", _asking(name.rpartition(".")[2])))
        code = app.run_app(shlex.split(line))
    return code, out.getvalue().replace(str(folder), "STATE").replace(f"{REPOSITORY}/", "")


def request_blocks(folder: Path) -> dict[str, str]:
    """Return each request by its command line."""
    from tests.programs.golden_files import json_text

    return {line: json_text(request_of(line, folder)) for line in REQUESTS}


def refusal_blocks(folder: Path) -> dict[str, str]:
    """Return each refusal by its command line."""
    return {line: refusal_of(line, folder).rstrip() for line in REFUSALS}


FILES: dict[str, Callable[[Path], dict[str, str]]] = {"requests.txt": request_blocks, "refusals.txt": refusal_blocks}


def file_text(blocks: Mapping[str, str]) -> str:
    """Return a golden file of command lines."""
    return "".join(f"$ powerprof {line}\n{text}\n\n" for line, text in blocks.items())
