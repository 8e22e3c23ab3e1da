# SPDX-License-Identifier: Apache-2.0
"""Every metric of a block by hand, unknown figures, and the figures of the system."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest
from msgspec.structs import replace

from powerprof.experiment.metrics import (
    Baseline,
    add_mean,
    format_cost_so_far,
    list_measured,
    mean_baseline,
    note_below_idle,
    pair_figures,
    read_figures,
    rest_percent,
)
from powerprof.experiment.records import Block, list_pairs
from powerprof.experiment.system_metrics import split_cpu_time, system_of_blocks, system_values
from powerprof.model.records import Figures, RunMetric, Window
from powerprof.model.system_activity import OsRates
from tests.unit.experiment.builders import odd_block, odd_pairs, odd_rates, odd_window

BASELINE = Baseline(c0_percent=2.9, wakeups_hz=37.0, watts=5.3)


def length(block: Block) -> float:
    assert block.window.window_s is not None
    return block.window.window_s


def c0_ms(block: Block, percent: float) -> float:
    """Return this share of three CPUs in ms."""
    return percent / 100 * 3 * length(block) * 1000


def joules(block: Block) -> float:
    """Return the energy of the package and the memory; the cores are within the package."""
    package, _, dram = block.window.energy
    return (package.watts or 0.0) * length(block) + (dram.watts or 0.0) * length(block)


def member_watts(block: Block, cpu_s: float | None) -> float:
    """Return the part of the power above 5.3 W, by the CPU time that ran here: C0 without steal."""
    window = block.window
    running_s = ((window.c0_percent or 0.0) - (window.steal_percent or 0.0)) / 100 * 3 * length(block)
    return (joules(block) - 5.3 * length(block)) / running_s * (cpu_s or 0.0) / length(block)


def cpu_s(block: Block, name: str) -> float:
    return next(process.cpu_s for process in block.window.processes if process.name == name)


PER_QUERY: dict[str, Callable[[Block], float]] = {
    "c0_ms_per_query_server": lambda b: 1000 * cpu_s(b, "server"),
    "c0_ms_per_query_client": lambda b: 1000 * cpu_s(b, "client"),
    "c0_ms_per_query": lambda b: c0_ms(b, b.window.c0_percent or 0),
    "c0_ms_per_query_net": lambda b: c0_ms(b, (b.window.c0_percent or 0) - 2.9),
    "joules_per_query": joules,
    "joules_per_query_net": lambda b: joules(b) - 5.3 * length(b),
    "wakeups_per_query": lambda b: (b.window.wakeups_hz or 0) * length(b),
    "edp_joule_seconds": lambda b: joules(b) * (b.mean_ms or 0) / 1000,
    "rows_examined_per_query": lambda b: b.rows_examined or 0,
    "minor_faults_per_query": lambda b: b.minor_faults_count or 0,
    "round_trips_per_query": lambda b: (b.queries or 0) + b.status["Com_stmt_prepare"],
}
OF_HOST: dict[str, Callable[[Block], float]] = {
    "c0_percent": lambda b: b.window.c0_percent or 0,
    "wakeups_hz": lambda b: b.window.wakeups_hz or 0,
    "watts": lambda b: joules(b) / length(b),
    "residency_percent:C1": lambda b: b.window.states[1].residency_percent or 0,
    "residency_percent:C6": lambda b: b.window.states[2].residency_percent or 0,
}
OF_LOAD: dict[str, Callable[[Block], float]] = {
    # 1.1 times the power of the window, over the time of the work.
    "energy_to_solution_joules": lambda b: 1.1 * joules(b) / length(b) * (b.solution_s or 0),
    "time_to_solution_s": lambda b: b.solution_s or 0,
    "latency_p50_ms": lambda b: b.p50_ms or 0,
    "latency_p95_ms": lambda b: b.p95_ms or 0,
    "latency_p99_ms": lambda b: b.p99_ms or 0,
    "queries_hz": lambda b: (b.queries or 0) / (b.solution_s or 0),
    "storm_raged_percent": lambda b: b.storm.raged_percent if b.storm else 0,
    "storm_counter_hz": lambda b: b.storm.counter_hz if b.storm else 0,
    # 18,200 bytes in four slices of 1 s; the last slice is cut.
    "write_bytes_hz": lambda b: 18_200.0,
    "write_bytes_peak_hz": lambda b: 9_100 / 0.29,
    "wakeups_peak_hz": lambda b: 93 / 0.33,
    **{
        f"{name}:{member}": (lambda b, name=name, place=place: getattr(b.members[place], name))  # type: ignore[misc]
        for name in ("c0_percent", "connections_hz", "commits_hz", "relay_log_bytes_hz")
        for place, member in enumerate(("primary", "replica-1"))
    },
    "watts:primary": lambda b: member_watts(b, b.members[0].cpu_s),
    "watts:replica-1": lambda b: member_watts(b, b.members[1].cpu_s),
}
PER_EXECUTION: dict[str, Callable[[Block], float]] = {
    "joules_per_execution": joules,
    "joules_per_execution_net": lambda b: joules(b) - 5.3 * length(b),
    "cpu_s_per_execution": lambda b: b.client_cpu_s or 0,
    "c0_s_per_execution": lambda b: c0_ms(b, b.window.c0_percent or 0) / 1000,
    "time_s_per_execution": length,
    "wakeups_per_execution": lambda b: (b.window.wakeups_hz or 0) * length(b),
}
UNITS = {"ms": "ms", "percent": "%", "joules": "J", "watts": "W", "hz": "1/s", "s": "s"}


def figures_of(blocks: list[Block], baseline: Baseline = BASELINE) -> dict[str, Figures]:
    return {figures.name: figures for figures in read_figures(blocks, baseline)}


def test_every_metric_of_queries_is_its_use_by_its_queries() -> None:
    blocks = odd_pairs(2)
    found = figures_of(blocks)
    expected = {
        **{name: [of(b) / (b.queries or 0) for b in blocks] for name, of in PER_QUERY.items()},
        **{name: [of(b) for b in blocks] for name, of in {**OF_HOST, **OF_LOAD}.items()},
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].values == pytest.approx(values), name
    by_meter = {name for name, figures in found.items() if figures.source == "rapl"}
    assert by_meter == {name for name in expected if "joule" in name or name.startswith("watts")}
    assert {found[name].unit for name in ("c0_ms_per_query", "latency_p99_ms")} == {"ms"}
    assert [found[name].unit for name in ("write_bytes_hz", "relay_log_bytes_hz:primary", "watts:primary")] == [
        "B/s",
        "B/s",
        "W",
    ]


def test_every_metric_of_a_command_is_its_use_by_its_executions() -> None:
    blocks = [replace(block, executions_count=5 + number) for number, block in enumerate(odd_pairs(2))]
    found = figures_of(blocks)
    assert found.keys() == {*PER_EXECUTION, *OF_HOST}
    for name, of in PER_EXECUTION.items():
        assert found[name].values == pytest.approx([of(b) / (b.executions_count or 0) for b in blocks]), name
    for name, of in OF_HOST.items():
        assert found[name].values == pytest.approx([of(b) for b in blocks]), name


def window_without(**unknown: object) -> Callable[[Block], Block]:
    return lambda block: replace(block, window=replace(block.window, **unknown))


NET = {"c0_ms_per_query_net"}
C0 = {"c0_percent", "c0_ms_per_query", *NET, "watts:primary", "watts:replica-1"}
JOULES = {"joules_per_query", "joules_per_query_net", "edp_joule_seconds", "watts"}
EVERY_QUERY = {*PER_QUERY, "queries_hz"}


@pytest.mark.parametrize(
    ("lose", "lost"),
    [
        (window_without(c0_percent=None), C0),
        (window_without(unknown_cpus_count=1), {"c0_ms_per_query", *NET}),
        (
            window_without(window_s=None),
            {
                *("c0_ms_per_query", *NET, "joules_per_query_net", "wakeups_per_query"),
                *("watts:primary", "watts:replica-1"),
            },
        ),
        (window_without(wakeups_hz=None), {"wakeups_hz", "wakeups_per_query"}),
        (window_without(processes=[]), {"c0_ms_per_query_server", "c0_ms_per_query_client"}),
        (window_without(energy=[]), {*JOULES, "watts:primary", "watts:replica-1"}),
        (window_without(states=[]), {"residency_percent:C1", "residency_percent:C6"}),
        (lambda block: replace(block, queries=None), EVERY_QUERY),
        (lambda block: replace(block, queries=0), EVERY_QUERY - {"queries_hz"}),
        (lambda block: replace(block, mean_ms=None), {"edp_joule_seconds"}),
        (lambda block: replace(block, p95_ms=None), {"latency_p95_ms"}),
        (lambda block: replace(block, rows_examined=None), {"rows_examined_per_query"}),
        (lambda block: replace(block, minor_faults_count=None), {"minor_faults_per_query"}),
        (lambda block: replace(block, status={}), {"round_trips_per_query"}),
        (lambda block: replace(block, solution_s=None), {"time_to_solution_s"}),
        (lambda block: replace(block, solution_energy=[]), {"energy_to_solution_joules"}),
        (lambda block: replace(block, storm=None), {"storm_raged_percent", "storm_counter_hz"}),
        (lambda block: replace(block, slices=None), {"write_bytes_hz", "write_bytes_peak_hz", "wakeups_peak_hz"}),
    ],
)
def test_an_unknown_figure_is_unknown_in_its_metrics_and_in_no_other(
    lose: Callable[[Block], Block], lost: set[str]
) -> None:
    blocks = odd_pairs(2)
    before, after = figures_of(blocks), figures_of([blocks[0], lose(blocks[1]), *blocks[2:]])
    assert {name for name in before if after[name].values[1] is None} == lost
    changed = {name for name in before if after[name].values[1] != before[name].values[1]}
    # Without the time of the work, the queries are those of the window; without any query the rate is 0.
    assert changed - lost <= {"queries_hz"}
    assert all(after[name].values[::2] == before[name].values[::2] for name in before)


@pytest.mark.parametrize(
    ("baseline", "lost"),
    [
        (replace(BASELINE, c0_percent=None), {"c0_ms_per_query_net"}),
        (replace(BASELINE, watts=None), {"joules_per_query_net", "watts:primary", "watts:replica-1"}),
    ],
)
def test_nothing_is_net_of_an_unknown_idle_host(baseline: Baseline, lost: set[str]) -> None:
    assert figures_of(odd_pairs(2)).keys() - figures_of(odd_pairs(2), baseline).keys() == lost


def test_queries_without_equal_work_are_of_the_window() -> None:
    block = replace(odd_block(1, "b"), solution_s=None)
    assert figures_of([block])["queries_hz"].values == pytest.approx([(block.queries or 0) / length(block)])


def test_few_prepares_are_those_of_others() -> None:
    few = replace(odd_block(), status={"Com_stmt_prepare": 99})
    assert "round_trips_per_query" not in figures_of([few])


def test_a_rate_of_members_about_nought_is_left_out() -> None:
    calm = replace(odd_block(), members=[replace(odd_block().members[0], connections_hz=0.4, commits_hz=None)])
    names = figures_of([calm]).keys()
    assert "relay_log_bytes_hz:primary" in names
    assert not names & {"connections_hz:primary", "commits_hz:primary"}


def test_pairs_are_split_into_a_and_b_with_the_step_of_counts() -> None:
    blocks = odd_pairs(3)
    compared = {each.a.name: each for each in pair_figures(list_pairs(blocks), BASELINE)}
    every = figures_of(blocks)
    assert compared.keys() == every.keys()
    for name, each in compared.items():
        assert (each.a.values, each.b.values) == (every[name].values[::2], every[name].values[1::2])
    fewest, shortest = min(b.queries or 0 for b in blocks), min(length(b) for b in blocks)
    by_query = {"wakeups_per_query", "rows_examined_per_query", "minor_faults_per_query", "round_trips_per_query"}
    assert {name for name, each in compared.items() if each.step == pytest.approx(1 / fewest)} == by_query
    assert {name for name, each in compared.items() if each.step == pytest.approx(1 / shortest)} == {
        "queries_hz",
        "wakeups_hz",
    }
    assert {each.step for name, each in compared.items() if name not in {*by_query, "queries_hz", "wakeups_hz"}} == {
        None
    }


def test_the_idle_host_is_the_mean_of_its_known_windows() -> None:
    first, second = odd_window(0), odd_window(3)
    found = mean_baseline([first, replace(second, c0_percent=None), second], [odd_block()])
    assert found.c0_percent == pytest.approx(fmean([first.c0_percent or 0, second.c0_percent or 0]))
    assert found.wakeups_hz == pytest.approx(((first.wakeups_hz or 0) + 2 * (second.wakeups_hz or 0)) / 3)
    powers = [sum(window.energy[place].watts or 0 for place in (0, 2)) for window in (first, second, second)]
    assert found.watts == pytest.approx(fmean(powers))
    assert found.meters is not None and set(found.meters.domains) == {"package-0", "dram"}
    none = mean_baseline([])
    assert (none.c0_percent, none.wakeups_hz, none.watts, none.meters) == (None, None, None, None)


def test_the_rest_is_c0_without_the_known_processes() -> None:
    window = odd_window(2, "b")
    known = sum(process.percent or 0.0 for process in window.processes)
    assert rest_percent(window) == pytest.approx((window.c0_percent or 0.0) - known)
    assert rest_percent(replace(window, c0_percent=None)) is None
    # The clocks of processes and of CPUs are read one after the other.
    assert rest_percent(replace(window, c0_percent=known - 0.1)) == 0.0


def test_the_cost_so_far_is_of_the_counted_blocks() -> None:
    blocks = odd_pairs(2)
    warm = replace(blocks[0], dropped=True, queries=1)
    spent, queries = 1000 * sum(cpu_s(b, "server") for b in blocks), sum(b.queries or 0 for b in blocks)
    assert format_cost_so_far([warm, *blocks]) == f"{spent / queries:.3g} ms CPU/query so far"
    commands = [replace(block, executions_count=7) for block in blocks]
    assert format_cost_so_far(commands) == (
        f"{1000 * sum(b.client_cpu_s or 0 for b in blocks) / 28:.3g} ms CPU/execution so far"
    )
    assert format_cost_so_far([*blocks, replace(blocks[1], window=replace(blocks[1].window, processes=[]))]) == ""
    assert format_cost_so_far([warm]) == ""


def test_the_mean_of_a_metric_has_its_interval_within_its_limits() -> None:
    found = add_mean(Figures(name="c0_percent", unit="%", kind="measured", values=[97.1, None, 99.8, 99.5]))
    assert found.estimate.mean == pytest.approx(fmean([97.1, 99.8, 99.5]))
    assert found.estimate.high is not None and found.estimate.low is not None
    assert found.estimate.low < 97.1 and 99.8 < found.estimate.high < 100
    assert list_measured([found, replace(found, name="watts", kind="estimated")]) == {"c0_percent"}


def test_intervals_of_net_figures_below_nought_are_noted() -> None:
    assert [note.name for note in note_below_idle([("joules_per_query_net", -0.1)])] == ["below_idle"]
    assert note_below_idle([("joules_per_query_net", 0.1), ("watts", -1.0), ("c0_ms_per_query_net", None)]) == []


# The system.

PER_SECOND: dict[str, Callable[[Window, OsRates], float | None]] = {
    "context_switches": lambda w, r: w.context_switches_hz,
    "page_faults": lambda w, r: r.page_faults_hz,
    "major_faults": lambda w, r: r.major_faults_hz,
    "disk_reads": lambda w, r: r.disk_reads_hz,
    "disk_writes": lambda w, r: r.disk_writes_hz,
    "disk_read_bytes": lambda w, r: r.disk_read_bytes_hz,
    "disk_write_bytes": lambda w, r: r.disk_write_bytes_hz,
    "network_packets": lambda w, r: r.network_packets_hz,
    "migrations": lambda w, r: r.migrations_hz,
    "interrupts:eth0": lambda w, r: r.interrupts[0].rate_hz,
}
LEVELS: dict[str, Callable[[OsRates], float | None]] = {
    "waiting_tasks": lambda r: r.waiting_tasks,
    "cpu_pressure_percent": lambda r: r.cpu_pressure_percent,
    "io_pressure_percent": lambda r: r.io_pressure_percent,
    "disk_busy_percent": lambda r: r.disk_busy_percent,
    "disk_service_ms:nvme0n1": lambda r: r.disks[1].service_ms,
    "disk_read_ms:nvme0n1": lambda r: r.disks[1].read_ms,
    "disk_write_ms:nvme0n1": lambda r: r.disks[1].write_ms,
    "disk_queue_count:nvme0n1": lambda r: r.disks[1].queue_count,
    "disk_busy_percent:nvme0n1": lambda r: r.disks[1].busy_percent,
    "busiest_cpu_percent": lambda r: r.cpus[1].busy_percent,
    "idlest_cpu_percent": lambda r: r.cpus[0].busy_percent,
    "busy_mhz": lambda r: r.frequencies.busy_mhz if r.frequencies else None,
    "pstate_percent:1200 MHz": lambda r: r.frequencies.states[0].residency_percent if r.frequencies else None,
    "pstate_percent:3100 MHz": lambda r: r.frequencies.states[1].residency_percent if r.frequencies else None,
}


def system_of(queries: list[RunMetric], blocks: list[Block]) -> dict[str, RunMetric]:
    return {metric.name: metric for metric in system_of_blocks(queries, blocks)}


def check_system(found: dict[str, RunMetric], expected: dict[str, list[float | None]]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].values == pytest.approx(values), name
        known = [value for value in values if value is not None]
        assert found[name].estimate.mean == pytest.approx(fmean(known)), name
        low, high = found[name].estimate.low, found[name].estimate.high
        assert low is not None and high is not None and 0 <= low <= fmean(known) <= high, name
        assert found[name].unit != "%" or high <= 100.0, name


def test_the_system_is_given_per_query_if_queries_were_counted() -> None:
    blocks = odd_pairs(4)[::2]
    windows = [block.window for block in blocks]
    rates = [odd_rates(number) for number in range(4)]
    hz: list[float | None] = [131.0, 97.0, None, 103.0]
    queries = add_mean(Figures(name="queries_hz", unit="1/s", kind="measured", values=hz))
    found = system_of([queries], blocks)

    def per_query(values: list[float | None]) -> list[float | None]:
        return [None if a is None or not b else a / b for a, b in zip(values, hz, strict=True)]

    expected: dict[str, list[float | None]] = {
        # Percent of three CPUs: 30 ms per second are 1 %.
        **{
            f"{share}_ms_per_query": per_query([30 * getattr(window, f"{share}_percent") for window in windows])
            for share in ("user", "system", "irq")
        },
        **{
            f"{name.partition(':')[0]}_per_query{':eth0' if ':' in name else ''}": per_query(
                [of(w, r) for w, r in zip(windows, rates, strict=True)]
            )
            for name, of in PER_SECOND.items()
        },
        **{name: [of(rate) for rate in rates] for name, of in LEVELS.items()},
    }
    check_system(found, expected)
    assert found["user_ms_per_query"].unit == "ms" and found["disk_read_bytes_per_query"].unit == "B"


def test_the_system_is_given_per_second_without_queries() -> None:
    blocks = [
        replace(
            odd_block(number), window=replace(odd_window(number), system=None if number == 1 else odd_rates(number))
        )
        for number in range(4)
    ]
    windows = [block.window for block in blocks]
    found = system_of([], blocks)
    known = [window.system for window in windows]
    expected: dict[str, list[float | None]] = {
        **{
            f"{share}_percent": [getattr(w, f"{share}_percent") for w in windows] for share in ("user", "system", "irq")
        },
        **{
            f"{name.partition(':')[0]}_hz{':eth0' if ':' in name else ''}": [
                of(w, r) if r is not None or name == "context_switches" else None  # type: ignore[arg-type]
                for w, r in zip(windows, known, strict=True)
            ]
            for name, of in PER_SECOND.items()
        },
        **{name: [None if rate is None else of(rate) for rate in known] for name, of in LEVELS.items()},
    }
    # A window without the list of interrupts had none of this device.
    expected["interrupts_hz:eth0"] = [0.0 if value is None else value for value in expected["interrupts_hz:eth0"]]
    check_system(found, expected)
    assert found["disk_write_bytes_hz"].unit == "B/s"
    assert system_of_blocks([], [replace(odd_block(), window=replace(odd_window(), system=None))]) == []


def test_saved_wake_ups_are_figures_of_the_system() -> None:
    wakeups = Figures(name="wakeups_hz", unit="1/s", kind="measured", values=[523.0, None, 611.0])
    queries = Figures(name="queries_hz", unit="1/s", kind="measured", values=[131.0, 88.0, 97.0])
    (alone,) = system_values([wakeups], [], 3)
    (each,) = system_values([wakeups, queries], [], 3)
    assert (alone.name, alone.values) == ("wakeups_hz", [523.0, None, 611.0])
    assert (each.name, each.values) == ("wakeups_per_query", pytest.approx([523 / 131, None, 611 / 97]))


def test_all_disks_are_shown_if_the_servers_are_unknown_and_absent_states_count_as_nought() -> None:
    unknown = [replace(disk, of_server=False) for disk in odd_rates().disks]
    one = replace(odd_rates(), disks=unknown)
    assert one.frequencies is not None
    other = replace(one, frequencies=replace(one.frequencies, states=one.frequencies.states[:1]))
    found = {
        metric.name: metric.values for metric in system_values([], [one, other, replace(one, frequencies=None)], 3)
    }
    assert found["disk_read_ms:sda"] == [unknown[0].read_ms] * 3
    assert found["pstate_percent:3100 MHz"] == [one.frequencies.states[1].residency_percent, 0.0, None]


def test_the_split_of_cpu_time_is_that_of_the_windows() -> None:
    blocks = [odd_block(0), replace(odd_block(1), window=replace(odd_window(1), irq_percent=None))]
    found = {figures.name: figures.values for figures in split_cpu_time(blocks)}
    windows = [block.window for block in blocks]
    assert found == {
        name: [getattr(window, name) for window in windows]
        for name in ("user_percent", "system_percent", "irq_percent", "context_switches_hz")
    }
