# SPDX-License-Identifier: Apache-2.0
"""The steps of a machine with three idle states and a cpufreq driver: limits of deep idle, their counts, and cures.

An emulated machine does not keep time exactly, so the steps check counts and equalities.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.matrix.inside.steps import StepError, Steps

Job = Mapping[str, Any]
STATES = ["POLL", "C1", "C2", "C3"]
_CPUS = Path("/sys/devices/system/cpu")
_SLEEPERS = ("/srv/powerprof/truth/sleepers", "36000", "nanosleep=97", "poll=41", "epoll=11", "timerfd=3")
_LATENCY = Path("/dev/cpu_dma_latency")
_GOVERNOR = "cpufreq/scaling_governor"
# The kernel takes its times a little before and after its tracepoints. Emulated, a step of code takes up to this long.
_APART_NS = 150_000


def _read(leaf: str) -> list[str]:
    """Return the text of a file of each CPU."""
    return [(cpu / leaf).read_text().strip() for cpu in sorted(_CPUS.glob("cpu[0-9]*"))]


def _counted(leaf: str) -> list[int]:
    """Return a counter of each idle state, summed over all CPUs."""
    return [sum(int(text) for text in _read(f"cpuidle/state{number}/{leaf}")) for number in range(len(STATES))]


def _deep_idle(steps: Steps) -> str:
    found = steps.powerprof("doctor", "--json", "-", limit_s=30).document()
    answer = next(one for one in found["capabilities"] if one["name"] == "deep_idle")
    return f"{answer['status']}: {answer['detail']}"


@contextmanager
def _forbidden() -> Iterator[None]:
    """Forbid C3 by a latency limit, C2 of CPU 0 by its own limit, and disable C2 of CPU 1."""
    own, disable = _CPUS / "cpu0/power/pm_qos_resume_latency_us", _CPUS / "cpu1/cpuidle/state2/disable"
    with _LATENCY.open("wb", buffering=0) as limit:
        limit.write((1000).to_bytes(4, "little"))
        own.write_text("300")
        disable.write_text("1")
        try:
            yield
        finally:
            own.write_text("0")
            disable.write_text("0")


def limits(steps: Steps, job: Job) -> dict[str, Any]:
    """Check that doctor names each setting that forbids a state, and that residency counts no more than sysfs."""
    free = _deep_idle(steps)
    with _forbidden():
        held = _deep_idle(steps)
    facts: dict[str, Any] = {"free": free, "held": held}
    names = ("idle governor menu", "idle driver acpi_idle", "frequency driver acpi-cpufreq", "governor schedutil")
    wrong = [f"no {name!r}" for name in names if name not in free]
    if not free.startswith("ok: no setting forbids"):
        wrong.append("settings that forbid idle states where there are none")
    expected = (
        "limited: latency limit of 1000 µs, held by python",
        "excludes C3",
        "pm_qos_resume_latency_us 300 µs on CPU 0 excludes C2 and C3",
        "C2 is disabled on CPU 1",
    )
    wrong += [f"no {text!r}" for text in expected if text not in held]
    before = _counted("usage")
    with steps.program(*_SLEEPERS):
        record = steps.powerprof("residency", "--duration", "3", "--json", "-", "--no-save", limit_s=40).document()
    most = [after - then for after, then in zip(_counted("usage"), before, strict=True)]
    (found,) = record["phases"]
    entries = {state["name"]: state["entries_count"] for state in found["states"]}
    facts |= {"entries": entries, "usage": most}
    if list(entries) != STATES:
        wrong.append(f"states {list(entries)}")
    wrong += [
        f"{entries[name]} entries of {name}, at most {count} by sysfs"
        for name, count in zip(STATES, most, strict=True)
        if entries.get(name, 0) > count
    ]
    total = found["c0_percent"] + sum(state["residency_percent"] for state in found["states"])
    if abs(total - 100) > 0.1 or sum(entries.values()) < 100:
        wrong.append(f"C0 and residencies are {total} %, {sum(entries.values())} entries")
    if wrong:
        raise StepError("; ".join(wrong), facts)
    return facts


def replay(steps: Steps, job: Job) -> dict[str, Any]:
    """Check that the governor's misses of the traced periods are the kernel's own counts.

    The kernel's lengths differ a little from the traced ones. So each of its counts must be between the counts of all
    periods a little shorter and a little longer.
    """
    import numpy as np

    from powerprof.attribution import capture
    from powerprof.attribution.deep_idle import count_misses

    runs = Path("/tmp/deep")
    words = ("--as", "granite-rapids", "--without", "nanosleep", "--json", "-")
    with steps.program(*_SLEEPERS) as process:
        assert process.stdout is not None
        pid = str(json.loads(process.stdout.readline())["pid"])
        record = steps.powerprof(
            "--runs-dir",
            str(runs),
            "deep-idle",
            "--pid",
            pid,
            "--duration",
            str(job["window_s"]),
            *words,
            limit_s=job["window_s"] + 60,
        ).document()
    deep = record["deep"]
    taken = capture.load(next(runs.glob("*/capture.bin")))
    exits, bounds = taken.exit_records(), np.zeros((2, 2), dtype=np.int64)
    for cpu in taken.idle_cpus:
        edge = taken.cpu_edges()[cpu.cpu]
        mine = exits[
            (exits["cpu"] == cpu.cpu) & (exits["exit_ns"] >= edge.start_ns) & (exits["exit_ns"] <= edge.end_ns)
        ]
        lengths = mine["exit_ns"].astype(np.int64) - mine["enter_ns"].astype(np.int64)
        for row, apart in enumerate((-_APART_NS, _APART_NS)):
            above, below = count_misses(cpu, mine["state"], lengths + apart)
            bounds[row] += (above.sum(), below.sum())
    check, host = deep["governor"], deep["scopes"][0]
    facts = {
        "periods": deep["periods_count"],
        "lost": deep["lost_count"],
        "governor": check,
        "bounds": bounds.tolist(),
        "states": {state["name"]: state["count"] for state in host["states"]},
    }
    (above_most, below_least), (above_least, below_most) = bounds.tolist()
    wrong, lost = [], deep["lost_count"]
    if lost > 0.01 * deep["periods_count"] or check["is_complete"] != (lost == 0):
        wrong.append(f"{lost} periods are lost")
    if not above_least <= check["kernel_above_count"] <= above_most + lost:
        wrong.append(f"above: the kernel counted {check['kernel_above_count']}")
    if not below_least <= check["kernel_below_count"] <= below_most + lost:
        wrong.append(f"below: the kernel counted {check['kernel_below_count']}")
    if min(check["kernel_above_count"], check["kernel_below_count"]) < 20:
        wrong.append("too few misses to compare")
    parts = sum(host[f"{part}_s"] for part in ("ended", "open", "running", "unknown"))
    broken = sum(row["stretch_s"] for row in host["breakers"])
    if abs(parts - host["window_s"]) > 1e-6 or abs(broken - host["ended_s"]) > 1e-6:
        wrong.append(f"the parts of the window are {parts} of {host['window_s']} s, the breakers' {broken}")
    if list(facts["states"]) != ["C1", "C1E", "C6", "C6P"]:
        wrong.append("not the states of the other CPU")
    if wrong:
        raise StepError("; ".join(wrong), facts)
    return facts


@contextmanager
def _watched(read: Callable[[], object]) -> Iterator[set[str]]:
    """Collect the values of a setting while the block runs."""
    seen, over = {str(read())}, threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            seen.add(str(read()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _limit_us() -> int:
    with _LATENCY.open("rb", buffering=0) as device:
        return int.from_bytes(device.read(4), "little")


def _disabled() -> list[str]:
    return _read("cpuidle/state2/disable")


def _governors() -> list[str]:
    return _read(_GOVERNOR)


def _cure(pid: int, setting: str, *more: str) -> tuple[str, ...]:
    return ("cure", "--pid", str(pid), "--only", "--host", setting, "--yes", "--no-save", *more)


def settings(steps: Steps, job: Job) -> dict[str, Any]:
    """Check that each setting is changed in its windows only, excludes its states there, and is restored."""
    facts: dict[str, dict[str, Any]] = {}
    wrong: list[str] = []
    tried: tuple[tuple[str, Callable[[], object], object, tuple[str, ...]], ...] = (
        ("disable-state=C2", _disabled, ["1", "1"], ("C2",)),
        ("latency-limit=300", _limit_us, 300, ("C2", "C3")),
        ("cpu-governor=powersave", _governors, ["powersave"] * 2, ()),
    )
    with steps.program(*_SLEEPERS) as process:
        for setting, read, value, excluded in tried:
            before = str(read())
            with _watched(read) as seen:
                words = _cure(process.pid, setting, "--pairs", "3", "--duration", "1", "--json", "-")
                done = steps.powerprof(*words, limit_s=60)
            facts[setting] = {"seen": sorted(seen), "after": read()}
            # While the files are written one after the other, their values differ.
            if not {before, str(value)} <= seen or str(read()) != before:
                wrong.append(f"{setting}: {sorted(seen)}, then {read()}")
            if done.code != 0:
                wrong.append(f"{setting} ended with {done.code}: {done.last_words()}")
                continue
            record = done.document()
            entries = {
                arm: [
                    sum(state["entries_count"] for state in block["window"]["states"] if state["name"] in excluded)
                    for block in record["blocks"]
                    if block["arm"] == arm
                ]
                for arm in ("before", "cured")
            }
            facts[setting] |= {"entries": entries, "verdict": record["verdict"]["text"]}
            if record["reverted"] is not True:
                wrong.append(f"{setting}: reverted {record['reverted']}")
            if excluded and (any(entries["cured"]) or not all(entries["before"])):
                wrong.append(f"{setting}: entries of {' and '.join(excluded)} {entries}")
        for setting, refusal in (("disable-state=C6", "one of POLL, C1, C2 or C3"), ("epp=power", "no such setting")):
            done = steps.powerprof(*_cure(process.pid, setting), limit_s=30)
            if done.code != 2 or refusal not in done.err:
                wrong.append(f"{setting} ended with {done.code}: {done.last_words()}")
    if wrong:
        raise StepError("; ".join(wrong), facts)
    return facts


def guard(steps: Steps, job: Job) -> dict[str, Any]:
    """Check that a cure with a guard measures statements, ends early only if their latency rose, and restores."""
    from powerprof.database.private_server import PrivateServer

    over, asked = threading.Event(), [0]
    with PrivateServer(timeout_s=300.0) as server, server.connect() as connection:

        def ask() -> None:
            while not over.is_set():
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1")
                asked[0] += 1

        client = threading.Thread(target=ask)
        client.start()
        try:
            words = ("--guard", "p50=5%", "--pairs", "3", "--duration", "3", "--json", "-")
            done = steps.powerprof(*_cure(server.pid, "latency-limit=0", *words), limit_s=90)
        finally:
            over.set()
            client.join()
    record = done.document()
    facts = {
        "asked": asked[0],
        "windows": len(record["blocks"]),
        "medians_ms": [(block["arm"], (block["latency_ms"] or {}).get("p50")) for block in record["blocks"]],
        "latency": record["latency"],
        "verdict": record["verdict"],
    }
    wrong = []
    # Times of an emulated machine are not exact, so the guard may find a rise.
    if (record["verdict"]["hurts"] is None) != (len(record["blocks"]) == 6):
        wrong.append("the guard and the number of windows contradict each other")
    if any(not (block["latency_ms"] or {}).get("p50") for block in record["blocks"]):
        wrong.append(f"windows without a latency: {record['latency']}")
    if _limit_us() < 1_000_000 or record["reverted"] is not True:
        wrong.append(f"the limit is {_limit_us()} µs, reverted {record['reverted']}")
    if wrong:
        raise StepError("; ".join(wrong), facts)
    return facts


def killed(steps: Steps, job: Job) -> dict[str, Any]:
    """Check that the keeper restores each setting after a SIGKILL of powerprof."""
    facts, wrong = {}, []
    with steps.program(*_SLEEPERS) as process:
        for setting, read, value in (
            ("disable-state=C2", _disabled, ["1", "1"]),
            ("cpu-governor=powersave", _governors, ["powersave"] * 2),
            ("latency-limit=300", _limit_us, 300),
        ):
            before = read()
            words = _cure(process.pid, setting, "--duration", "60")
            with steps.program(sys.executable, "-m", "powerprof", *words) as cure:
                _wait(lambda: read() == value or cure.poll() is not None, 60 * steps.scale)
                changed = read() == value
                cure.send_signal(signal.SIGKILL)
                restored = _wait(lambda: read() == before, 30 * steps.scale)
            facts[setting] = {"changed": changed, "restored": restored}
            if not changed or not restored:
                wrong.append(f"{setting}: changed {changed}, restored {restored}, now {read()}")
    if wrong:
        raise StepError("; ".join(wrong), facts)
    return facts


def _wait(is_done: Callable[[], bool], limit_s: float) -> bool:
    end_s = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True


STEPS: Mapping[str, Callable[[Steps, Job], dict[str, Any]]] = {
    "limits": limits,
    "replay": replay,
    "settings": settings,
    "guard": guard,
    "killed": killed,
}
