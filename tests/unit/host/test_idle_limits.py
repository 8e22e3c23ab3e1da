# SPDX-License-Identifier: Apache-2.0
"""What forbids deep idle: latency limits and holders, disabled states and boot options, on made-up hosts."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from powerprof.host.idle_limits import IdleLimit, LimitHolder, limit_lines, limit_text, read_idle_limits
from powerprof.host.kernel_probes import probe_deep_idle

Make = Callable[[Mapping[str, str]], Path]
CPU = "sys/devices/system/cpu"
# Intel Ice Lake: POLL 0, C1 1, C1E 4 and C6 170 µs.
STATES = (("POLL", 0, 0), ("C1", 1, 1), ("C1E", 4, 4), ("C6", 170, 600))


def host(cpus: int = 2, states: tuple[tuple[str, int, int], ...] = STATES, **files: str) -> dict[str, str]:
    tree = {f"{CPU}/online": f"0-{cpus - 1}\n", f"{CPU}/cpuidle/current_driver": "intel_idle\n"}
    for cpu in range(cpus):
        for index, (name, latency, target) in enumerate(states):
            folder = f"{CPU}/cpu{cpu}/cpuidle/state{index}"
            values = {"name": name, "latency": latency, "residency": target, "time": 5, "usage": 5, "disable": 0}
            tree |= {f"{folder}/{leaf}": f"{value}\n" for leaf, value in values.items()}
    return tree | {name.replace("__", "/"): text for name, text in files.items()}


def limit_device(folder: Path, value: int) -> Path:
    path = folder / "cpu_dma_latency"
    path.write_bytes(struct.pack("i", value))
    return path


@pytest.mark.parametrize(
    ("limit_us", "excluded", "text"),
    [
        (2_000_000_000, [], None),
        (1000, [], "excludes no idle state"),
        (170, [], "excludes no idle state"),
        (169, ["C6"], "latency limit of 169 µs excludes C6"),
        (3, ["C1E", "C6"], "latency limit of 3 µs excludes C1E and C6"),
        (1, ["C1E", "C6"], "latency limit of 1 µs excludes C1E and C6"),
        (0, ["C1", "C1E", "C6"], "latency limit of 0 µs excludes all idle states: CPUs poll"),
    ],
)
def test_a_latency_limit_excludes_slower_states(
    fake_tree: Make, tmp_path: Path, limit_us: int, excluded: list[str], text: str | None
) -> None:
    fake_tree(host())
    found = read_idle_limits(limit_device(tmp_path, limit_us))
    assert [name for limit in found.limits for name in limit.excludes or ()] == excluded
    assert len(found.limits) == (text is not None)
    assert limit_lines(found) == ([text] if excluded else [])


@pytest.mark.parametrize(("limit_us", "excluded"), [(0, ["haltpoll idle"]), (1, []), (50, [])])
def test_haltpoll_knows_only_the_limit_0(fake_tree: Make, tmp_path: Path, limit_us: int, excluded: list[str]) -> None:
    states = (("POLL", 0, 0), ("haltpoll idle", 60, 1))
    fake_tree(host(states=states) | {f"{CPU}/cpuidle/current_governor": "haltpoll\n"})
    (limit,) = read_idle_limits(limit_device(tmp_path, limit_us)).limits
    assert limit.excludes == excluded


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        (("0", "0"), []),
        (("n/a", "n/a"), ["pm_qos_resume_latency_us 0 µs excludes all idle states: CPUs poll"]),
        (("0", "20"), ["pm_qos_resume_latency_us 20 µs on CPU 1 excludes C6"]),
        (
            ("2", "20"),
            [
                "pm_qos_resume_latency_us 2 µs on CPU 0 excludes C1E and C6",
                "pm_qos_resume_latency_us 20 µs on CPU 1 excludes C6",
            ],
        ),
        (("garbage", "-1"), []),
    ],
)
def test_limits_of_single_cpus(fake_tree: Make, values: tuple[str, str], lines: list[str]) -> None:
    tree = {f"{CPU}/cpu{cpu}/power/pm_qos_resume_latency_us": f"{text}\n" for cpu, text in enumerate(values)}
    fake_tree(host() | tree)
    assert limit_lines(read_idle_limits()) == lines


def test_disabled_states_by_cpu(fake_tree: Make) -> None:
    fake_tree(host() | {f"{CPU}/cpu1/cpuidle/state3/disable": "1\n"})
    assert limit_lines(read_idle_limits()) == ["C6 is disabled on CPU 1"]
    fake_tree(host() | {f"{CPU}/cpu{cpu}/cpuidle/state{state}/disable": "1\n" for cpu in (0, 1) for state in (2, 3)})
    assert limit_lines(read_idle_limits()) == ["C1E and C6 are disabled"]


@pytest.mark.parametrize(
    ("cmdline", "lines"),
    [
        ("quiet", []),
        ("intel_idle.max_cstate=1", ["boot option intel_idle.max_cstate=1: the excluded idle states are unknown"]),
        ("intel_idle.max_cstate=0", []),
        ("idle=halt", ["boot option idle=halt: the excluded idle states are unknown"]),
        ("processor.max_cstate=1 nohz=off", []),
        ("quiet -- idle=poll", []),
        ("xidle=poll", []),
    ],
)
def test_boot_options(fake_tree: Make, cmdline: str, lines: list[str]) -> None:
    fake_tree(host() | {"proc/cmdline": f"{cmdline}\n"})
    found = read_idle_limits()
    assert limit_lines(found) == lines
    assert found.settings.get("boot option nohz") == ("off" if "nohz" in cmdline else None)


def test_a_host_that_polls_and_one_without_states(fake_tree: Make) -> None:
    fake_tree({f"{CPU}/online": "0\n", "proc/cmdline": "idle=poll\n"})
    assert limit_lines(read_idle_limits()) == ["boot option idle=poll excludes all idle states: CPUs poll"]
    fake_tree({"proc/cmdline": "quiet\n"})
    assert (read_idle_limits().states, read_idle_limits().limits) == ([], [])
    assert probe_deep_idle().status == "none"


def test_an_unknown_latency_excludes_unknown_states(fake_tree: Make, tmp_path: Path) -> None:
    tree = {name: text for name, text in host().items() if not name.endswith("state3/latency")}
    fake_tree(tree)
    lines = limit_lines(read_idle_limits(limit_device(tmp_path, 1)))
    assert lines == ["latency limit of 1 µs: the excluded idle states are unknown"]


def test_the_limit_of_a_recorded_host_is_unknown(fake_tree: Make) -> None:
    fake_tree(host())
    assert read_idle_limits().unread == ["the latency limit of the recorded host"]
    assert probe_deep_idle().status == "limited"


def test_settings_name_the_active_choice(fake_tree: Make) -> None:
    fake_tree(host() | {"sys/module/pcie_aspm/parameters/policy": "[default] performance powersave\n"})
    assert read_idle_limits().settings == {"idle driver": "intel_idle", "ASPM policy": "default"}


def test_holders_are_services_or_processes() -> None:
    tuned = LimitHolder(pid=812, name="tuned", service="tuned.service")
    other = LimitHolder(pid=9, name="python3", service=None)
    limit = IdleLimit(setting="cpu_dma_latency", value="1 µs", excludes=["C6"], holders=[tuned, other])
    assert limit_text(limit) == "latency limit of 1 µs, held by tuned.service and python3 9, excludes C6"
    limit = IdleLimit(setting="cpu_dma_latency", value="1 µs", excludes=["C6"], holders=[])
    assert "held by the kernel or a process that this host does not show, excludes C6" in limit_text(limit)


def test_states_are_ordered_by_their_latency(fake_tree: Make) -> None:
    fake_tree(host(states=(("C6", 170, 600), ("C1E", 4, 4), ("POLL", 0, 0), ("C1", 1, 1))))
    limits = read_idle_limits()
    assert [(s.name, s.latency_us, s.target_us) for s in limits.states] == [
        ("POLL", 0, 0),
        ("C1", 1, 1),
        ("C1E", 4, 4),
        ("C6", 170, 600),
    ]


def test_further_holders_are_counted() -> None:
    holders = [LimitHolder(pid=40 + n, name=f"p{n}", service=None) for n in range(7)]
    limit = IdleLimit(setting="cpu_dma_latency", value="1 µs", excludes=["C6"], holders=holders)
    assert "held by p0 40, p1 41, p2 42, p3 43 and 3 more, excludes C6" in limit_text(limit)
