# SPDX-License-Identifier: Apache-2.0
"""Settings of the host: what is accepted, on made-up hosts, and the two halves of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from powerprof.cure.host import find_host_setting, parse_host_setting
from powerprof.cure.remedies import HostChoice, parse_choice, parse_guard
from powerprof.reversible.host_settings import HostFiles
from powerprof.system.errors import UsageError

Make = Callable[[Mapping[str, str]], Path]
CPU = "sys/devices/system/cpu"


@pytest.mark.parametrize(
    ("words", "parsed"),
    [
        ("latency-limit=50", ("latency-limit", "50")),
        ("latency-limit=0", ("latency-limit", "0")),
        ("latency-limit=none", ("latency-limit", "none")),
        ("halt-poll=200000", ("halt-poll", "200000")),
        ("epp=balance_power", ("epp", "balance_power")),
        ("disable-state=haltpoll idle", ("disable-state", "haltpoll idle")),
    ],
)
def test_settings_that_can_be_tried(words: str, parsed: tuple[str, str]) -> None:
    assert parse_host_setting(words) == parsed
    assert parse_choice(None, None, None, host=words) == HostChoice(*parsed)


@pytest.mark.parametrize(
    "words",
    [
        *("", "latency-limit", "latency-limit=", "=5", "nosuch=1", "LATENCY-LIMIT=5", "profile=postgresql"),
        *("latency-limit=-1", "latency-limit=1.5", "latency-limit=1000001", "latency-limit=5us", "halt-poll=none"),
        *("halt-poll=10000001", "epp=a/b", "epp=a\nb", "idle-governor=$(id)", "cpu-governor=" + "x" * 70),
    ],
)
def test_other_words_are_refused_before_anything_is_measured(words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_host_setting(words)
    assert "--host" in caught.value.message and "\n" not in caught.value.message
    assert caught.value.hint


def test_one_remedy_at_a_time() -> None:
    with pytest.raises(UsageError, match="--host excludes"):
        parse_choice("page_cleaner", "50ms", None, host="latency-limit=5")


@pytest.mark.parametrize(("words", "guard"), [("p99=5%", (99, 5.0)), ("p95=10", (95, 10.0)), ("p50=0.5 %", (50, 0.5))])
def test_guards(words: str, guard: tuple[int, float]) -> None:
    assert parse_guard(words) == guard


@pytest.mark.parametrize("words", ["", "p99", "p90=5", "p99=-1", "p99=x", "99=5%", "p99=5%%", "p99=5,p95=3"])
def test_other_guards_are_refused(words: str) -> None:
    with pytest.raises(UsageError, match="--guard"):
        parse_guard(words)


def host(fake_tree: Make) -> Path:
    tree = {f"{CPU}/online": "0-1\n", f"{CPU}/cpuidle/available_governors": "ladder menu teo \n"}
    tree |= {f"{CPU}/cpuidle/current_governor": "menu\n", "sys/module/kvm/parameters/halt_poll_ns": "200000\n"}
    for cpu, epp in ((0, "performance"), (1, "balance_power")):
        frequency = f"{CPU}/cpu{cpu}/cpufreq"
        tree |= {
            f"{frequency}/scaling_governor": "performance\n",
            f"{frequency}/scaling_available_governors": "performance powersave\n",
            f"{frequency}/energy_performance_preference": f"{epp}\n",
            f"{frequency}/energy_performance_available_preferences": "performance balance_power power\n",
        }
        for index, name in enumerate(("POLL", "C1", "C6")):
            tree |= {f"{CPU}/cpu{cpu}/cpuidle/state{index}/{leaf}": text for leaf, text in _state(name).items()}
    return fake_tree(tree)


def _state(name: str) -> dict[str, str]:
    return {"name": f"{name}\n", "disable": "0\n", "time": "1\n", "usage": "1\n"}


@pytest.mark.parametrize(
    ("name", "value", "before", "count"),
    [
        ("idle-governor", "teo", "menu", 1),
        ("cpu-governor", "powersave", "performance", 2),
        ("epp", "power", "performance,balance_power", 2),
        ("disable-state", "C6", "0", 2),
        ("halt-poll", "0", "200000", 1),
    ],
)
def test_every_file_is_changed_and_restored(fake_tree: Make, name: str, value: str, before: str, count: int) -> None:
    host(fake_tree)
    setting, _ = find_host_setting(name, value)
    assert isinstance(setting, HostFiles) and len(setting.paths) == count
    assert setting.read() == before
    assert setting.write(setting.value) == setting.value
    assert setting.write(before) == before == setting.read()


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("idle-governor", "haltpoll", "one of ladder, menu or teo"),
        ("cpu-governor", "ondemand", "one of performance or powersave"),
        ("epp", "balance_performance", "one of performance, balance_power or power"),
        ("disable-state", "C8", "one of POLL, C1 or C6"),
    ],
)
def test_the_driver_refuses_before_the_trial(fake_tree: Make, name: str, value: str, hint: str) -> None:
    host(fake_tree)
    with pytest.raises(UsageError) as caught:
        find_host_setting(name, value)
    assert caught.value.hint == hint


def test_a_host_without_the_setting(fake_tree: Make) -> None:
    fake_tree({f"{CPU}/online": "0\n"})
    for name in ("idle-governor", "cpu-governor", "epp", "disable-state", "halt-poll"):
        with pytest.raises(UsageError, match=f"--host {name}"):
            find_host_setting(name, "1")
