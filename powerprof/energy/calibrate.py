# SPDX-License-Identifier: Apache-2.0
"""Calibrates a power model on a metered host: steps of idle and load, one metered window each, a fit, a TOML file."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from powerprof import paths, programs
from powerprof.caller import as_caller
from powerprof.energy.cpu import CpuIdentity, this_cpu
from powerprof.energy.domains import host_energy
from powerprof.energy.fit import RUNNING, Fit, MeteredWindow, fit_windows
from powerprof.energy.meters import open_meters
from powerprof.energy.models_file import CpuMatch, PowerModel, StateWatts, WakeupJoules, encode_model
from powerprof.errors import CapabilityError, PowerprofError, UsageError
from powerprof.files import reason_of
from powerprof.folders import locate
from powerprof.records import Window
from powerprof.windows.sampling import WindowMeter, now_text

# Works for argv[1] µs, sleeps for argv[2] µs, and again until it is killed. A sleep of 0 never sleeps.
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


@dataclass(frozen=True)
class Level:
    """A step: each of `share` of the CPUs works for `work_us` and sleeps for `rest_us`, again and again."""

    name: str
    share: float
    work_us: int
    rest_us: int


# Short rests end in shallow states, long ones in deep states: that, not the load, is what tells states apart. Idle
# comes several times over, because it is the state that matters most here.
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
def load(level: Level, cpus: Sequence[int]) -> Iterator[None]:
    """Keep the first `share` of `cpus` at that duty cycle; the loads are gone afterwards."""
    chosen = list(cpus)[: round(level.share * len(cpus))]
    running = []
    try:
        for cpu in chosen:
            argv = programs.python("-c", _SPINNER, str(level.work_us), str(level.rest_us), site=False)
            running.append(programs.start(argv, affinity=[cpu]))
        yield
    finally:
        for process in running:
            programs.stop(process, patience_s=2.0)


def metered(window: Window, level: str) -> MeteredWindow | None:
    """A window as the fit needs it; None where it has no measured energy or no C0."""
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
    """Meter this host through all levels in random order; the fit, and what was metered (`package-0 by rapl`).

    Raises CapabilityError where this host has no meter, PowerprofError where the fit separates nothing.
    """
    plan = [level for level in levels for _ in range(repeats)]
    random.Random(seed).shuffle(plan)  # noqa: S311 - an order, not a secret; drift must not look like a level
    windows: list[MeteredWindow] = []
    scopes: set[str] = set()
    with open_meters(choice, meter_log=meter_log) as meters:
        if not meters.names:
            raise CapabilityError(
                f"calibrate needs a meter: {meters.why}",
                "run it on the metered host, or log an external meter: --meter-log FILE",
            )
        cpus = sorted(os.sched_getaffinity(0))
        for number, level in enumerate(plan, 1):
            if progress is not None:
                progress(f"step {number} of {len(plan)}: {level.name}")
            with load(level, cpus), WindowMeter(meters=meters) as meter:
                time.sleep(_SETTLE_S)
                window = meter.measure(step_s)
            made = metered(window, level.name)
            if made is None:
                why = "; ".join(meters.notes()) or "no figure"
                raise PowerprofError(f"step {level.name!r} has no measured energy ({why})", "use a longer --step")
            total = host_energy(window.energy)
            scopes.add(f"{' + '.join(total.domains)} by {total.source}")
            windows.append(made)
    if len(scopes) > 1:
        raise PowerprofError(
            f"the meters changed between steps ({'; '.join(sorted(scopes))})", "name one meter with --energy-source"
        )
    return fit_windows(windows), scopes.pop()


def model_of(fit: Fit, name: str, cpu: CpuIdentity, scope: str, when: str) -> PowerModel:
    """A fit as a model for CPUs of that kind. Raises PowerprofError where no idle state could be fitted."""
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


def target_of(name: str, output: Path | None) -> Path:
    """Where a model of that name is going to be written: `output`, or a file among the user's models.

    Raises UsageError for a name that is none and a file that is there; whether it can be written is not asked here.
    """
    if not 0 < len(name.strip()) <= _LONGEST_NAME or not name.isprintable():
        raise UsageError(f"--name must have 1 to {_LONGEST_NAME} characters that can be printed", "such as rack-7")
    stem = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-") or "model"
    target = output or paths.private_directory(paths.config_dir() / "models") / f"{stem}.toml"
    if os.path.exists(target) and not os.path.isdir(target):  # noqa: PTH110, PTH112 - Path's raise for a long name
        raise _exists(target)
    return target


def save_model(model: PowerModel, target: Path) -> None:
    """Write a model. An existing file is never overwritten: UsageError."""
    try:
        with as_caller():
            folder, name = locate(target)
            with folder, os.fdopen(folder.create(name, 0o666), "w", encoding="utf-8") as file:
                file.write(encode_model(model))
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        raise _cannot_write(target, error) from error


def _exists(target: Path) -> UsageError:
    return UsageError(f"{target} exists", "choose another name: --name NAME or --output FILE")


def _cannot_write(target: Path, error: OSError) -> PowerprofError:
    return PowerprofError(f"cannot write {target} ({reason_of(error)})", "name another place with --output FILE")


def default_name(cpu: CpuIdentity | None = None) -> str:
    """`GenuineIntel family 6 model 207, calibrated 2026-01-31`."""
    return f"{cpu or this_cpu()}, calibrated {now_text()[:10]}"
