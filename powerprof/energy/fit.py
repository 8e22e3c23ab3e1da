# SPDX-License-Identifier: Apache-2.0
"""Fits watts by idle state and joules by wake-up to metered windows: least squares with intervals. Pure.

watts of the host = Σ state watts · CPUs in that state + running watts · CPUs in C0 + joules · wake-ups/s. The
residencies of a CPU sum to one, so what the package draws in any case is part of every state's watts. Intervals
are Student's t with n − k degrees of freedom, and simultaneous (Bonferroni): all of a fit's figures lie within
theirs in 95 of 100 calibrations, not each of them by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from powerprof.errors import PowerprofError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float64]

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
