# SPDX-License-Identifier: Apache-2.0
"""The fit of watts by idle state and joules by wake-up to metered windows: least squares with intervals. Pure.

watts of the host = Σ state watts · CPUs in that state + running watts · CPUs in C0 + joules · wake-ups/s. The
residencies of a CPU sum to one, so the constant power of the package is part of every state's watts. Intervals are
Student's t with n − k degrees of freedom, and simultaneous (Bonferroni): in 95 of 100 calibrations all figures of a fit
are within their intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from powerprof.statistics.distributions import student_quantile
from powerprof.system.errors import PowerprofError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float64]


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
        values, errors, quantile = _solve_least_squares(_build_design(windows, names), watts)
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


def _build_design(windows: Sequence[MeteredWindow], names: Sequence[str]) -> Matrix:
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
    if _condition(_build_design(windows, names)) <= _WORST_CONDITION:
        return names
    without = [name for name in names if name != WAKEUP]
    if _condition(_build_design(windows, without)) <= _WORST_CONDITION:
        notes.append("the levels do not separate wake-ups from the states' own watts: wake-ups are part of these")
        return without
    raise PowerprofError(f"the levels do not separate {', '.join(without)}", "add levels, or a longer --step")


def _condition(design: Matrix) -> float:
    import numpy as np

    norms = np.linalg.norm(design, axis=0)
    return float("inf") if (norms == 0).any() else float(np.linalg.cond(design / norms))


def _solve_least_squares(design: Matrix, watts: Matrix) -> tuple[Matrix, Matrix, float]:
    """Return the values, their standard errors, and the simultaneous t quantile."""
    import numpy as np

    count, unknowns = design.shape
    freedom = count - unknowns
    values = np.asarray(np.linalg.lstsq(design, watts, rcond=None)[0], dtype=np.float64)
    residuals = watts - design @ values
    variance = float(residuals @ residuals) / freedom
    # (XᵀX)⁻¹ = R⁻¹R⁻ᵀ by QR keeps the digits that forming XᵀX loses.
    inverse = np.linalg.inv(np.linalg.qr(design)[1])
    errors = np.sqrt(variance * (inverse**2).sum(axis=1))
    quantile = student_quantile(1 - (1 - _CONFIDENCE) / unknowns, freedom)
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
        design = _build_design(rest, names)
        if len(rest) < len(names) or np.linalg.matrix_rank(design) < len(names):
            continue  # a state that only this level enters cannot be predicted
        values, *_ = np.linalg.lstsq(design, np.array([w.joules / w.window_s for w in rest]), rcond=None)
        for window in (w for w in windows if w.level == level):
            actual = window.joules / window.window_s
            predicted = float((_build_design([window], names) @ values)[0])
            errors.append(abs(predicted - actual) / actual * 100)
    return sum(errors) / len(errors) if errors else None
