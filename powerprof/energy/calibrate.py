# SPDX-License-Identifier: Apache-2.0
"""Calibration of a power model on a metered host: one metered window per step of idle or load, a fit, a TOML file."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerprof.energy.choice import open_meters
from powerprof.energy.fit import RUNNING, Fit, MeteredWindow, fit_windows
from powerprof.energy.models_file import (
    CpuIdentity,
    CpuMatch,
    PowerModel,
    StateWatts,
    WakeupJoules,
    encode_model,
    this_cpu,
)
from powerprof.energy.total import host_energy
from powerprof.measure.clock import format_now
from powerprof.measure.sampling import WindowMeter
from powerprof.model.records import Window
from powerprof.system import paths, programs
from powerprof.system.acting import as_caller
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError, reason_of
from powerprof.system.folders import open_parent

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float64]


# Works for argv[1] µs, sleeps for argv[2] µs, and repeats until it is killed. With 0 it never sleeps.
_SPINNER = """
import sys, time
work, rest = int(sys.argv[1]) * 1000, int(sys.argv[2]) / 1e6
clock = time.perf_counter_ns
while True:
    end = clock() + work
    while clock() < end:
        pass
    if rest:
        time.sleep(rest)
"""
_SETTLE_S = 0.5
_LONGEST_NAME = 120


class Level(msgspec.Struct, frozen=True):
    """A step: `share` of the CPUs run a loop of `work_us` of work and `rest_us` of sleep."""

    name: str
    share: float
    work_us: int
    rest_us: int


# Short rests end in shallow states, long ones in deep states. This separates the states; the load does not. Idle occurs
# several times because its figure matters most.
LEVELS = (
    Level("idle", 0.0, 0, 0),
    Level("idle again", 0.0, 0, 0),
    Level("full", 1.0, 10_000, 0),
    Level("half the CPUs", 0.5, 10_000, 0),
    Level("20 µs in 80 µs", 1.0, 20, 60),
    Level("20 µs in 220 µs", 1.0, 20, 200),
    Level("50 µs in 550 µs", 1.0, 50, 500),
    Level("100 µs in 2.1 ms", 1.0, 100, 2_000),
    Level("1 ms in 2 ms", 1.0, 1_000, 1_000),
    Level("1 ms in 11 ms", 1.0, 1_000, 10_000),
    Level("20 ms in 40 ms", 1.0, 20_000, 20_000),
    Level("20 ms in 120 ms", 1.0, 20_000, 100_000),
    Level("half, 50 µs in 350 µs", 0.5, 50, 300),
    Level("half, 5 ms in 10 ms", 0.5, 5_000, 5_000),
)


@contextmanager
def run_load(level: Level, cpus: Sequence[int]) -> Iterator[None]:
    """Run the loop of a level on the first `share` of `cpus`. The processes end with the context."""
    processes = []
    try:
        for cpu in cpus[: round(level.share * len(cpus))]:
            argv = programs.python_command("-c", _SPINNER, str(level.work_us), str(level.rest_us), site=False)
            processes.append(programs.start(argv, affinity=[cpu]))
        yield
    finally:
        for process in processes:
            programs.stop(process, patience_s=2.0)


def make_metered_window(window: Window, level: str) -> MeteredWindow | None:
    """Return a window as the fit needs it. None without measured energy or C0."""
    total = host_energy(window.energy)
    if total.joules is None or total.kind != "measured" or window.c0_percent is None or not window.window_s:
        return None
    states = {s.name: (s.residency_percent or 0.0) / 100 * window.cpus for s in window.states if not s.polling}
    return MeteredWindow(
        level, window.window_s, total.joules, window.c0_percent / 100 * window.cpus, states, window.wakeups_hz or 0.0
    )


def calibrate(
    choice: str,
    *,
    meter_log: Path | None = None,
    step_s: float = 5.0,
    repeats: int = 2,
    levels: Sequence[Level] = LEVELS,
    seed: int = 1,
    progress: Callable[[str], None] | None = None,
) -> tuple[Fit, str]:
    """Meter this host through all levels in random order. Return the fit and the metered domains (`package-0 by rapl`).

    Raise CapabilityError on a host without a meter, PowerprofError if the fit cannot separate the states.
    """
    plan = [level for level in levels for _ in range(repeats)]
    random.Random(seed).shuffle(plan)  # noqa: S311 - an order, not a secret: drift must not look like a level
    windows: list[MeteredWindow] = []
    scopes: set[str] = set()
    with open_meters(choice, meter_log=meter_log) as meters:
        if not meters.names:
            raise CapabilityError(
                f"energy --calibrate needs a meter: {meters.why}",
                "run it on the metered host, or log an external meter: --meter FILE",
            )
        cpus = sorted(os.sched_getaffinity(0))
        for number, level in enumerate(plan, 1):
            if progress is not None:
                progress(f"step {number} of {len(plan)}: {level.name}")
            with run_load(level, cpus), WindowMeter(meters=meters) as meter:
                time.sleep(_SETTLE_S)
                window = meter.measure(step_s)
            metered = make_metered_window(window, level.name)
            if metered is None:
                reason = "; ".join(meters.notes) or "no figure"
                raise PowerprofError(f"step {level.name!r} has no measured energy ({reason})", "use a longer --step")
            total = host_energy(window.energy)
            scopes.add(f"{' + '.join(total.domains)} by {total.source}")
            windows.append(metered)
    if len(scopes) > 1:
        raise PowerprofError(
            f"the meters changed between steps ({'; '.join(sorted(scopes))})", "name one meter with --meter"
        )
    return fit_windows(windows), scopes.pop()


def make_model(fit: Fit, name: str, cpu: CpuIdentity, scope: str, when: str) -> PowerModel:
    """Return the model of a fit for CPUs of this kind. Raise PowerprofError if no idle state could be fitted."""
    idle = {state: c for state, c in fit.states.items() if state != RUNNING}
    if not idle:
        raise PowerprofError("no idle state was entered: there is nothing to calibrate", "use an idle host")
    deepest = min(idle.values(), key=lambda c: c.value)
    full = fit.states[RUNNING]
    if full.value < deepest.value:
        raise PowerprofError(
            "running CPUs came out at fewer watts than idle ones: the meter does not follow the load",
            "use a longer --step, or another meter",
        )
    match = (
        []
        if cpu.vendor is None
        else [CpuMatch(vendor=cpu.vendor, family=cpu.family, models=[] if cpu.model is None else [cpu.model])]
    )
    return PowerModel(
        name=name,
        idle_watts=deepest.value,
        full_watts=full.value,
        idle_range_watts=(deepest.low, deepest.high),
        full_range_watts=(full.low, full.high),
        range_from="fit",
        cpus=match,
        scope=scope,
        source=f"calibrated {when} over {fit.windows_count} windows of {scope}",
        states=[StateWatts(name=state, watts=c.value, range_watts=(c.low, c.high)) for state, c in idle.items()],
        wakeup=None
        if fit.wakeup is None
        else WakeupJoules(joules=fit.wakeup.value, range_joules=(fit.wakeup.low, fit.wakeup.high)),
        cross_validated_percent=fit.cross_validated_percent,
        doubts=list(fit.notes),
    )


def choose_target(name: str, output: Path | None) -> Path:
    """Return the file for a model of this name: `output`, or a file in the folder of the user's models.

    Raise UsageError for an invalid name and for an existing file. The check of write permission comes later.
    """
    if not 0 < len(name.strip()) <= _LONGEST_NAME or not name.isprintable():
        raise UsageError(
            f"--output: the name of the model must have 1 to {_LONGEST_NAME} characters that can be printed",
            "such as rack-7.toml",
        )
    stem = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-") or "model"
    target = output or paths.private_directory(paths.config_dir() / "models") / f"{stem}.toml"
    if os.path.exists(target) and not os.path.isdir(target):  # noqa: PTH110, PTH112 - Path's raise for a long name
        raise _make_exists_error(target)
    return target


def save_model(model: PowerModel, target: Path) -> None:
    """Write a model. Raise UsageError if the file exists, PowerprofError if it cannot be written."""
    try:
        with as_caller():
            folder, name = open_parent(target)
            with folder, os.fdopen(folder.create(name, 0o666), "w", encoding="utf-8") as file:
                file.write(encode_model(model))
    except FileExistsError:
        raise _make_exists_error(target) from None
    except OSError as error:
        raise PowerprofError(
            f"cannot write {target} ({reason_of(error)})", "name another place with --output FILE"
        ) from error


def _make_exists_error(target: Path) -> UsageError:
    return UsageError(f"{target} exists", "choose another file: --output FILE")


def make_default_name(cpu: CpuIdentity | None = None) -> str:
    """Return a name such as `GenuineIntel family 6 model 207, calibrated 2026-01-31`."""
    return f"{cpu or this_cpu()}, calibrated {format_now()[:10]}"
