# SPDX-License-Identifier: Apache-2.0
"""Makes the machine what its cell says, and says what it is."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.matrix.inside import bpf
from tools.matrix.inside.steps import StepError

_CPUS = Path("/sys/devices/system/cpu")


def _mount(kind: str, target: str, options: str = "") -> None:
    Path(target).mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", kind, *(["-o", options] if options else []), kind, target]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StepError(f"cannot mount {kind}: {done.stderr.strip()}")


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def prepare(job: dict[str, Any]) -> dict[str, Any]:
    """Mounts and settings of the cell, where this machine is ours; what the machine is in any case."""
    if job["is_machine"]:
        if job["cgroup"] == 2:
            _mount("cgroup2", "/sys/fs/cgroup")
        else:
            _mount("tmpfs", "/sys/fs/cgroup")
            for controller in ("cpu,cpuacct", "memory", "pids"):
                _mount("cgroup", f"/sys/fs/cgroup/{controller}", controller)
        if job["tracefs"]:
            _mount("tracefs", "/sys/kernel/tracing")
        for name, value in job["sysctls"].items():
            Path("/proc/sys", name.replace(".", "/")).write_text(value)
        for name, text in job["writes"].items():
            Path(name).write_text(text)
    release = os.uname().release
    return {
        # Of a host only the version: what its owner calls it is nobody's business.
        "kernel": release if job["is_machine"] else f"{'.'.join(release.split('.')[:2])}, the host's",
        "arch": os.uname().machine,
        "cpus": os.cpu_count(),
        "sockets": len({one.read_text() for one in _CPUS.glob("cpu[0-9]*/topology/physical_package_id")}),
        "driver": _text("/sys/devices/system/cpu/cpuidle/current_driver"),
        "governor": _text("/sys/devices/system/cpu/cpuidle/current_governor"),
        "clock": _text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "lockdown": _text("/sys/kernel/security/lockdown"),
        "glibc": platform.libc_ver()[1],
        "boot_s": round(time.clock_gettime(time.CLOCK_BOOTTIME), 1),
    }


def _online(value: str) -> None:
    """The last CPU goes away (0) or comes back (1)."""
    (_CPUS / f"cpu{(os.cpu_count() or 1) - 1}/online").write_text(value)


def _suspend() -> None:
    """To memory, until the clock on the board wakes it; its alarm is in whole seconds."""
    alarm = Path("/sys/class/rtc/rtc0/wakealarm")
    alarm.write_text("0")
    alarm.write_text(f"+{SUSPENDED_S}")
    Path("/sys/power/state").write_text("mem")


SUSPENDED_S = 6
# What may happen once while tracing runs, one act after the other; what was not done by its end is done then.
MEANWHILE: Mapping[str, Sequence[Callable[[], None]]] = {
    "": (),
    "hotplug": (lambda: _online("0"), lambda: _online("1")),
    "suspend": (_suspend,),
}


@contextlib.contextmanager
def meanwhile(what: str, after_s: float) -> Iterator[list[int]]:
    """While the block runs, do the acts of `what`: each some time after tracing or the act before began.

    When each was over is appended to what the block gets (CLOCK_MONOTONIC, ns).
    """
    turns: list[int] = []
    before, over = bpf.loaded(), threading.Event()

    def turn() -> None:
        # To compile takes minutes: what happens then is in no window.
        while not any(kind == "link" for kind, _ in bpf.loaded() - before):
            if over.wait(0.2):
                return
        for act in MEANWHILE[what]:
            over.wait(after_s)
            act()
            turns.append(time.monotonic_ns())

    thread = threading.Thread(target=turn)
    if MEANWHILE[what]:
        thread.start()
    try:
        yield turns
    finally:
        over.set()
        if MEANWHILE[what]:
            thread.join()
