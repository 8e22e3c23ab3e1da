# SPDX-License-Identifier: Apache-2.0
"""Calibration: the steps of load, the fit with its intervals, and the saved model."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from powerprof.cli.energy import CalibrationOptions, _calibrate
from powerprof.cli.meter_options import EnergyOptions
from powerprof.energy.calibrate import (
    LEVELS,
    Level,
    calibrate,
    choose_target,
    make_default_name,
    make_metered_window,
    make_model,
    run_load,
    save_model,
)
from powerprof.energy.families import shipped_models
from powerprof.energy.fit import Coefficient, Fit, MeteredWindow, fit_windows
from powerprof.energy.model import choose_model, estimate
from powerprof.energy.models_file import CpuIdentity, parse_models
from powerprof.model.records import EnergyReading, StateResidency, Window
from powerprof.system.errors import PowerprofError, UsageError

TRUE = {"C0": 6.0, "C1": 2.2, "C1E": 1.4, "C6": 0.6}
WAKEUP_JOULES = 30e-6
CPUS = 4
GENOA = CpuIdentity("AuthenticAMD", 25, 17, 1)


def simulate(seed: int, *, noise_watts: float = 0.08, levels: int = 12, repeats: int = 2) -> list[MeteredWindow]:
    """A host whose meter errs by Gaussian noise; every level has its own mix of states."""
    rng = random.Random(seed)
    windows = []
    for level in range(levels):
        weights = {name: rng.random() ** 2 for name in TRUE}
        wakeups = rng.uniform(50, 30_000)
        for _ in range(repeats):
            jittered = {name: w * rng.uniform(0.95, 1.05) for name, w in weights.items()}
            scale = CPUS / sum(jittered.values())
            cpus = {name: w * scale for name, w in jittered.items()}
            watts = sum(TRUE[name] * share for name, share in cpus.items()) + WAKEUP_JOULES * wakeups
            watts += rng.gauss(0.0, noise_watts)
            running = cpus.pop("C0")
            windows.append(MeteredWindow(f"level {level}", 5.0, watts * 5.0, running, cpus, wakeups))
    return windows


def driven_by_busy_time(seed: int) -> list[MeteredWindow]:
    """A meter that follows how long the CPUs really worked, and counters that read that with an error of their own.

    Windows begin and end within idle periods (half a percent of a CPU), and what wakes a CPU runs a little longer in C0
    than its work takes: the fit reads residency, the meter does not.
    """
    rng = random.Random(seed)
    windows = []
    for level in LEVELS:
        period_us = level.work_us + level.rest_us
        share = level.share * (level.work_us / period_us if period_us else 0.0)
        for _ in range(2):
            busy = CPUS * min(share * rng.uniform(0.97, 1.03), 1.0)
            wakeups = CPUS * level.share * (1e6 / period_us if level.rest_us else 0.0) + rng.uniform(20, 80)
            # Short rests end in C1, long ones in C6.
            shallow = 1.0 if level.rest_us and level.rest_us < 2_000 else 0.15 if level.rest_us else 0.02
            idle = CPUS - busy
            true = {"C0": busy, "C1": idle * shallow, "C6": idle * (1 - shallow)}
            watts = sum(TRUE[name] * cpus for name, cpus in true.items()) + WAKEUP_JOULES * wakeups
            watts += rng.gauss(0.0, 0.08)
            read = min(max(busy + rng.gauss(0.0, 0.005 * CPUS) + 1e-6 * wakeups, 0.0), CPUS)
            rest = (CPUS - read) / idle if idle > 0 else 0.0
            states = {name: true[name] * rest for name in ("C1", "C6")}
            windows.append(MeteredWindow(level.name, 5.0, watts * 5.0, read, states, wakeups))
    return windows


def test_a_meter_driven_by_busy_time_is_calibrated_within_its_interval_in_93_of_100_trials() -> None:
    fits = [fit_windows(driven_by_busy_time(seed)) for seed in range(100)]
    held = [
        all(fit.states[name].low <= TRUE[name] <= fit.states[name].high for name in ("C0", "C1", "C6")) for fit in fits
    ]
    assert sum(held) >= 93


def test_wakeups_that_move_with_a_state_are_part_of_it() -> None:
    windows = []
    for level in range(8):
        running = 0.2 + level * 0.2
        idle = 2.0 - running
        windows.append(MeteredWindow(str(level), 1.0, 6 * running + idle, running, {"C1": idle}, 1000.0 * idle))
    fit = fit_windows(windows)
    assert fit.wakeup is None
    assert any("do not separate wake-ups" in note for note in fit.notes)
    assert fit.states["C1"].value == pytest.approx(1.0)


def test_a_state_that_was_hardly_entered_is_left_out() -> None:
    windows = [
        MeteredWindow(w.level, w.window_s, w.joules, w.running_cpus, {**w.states, "C10": 0.001}, w.wakeups_hz)
        for w in simulate(2)
    ]
    fit = fit_windows(windows)
    assert "C10" not in fit.states
    assert "C10 was hardly entered and is not fitted" in fit.notes


@pytest.mark.parametrize(
    ("windows", "reason"),
    [
        (simulate(1)[:4], "4 windows cannot fit 5 unknowns"),
        ([MeteredWindow("idle", 1.0, 1.0, 0.0, {"C1": 2.0}, 10.0)] * 5, "hardly ran"),
        ([MeteredWindow("same", 1.0, 5.0, 1.0, {"C1": 1.0}, 10.0)] * 9, "do not separate C0, C1"),
    ],
)
def test_windows_without_information_are_refused(windows: list[MeteredWindow], reason: str) -> None:
    with pytest.raises(PowerprofError, match=reason):
        fit_windows(windows)


def test_a_calibrated_model_estimates_the_meters_watts(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    model = make_model(fit_windows(simulate(7)), "bench", GENOA, "package-0 by rapl", "2026-01-31")
    path = choose_target("bench", None)
    save_model(model, path)
    assert path.name == "bench.toml"
    assert parse_models(path.read_text(), path) == [model]
    with pytest.raises(UsageError, match="exists"):
        choose_target("bench", None)
    with pytest.raises(UsageError, match="exists"):
        save_model(model, path)
    chosen = choose_model([model, *shipped_models()], GENOA)
    window = simulate(8, noise_watts=0.0)[0]
    states = [
        StateResidency(
            name=name,
            residency_percent=100 * cpus / CPUS,
            average_residency_ms=None,
            entries_hz=window.wakeups_hz / len(window.states),
        )
        for name, cpus in window.states.items()
    ]
    reading = estimate(chosen, CPUS, 5.0, 100 * window.running_cpus / CPUS, states)
    assert reading.joules == pytest.approx(window.joules, rel=0.02)
    assert (reading.low_watts or 0) <= window.joules / 5.0 <= (reading.high_watts or 0)
    assert model.source == "calibrated 2026-01-31 over 24 windows of package-0 by rapl"
    assert make_default_name(GENOA).startswith("AuthenticAMD family 25 model 17, calibrated 20")


def test_a_model_that_cannot_be_written_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Minutes of metering are not lost with a disk that has filled meanwhile."""
    fit = fit_windows(simulate(7))

    def full(*_: object) -> None:
        raise PowerprofError("cannot write bench.toml (no space left on device)")

    monkeypatch.setattr("powerprof.energy.calibrate.calibrate", lambda *_, **__: (fit, "package-0 by rapl"))
    monkeypatch.setattr("powerprof.energy.calibrate.save_model", full)
    options = CalibrationOptions(calibrate=True, output=tmp_path / "bench.toml")
    with pytest.raises(PowerprofError, match="no space left"):
        _calibrate(options, EnergyOptions(), quiet=True)
    (model,) = parse_models(capsys.readouterr().out, tmp_path)
    assert (model.name, model.scope) == ("bench", "package-0 by rapl")


def test_a_load_runs_on_its_cpus_and_ends_with_its_context() -> None:
    before = {child.pid for child in psutil.Process().children()}
    cpu = min(os.sched_getaffinity(0))
    with run_load(Level("full", 1.0, 1_000, 0), [cpu]):
        deadline = time.monotonic() + 10
        (child,) = [c for c in psutil.Process().children() if c.pid not in before]
        while child.cpu_times().user < 0.02 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert child.cpu_times().user >= 0.02
        assert child.cpu_affinity() == [cpu]
    assert not child.is_running()


def test_the_idle_level_starts_no_process() -> None:
    before = len(psutil.Process().children())
    with run_load(Level("idle", 0.0, 0, 0), [0, 1]):
        assert len(psutil.Process().children()) == before


def test_a_step_without_energy_ends_the_calibration(tmp_path: Path) -> None:
    log = tmp_path / "wall.csv"
    log.write_text(f"time,watts\n{time.time():.3f},2\n")
    said: list[str] = []
    with pytest.raises(PowerprofError, match="step 'idle' has no measured energy"):
        calibrate(
            "meter_log", meter_log=log, step_s=0.2, repeats=1, levels=[Level("idle", 0.0, 0, 0)], progress=said.append
        )
    assert said == ["step 1 of 1: idle"]


# (level, window_s, running CPUs, CPUs in C1 and C6, wake-ups/s, error of the meter in watts)
ODD_LEVELS = [
    ("idle", 5.0, 0.1, 0.4, 3.5, 90.0, 0.03),
    ("idle", 4.0, 0.2, 0.3, 3.5, 70.0, -0.02),
    ("full", 5.0, 3.9, 0.1, 0.0, 900.0, 0.05),
    ("full", 7.0, 3.8, 0.2, 0.0, 800.0, -0.04),
    ("half", 5.0, 2.0, 0.5, 1.5, 4000.0, -0.06),
    ("half", 5.0, 2.1, 0.4, 1.5, 4100.0, 0.02),
    ("short", 6.0, 0.6, 3.1, 0.3, 21_000.0, 0.04),
    ("short", 5.0, 0.7, 1.9, 1.4, 5_000.0, -0.03),
]
ODD_X = np.array([row[2:6] for row in ODD_LEVELS])


def odd_watts(c6_watts: float = 0.6) -> np.ndarray:
    errors = np.array([row[6] for row in ODD_LEVELS])
    return np.asarray(ODD_X @ np.array([6.0, 2.2, c6_watts, 30e-6]) + errors)


def odd_windows(c6_watts: float = 0.6, factor: float = 1.0) -> list[MeteredWindow]:
    return [
        MeteredWindow(level, s, float(watts) * s * factor, running, {"C1": c1, "C6": c6}, wakeups)
        for (level, s, running, c1, c6, wakeups, _), watts in zip(ODD_LEVELS, odd_watts(c6_watts), strict=True)
    ]


def solve(c6_watts: float = 0.6) -> tuple[np.ndarray, np.ndarray]:
    """Return the figures by the normal equations, and half of their simultaneous intervals."""
    x, y = ODD_X, odd_watts(c6_watts)
    values = np.linalg.solve(x.T @ x, x.T @ y)
    residuals = y - x @ values
    errors = np.sqrt(residuals @ residuals / (8 - 4) * np.diag(np.linalg.inv(x.T @ x)))
    return values, stats.t.ppf(1 - 0.05 / (2 * 4), 8 - 4) * errors


def test_the_fit_is_least_squares_with_simultaneous_intervals() -> None:
    values, half = solve()
    fit = fit_windows(odd_windows())
    assert fit.wakeup is not None and fit.windows_count == 8
    for n, figure in enumerate([fit.states["C0"], fit.states["C1"], fit.states["C6"], fit.wakeup]):
        assert figure.value == pytest.approx(values[n])
        assert figure.low == pytest.approx(max(values[n] - half[n], 0.0))
        assert figure.high == pytest.approx(values[n] + half[n])


def test_the_error_on_other_levels_is_a_share_of_the_metered_watts() -> None:
    errors, y = [], odd_watts()
    levels = np.array([row[0] for row in ODD_LEVELS])
    for level in ("idle", "full", "half", "short"):
        inside = levels == level
        values, _, rank, _ = np.linalg.lstsq(ODD_X[~inside], y[~inside], rcond=None)
        assert rank == 4
        errors += list(100 * np.abs(ODD_X[inside] @ values - y[inside]) / y[inside])
    assert fit_windows(odd_windows()).cross_validated_percent == pytest.approx(sum(errors) / 8)


def test_a_figure_below_0_is_0_and_keeps_the_upper_end() -> None:
    values, half = solve(-0.01)
    fit = fit_windows(odd_windows(-0.01))
    assert values[2] < 0 < values[2] + half[2]
    assert (fit.states["C6"].value, fit.states["C6"].low) == (0.0, 0.0)
    assert fit.states["C6"].high == pytest.approx(values[2] + half[2])
    assert fit.notes == ("C6 came out below 0 and is set to 0",)


def metered(**changes: object) -> Window:
    def state(name: str, percent: float | None, polling: bool = False) -> StateResidency:
        return StateResidency(
            name=name, residency_percent=percent, average_residency_ms=None, entries_hz=1.0, polling=polling
        )

    reading = EnergyReading(
        source="rapl", domain="package-0", scope="package", kind="measured", joules=91.0, watts=13.0
    )
    values = {
        "started_at": "",
        "window_s": 7.0,
        "cpus": 6,
        "c0_percent": 15.0,
        "idle_percent": 85.0,
        "wakeups_hz": 1234.5,
        "states": [state("POLL", 0.0, True), state("C1", 25.0), state("C6", 60.0), state("C8", None)],
        "energy": [reading],
        **changes,
    }
    return Window(**values)  # type: ignore[arg-type]


def test_a_metered_window_counts_cpus() -> None:
    made = make_metered_window(metered(), "a level")
    assert made == MeteredWindow(
        "a level", 7.0, 91.0, pytest.approx(0.9), {"C1": 1.5, "C6": pytest.approx(3.6), "C8": 0.0}, 1234.5
    )
    estimated = EnergyReading(source="model", domain="cpus", scope="model", kind="estimated", joules=91.0, watts=13.0)
    lost = EnergyReading(source="rapl", domain="package-0", scope="package", kind="measured", joules=None, watts=None)
    for changes in (
        {"energy": [estimated]},
        {"energy": [lost]},
        {"energy": []},
        {"c0_percent": None},
        {"window_s": None},
    ):
        assert make_metered_window(metered(**changes), "a level") is None


def test_a_model_idles_in_its_cheapest_state() -> None:
    states = {
        "C0": Coefficient(6.25, 5.5, 7.75),
        "C1": Coefficient(2.5, 2.25, 3.0),
        "C6": Coefficient(0.5, 0.375, 0.875),
        "C1E": Coefficient(1.5, 1.0, 2.0),
    }
    fit = Fit(states, Coefficient(3e-5, 2e-5, 5e-5), 2.5, 28, ("a doubt",))
    model = make_model(fit, "rack", CpuIdentity("AuthenticAMD", 25, 17), "package-0 by rapl", "2026-11-28")
    assert (model.idle_watts, model.idle_range_watts) == (0.5, (0.375, 0.875))
    assert (model.full_watts, model.full_range_watts) == (6.25, (5.5, 7.75))
    assert {s.name: (s.watts, s.range_watts) for s in model.states} == {
        "C1": (2.5, (2.25, 3.0)),
        "C6": (0.5, (0.375, 0.875)),
        "C1E": (1.5, (1.0, 2.0)),
    }
    assert model.wakeup is not None and (model.wakeup.joules, model.wakeup.range_joules) == (3e-5, (2e-5, 5e-5))
    assert (model.cross_validated_percent, model.doubts, model.range_from) == (2.5, ["a doubt"], "fit")
    with pytest.raises(PowerprofError, match="fewer watts than idle"):
        make_model(
            Fit({**states, "C0": Coefficient(0.4, 0.3, 0.6)}, None, None, 28),
            "rack",
            CpuIdentity(None, None, None),
            "x",
            "y",
        )


@given(st.floats(0.1, 40.0))
def test_a_fit_scales_with_its_meter(factor: float) -> None:
    one = fit_windows(odd_windows())
    many = fit_windows(odd_windows(factor=factor))
    assert many.cross_validated_percent == pytest.approx(one.cross_validated_percent)
    for name, state in one.states.items():
        assert (many.states[name].value, many.states[name].high) == (
            pytest.approx(factor * state.value),
            pytest.approx(factor * state.high),
        )


def test_the_levels_reach_all_loads_with_short_and_long_rests() -> None:
    """The name of a level has its work and its period; a level without work has no rest."""
    units = {"µs": 1, "ms": 1000}
    for level in LEVELS:
        stated = [float(figure) * units[unit] for figure, unit in re.findall(r"([\d.]+) (µs|ms)", level.name)]
        assert stated in ([], [level.work_us, level.work_us + level.rest_us]), level
        assert level.work_us > 0 or level.rest_us == 0
    rests = sorted({level.rest_us for level in LEVELS if level.work_us and level.rest_us})
    assert rests[0] < 100 and rests[-1] >= 100_000
