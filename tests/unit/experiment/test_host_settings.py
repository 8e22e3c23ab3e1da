# SPDX-License-Identifier: Apache-2.0
"""Settings of the host: what is accepted, on made-up hosts, and the two halves of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from powerprof.cure.remedies import HostChoice, parse_choice
from powerprof.experiment import host_settings
from powerprof.experiment.host_settings import (
    HostChange,
    find_host_setting,
    is_possible,
    parse_host_setting,
    plan_host_settings,
)
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.sweep import find_key, resolve_point
from powerprof.reversible.groups import join_values
from powerprof.reversible.host_settings import HostFile, LatencyLimit
from powerprof.system import paths
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.workloads.catalogue import find_one

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
        ("latency-limit=state1|3", ("latency-limit", "state1|3")),
        ("cpu-governor=schedutil|powersave", ("cpu-governor", "schedutil|powersave")),
    ],
)
def test_settings_that_can_be_tried(words: str, parsed: tuple[str, str]) -> None:
    assert parse_host_setting(words) == parsed
    assert parse_choice(None, None, None, host=words) == HostChoice(*parsed)


@pytest.mark.parametrize(
    "words",
    [
        *("", "latency-limit", "latency-limit=", "=5", "nosuch=1", "LATENCY-LIMIT=5", "profile=$(id)"),
        *("latency-limit=-1", "latency-limit=1.5", "latency-limit=1000001", "latency-limit=5us", "halt-poll=none"),
        *("latency-limit=state1|", "latency-limit=|3", "latency-limit=state", "halt-poll=state1", "latency-limit=3|x"),
        *("halt-poll=10000001", "epp=a/b", "epp=a\nb", "idle-governor=$(id)", "cpu-governor=" + "x" * 70),
    ],
)
def test_other_words_are_refused_before_anything_is_measured(words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_host_setting(words)
    assert "--host" in caught.value.message and "\n" not in caught.value.message
    assert caught.value.hint


def test_one_remedy_at_a_time() -> None:
    with pytest.raises(UsageError, match="--host and --thread exclude"):
        parse_choice("page_cleaner", "50ms", None, host="latency-limit=5")


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
    settings, _ = find_host_setting(name, value)
    assert len({setting.path for setting in settings if isinstance(setting, HostFile)}) == len(settings) == count
    befores = [setting.read() or "" for setting in settings]
    assert join_values(befores) == before
    assert {setting.write(setting.value) for setting in settings} == {settings[0].value}
    assert [setting.write(old) for setting, old in zip(settings, befores, strict=True)] == befores


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


@pytest.mark.parametrize(
    ("name", "value", "chosen"),
    [
        ("cpu-governor", "schedutil|ondemand|powersave", "powersave"),
        ("cpu-governor", "performance|powersave", "performance"),
        ("epp", "balance_performance|balance_power", "balance_power"),
        ("latency-limit", "state1|3", "2"),
        ("latency-limit", "state0|3", "3"),  # latency 0, as TuneD's id_no_zero
        ("latency-limit", "state7|3", "3"),
    ],
)
def test_the_first_possible_alternative_is_chosen(fake_tree: Make, name: str, value: str, chosen: str) -> None:
    host(fake_tree)
    for state, latency in (("state0", "0"), ("state1", "2")):
        (paths.sysfs() / f"devices/system/cpu/cpu0/cpuidle/{state}/latency").write_text(f"{latency}\n")
    assert {each.value for each in find_host_setting(name, value)[0]} == {chosen}


def test_settings_of_another_host_are_not_changed(fake_tree: Make) -> None:
    host(fake_tree)
    with pytest.raises(PowerprofError, match="show another host"):
        plan_host_settings(["epp=power"])
    assert not is_possible(["epp=power"]) and is_possible([])


@pytest.mark.parametrize("load_percent", [None, 0, 40])
def test_a_sweep_over_conditions_with_idle_clients_at_0_percent(load_percent: float | None) -> None:
    workload, name = find_one("power-profiles:present")
    options = ExperimentOptions(load_percent=load_percent)
    key, values = find_key(workload, "condition")
    assert values == list(workload.definition.conditions) and values[0] == "present"
    for value in values:
        case = resolve_point(workload, name, key, value, options)
        assert (case.name, case.load.clients, case.load.is_silent) == (value, 8, load_percent == 0)
    with pytest.raises(UsageError, match="power-profiles has no condition nosuch"):
        resolve_point(workload, name, key, "nosuch", options)


def test_every_setting_of_the_shipped_conditions_is_known() -> None:
    conditions = find_one("power-profiles:present")[0].definition.conditions
    assert [name for name, condition in conditions.items() if not condition.host] == ["present"]
    assert all(parse_host_setting(words) for condition in conditions.values() for words in condition.host)


@pytest.mark.parametrize(("now", "value", "refused"), [("50", "60", True), ("50", "50", False), ("50", "40", False)])
def test_a_limit_of_another_process_can_only_be_lowered(
    monkeypatch: pytest.MonkeyPatch, now: str, value: str, refused: bool
) -> None:
    monkeypatch.setattr(LatencyLimit, "read", lambda self: now)
    if refused:
        with pytest.raises(UsageError, match=f"holds the limit {now} µs"):
            find_host_setting("latency-limit", value)
        with pytest.raises(UsageError, match=f"holds the limit {now} µs"):
            find_host_setting("latency-limit", "none")
    else:
        (setting,), lasting = find_host_setting("latency-limit", value)
        assert setting.value == value and f"force_latency={value}" in lasting


def test_a_value_that_another_program_sets_in_a_window_is_named_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPUs 1 and 2 have another value after the first window, and CPU 3 goes offline in the second."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(paths, "ROOT_CHANGED", tmp_path / "changed")
    places = [tmp_path / f"cpu{cpu}/governor" for cpu in range(5)]
    for place in places:
        place.parent.mkdir()
        place.write_text("menu")
    change = HostChange([HostFile("the governor", str(place), "teo") for place in places], ["menu"] * 5, "")
    with (
        pytest.raises(PowerprofError, match=r"another program set the governor on CPUs 1-2 to ladder during the win"),
        host_settings._changed([change]),
    ):
        assert {place.read_text() for place in places} == {"teo"}
        places[1].write_text("ladder")
        places[2].write_text("ladder")
    assert [place.read_text() for place in places] == ["menu", "ladder", "ladder", "menu", "menu"]
    with (
        pytest.raises(PowerprofError, match="the governor on CPU 3 is missing, and will be menu again when it is back"),
        host_settings._changed([msgspec.structs.replace(change, befores=[place.read_text() for place in places])]),
    ):
        places[3].unlink()
    assert [place.read_text() for place in places[:3]] == ["menu", "ladder", "ladder"]
