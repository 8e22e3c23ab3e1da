# SPDX-License-Identifier: Apache-2.0
"""The steps: each runs powerprof as a user would and holds its answer against what is known."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tools.matrix.inside import bpf, deep, polls, queries, truth, world
from tools.matrix.inside.steps import StepError, Steps

Job = Mapping[str, Any]
_PROGRAMS = Path("/srv/powerprof/truth")
_RATES = ("nanosleep=31", "poll=19", "epoll=17", "condvar=13", "timerfd=11", "pipe=7", "futex=7")
_SCRATCH = Path("/tmp/matrix")
# Steps end their programs; one that ended by itself while a slow machine compiles would be no target.
_FOREVER_S = "36000"
# Holds while it is open: Documentation/power/pm_qos_interface.rst.
_LATENCY, _LEAST_US = Path("/dev/cpu_dma_latency"), 1


def command(steps: Steps, line: str) -> dict[str, Any]:
    """A line for the shell, to look into a machine by hand."""
    done = steps.command(["bash", "-c", line], limit_s=120)
    return {"code": done.code, "out": done.out, "err": done.err}


def tick(steps: Steps, job: Job) -> dict[str, Any]:
    """The scheduler's tick is known by the address of the function that the kernel's own list has for its timer."""
    from powerprof.tracing.kernel_symbols import find_tick_handler, name_kernel_functions

    # A CPU that runs has its tick; a clock without high resolution calls no timer for it.
    try:
        lines = Path("/proc/timer_list").read_text().splitlines()
    except OSError:  # a container's
        lines = []
    listed = {found[1] for line in lines if (found := re.match(r" #\d+: .*, (tick_\w+), S:01", line))}
    handler = find_tick_handler()
    if not handler and Path("/proc/sys/kernel/kptr_restrict").read_text().strip() == "2":
        return {"function": []}  # the reports say that the tick is not told apart
    known = set(name_kernel_functions({handler}).values())
    if listed and known != listed:
        raise StepError(f"the tick's timer calls {sorted(listed)}, taken for it is {sorted(known)}")
    return {"function": sorted(listed)}


def doctor(steps: Steps, job: Job) -> dict[str, Any]:
    """Every capability is looked at, and tracing works, by a program that powerprof carries: there is no compiler."""
    found = steps.powerprof("doctor", "--json", "-", limit_s=30).document()
    capabilities = {one["name"]: one for one in found["capabilities"]}
    if capabilities["tracing"]["status"] != "ok":
        raise StepError(f"tracing {capabilities['tracing']['status']}: {capabilities['tracing']['detail']}")
    if find_spec("bcc") is not None or "carried" not in capabilities["tracing"]["detail"]:
        raise StepError(f"not a carried program, or bcc is there: {capabilities['tracing']['detail']}")
    return {name: f"{one['status']}: {one['detail']}" for name, one in capabilities.items()}


def _window(runs: Path) -> tuple[int, int]:
    """When wakings were counted: the saved capture knows it to the nanosecond."""
    from powerprof.attribution import capture

    taken = capture.load(next(runs.glob("*/capture.bin")))
    return taken.counted_from_ns, taken.counted_to_ns


def attribute(steps: Steps, job: Job) -> dict[str, Any]:
    """Wakings of each function within 3 % of the program's count; idle exits that add up."""
    _SCRATCH.mkdir(exist_ok=True)
    log, runs = _SCRATCH / "sleepers.log", _SCRATCH / "runs"
    with steps.program(str(_PROGRAMS / "sleepers"), _FOREVER_S, f"log={log}", *_RATES) as process:
        assert process.stdout is not None
        about = json.loads(process.stdout.readline())
        with world.meanwhile(job["meanwhile"], job["window_s"] / 3) as turns:
            record = steps.powerprof(
                "--runs-dir", str(runs), "attribute", "--pid", str(about["pid"]),
                "--duration", str(job["window_s"]), "--json", "-", limit_s=job["window_s"] + 60,
            ).document()  # fmt: skip
        names = list(about["threads"])
        begin_ns, end_ns = _window(runs)
        counted = truth.slept(log, names, begin_ns, end_ns)
    balance, stacks = record["conservation"], record["stacks"]
    facts = {
        "window_s": round(record["window_s"], 2),
        "found": truth.woken(record, names),
        "own_count": counted,
        "conservation": balance,
        "exits": sum(row["count"] for row in record["wakeups"]),
        "stacks_complete_percent": 100 * stacks["complete_count"] / max(1, stacks["captured_count"]),
        "tool_cpu_s": record["tool"]["cpu_s"],
        "notes": record["notes"],
        "meanwhile_at_s": [round((at_ns - begin_ns) / 1e9, 2) for at_ns in turns],
    }
    facts["worst_percent"], wrong = truth.compare(facts["found"], counted)
    never_idle = balance["cpuidle_usage_delta_count"] == balance["idle_exits_count"] == 0
    if facts["exits"] == 0 and never_idle and not job["is_machine"]:
        wrong.append("nothing proven: this host was never idle in the window, and cpuidle counted nothing either")
    elif facts["exits"] == 0:
        wrong.append(f"no idle exit of a program that slept: {balance}")
    elif (balance["coverage_percent"] or 0) < 99:
        wrong.append(f"coverage {balance['coverage_percent']} %")
    seen, usage = balance["idle_exits_count"], balance["cpuidle_usage_delta_count"]
    if usage is not None and abs(seen - usage) > 0.01 * usage + 2 * record["cpus"]:
        wrong.append(f"{seen} idle exits, but cpuidle counted {usage}")
    acts = world.MEANWHILE[job["meanwhile"]]
    if len(turns) != len(acts) or any(not begin_ns <= at_ns <= end_ns for at_ns in turns):
        wrong.append(f"{job['meanwhile']} at {facts['meanwhile_at_s']} s, not within the window")
    if job["meanwhile"] == "suspend":
        slept = [float(said) for note in record["notes"] for said in re.findall(r"was suspended for ([0-9.]+) s", note)]
        # The alarm's seconds are whole, and a machine takes its time to fall asleep and to wake.
        if len(slept) != 1 or not world.SUSPENDED_S / 2 <= slept[0] <= 60 or record["window_s"] > 1.2 * job["window_s"]:
            wrong.append(f"suspended for {slept} s in a window of {record['window_s']:.1f} s")
    if wrong:
        raise StepError("; ".join(wrong), facts)
    return facts


def polling(steps: Steps, job: Job) -> dict[str, Any]:
    """CPUs that poll for 250 µs at a time and never halt: no interrupt ends that, and no tick.

    No state but the poll has so little latency, for any governor. The one that polls before it halts (haltpoll) wants
    a hypervisor that says KVM.
    """
    from powerprof.tracing.idle import WindowTracer, trace_exits

    with (
        _LATENCY.open("wb", buffering=0) as limit,
        steps.program(str(_PROGRAMS / "sleepers"), _FOREVER_S, *_RATES) as process,
        trace_exits() as tracer,
        WindowTracer(tracer) as opened,
    ):
        limit.write(_LEAST_US.to_bytes(4, "little"))
        assert process.stdout is not None
        process.stdout.readline()
        found = polls.ended(opened.measure(job["window_s"]))
    facts = {who: dict(counted) for who, counted in found.items()}
    wrong = polls.wrong(found)
    if sum(counted.total() for counted in found.values()) < 100:
        wrong.append("fewer than 100 polls")
    if wrong:
        raise StepError("; ".join(wrong), facts)
    return facts


def functions(steps: Steps, job: Job) -> dict[str, Any]:
    """Calls of known number, counted exactly."""
    program = _PROGRAMS / "functions_truth"
    with steps.program(str(program)) as process:
        assert process.stdout is not None and process.stdin is not None
        pid, stdin = int(process.stdout.readline()), process.stdin
        places = truth.addresses(program, pid, truth.CALLS)
        plain, over = truth.instructions(pid, places), threading.Event()

        def begin() -> None:
            """The work begins when every function has its breakpoint: its first instruction is another one."""
            while not over.wait(0.1):
                now = truth.instructions(pid, places)
                if all(now[name] != plain[name] for name in places):
                    break
            # From the last probe to the window powerprof reads its counters once.
            if not over.wait(0.5 * job["time_scale"]):
                stdin.write("\n")
                stdin.flush()

        beginner = threading.Thread(target=begin)
        beginner.start()
        try:
            record = steps.powerprof(
                "functions", "truth_*", "--pid", str(pid), "--duration", str(4 + 2 * job["time_scale"]),
                "--max-cost", "none", "--json", "-", "--no-save", limit_s=90,
            ).document()  # fmt: skip
        finally:
            over.set()
            beginner.join()
    calls = {row["function"]: row["calls_count"] for row in record["functions"]}
    wrong = [
        f"{name} {calls.get(name, 0)} of {count}" for name, count in truth.CALLS.items() if calls.get(name) != count
    ]
    if wrong:
        raise StepError(f"calls counted of those made: {', '.join(wrong)}")
    return {"method": record["method"], "probe_call_us": record["probe_call_us"], "calls": sum(calls.values())}


def on_cpu(steps: Steps, job: Job) -> dict[str, Any]:
    """Shares of CPU time as the program counts its own."""
    _SCRATCH.mkdir(exist_ok=True)
    log = _SCRATCH / "oncpu.log"
    with steps.program(str(_PROGRAMS / "oncpu_truth"), "burn", _FOREVER_S, str(log)) as process:
        assert process.stdout is not None and process.stdin is not None
        pid = process.stdout.readline().strip()
        process.stdin.write("\n")
        process.stdin.flush()
        record = steps.powerprof(
            "profile", "--pid", pid, "--frequency", "397", "--duration", "4", "--json", "-", "--no-save",
            "--max-cost", "none", limit_s=60,
        ).document()  # fmt: skip
    total = record["target_count"]
    if total < 200:
        raise StepError(f"{total} samples of a program that ran all the time")
    own = truth.spent(log)
    found = {
        name: 100
        * sum(row["count"] for row in record["stacks"] if any(frame["label"] == name for frame in row["stack"]))
        / total
        for name in own
    }
    facts = {"samples": total, "found": found, "own_percent": own}
    # A share of 50 % of N samples is known to ±1.96·50/√N; twice that.
    allowed = 2 * 98 / total**0.5
    wrong = [
        f"{name} {found[name]:.1f} % of {share:.1f} %"
        for name, share in own.items()
        if abs(found[name] - share) > allowed
    ]
    if wrong:
        raise StepError(f"shares of CPU time: {', '.join(wrong)}; ±{allowed:.1f} allowed, {total} samples", facts)
    return facts


def idle(steps: Steps, job: Job) -> dict[str, Any]:
    """A private MariaDB with four silent clients: exits, causes, and the server among them."""
    record = steps.powerprof(
        "idle", "--clients", "4", "--duration", str(job["idle_window_s"]), "--repeat", "2", "--json", "-", "--no-save",
        limit_s=120,
    ).document()  # fmt: skip
    phases = {phase["name"]: phase for phase in record["phases"]}
    if {"baseline", "server", "clients"} - phases.keys():
        raise StepError(f"phases are missing: {sorted(phases)}")
    facts: dict[str, Any] = {"notes": record["notes"]}
    for name, phase in phases.items():
        causes = phase.get("causes") or []
        facts[name] = {
            "c0_percent": phase["c0_percent"],
            "wakeups_hz": phase["wakeups_hz"],
            "states": [state["name"] for state in phase["states"]],
            "causes_hz": round(sum(cause["wakeups_hz"] for cause in causes), 1),
            "server_hz": round(sum(cause["wakeups_hz"] for cause in causes if cause["process"] == "mariadbd"), 2),
        }
    last = facts["clients"]
    if not last["wakeups_hz"]:
        raise StepError(f"no wake-up of a host that ran: {last}", facts)
    if not last["server_hz"]:
        raise StepError(f"mariadbd is not among the causes: {phases['clients'].get('causes')}"[:600], facts)
    return facts


def refused(steps: Steps, job: Job) -> dict[str, Any]:
    """What this kernel is too old for is refused by the names of both, what this processor lacks by its name."""
    release, machine = os.uname().release, os.uname().machine
    expected = [f"error: this kernel ({release}) has no ", "Linux 5."]
    if machine != "x86_64":
        expected = ["error: ", f" on {machine} ", "not supported; x86_64 is"]
    said = {}
    with steps.program(str(_PROGRAMS / "functions_truth")) as process:
        assert process.stdout is not None
        pid = process.stdout.readline().strip()
        for words in (("functions", "truth_*"), ("profile",)):
            done = steps.powerprof(*words, "--pid", pid, "--duration", "1", "--no-save", limit_s=30)
            if done.code != 3 or any(part not in done.err for part in expected):
                raise StepError(f"{' '.join(words)} ended with {done.code}: {done.last_words()}")
            said[words[0]] = done.last_words()
    return said


def contained(steps: Steps, job: Job) -> dict[str, Any]:
    """In a pid namespace of its own: process ids are translated, and processes outside have no names."""
    tracing = next(
        one
        for one in steps.powerprof("doctor", "--json", "-", limit_s=30).document()["capabilities"]
        if one["name"] == "tracing"
    )
    if tracing["status"] != "ok" or "pid namespace" not in tracing["detail"]:
        raise StepError(f"doctor says {tracing}")
    with steps.program(str(_PROGRAMS / "sleepers"), _FOREVER_S) as process:
        assert process.stdout is not None
        pid = str(json.loads(process.stdout.readline())["pid"])
        for target in (("--pid", pid), ("--system",)):
            record = steps.powerprof(
                "attribute", *target, "--duration", "2", "--meter", "none", "--json", "-", "--no-save", limit_s=60
            ).document()
            rows = [*record["wakeups"], *record["wakings_without_exit"]]
            if "nanosleep" not in {row["thread"]["comm"] for row in rows}:
                raise StepError(f"attribute {' '.join(target)} does not name the sleeper")
    record = steps.powerprof(
        "idle", "--clients", "4", "--duration", "2", "--repeat", "2", "--json", "-", "--no-save", limit_s=120
    ).document()
    if any("causes unknown" in str(note) for note in record["notes"]):
        raise StepError(f"idle does not know its causes: {record['notes']}")
    return {"tracing": tracing["detail"], "wakeups_hz": [phase["wakeups_hz"] for phase in record["phases"]]}


def sweep(steps: Steps, job: Job) -> dict[str, Any]:
    """OLTP over clients, whose record leaves the machine whole: kernels are compared by two of them."""
    record = steps.powerprof(
        "sweep", "oltp-read-only", "--clients", "1,8,64", "--duration", "8", "--repeat", "4",
        "--meter", "none", "--json", "-", "--no-save", limit_s=job["limit_s"] / steps.scale,
    ).document()  # fmt: skip
    steps.keep(record)
    failed = [f"{point['value']}: {point['error']}" for point in record["points"] if point["error"]]
    if failed or record["ended"]:
        raise StepError(f"points failed: {'; '.join(failed)}")
    return {
        "queries_hz": {
            str(point["value"]): metric["estimate"]["mean"]
            for point in record["points"]
            for metric in point["metrics"]
            if metric["name"] == "queries_hz"
        }
    }


def nothing_left(steps: Steps, job: Job) -> dict[str, Any]:
    """No BPF program and no link is there once powerprof has ended."""
    # The kernel frees programs after a grace period of RCU.
    for _ in range(50):
        left = bpf.loaded() - {tuple(one) for one in job.get("loaded_before", [])}
        if not left:
            return {"left": 0}
        time.sleep(0.1)
    raise StepError(f"left in the kernel: {sorted(left)}")


STEPS: Mapping[str, Callable[[Steps, Job], dict[str, Any]]] = {
    "doctor": doctor,
    "tick": tick,
    "attribute": attribute,
    "polling": polling,
    "functions": functions,
    "on-cpu": on_cpu,
    "idle": idle,
    "refused": refused,
    "contained": contained,
    "sweep": sweep,
    "nothing-left": nothing_left,
    **deep.STEPS,
    **queries.STEPS,
}
