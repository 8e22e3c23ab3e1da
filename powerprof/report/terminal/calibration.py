# SPDX-License-Identifier: Apache-2.0
"""`powerprof calibrate` for a terminal: what the model says, with its intervals and doubts."""

from __future__ import annotations

from powerprof.energy.models_file import PowerModel


def lines(model: PowerModel) -> list[str]:
    """The model's watts and joules."""
    rows = [("C0 (running)", model.full_watts, model.full_range_watts)]
    rows += [(state.name, state.watts, state.range_watts) for state in model.states]
    printed = [f"{model.name}: {model.scope}", "", f"{'watts of one CPU':<24}{'':>8}   95 % interval"]
    printed += [f"{title:<24}{watts:8.3f}   {low:.3f} – {high:.3f}" for title, watts, (low, high) in rows]
    if model.wakeup is not None:
        low, high = model.wakeup.range_joules
        printed.append(f"{'a wake-up, µJ':<24}{model.wakeup.joules * 1e6:8.2f}   {low * 1e6:.2f} – {high * 1e6:.2f}")
    if model.cross_validated_percent is not None:
        printed.append(f"Error on levels that the fit had not seen: {model.cross_validated_percent:.1f} %.")
    return [*printed, *(f"· {doubt}" for doubt in model.doubts)]
