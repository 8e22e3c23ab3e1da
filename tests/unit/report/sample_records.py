# SPDX-License-Identifier: Apache-2.0
"""Records of every kind as a real run would leave them, built from their dataclasses; the same every time."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from powerprof.attribution.deep_idle import build_deep_idle
from powerprof.attribution.deep_what_if import DeepRequest
from powerprof.attribution.profile import FunctionShare, OnCpuFrame, OnCpuProfile, OnCpuStack
from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import DiagnosedServer, Diagnosis, Evidence
from powerprof.experiment.claims import answer_for
from powerprof.experiment.metrics import mean_baseline, pair_figures
from powerprof.experiment.records import (
    Arm,
    Block,
    Comparison,
    ConditionRecord,
    LoadOptions,
    LoadRun,
    Plan,
    Threat,
    list_pairs,
)
from powerprof.experiment.sweep_comparison import SweepComparison, compare_sweeps
from powerprof.experiment.sweep_record import Point, Sweep, compare_sweep_points
from powerprof.experiment.verdict import control_from_blocks, judge_metrics
from powerprof.measure.means import interval, make_phase
from powerprof.model.attribution import (
    Attribution,
    ExternalWakeup,
    Slicing,
    StackCounts,
    StackFrame,
    TargetInfo,
    Thread,
    Waker,
    Wakeup,
)
from powerprof.model.records import (
    Cause,
    Conservation,
    Delta,
    EnergyReading,
    Estimate,
    IdleOptions,
    IdleRun,
    Phase,
    ProcessTime,
    RunMetric,
    ServerInfo,
    StateResidency,
    ToolCost,
    Window,
    ended_by_signal,
)
from powerprof.model.runs import RunStore
from powerprof.model.system_activity import OsRates
from powerprof.report.timeline import TimelineExit
from powerprof.report.wording import word_record
from tests.unit.attribution.idle_periods import FAST, MS, SLOW, WINDOW, capture, records

T = TypeVar("T", bound=msgspec.Struct)

START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
HOST = {
    "hostname": "db1",
    "kernel": "6.1.0-32-amd64",
    "machine": "x86_64",
    "distribution": "Debian GNU/Linux 12 (bookworm)",
    "cpu_model": "AMD EPYC 9354 32-Core Processor",
    "cpus": 2,
    "memory_bytes": 25276510208,
    "virtualisation": "kvm",
    "idle_driver": "haltpoll",
    "idle_governor": "haltpoll",
    "frequency_driver": None,
    "smt_active": False,
    "mitigations": {"spectre_v2": "Mitigation: Retpolines", "mds": "Mitigation: Clear CPU buffers"},
}
TOOL = ToolCost(
    version="0.1.0", cpu_s=0.0129, wakeups_hz=1.0, cpu_percent=0.081, bpf_s=0.0021, lost_count=0, memory_bytes=148946944
)


def filled(kind: type[T], **given: object) -> T:
    """A record with these fields; the others are empty, since no report reads them."""
    empty = {"list": [], "Sequence": [], "dict": {}, "str": "", "bytes": b"", "int": 0, "float": 0.0}
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in given:
            name = getattr(field.type, "__origin__", field.type)
            given[field.name] = empty.get(getattr(name, "__name__", ""))
    return kind(**given)


def _state(name: str, percent: float, average_ms: float | None, entries_hz: float, **more: Any) -> StateResidency:
    return StateResidency(
        name=name, residency_percent=percent, average_residency_ms=average_ms, entries_hz=entries_hz, **more
    )


def window(
    at_s: float,
    c0_percent: float,
    wakeups_hz: float,
    *,
    length_s: float = 8.0,
    shallow: float = 4.0,
    server_s: float = 0.0,
    client_s: float = 0.0,
) -> Window:
    """A window of two CPUs that idled in C1 and C6."""
    idle = 100.0 - c0_percent
    watts = 40.0 + 1.1 * c0_percent
    return Window(
        started_at=(START + timedelta(seconds=at_s)).isoformat(),
        window_s=length_s,
        cpus=2,
        c0_percent=c0_percent,
        idle_percent=idle,
        wakeups_hz=wakeups_hz,
        steal_percent=0.1,
        states=[
            _state("POLL", 0.0, None, 0.0, polling=True, polling_percent=0.0),
            *(
                _state(
                    name,
                    percent,
                    average_ms,
                    hertz,
                    time_us=percent * length_s * 2e4,
                    entries_count=int(hertz * length_s),
                )
                for name, percent, average_ms, hertz in (
                    ("C1", shallow, 1.5, wakeups_hz / 3),
                    ("C6", idle - shallow, 41.2, 2 * wakeups_hz / 3),
                )
            ),
        ],
        energy=[
            EnergyReading(
                source="model",
                domain="cpus",
                scope="model",
                kind="estimated",
                joules=watts * length_s,
                watts=watts,
                low_watts=0.6 * watts,
                high_watts=1.4 * watts,
                model="EPYC Genoa",
            )
        ],
        processes=[
            ProcessTime(name="server", cpu_s=server_s, percent=100 * server_s / length_s / 2),
            ProcessTime(name="client", cpu_s=client_s, percent=100 * client_s / length_s / 2),
        ],
    )


def _block(pair: int, arm: Arm, at_s: float, dropped: bool, chance: random.Random) -> Block:
    queries = 320
    per_query_ms = (0.0575 if arm == "a" else 2.72) * chance.uniform(0.97, 1.03)
    server_s = queries * per_query_ms / 1e3
    c0 = 0.45 + 100 * (server_s + 0.05) / 16 + chance.uniform(-0.03, 0.03)
    return Block(
        pair=pair,
        arm=arm,
        dropped=dropped,
        attempts_count=1 + (pair == 4 and arm == "b"),
        queries=queries,
        offered_hz=40.0,
        window=window(
            at_s, c0, 38 + (104 if arm == "a" else 76) + chance.uniform(-2, 2), server_s=server_s, client_s=0.04
        ),
        p50_ms=0.12 if arm == "a" else 2.8,
        p95_ms=(0.21 if arm == "a" else 3.1) * chance.uniform(0.98, 1.02),
        p99_ms=0.3 if arm == "a" else 3.4,
        mean_ms=0.13 if arm == "a" else 2.85,
        rows_examined=queries * (5 if arm == "a" else 20395),
    )


def _condition(name: str, title: str, load: dict[str, object]) -> ConditionRecord:
    settings = {"innodb_buffer_pool_size": "128M"}
    return ConditionRecord(
        name=name, workload="city", title=title, work="city/point", load={"clients": 4, **load}, settings=settings
    )


def _plan(arm: Arm, hint: str, cells: tuple[object, ...]) -> Plan:
    columns = ("type", "key", "key_len", "ref", "rows", "Extra")
    row = {"id": 1, "select_type": "SIMPLE", "table": "city_huge", **dict(zip(columns, cells, strict=True))}
    return Plan(arm=arm, statement=f"SELECT * FROM city_huge{hint} WHERE Name = 'Kabul'", asserted=True, rows=[row])


@cache
def comparison(pairs: int = 12) -> Comparison:
    """no-index against index, judged by the product's own statistics."""
    chance = random.Random(7)
    order: list[Arm] = []
    blocks = []
    for pair in range(pairs):
        both: tuple[Arm, Arm] = ("a", "b") if pair % 4 in (0, 3) else ("b", "a")
        for arm in both:
            blocks.append(_block(pair, arm, 20 + 9.2 * len(blocks), pair == 0, chance))
            order.append(arm)
    before = [window(0, 0.42, 38.1), window(9, 0.44, 38.3)]
    after = [window(30 + 9.2 * len(blocks), 0.43, 38.0)]
    metrics = judge_metrics(
        pair_figures(list_pairs(blocks), mean_baseline([*before, *after])), "c0_ms_per_query_server", 11
    )
    record = Comparison(
        id="compare-0007",
        command="compare",
        started_at=START.isoformat(),
        a=_condition("index", "With an index on Name", {"statements": "SELECT … WHERE Name = ?"}),
        b=_condition("no-index", "Without it", {}),
        design="rate",
        order=order,
        blocks_count=len(blocks),
        metrics=metrics,
        verdict=answer_for(metrics, "c0_ms_per_query_server"),
        seed=11,
        offered_hz=40.0,
        plans=[
            _plan("a", "", ("ref", "name_btree", "140", "const", 5, "Using index condition")),
            _plan("b", " IGNORE INDEX (name_btree)", ("ALL", None, None, None, 20395, "Using where")),
        ],
        threats=[
            Threat(name="steal", text="steal 0.1 %"),
            Threat(name="frequency", text="no frequency data on this host"),
            Threat(name="drift", text="idle baseline drift +0.52 points of C0: too much", serious=True),
        ],
        control=control_from_blocks(metrics[0], 11),
        baseline=before,
        baseline_after=after,
        blocks=blocks,
        host=HOST,
        server=ServerInfo(version="MariaDB 10.11.19", private=True),
        tool=ToolCost(version="0.1.0", cpu_s=0.61, cpu_percent=0.3),
        options={"duration_s": 8.0, "design": "rate"},
        notes=["the first pair is warm-up and in no figure"],
    )
    return word_record(record)


def causes() -> list[Cause]:
    """What woke an idle server, most frequent first."""
    rows = [
        ("timer", "process_timeout", "kernel", "rcu_preempt", 101, 99.0, 0.9),
        ("timer", "hrtimer_wakeup", "mariadbd", "mysys/statement_timer", 25, 400.0, 1.1),
        ("ipi", "reschedule", "mariadbd", "innodb/page_cleaner_thread", 10, 1000.0, 0.8),
        ("device", "virtio0-input.0", "sshd", "sshd", 7, None, 0.4),
        ("unknown", None, None, None, 1, None, None),
    ]
    total = sum(row[4] for row in rows)
    return [
        Cause(
            mechanism=mechanism,
            name=name,
            process=process,
            pid=8123 if process else None,
            thread=thread,
            count=count,
            wakeups_hz=count / 10,
            percent=100 * count / total,
            period_ms=period,
            c0_ms=c0,
        )
        for mechanism, name, process, thread, count, period, c0 in rows  # type: ignore[arg-type]
    ]


def _phase(name: str, at_s: float, c0: float, wakeups: float) -> Phase:
    chance = random.Random(name)
    windows = [
        window(at_s + 9 * i, c0 + chance.uniform(-0.05, 0.05), wakeups + chance.uniform(-1, 1)) for i in range(5)
    ]
    return replace(
        make_phase(name, windows),
        causes=causes(),
        traced_window_s=10.0,
        conservation=Conservation(
            idle_exits_count=144,
            cpuidle_usage_delta_count=145,
            classified_count=143,
            unknown_count=1,
            lost_count=0,
            coverage_percent=99.30555,
        ),
        energy=[
            *windows[0].energy,
            EnergyReading(
                source="rapl",
                domain="core",
                scope="core",
                kind="measured",
                joules=41.7,
                watts=5.2,
                contained_in="package-0",
            ),
        ],
    )


def _delta(before: Phase, after: Phase, metric: str, half: float) -> Delta:
    if metric.startswith("residency_percent:"):
        name = metric.removeprefix("residency_percent:")
        states = [[s for s in phase.states if s.name == name] for phase in (before, after)]
        values = [fmean(s.residency_percent or 0.0 for s in same) for same in states]
    else:
        values = [getattr(phase, metric) for phase in (before, after)]
    mean = values[1] - values[0]
    return Delta(
        metric=metric,
        from_phase=before.name,
        to_phase=after.name,
        difference=Estimate(mean=mean, low=mean - half, high=mean + half),
    )


@cache
def idle_run() -> IdleRun:
    """`powerprof idle --clients 16`."""
    phases = [
        _phase("baseline", 0, 0.42, 38.1),
        _phase("server", 60, 0.61, 44.7),
        _phase("clients", 120, 0.63, 44.9),
        _phase("baseline-after", 180, 0.44, 38.3),
    ]
    metrics = (("c0_percent", 0.04), ("wakeups_hz", 0.5), ("residency_percent:C6", 0.04))
    return IdleRun(
        id="idle-1031",
        command="idle",
        started_at=START.isoformat(),
        host=HOST,
        tool=TOOL,
        phases=phases,
        deltas=[_delta(phases[0], phases[2], metric, half) for metric, half in metrics],
        drift=[_delta(phases[0], phases[3], metric, half) for metric, half in metrics[:2]],
        server=ServerInfo(version="MariaDB 10.11.19", private=True, pid=8123),
        options=IdleOptions(clients_count=16, duration_s=8.0, repeat_count=5),
        notes=["no meter on this host: joules are estimated"],
    )


def _stack(*names: str | None, module: str = "mariadbd") -> list[StackFrame]:
    found = []
    for number, name in enumerate(names):
        libc = name is not None and name.startswith(("pthread", "start_thread", "__clone", "poll", "futex"))
        found.append(
            StackFrame(
                function=name,
                module="libc.so.6" if libc else module,
                address=f"0x{0x55D0 + 64 * number:x}",
                offset=12,
                function_start=f"0x{0x6E0F80 + 64 * number:x}",
            )
        )
    return found


@cache
def attribution() -> Attribution:
    """A window of an idle mariadbd."""
    waits = ("pthread_cond_timedwait", "psi_cond_timedwait")
    rows: list[tuple[str, int, float | None, float, str, list[StackFrame]]] = [
        (
            "mysys/statement_timer",
            25,
            400.0,
            1.12,
            "own_timer",
            _stack(*waits, None, "timer_handler", "start_thread", "__clone3"),
        ),
        (
            "innodb/page_cleaner_thread",
            10,
            1000.0,
            0.83,
            "own_timer",
            _stack(*waits, "buf_flush_page_cleaner", "start_thread", "__clone3"),
        ),
        (
            "innodb/thread_pool_thread",
            20,
            500.0,
            0.71,
            "own_timer",
            _stack(
                *waits,
                "std::condition_variable::wait_until<std::chrono::_V2::steady_clock, "
                "std::chrono::duration<long, std::ratio<1l, 1000000000l> > >",
                "tpool::thread_pool_generic::wait_for_tasks",
                "tpool::thread_pool_generic::worker_main",
                "start_thread",
                "__clone3",
            ),
        ),
        (
            "sql/one_connection",
            9,
            None,
            2.4,
            "other_process",
            _stack(
                "poll",
                "vio_io_wait",
                "vio_read",
                "my_net_read_packet",
                "do_command",
                "handle_one_connection",
                "start_thread",
                "__clone3",
            ),
        ),
        ("sql/main", 4, None, 0.2, "device", _stack("poll", "handle_connections_sockets", "mysqld_main")),
    ]
    return Attribution(
        id="attribute-0003",
        started_at=START.isoformat(),
        window_s=10.0,
        cpus=2,
        target=TargetInfo(
            pid=8123,
            executable="/usr/sbin/mariadbd",
            build_id="8f1c0f2f",
            label="mariadbd",
            pids=[8123],
            threads_count=14,
        ),
        conservation=Conservation(
            idle_exits_count=381,
            cpuidle_usage_delta_count=383,
            classified_count=381,
            unknown_count=0,
            lost_count=0,
            coverage_percent=100.0,
        ),
        wakeups=[
            Wakeup(
                mechanism="timer" if origin == "own_timer" else "ipi",
                origin=origin,
                count=count,  # type: ignore[arg-type]
                rate_hz=count / 10,
                wakings_count=count + 2,
                period_ms=period,
                c0_ms=c0,
                stack=stack,
                stack_complete=True,
                detail="hrtimer_wakeup" if origin == "own_timer" else None,
                thread=Thread(tid=8130 + number, comm="mariadbd", server_name=f"thread/{name}", pid=8123),
                waker=Waker(pid=900, comm="sysbench") if origin == "other_process" else None,
                idle_ms=31.2,
                states={"C6": count},
            )
            for number, (name, count, period, c0, origin, stack) in enumerate(rows)
        ],
        stacks=StackCounts(
            captured_count=61,
            complete_count=61,
            truncated_count=0,
            failed_count=0,
            exits_with_stack_percent=100.0,
            exits_complete_percent=100.0,
            unnamed_frames_percent=3.7,
        ),
        tool=TOOL,
        host=HOST,
        other_causes=causes(),
        c0_percent=0.61,
        woken_elsewhere=[
            ExternalWakeup(
                thread=Thread(tid=8133, comm="mariadbd", server_name="thread/sql/one_connection"),
                process="sysbench",
                count=3,
                rate_hz=0.3,
            )
        ],
        notes=["this build is stripped: apt install mariadb-server-core-dbgsym"],
    )


def sliced_attribution() -> Attribution:
    """The same window at a cost of at most 1 %: the traced slices are an eighth of it."""
    record = attribution()
    ranges = [(1.9, 3.4), (0.6, 1.8), (1.2, 2.9), (0.4, 1.9), (0.1, 1.1)]
    return replace(
        record,
        wakeups=[
            replace(row, rate_low_hz=low, rate_high_hz=high)
            for row, (low, high) in zip(record.wakeups, ranges, strict=True)
        ],
        slicing=Slicing(
            slices_count=6,
            traced_s=1.25,
            traced_percent=12.5,
            exits_count=3061,
            target_low_hz=5.9,
            target_high_hz=8.2,
            unseen_below_hz=2.4,
        ),
        tool=replace(TOOL, bpf_s=0.0031, entry_s=0.0008, cost_percent=0.93, max_cost_percent=1.0),
    )


def deep_idle() -> Attribution:
    """The same window with deep idle, of two packages, and predictions."""
    periods = [records(0, FAST, WINDOW), records(1, SLOW, WINDOW)]
    request = DeepRequest(without=("t2",), slack_ns={"t1": 50 * MS})
    return replace(attribution(), deep=build_deep_idle(capture(periods, WINDOW, packages=(0, 1)), request))


def _metrics(factor: float) -> list[RunMetric]:
    values = [0.0248 * factor, 0.0256 * factor, 0.0261 * factor]
    mean = fmean(values)
    return [
        RunMetric(
            name="c0_ms_per_query_server",
            unit="ms",
            kind="measured",
            values=[*values],
            estimate=Estimate(mean=mean, low=0.9 * mean, high=1.1 * mean),
        ),
        RunMetric(
            name="queries_hz",
            unit="1/s",
            kind="measured",
            values=[32228.0 / factor] * 3,
            estimate=Estimate(mean=32228.0 / factor, low=None, high=None),
        ),
        RunMetric(
            name="joules_per_query",
            unit="J",
            kind="estimated",
            values=[2.3e-4 * factor] * 3,
            source="model",
            estimate=Estimate(mean=2.3e-4 * factor, low=2.2e-4 * factor, high=2.4e-4 * factor),
        ),
    ]


CITY_INDEX = ConditionRecord(name="index", workload="city", title="an index on Name", load={}, settings={}, work="1")


@cache
def load_run() -> LoadRun:
    """`powerprof run city:index`."""
    server, load = _phase("server", 0, 0.61, 44.7), _phase("index", 60, 41.0, 900.0)
    return LoadRun(
        id="run-0002",
        command="run",
        started_at=START.isoformat(),
        host=HOST,
        tool=TOOL,
        phases=[server, load],
        server=ServerInfo(version="MariaDB 10.11.19", private=True),
        metrics=_metrics(1.0),
        condition=CITY_INDEX,
        options=LoadOptions(windows_count=3, window_s=8.0, offered_hz=200.0),
    )


@cache
def sweep() -> Sweep:
    """`powerprof sweep city:index --clients 1,2,4,8,1024`, of which the last point failed."""
    points = [Point(value=clients, metrics=_metrics(1 + clients / 8)) for clients in (1, 2, 4, 8)]
    record = Sweep(
        id="sweep-0001",
        command="sweep",
        started_at=START.isoformat(),
        workload="city",
        parameter="clients",
        condition=CITY_INDEX,
        key="load.clients",
        values=[1, 2, 4, 8, 1024],
        host=HOST,
        points=[*points, Point(value=1024, error="the server refused connections")],
        server=ServerInfo(version="MariaDB 10.11.19", private=True),
        options={"window_s": 8.0},
        ended=ended_by_signal(True),
    )
    return replace(record, compared=compare_sweep_points(record))


@cache
def sweep_comparison() -> SweepComparison:
    """That sweep again, on a kernel on which it does less from 4 clients on, with more switches per query."""
    with TemporaryDirectory() as folder:
        store = RunStore(Path(folder))
        for kernel, cost in (("6.1.0-32-amd64", 1.0), ("6.12.1-amd64", 0.7)):
            values = (1, 2, 4, 8)
            points = [_swept(clients, cost if clients >= 4 else 1.0) for clients in values]
            store.save(
                "sweep",
                replace(sweep(), id=None, values=[*values], points=points, ended=None, host={**HOST, "kernel": kernel}),
            )
        found = compare_sweeps("sweep-0001", "sweep-0002", Path(folder), 1)
    return word_record(replace(found, id="compare-0002"))


def _swept(clients: int, speed: float) -> Point:
    """A point of five windows: queries/s, and 10 switches a query, more where it is slower."""
    scatter = (-0.02, -0.01, 0.0, 0.01, 0.02)
    rates = [1000.0 * clients * speed * (1 + one) for one in scatter]
    switches = [10 * rate / speed**2 for rate in rates]
    return Point(
        value=clients,
        metrics=[
            RunMetric(name=name, unit="1/s", kind="measured", estimate=interval(values), values=values)
            for name, values in (("queries_hz", rates), ("context_switches_hz", switches))
        ],
        os=[OsRates(page_faults_hz=3 * rate, disk_reads_hz=0.0) for rate in rates],
    )


def on_cpu() -> OnCpuProfile:
    """Where the C0 time of a busy server went."""

    def frame(name: str, kernel: bool = False) -> OnCpuFrame:
        return OnCpuFrame(
            function=name, module="kernel" if kernel else "mariadbd", address="0x1", offset=0, label=name, kernel=kernel
        )

    stacks = [
        OnCpuStack(
            pid=8123,
            tid=8140,
            comm="mariadbd",
            server_name="thread/sql/one_connection",
            count=20,
            percent=80.0,
            c0_ms=20.0,
            stack_state="complete",
            stack=[frame("vfs_read", kernel=True), frame("do_command"), frame("start_thread")],
        ),
        OnCpuStack(
            pid=8123,
            tid=8140,
            comm="mariadbd",
            server_name="thread/sql/one_connection",
            count=5,
            percent=20.0,
            c0_ms=5.0,
            stack_state="truncated",
            stack=[frame("row_search_mvcc")],
        ),
    ]
    return filled(
        OnCpuProfile,
        event="cpu-clock",
        pids=[8123],
        window_s=1.0,
        cpus=2,
        percent_of="target",
        c0_percent=1.3,
        target_count=25,
        target_percent=100.0,
        target_hz=25.0,
        target_c0_ms=25.0,
        stacks=stacks,
        functions=[
            FunctionShare(
                function=name,
                module="mariadbd",
                kernel=name.startswith("vfs"),
                self_count=count,
                self_percent=4.0 * count,
                low_percent=3.1 * count,
                high_percent=4.6 * count,
                self_ms=float(count),
                total_count=25,
                total_percent=100.0,
            )
            for name, count in (("vfs_read", 20), ("row_search_mvcc", 3), ("do_command", 1), ("start_thread", 1))
        ],
        complete_count=20,
        truncated_count=5,
        host={"hostname": "bench", "cpus": 2},
    )


def diagnosis() -> Diagnosis:
    """A real MySQL 9.7.4 that nobody asks anything, with its log writer threads on."""
    path = Path(__file__).parent.parent / "diagnosis/recorded/mysql-9.7.4-log-writer-threads-on.json"
    evidence = msgspec.json.decode(path.read_bytes(), type=Evidence)
    return Diagnosis(
        id="diagnose-0007",
        started_at="2026-03-01T10:00:00Z",
        server=DiagnosedServer(pid=7258, version=evidence.version, address=None),
        findings=diagnose(evidence),
        evidence=evidence,
        host={"hostname": "bench", "cpus": 2},
    )


def timeline(count: int = 300) -> list[TimelineExit]:
    """Two CPUs that idle and are woken by turns."""
    chance = random.Random(3)
    now, found = [5_000_000_000, 5_000_400_000], []
    cases = (
        ("timer", "mysys/statement_timer, its own timer", "mariadbd"),
        ("device", "virtio0-input.0", "sshd"),
        ("ipi", "reschedule by sysbench", "mariadbd"),
        ("tick", "the scheduler's tick", None),
    )
    for number in range(count):
        cpu = number % 2
        enter = now[cpu]
        leave = enter + chance.randrange(200_000, 40_000_000)
        after = leave + chance.randrange(20_000, 900_000)
        mechanism, cause, thread = chance.choice(cases)
        end = after if number < count - 1 else None
        found.append(TimelineExit(cpu, enter, leave, end, "C6", mechanism, cause, thread))
        now[cpu] = after
    return found


HOSTILE = (
    "<script>alert('x')</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"' onmouseover='alert(1)",
    "{{ 7*7 }}",
    "a" * 10_000,
    "<!--",
    "]]>",
    "=cmd|' /C calc'!A0",
    "+1",
    "@SUM(A1)",
    "-2",
    "\tx",
    "a;b\nc\r\x00d",
    "|`*_[x](http://e.com)",
    "\u202egnp.exe",
    "javascript:alert(1)",
    "&lt;b&gt;",
    "🦭 名前",
    "${x}",
    "%3B",
)
