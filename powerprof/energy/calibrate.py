# SPDX-License-Identifier: Apache-2.0
"""Calibrates a power model on a metered host: steps of idle and load, one metered window each, a fit, a TOML file."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from powerprof.measure.sampling import WindowMeter, format_now
from powerprof.model.records import Window
from powerprof.system import paths, programs
from powerprof.system.caller import as_caller
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.files import reason_of
from powerprof.system.folders import locate

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float64]


# Fits watts by idle state and joules by wake-up to metered windows: least squares with intervals. Pure.
#
# watts of the host = Σ state watts · CPUs in that state + running watts · CPUs in C0 + joules · wake-ups/s. The
# residencies of a CPU sum to one, so what the package draws in any case is part of every state's watts. Intervals
# are Student's t with n − k degrees of freedom, and simultaneous (Bonferroni): all of a fit's figures lie within
# theirs in 95 of 100 calibrations, not each of them by itself.

RUNNING = "C0"
WAKEUP = "wake-up"
_CONFIDENCE = 0.95
# A state that never held this share of the CPUs' time in any window cannot be separated from noise.
_SEEN = 0.02
# Scaled columns beyond this condition number multiply the meter's noise a hundredfold.
_WORST_CONDITION = 100.0


@dataclass(frozen=True)
class MeteredWindow:
    """One window of a calibration. `states` are CPUs' worth of time in each idle state (2 CPUs, half: 1.0)."""

    level: str
    window_s: float
    joules: float
    running_cpus: float
    states: Mapping[str, float]
    wakeups_hz: float


@dataclass(frozen=True)
class Coefficient:
    """A fitted figure and its simultaneous 95 % interval, cut at 0: watts of a CPU, or joules of a wake-up."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """Watts by state (C0 among them), energy of a wake-up where it could be separated from them, and how good it is.

    `cross_validated_percent`: mean error on whole levels that the fit had not seen, as a share of their watts.
    """

    states: Mapping[str, Coefficient]
    wakeup: Coefficient | None
    residual_watts: float
    cross_validated_percent: float | None
    windows_count: int
    notes: tuple[str, ...] = field(default=())


def fit_windows(windows: Sequence[MeteredWindow]) -> Fit:
    """Fit all states that were seen. Raises PowerprofError where the windows cannot tell anything apart."""
    import numpy as np

    notes: list[str] = []
    names = _columns(windows, notes)
    watts = np.array([w.joules / w.window_s for w in windows])
    if len(windows) <= len(names):
        raise PowerprofError(f"{len(windows)} windows cannot fit {len(names)} unknowns", "add levels or --repeats")
    names = _solvable(windows, names, notes)
    zero: dict[str, Coefficient] = {}
    while True:
        values, errors, residual, quantile = _least_squares(_design(windows, names), watts)
        worst = int(np.argmin(values))
        if values[worst] >= 0:
            break
        # No state gives energy back: a negative figure is noise around 0. Fitting goes on without it, and what
        # its interval had above 0 stays.
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
        residual,
        _cross_validated(windows, names),
        len(windows),
        tuple(notes),
    )


def _columns(windows: Sequence[MeteredWindow], notes: list[str]) -> list[str]:
    """Running, every idle state that was seen, wake-ups."""
    cpus = max(w.running_cpus + sum(w.states.values()) for w in windows)
    states = list(dict.fromkeys(name for w in windows for name in w.states))
    seen = [name for name in states if max(w.states.get(name, 0.0) for w in windows) >= _SEEN * cpus]
    notes += [f"{name} was hardly entered and is not fitted" for name in states if name not in seen]
    if max(w.running_cpus for w in windows) < _SEEN * cpus:
        raise PowerprofError("the CPUs hardly ran in any window", "let the calibration load them")
    return [RUNNING, *seen, WAKEUP]


def _design(windows: Sequence[MeteredWindow], names: Sequence[str]) -> Matrix:
    import numpy as np

    rows = []
    for window in windows:
        row = {**window.states, RUNNING: window.running_cpus, WAKEUP: window.wakeups_hz}
        rows.append([row.get(name, 0.0) for name in names])
    return np.array(rows, dtype=np.float64)


def _solvable(windows: Sequence[MeteredWindow], names: list[str], notes: list[str]) -> list[str]:
    """Leave out wake-ups, then merge no further: columns that move together cannot be separated."""
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


def _least_squares(design: Matrix, watts: Matrix) -> tuple[Matrix, Matrix, float, float]:
    """Values, their standard errors, the residuals' standard deviation, and the simultaneous t quantile."""
    import numpy as np
    from scipy import special

    count, unknowns = design.shape
    freedom = count - unknowns
    values = np.asarray(np.linalg.lstsq(design, watts, rcond=None)[0], dtype=np.float64)
    residuals = watts - design @ values
    variance = float(residuals @ residuals) / freedom
    # (XᵀX)⁻¹ = R⁻¹R⁻ᵀ by QR, which keeps the digits that forming XᵀX would lose.
    inverse = np.linalg.inv(np.linalg.qr(design)[1])
    errors = np.sqrt(variance * (inverse**2).sum(axis=1))
    quantile = float(special.stdtrit(freedom, 1 - (1 - _CONFIDENCE) / (2 * unknowns)))
    return values, np.asarray(errors, dtype=np.float64), variance**0.5, quantile


def _cross_validated(windows: Sequence[MeteredWindow], names: Sequence[str]) -> float | None:
    """Mean |error| in percent on each level, fitted on the others; None with fewer than three levels."""
    import numpy as np

    levels = list(dict.fromkeys(w.level for w in windows))
    if len(levels) < 3:
        return None
    errors: list[float] = []
    for level in levels:
        rest: list[Any] = [w for w in windows if w.level != level]
        design = _design(rest, names)
        if len(rest) < len(names) or np.linalg.matrix_rank(design) < len(names):
            continue  # only this level enters some state: nothing can predict it
        values, *_ = np.linalg.lstsq(design, np.array([w.joules / w.window_s for w in rest]), rcond=None)
        for window in (w for w in windows if w.level == level):
            actual = window.joules / window.window_s
            predicted = float((_design([window], names) @ values)[0])
            errors.append(abs(predicted - actual) / actual * 100)
    return sum(errors) / len(errors) if errors else None


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
def run_load(level: Level, cpus: Sequence[int]) -> Iterator[None]:
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


def make_metered_window(window: Window, level: str) -> MeteredWindow | None:
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
            with run_load(level, cpus), WindowMeter(meters=meters) as meter:
                time.sleep(_SETTLE_S)
                window = meter.measure(step_s)
            made = make_metered_window(window, level.name)
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


def make_model(fit: Fit, name: str, cpu: CpuIdentity, scope: str, when: str) -> PowerModel:
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


def choose_target(name: str, output: Path | None) -> Path:
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


def make_default_name(cpu: CpuIdentity | None = None) -> str:
    """`GenuineIntel family 6 model 207, calibrated 2026-01-31`."""
    return f"{cpu or this_cpu()}, calibrated {format_now()[:10]}"
