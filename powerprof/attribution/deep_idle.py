# SPDX-License-Identifier: Apache-2.0
"""Time in which all CPUs idled together, its breakers, and the governor's misses; pure, over a capture."""

from __future__ import annotations

import numpy as np

from powerprof.attribution.blame import task_finder
from powerprof.attribution.bursts import Periods, View, leave_out, list_polls, read_bursts
from powerprof.attribution.capture import Capture, IdleCpu
from powerprof.attribution.causes import are_ended_polls, classify_exits, label_exits
from powerprof.attribution.deep_scopes import build_scope
from powerprof.attribution.deep_what_if import DeepRequest, build_what_if
from powerprof.model.deep_idle import DeepIdle, GovernorCheck
from powerprof.tracing.captures import Array, select_in_window
from powerprof.tracing.idle_data import CAUSE, CAUSE_KEY, build_cause_keys


def build_deep_idle(capture: Capture, request: DeepRequest) -> DeepIdle:
    """Return the deep idle of a capture."""
    periods = _label_periods(capture)
    bursts, window, lost_count = read_bursts(capture, periods.exits)
    # The kernel chooses a state again after a poll that reached its time limit: no program ran.
    bursts = leave_out(bursts, are_ended_polls(periods.causes, capture.states))
    states = request.states or next((tuple(cpu.states) for cpu in capture.idle_cpus), ())
    polls = list_polls(capture, periods.exits)
    views = [View(name, cpus, window, states, polls) for name, cpus in _name_scopes(capture).items()]
    return DeepIdle(
        table=request.table,
        periods_count=len(periods.exits),
        lost_count=lost_count,
        scopes=[build_scope(view, bursts, periods) for view in views],
        governor=_check_governor(capture, periods, lost_count),
        what_if=build_what_if(capture, request, periods, bursts, views, lost_count),
    )


def _label_periods(capture: Capture) -> Periods:
    exits = select_in_window(capture.exit_records(), capture.cpu_edges())
    exits = exits[np.lexsort((exits["sequence"], exits["exit_ns"]))]
    causes, keys = np.zeros(len(exits), dtype=CAUSE), build_cause_keys(exits)
    for name in CAUSE_KEY.names or ():
        causes[name] = keys[name]
    causes["count"], causes["last_ns"], causes["next_comm"] = 1, exits["exit_ns"], exits["next_comm"]
    ended_by = classify_exits(causes, capture.states)
    groups = label_exits(
        causes,
        ended_by,
        task_finder(capture),
        functions=capture.functions,
        interrupts=capture.interrupts,
        server_names=capture.server_names,
        own_pids=capture.own_pids(),
    )
    above, below = np.zeros((2, len(exits)), dtype=bool)
    lengths_ns = exits["exit_ns"].astype(np.int64) - exits["enter_ns"].astype(np.int64)
    for idle_cpu in capture.idle_cpus:
        mine = exits["cpu"] == idle_cpu.cpu
        above[mine], below[mine] = count_misses(idle_cpu, exits["state"][mine], lengths_ns[mine])
    return Periods(exits, causes, ended_by, groups, above, below)


def _name_scopes(capture: Capture) -> dict[str, list[int]]:
    """Return the CPUs of the host and, if there are several, of each package."""
    online = sorted(capture.cpu_edges())
    packages: dict[str, list[int]] = {}
    for cpu in sorted(capture.idle_cpus, key=lambda cpu: (-1 if cpu.package is None else cpu.package, cpu.cpu)):
        if cpu.package is not None and cpu.cpu in online:
            packages.setdefault(f"package {cpu.package}", []).append(cpu.cpu)
    return {"host": online} | (packages if len(packages) > 1 else {})


def count_misses(cpu: IdleCpu, states: Array, lengths_ns: Array) -> tuple[Array, Array]:
    """Return whether each idle period of a CPU ended too early for its state, or was long enough for the next one.

    cpuidle_enter_state() counts the governor's misses this way (drivers/cpuidle/cpuidle.c).
    """
    above, below = np.zeros((2, len(states)), dtype=bool)
    for number, state in enumerate(cpu.states):
        chosen = states == number
        too_short = chosen & (lengths_ns < (state.target_us or 0) * 1000)
        above |= too_short & any(not other.disabled for other in cpu.states[:number])
        deeper = next((other for other in cpu.states[number + 1 :] if not other.disabled), None)
        if deeper is not None:
            rest = lengths_ns - (state.latency_us or 0) * 1000
            below |= chosen & ~too_short & (rest > 0) & (rest >= (deeper.target_us or 0) * 1000)
    return above, below


def _check_governor(capture: Capture, periods: Periods, lost_count: int) -> GovernorCheck | None:
    """Return the governor's misses; None if a latency or a target residency is unknown."""
    states = [state for cpu in capture.idle_cpus for state in cpu.states]
    if not states or any(state.target_us is None or state.latency_us is None for state in states):
        return None

    def kernel(name: str) -> int | None:
        counts = [count for cpu in capture.idle_cpus for count in getattr(cpu, name)]
        return None if None in counts else sum(counts)

    return GovernorCheck(
        above_count=int(periods.above.sum()),
        below_count=int(periods.below.sum()),
        kernel_above_count=kernel("above"),
        kernel_below_count=kernel("below"),
        is_complete=lost_count == 0,
    )
