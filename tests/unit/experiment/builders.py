# SPDX-License-Identifier: Apache-2.0
"""Blocks and windows with the figures that a test is about."""

from __future__ import annotations

from msgspec.structs import replace

from powerprof.energy.layouts import rapl_scope
from powerprof.experiment.records import Arm, Block, MemberShare, Slices, StormShare
from powerprof.model.records import EnergyReading, ProcessTime, StateResidency, Window
from powerprof.model.system_activity import CpuLoad, DeviceInterrupts, DiskRates, Frequencies, OsRates, PState

ARMS: tuple[Arm, Arm] = ("a", "b")


def window(
    c0_percent: float = 10.0,
    *,
    server_s: float = 0.4,
    client_s: float = 0.1,
    window_s: float = 2.0,
    watts: float | None = 3.0,
    wakeups_hz: float = 500.0,
    steal_percent: float = 0.0,
    frequency_mhz: float | None = None,
) -> Window:
    """A window of two CPUs."""
    energy = []
    if watts is not None:
        energy.append(
            EnergyReading(
                source="model", domain="cpus", scope="model", kind="estimated", joules=watts * window_s, watts=watts
            )
        )
    processes = [
        ProcessTime(name=name, cpu_s=cpu_s, percent=100 * cpu_s / (2 * window_s))
        for name, cpu_s in (("server", server_s), ("client", client_s), ("powerprof", 0.0))
    ]
    idle = StateResidency(
        name="C1",
        residency_percent=100 - c0_percent,
        average_residency_ms=2.0,
        entries_hz=wakeups_hz,
        time_us=(100 - c0_percent) / 100 * 2 * window_s * 1e6,
        entries_count=int(wakeups_hz * window_s),
    )
    return Window(
        started_at="2026-01-01T00:00:00Z",
        window_s=window_s,
        cpus=2,
        c0_percent=c0_percent,
        idle_percent=100 - c0_percent,
        wakeups_hz=wakeups_hz,
        states=[idle],
        steal_percent=steal_percent,
        frequency_mhz=frequency_mhz,
        energy=energy,
        processes=processes,
    )


def block(
    pair: int,
    arm: Arm,
    *,
    queries: int | None = 100,
    dropped: bool = False,
    attempts: int = 1,
    p95_ms: float | None = 2.0,
    offered_hz: float | None = 50.0,
    one: Window | None = None,
) -> Block:
    """A block of a pair."""
    return Block(
        pair=pair,
        arm=arm,
        dropped=dropped,
        attempts_count=attempts,
        queries=queries,
        offered_hz=offered_hz,
        window=one or window(),
        p50_ms=1.0,
        p95_ms=p95_ms,
        p99_ms=3.0,
        mean_ms=1.5,
        rows_examined=500,
    )


def blocks(pairs: int, a_server_s: float, b_server_s: float, *, spread: float = 0.002) -> list[Block]:
    """Pairs whose server time per query differs; a small deterministic spread stands for noise."""
    found = []
    for pair in range(pairs):
        wobble = spread * ((pair * 7) % 5 - 2)
        found.append(block(pair, "a", one=window(10 + pair % 3, server_s=a_server_s * (1 + wobble))))
        found.append(block(pair, "b", one=window(20 + pair % 3, server_s=b_server_s * (1 - wobble), watts=4.0)))
    return found


# Blocks in which every figure is known, odd and different: between fields, between A and B, and between windows.


def odd(number: int, arm: Arm) -> float:
    """Return a factor that no two windows share."""
    return 1 + 0.07 * number + (0.31 if arm == "b" else 0.0)


def odd_window(number: int = 0, arm: Arm = "a") -> Window:
    """A window of three CPUs with steal, two summed domains and one within another, and every rate of the system."""
    k = odd(number, arm)
    length_s, c0_percent = 2.3 + 0.4 * number + (0.9 if arm == "b" else 0.0), 31.7 * k

    def reading(domain: str, watts: float, inside: str | None = None) -> EnergyReading:
        return EnergyReading(
            source="rapl",
            domain=domain,
            kind="measured",
            watts=watts,
            joules=watts * length_s,
            contained_in=inside,
            scope=rapl_scope(domain),
        )

    def state(name: str, percent: float, *, polling: float | None = None) -> StateResidency:
        return StateResidency(
            name=name,
            residency_percent=percent,
            average_residency_ms=1.3 * k,
            entries_hz=percent * k,
            polling=polling is not None,
            polling_percent=polling,
        )

    return Window(
        started_at="2026-01-01T00:00:00Z",
        window_s=length_s,
        cpus=3,
        c0_percent=c0_percent,
        idle_percent=100 - c0_percent,
        wakeups_hz=523.0 * k,
        states=[state("POLL", 0.0, polling=2.1 * k), state("C1", 9.3 * k), state("C6", 100 - c0_percent - 9.3 * k)],
        steal_percent=3.7 * k,
        user_percent=11.9 * k,
        system_percent=7.7 * k,
        irq_percent=1.9 * k,
        interrupts_hz=811.0 * k,
        context_switches_hz=2903.0 * k,
        frequency_mhz=3100.0 - 40 * k,
        energy=[reading("package-0", 17.3 * k), reading("core", 9.1 * k, "package-0"), reading("dram", 2.9 * k)],
        processes=[
            ProcessTime(name=name, cpu_s=share * k * length_s, percent=100 * share * k / 3)
            for name, share in (("server", 0.43), ("client", 0.17), ("powerprof", 0.03))
        ],
        system=odd_rates(number, arm),
    )


def odd_rates(number: int = 0, arm: Arm = "a") -> OsRates:
    """The system in that window: two disks, of which one holds the server's files, and two P-states."""
    k = odd(number, arm)

    def disk(name: str, factor: float, *, of_server: bool) -> DiskRates:
        return DiskRates(
            name=name,
            of_server=of_server,
            reads_hz=29 * factor,
            writes_hz=37 * factor,
            read_bytes_hz=4100 * factor,
            write_bytes_hz=5300 * factor,
            read_ms=0.23 * factor,
            write_ms=0.47 * factor,
            service_ms=0.61 * factor,
            queue_count=1.7 * factor,
            busy_percent=13.0 * factor,
        )

    return OsRates(
        disk_reads_hz=31 * k,
        disk_writes_hz=43 * k,
        disk_read_bytes_hz=4700 * k,
        disk_write_bytes_hz=5900 * k,
        disk_busy_percent=14.1 * k,
        network_packets_hz=710 * k,
        page_faults_hz=97 * k,
        major_faults_hz=3.1 * k,
        waiting_tasks=0.33 * k,
        cpu_pressure_percent=5.9 * k,
        io_pressure_percent=2.3 * k,
        migrations_hz=19 * k,
        disks=[disk("sda", 0.1 * k, of_server=False), disk("nvme0n1", k, of_server=True)],
        interrupts=[DeviceInterrupts(device="eth0", rate_hz=221 * k), DeviceInterrupts(device="rtc", rate_hz=0.2 * k)],
        cpus=[CpuLoad(cpu=cpu, busy_percent=part * k) for cpu, part in ((0, 19.0), (1, 44.0), (2, 33.0))],
        frequencies=Frequencies(
            busy_mhz=2900 + 10 * k,
            states=[PState(mhz=1200.0, residency_percent=61 * k), PState(mhz=3100.0, residency_percent=39.0 - k)],
        ),
    )


def odd_block(number: int = 0, arm: Arm = "a") -> Block:
    """A block with all figures of queries, of equal work, of two members, of a storm and of slices."""
    k, own = odd(number, arm), odd_window(number, arm)
    assert own.window_s is not None
    solution_s = 0.7 * own.window_s
    return Block(
        pair=number,
        arm=arm,
        dropped=False,
        attempts_count=1 + number % 3,
        queries=round(311 * k),
        offered_hz=120.0 * k,
        window=own,
        p50_ms=1.1 * k,
        p95_ms=2.9 * k,
        p99_ms=7.3 * k,
        mean_ms=1.7 * k,
        errors_count=1,
        client_cpu_s=0.67 * k,
        solution_s=solution_s,
        solution_energy=[replace(reading, joules=(reading.watts or 0.0) * 1.1 * solution_s) for reading in own.energy],
        rows_examined=round(7919 * k),
        minor_faults_count=round(557 * k),
        status={"Com_stmt_prepare": round(173 * k)},
        members=[
            MemberShare(
                name=name,
                pid=71,
                cpu_s=0.13 * part * k,
                c0_percent=4.7 * part * k,
                connections_hz=5.3 * part * k,
                commits_hz=8.9 * part * k,
                relay_log_bytes_hz=2111 * part * k,
            )
            for name, part in (("primary", 2.0), ("replica-1", 1.0))
        ],
        storm=StormShare(began=True, raged_percent=53 * k, restarts_count=2, counter="Connections", counter_hz=617 * k),
        slices=Slices(
            lengths_s=[0.31, 0.29, 0.33, 0.07], write_bytes=[700, 9100, 400, 8000], wakeups_count=[41, 57, 93, 70]
        ),
    )


def odd_pairs(count: int = 4) -> list[Block]:
    """Pairs of those blocks, in the order of time."""
    return [odd_block(number, arm) for number in range(count) for arm in ARMS]
