# SPDX-License-Identifier: Apache-2.0
"""Figures of /proc: accounting, frequency, CPU time of processes, and interrupts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.measure import procfs, unseen_interrupts
from powerprof.measure.residency import note_unknown_cpus
from powerprof.measure.unseen_interrupts import count_unseen, read_unseen_counts
from powerprof.system.errors import PowerprofError
from tests.unit.measure.fake_cpu import fake_stat

# The fields of a CPU before and after a window of 4 s, in ticks: user nice system idle iowait irq softirq steal guest.
# Then the share of its time in C0, None if it is unknown.
HUGE = 15910903933238771776
CPUS: dict[str, tuple[str, str, float | None]] = {
    # Inputs of public bug reports, typed anew.
    "sound": ("28354 9 12394 1240426 2522 0 326 0 0", "28394 9 12394 1240786 2522 0 326 0 0", 10.0),
    "idle stands at 1.6e19": (f"29235 10 12058 {HUGE} 2661 0 309 0 0", f"29435 10 12058 {HUGE} 2661 0 309 0 0", None),
    "idle was set back for one reading": ("100 0 0 1000 0 0 0 0 0", "140 0 0 1160 0 0 0 0 0", None),
    # Inputs of our own.
    "fully idle": ("100 0 0 1000 0 0 0 0 0", "100 0 0 1400 0 0 0 0 0", 0.0),
    "fully busy": ("100 0 0 1000 0 0 0 0 0", "300 0 200 1000 0 0 0 0 0", 100.0),
    "iowait moved to idle": ("100 0 0 1000 500 0 0 0 0", "140 0 0 1560 300 0 0 0 0", 10.0),
    "guest time is part of user": ("100 0 0 1000 0 0 0 0 50", "300 0 0 1200 0 0 0 0 240", 50.0),
    "steal is counted in user too": ("100 0 0 1000 0 0 0 0 0", "300 0 0 1200 0 0 0 200 0", None),
    "user went backwards": ("100 0 0 1000 0 0 0 0 0", "60 0 40 1400 0 0 0 0 0", None),
    "steal went backwards": ("100 0 0 1000 0 0 0 900 0", "140 0 0 1360 0 0 0 20 0", None),
    "idle went backwards": ("100 0 0 9000 0 0 0 0 0", "500 0 0 8000 0 0 0 0 0", None),
    "idle jumps": ("100 0 0 1000 0 0 0 0 0", "140 0 0 91360 0 0 0 0 0", None),
    "idle jumps by a quarter of the window": ("100 0 0 1000 0 0 0 0 0", "140 0 0 1460 0 0 0 0 0", None),
    "idle stands still": ("100 0 0 1000 0 0 0 0 0", "440 0 0 1000 0 0 0 0 0", None),
    "running time stands still": ("100 0 0 1000 0 0 0 0 0", "100 0 0 1360 0 0 0 0 0", None),
    "all stands still": ("100 0 0 1000 0 0 0 0 0", "100 0 0 1000 0 0 0 0 0", None),
    "all was reset": ("5000 0 700 100000 0 0 0 0 0", "4 0 0 36 0 0 0 0 0", None),
    "an earlier moment of three seconds": ("100 0 0 1000 0 0 0 0 0", "130 0 0 1270 0 0 0 0 0", 10.0),
    "negative": ("-1 0 0 1000 0 0 0 0 0", "-1 0 0 1400 0 0 0 0 0", None),
    "without idle": ("100 0 0", "500 0 0", None),
    "gone": ("100 0 0 1000 0 0 0 0 0", "", None),
    "new": ("", "140 0 0 1360 0 0 0 0 0", None),
}


def stat_of(rows: Sequence[str], at_s: float, counts: tuple[int, int] = (100, 200)) -> procfs.Stat:
    cpus = [f"cpu{number} {row}" for number, row in enumerate(rows) if row]
    text = "\n".join(["cpu  0 0 0 0 0 0 0 0 0 0", *cpus, f"intr {counts[0]} 1", f"ctxt {counts[1]}"])
    return procfs.parse_stat(text, "stat", int(at_s * 1e9))


def account(names: Sequence[str]) -> procfs.Accounting | None:
    before, after = ([CPUS[name][side] for name in names] for side in (0, 1))
    return procfs.compute_accounting(stat_of(before, 0.0), stat_of(after, 4.0))


@pytest.mark.parametrize("name", CPUS)
def test_a_cpu_has_its_true_share_or_none(name: str) -> None:
    c0 = CPUS[name][2]
    spent = account(["sound", name])
    assert spent is not None
    assert spent.cpus == (1 if c0 is None else 2)
    # An unknown CPU is in no sum: the share is that of the sound CPU.
    lengths = 3.0 if name.startswith("an earlier") else 4.0
    expected = 10.0 if c0 is None else (4.0 * 10.0 + lengths * c0) / (4.0 + lengths)
    assert 100.0 - spent.idle_percent == pytest.approx(expected)


@given(st.lists(st.sampled_from(sorted(CPUS)), min_size=1, max_size=6))
def test_unknown_cpus_are_never_summed(names: list[str]) -> None:
    known = [name for name in names if CPUS[name][2] is not None]
    assert account(["sound", *names]) == account(["sound", *known])


def test_the_reason_of_an_unknown_cpu_is_named() -> None:
    names = ["sound", "idle stands at 1.6e19", "idle went backwards", "gone", "idle went backwards"]
    before, after = ([CPUS[name][side] for name in names] for side in (0, 1))
    times = procfs.compute_cpu_times(stat_of(before, 0.0), stat_of(after, 4.0))
    assert note_unknown_cpus(times, "C0 is") == [
        "CPU 1: C0 is unknown, because in /proc/stat the idle time is impossible (1.59e+17 s)",
        "CPU 2,4: C0 is unknown, because in /proc/stat the idle time went backwards",
        "CPU 3: C0 is unknown, because in /proc/stat the CPU is in one of the two readings only",
    ]


@pytest.mark.parametrize(
    ("counts", "rate_hz"), [((180, 240), (20.0, 10.0)), ((90, 240), (None, 10.0)), ((0, 0), (None, None))]
)
def test_a_count_that_goes_backwards_has_no_rate(
    counts: tuple[int, int], rate_hz: tuple[float | None, float | None]
) -> None:
    sound = CPUS["sound"]
    spent = procfs.compute_accounting(stat_of(sound[:1], 0.0), stat_of(sound[1:2], 4.0, counts))
    assert spent is not None
    assert (spent.interrupts_hz, spent.context_switches_hz) == rate_hz


@pytest.mark.parametrize("text", ["", "cpu0 a b c\n", "nonsense\n", "cpu0 1 2 3\nctxt\n"])
def test_a_damaged_stat_is_refused(text: str) -> None:
    with pytest.raises(PowerprofError, match="cannot read stat"):
        procfs.parse_stat(text, "stat")


def test_frequency_is_cpufreqs_mean(tmp_path: Path) -> None:
    for policy, khz in ((0, 800_000), (1, 1_400_000)):
        folder = tmp_path / f"devices/system/cpu/cpufreq/policy{policy}"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
    assert procfs.read_frequency_mhz(tmp_path, tmp_path) == 1100.0


@pytest.mark.parametrize(("flags", "mhz"), [("fpu", 2450.0), ("fpu hypervisor", None)])
def test_frequency_from_cpuinfo_but_not_a_guests_constant(tmp_path: Path, flags: str, mhz: float | None) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\ncpu MHz\t\t: 2400.000\ncpu MHz\t\t: 2500.000\n")
    assert procfs.read_frequency_mhz(tmp_path, tmp_path) == mhz


def test_process_time_counts_ended_threads_and_running_ones() -> None:
    before = procfs.process_cpu_ns(os.getpid())
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    after = procfs.process_cpu_ns(os.getpid())
    assert before is not None and after is not None
    assert 0.05e9 <= after - before <= 0.5e9


def test_an_ended_process_is_noted_and_not_counted() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    times = procfs.ProcessTimes({"server": [os.getpid(), child.pid], "client": [os.getpid()]})
    before = times.read()
    child.kill()
    child.wait()
    found, notes = procfs.compute_process_times(before, times.read(), 2.0)
    assert [item.name for item in found] == ["server", "client"]
    assert found[0].percent == pytest.approx(found[0].cpu_s / 2.0 * 100)
    assert notes == [f"server: process {child.pid} ended during the window: its CPU time is not counted"]


def test_the_tree_can_be_moved(tmp_path: Path) -> None:
    fake_stat(tmp_path / "proc", [(5, 10)])
    assert procfs.read_stat(tmp_path / "proc").cpus[0]["idle"] == 0.1


def test_peak_memory_excludes_the_parent_process() -> None:
    """`parent` holds 200 MB when it starts the program that asks."""
    child = "from powerprof.measure.procfs import own_peak_bytes; print(own_peak_bytes())"
    run = f"subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    parent = f"import subprocess, sys; held = bytearray(200 << 20); {run}"
    said = subprocess.run([sys.executable, "-c", parent], check=True, capture_output=True, text=True).stdout
    assert 5e6 < int(said) < 100e6


_ARM = """           CPU0
 11:       1000     GICv3  27 Level     arch_timer
IPI0:        10       Rescheduling interrupts
"""


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    return tmp_path / "interrupts"


@pytest.mark.parametrize("text", [_ARM, "", "NMI\n", "HYP: x y\n", "\n\nHYP"])
def test_missing_rows_and_damaged_files_give_no_counts(proc: Path, text: str) -> None:
    proc.write_text(text)
    assert sum(read_unseen_counts().values()) == 0


# One CPU of every field, and two that are unlike: 4 s, in ticks of 10 ms. user and nice include guest time.
ODD_BEFORE = "cpu0 1000 500 300 9000 700 20 40 60 90 10\ncpu1 50 60 70 8000 90 1 2 3 0 0\ncpu2 100 1 1 1 1 1 1 1 0 0\n"
ODD_AFTER = "cpu0 1057 531 319 9223 711 27 53 99 130 15\ncpu1 61 63 87 8330 119 3 6 7 0 0\ncpu2 0 1 1 400 1 1 1 1 0 0\n"


def test_every_field_of_stat_has_its_own_share() -> None:
    before = procfs.parse_stat(ODD_BEFORE + "intr 1000 5 6\nctxt 70000\n", "stat", 0)
    after = procfs.parse_stat(ODD_AFTER + "intr 1900 9 8\nctxt 73000\n", "stat", 4 * 10**9)
    spent = procfs.compute_accounting(before, after)
    assert spent is not None
    # CPU 2 went backwards and is in no sum. Ticks of the others, per field:
    user, nice, system, idle, iowait = 57 + 11, 31 + 3, 19 + 17, 223 + 330, 11 + 29
    irq, softirq, steal = 7 + 2, 13 + 4, 39 + 4
    total = user + nice + system + idle + iowait + irq + softirq + steal
    assert (spent.cpus, spent.window_s) == (2, 4.0)
    assert spent.user_percent == pytest.approx(100 * (user + nice) / total)
    assert spent.system_percent == pytest.approx(100 * system / total)
    assert spent.irq_percent == pytest.approx(100 * (irq + softirq) / total)
    assert spent.steal_percent == pytest.approx(100 * steal / total)
    assert spent.idle_percent == pytest.approx(100 * (idle + iowait) / total)
    assert (spent.interrupts_hz, spent.context_switches_hz) == (225.0, 750.0)
    assert after.interrupts == {0: 9, 1: 8}
    times = procfs.compute_cpu_times(before, after)
    assert times.unknown == {2: "the user time went backwards"}
    assert times.spent[0] == pytest.approx(
        {"user": 0.57, "nice": 0.31, "system": 0.19, "irq": 0.07, "softirq": 0.13, "steal": 0.39, "idle": 2.34}
    )


@given(
    st.lists(
        st.lists(st.integers(0, 60), min_size=8, max_size=8).filter(lambda row: row[3] > 0 and sum(row) > row[3] > 0),
        min_size=1,
        max_size=5,
    )
)
def test_the_shares_of_stat_sum_to_100(rows: list[list[int]]) -> None:
    start = [700, 10, 300, 9000, 50, 5, 6, 7]
    before = procfs.parse_stat("".join(f"cpu{n} {' '.join(map(str, start))}\n" for n in range(len(rows))), "stat")
    later = [" ".join(str(a + b) for a, b in zip(start, row, strict=True)) for row in rows]
    after = procfs.parse_stat("".join(f"cpu{n} {row}\n" for n, row in enumerate(later)), "stat")
    # Without a time between them, any growth is possible.
    times = procfs.compute_cpu_times(before, after)
    assert not times.unknown
    for spent, row in zip(times.spent.values(), rows, strict=True):
        assert sum(spent.values()) == pytest.approx(sum(row) / 100)


def test_a_missing_line_has_no_rate() -> None:
    row = CPUS["sound"]
    before, after = (procfs.parse_stat(f"cpu0 {row[n]}\n", "stat", n * 4 * 10**9) for n in (0, 1))
    spent = procfs.compute_accounting(before, after)
    assert spent is not None and (spent.interrupts_hz, spent.context_switches_hz) == (None, None)


@pytest.mark.parametrize(
    ("ticks", "read_ms", "share"),
    [(400, 0, None), (352, 0, 88.0), (352, 400, None), (330, 400, 100 * 3.3 / 3.6), (300, 0, 75.0), (270, 0, "less")],
)
def test_the_part_of_a_window_that_stat_accounts_for(ticks: int, read_ms: int, share: float | str | None) -> None:
    """The first reading took `read_ms`: its counters may be that much younger than its time."""
    before = procfs.parse_stat("cpu0 100 0 0 1000 0 0 0 0\n", "stat", 0)
    after = procfs.parse_stat(f"cpu0 120 0 0 {980 + ticks} 0 0 0 0\n", "stat", 4 * 10**9)
    times = procfs.compute_cpu_times(msgspec.structs.replace(before, read_ns=read_ms * 10**6), after)
    if share == "less":
        assert times.unknown == {0: "its times grew by much less than the time that passed"}
    else:
        assert times.partial == ({} if share is None else {0: pytest.approx(share)})


def test_interrupts_of_timers_are_summed_over_rows_and_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    assert unseen_interrupts.read_timer_interrupts() is None
    text = "           CPU0       CPU1\n 36:  900  900  PCI-MSI nvme0q1\n"
    (tmp_path / "interrupts").write_text(text)
    assert unseen_interrupts.read_timer_interrupts() is None
    text += " 11:   31   43  GICv3 30 Level     arch_timer\nLOC:  100  250   Local timer interrupts\n"
    text += "HVS:    7    8   Hyper-V stimer0\nNMI:    3    4   Non-maskable\nHYP:    5   60   Hypervisor callback\n"
    (tmp_path / "interrupts").write_text(text)
    assert unseen_interrupts.read_timer_interrupts() == 31 + 43 + 100 + 250 + 7 + 8
    assert read_unseen_counts() == {"NMI": 7, "HYP": 65, "HVS": 15}
    assert count_unseen({"NMI": 2, "HYP": 65, "HVS": 20}, read_unseen_counts()) == {"NMIs": 5}


def test_the_share_of_a_group_is_of_all_cpus() -> None:
    before = {"server": {10: 5 * 10**9, 11: 10**9, 12: 7}, "client": {20: 1}}
    after = {"server": {10: 6 * 10**9, 11: 10**9 + 250_000_000, 13: 9 * 10**9}, "client": {20: 40_000_001}}
    (server, client), notes = procfs.compute_process_times(before, after, 16.0)
    assert (server.name, server.cpu_s, server.percent) == ("server", 1.25, pytest.approx(100 * 1.25 / 16))
    assert (client.cpu_s, client.percent) == (0.04, pytest.approx(0.25))
    assert len(notes) == 1 and "process 12 ended" in notes[0]
    assert procfs.compute_process_times(before, after, None)[0][0].percent is None


def test_the_peak_of_memory_is_the_kernels_in_bytes() -> None:
    kib = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    peak = procfs.own_peak_bytes()
    assert peak is not None and peak % 1024 == 0 and kib * 1024 <= peak < kib * 1024 + (64 << 20)
