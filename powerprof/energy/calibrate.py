# SPDX-License-Identifier: Apache-2.0
"""Calibration of a power model on a metered host: one metered window per step of idle or load, a fit, a TOML file."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from powerprof.energy.domains import host_energy
from powerprof.energy.meters import open_meters
from powerprof.energy.models_file import (
    CpuIdentity,
    CpuMatch,
    PowerModel,
    StateWatts,
    WakeupJoules,
    encode_model,
    this_cpu,
)
from powerprof.measure.sampling import WindowMeter
from powerprof.measure.window import format_now
from powerprof.model.records import Window
from powerprof.system import paths, programs
from powerprof.system.caller import as_caller
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.files import reason_of
from powerprof.system.folders import open_parent

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float64]


# The fit of watts by idle state and joules by wake-up to metered windows: least squares with intervals. Pure.
#
# watts of the host = Σ state watts · CPUs in that state + running watts · CPUs in C0 + joules · wake-ups/s. The
# residencies of a CPU sum to one, so the constant power of the package is part of every state's watts. Intervals are
# Student's t with n − k degrees of freedom, and simultaneous (Bonferroni): in 95 of 100 calibrations all figures of a
# fit are within their intervals.

RUNNING = "C0"
WAKEUP = "wake-up"
_CONFIDENCE = 0.95
# A state below this share of the CPUs' time in every window cannot be separated from noise.
_SEEN = 0.02
# Scaled columns beyond this condition number multiply the meter's noise a hundredfold.
_WORST_CONDITION = 100.0


class MeteredWindow(msgspec.Struct, frozen=True):
    """One window of a calibration.

    `running_cpus` and `states` are in CPUs' worth of time: two CPUs for half of the window are 1.0.
    """

    level: str
    window_s: float
    joules: float
    running_cpus: float
    states: Mapping[str, float]
    wakeups_hz: float


class Coefficient(msgspec.Struct, frozen=True):
    """A fitted figure and its simultaneous 95 % interval, cut at 0: watts of a CPU, or joules of a wake-up."""

    value: float
    low: float
    high: float


class Fit(msgspec.Struct, frozen=True):
    """Watts by state, C0 included, and the energy of a wake-up if the windows separate it.

    `cross_validated_percent` is the mean error on whole levels outside the fit, as a share of their watts.
    """

    states: Mapping[str, Coefficient]
    wakeup: Coefficient | None
    cross_validated_percent: float | None
    windows_count: int
    notes: tuple[str, ...] = msgspec.field(default=())


def fit_windows(windows: Sequence[MeteredWindow]) -> Fit:
    """Return the fit of all observed states. Raise PowerprofError if the windows cannot separate them."""
    import numpy as np

    notes: list[str] = []
    names = _choose_columns(windows, notes)
    watts = np.array([w.joules / w.window_s for w in windows])
    if len(windows) <= len(names):
        raise PowerprofError(f"{len(windows)} windows cannot fit {len(names)} unknowns", "add levels or --repeats")
    names = _choose_solvable(windows, names, notes)
    zero: dict[str, Coefficient] = {}
    while True:
        values, errors, quantile = _least_squares(_design(windows, names), watts)
        worst = int(np.argmin(values))
        if values[worst] >= 0:
            break
        # No state returns energy: a negative figure is noise around 0. Fit again without it, and keep the part of its
        # interval above 0.
        notes.append(f"{names[worst]} came out below 0 and is set to 0")
        high = max(float(values[worst] + quantile * errors[worst]), 0.0)
        zero[names[worst]] = Coefficient(0.0, 0.0, high)
        names = [name for i, name in enumerate(names) if i != worst]
    coefficients = {
        **zero,
        **{
            name: Coefficient(float(v), max(float(v - quantile * e), 0.0), float(v + quantile * e))
            for name, v, e in zip(names, values, errors, strict=True)
        },
    }
    return Fit(
        {name: c for name, c in coefficients.items() if name != WAKEUP},
        coefficients.get(WAKEUP),
        _cross_validate(windows, names),
        len(windows),
        tuple(notes),
    )


def _choose_columns(windows: Sequence[MeteredWindow], notes: list[str]) -> list[str]:
    """Return the unknowns of the fit: C0, every observed idle state, and wake-ups."""
    cpus = max(w.running_cpus + sum(w.states.values()) for w in windows)
    states = list(dict.fromkeys(name for w in windows for name in w.states))
    observed = [name for name in states if max(w.states.get(name, 0.0) for w in windows) >= _SEEN * cpus]
    notes += [f"{name} was hardly entered and is not fitted" for name in states if name not in observed]
    if max(w.running_cpus for w in windows) < _SEEN * cpus:
        raise PowerprofError("the CPUs hardly ran in any window", "let the calibration load them")
    return [RUNNING, *observed, WAKEUP]


def _design(windows: Sequence[MeteredWindow], names: Sequence[str]) -> Matrix:
    import numpy as np

    rows = []
    for window in windows:
        row = {**window.states, RUNNING: window.running_cpus, WAKEUP: window.wakeups_hz}
        rows.append([row.get(name, 0.0) for name in names])
    return np.array(rows, dtype=np.float64)


def _choose_solvable(windows: Sequence[MeteredWindow], names: list[str], notes: list[str]) -> list[str]:
    """Return the columns, without wake-ups if they cannot be separated.

    Raise PowerprofError if others cannot be either.
    """
    if _condition(_design(windows, names)) <= _WORST_CONDITION:
        return names
    without = [name for name in names if name != WAKEUP]
    if _condition(_design(windows, without)) <= _WORST_CONDITION:
        notes.append("the levels do not separate wake-ups from the states' own watts: wake-ups are part of these")
        return without
    raise PowerprofError(f"the levels do not separate {', '.join(without)}", "add levels, or a longer --step")


def _condition(design: Matrix) -> float:
    import numpy as np

    norms = np.linalg.norm(design, axis=0)
    return float("inf") if (norms == 0).any() else float(np.linalg.cond(design / norms))


def _least_squares(design: Matrix, watts: Matrix) -> tuple[Matrix, Matrix, float]:
    """Return the values, their standard errors, and the simultaneous t quantile."""
    import numpy as np
    from scipy import special

    count, unknowns = design.shape
    freedom = count - unknowns
    values = np.asarray(np.linalg.lstsq(design, watts, rcond=None)[0], dtype=np.float64)
    residuals = watts - design @ values
    variance = float(residuals @ residuals) / freedom
    # (XᵀX)⁻¹ = R⁻¹R⁻ᵀ by QR keeps the digits that forming XᵀX loses.
    inverse = np.linalg.inv(np.linalg.qr(design)[1])
    errors = np.sqrt(variance * (inverse**2).sum(axis=1))
    quantile = float(special.stdtrit(freedom, 1 - (1 - _CONFIDENCE) / (2 * unknowns)))
    return values, np.asarray(errors, dtype=np.float64), quantile


def _cross_validate(windows: Sequence[MeteredWindow], names: Sequence[str]) -> float | None:
    """Return the mean |error| in percent of each level, fitted on the others. None for fewer than three levels."""
    import numpy as np

    levels = list(dict.fromkeys(w.level for w in windows))
    if len(levels) < 3:
        return None
    errors: list[float] = []
    for level in levels:
        rest: list[Any] = [w for w in windows if w.level != level]
        design = _design(rest, names)
        if len(rest) < len(names) or np.linalg.matrix_rank(design) < len(names):
            continue  # a state that only this level enters cannot be predicted
        values, *_ = np.linalg.lstsq(design, np.array([w.joules / w.window_s for w in rest]), rcond=None)
        for window in (w for w in windows if w.level == level):
            actual = window.joules / window.window_s
            predicted = float((_design([window], names) @ values)[0])
            errors.append(abs(predicted - actual) / actual * 100)
    return sum(errors) / len(errors) if errors else None


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
                reason = "; ".join(meters.notes()) or "no figure"
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
        raise _exists(target)
    return target


def save_model(model: PowerModel, target: Path) -> None:
    """Write a model. Raise UsageError if the file exists, PowerprofError if it cannot be written."""
    try:
        with as_caller():
            folder, name = open_parent(target)
            with folder, os.fdopen(folder.create(name, 0o666), "w", encoding="utf-8") as file:
                file.write(encode_model(model))
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        raise PowerprofError(
            f"cannot write {target} ({reason_of(error)})", "name another place with --output FILE"
        ) from error


def _exists(target: Path) -> UsageError:
    return UsageError(f"{target} exists", "choose another file: --output FILE")


def make_default_name(cpu: CpuIdentity | None = None) -> str:
    """Return a name such as `GenuineIntel family 6 model 207, calibrated 2026-01-31`."""
    return f"{cpu or this_cpu()}, calibrated {format_now()[:10]}"
