# SPDX-License-Identifier: Apache-2.0
"""CSV logs of other tools: their columns, units and times."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.energy.choice import open_meters
from powerprof.energy.meters.meter_log import looks_like_meter_log, parse_meter_log
from powerprof.energy.replay import replay
from powerprof.system.errors import CapabilityError, DataError

START_S = 1764000000
Cell = str | float | Callable[[int], str]


def csv(header: str, *columns: Cell, times: Callable[[int], str] = lambda n: str(START_S + 10 * n)) -> str:
    """Return a log of six rows, 10 s apart. A column is a figure, or a function of the row's number."""
    rows = [[times(n), *(str(c(n) if callable(c) else c) for c in columns)] for n in range(6)]
    return "\n".join([header, *(",".join(row) for row in rows)]) + "\n"


def total_watts(folder: Path, text: str, column: str | None = None) -> float | None:
    path = folder / "file.txt"
    path.write_text(text)
    return replay([Path(f"{path}#{column}") if column else path]).total.watts


def second(number: int) -> str:
    return f"{10 * number:02d}"


def silent(*rows: int, word: str = "unavailable") -> Callable[[int], str]:
    return lambda number: word if number in rows else "100"


TWO = csv("time,Outlet 1 (W),Outlet 2 (W)", 240, 260)
HISTORY = "entity_id,state,last_changed\n" + "".join(
    f"sensor.rack_power,100,2025-11-24T16:00:{second(n)}.000Z\n" for n in range(6)
)
LOGS: dict[str, tuple[str, str | None, float]] = {
    "a named column": (csv("time,cpu_power,total_power", 90, 210), "total_power", 210),
    "two outlets": (TWO, "Outlet 1 (W)+Outlet 2 (W)", 500),
    "two outlets without units": (TWO, "outlet 1+outlet 2", 500),
    "the wall beside RAPL": (csv("time,rapl_power_w,wall_power_w", 80, 150), "wall_power_w", 150),
    "limits are not power": (csv("time,power,max_power,power_limit", 150, 300, 400), None, 150),
    "active and apparent power": (csv("time,Apparent Power (VA),Active Power (W)", 180, 150), None, 150),
    "energy beside power": (csv("time,energy_kWh,power_kW", 7, 0.4), None, 400),
    "milliwatts": (csv("time,power (mW)", 150000), None, 150),
    "a heading of another kind": (csv("time,apower", 150), "apower", 150),
    "unavailable rows": (csv("time,power", silent(2)), None, 100),
    "unknown rows": (csv("time,power", silent(2, 3, word="unknown")), None, 100),
    "empty cells": (csv("time,power", silent(3, word="")), None, 100),
    "ISO 8601 without a zone": (csv("date,power", 100, times=lambda n: f"2025-11-24 16:00:{second(n)}"), None, 100),
    "ISO 8601 without marks": (csv("time,power", 100, times=lambda n: f"20251124T1600{second(n)}Z"), None, 100),
}


@pytest.mark.parametrize("title", LOGS)
def test_the_power_of_a_log(tmp_path: Path, title: str) -> None:
    text, column, watts = LOGS[title]
    assert looks_like_meter_log(text) or column is not None
    assert total_watts(tmp_path, text, column) == pytest.approx(watts)


UNKNOWN: dict[str, tuple[str, str | None, str]] = {
    "a part beside the total": (csv("time,cpu_power,total_power", 90, 210), None, "2 columns of power"),
    "two outlets": (TWO, None, r"2 columns of power \(Outlet 1 \(W\), Outlet 2 \(W\)\)"),
    "a card alone": (csv("time,gpu_power", 250), None, "gpu_power may be the power of a part"),
    "a named part": (csv("time,gpu_power,wall_power", 250, 400), "gpu_power", "gpu_power is the power of a part"),
    "packages": (csv("time,package_watts", 70), None, "package_watts may be the power of a part"),
    "camel case": (csv("time,cpuPower,totalPower", 90, 210), None, "2 columns of power"),
    "phases": (csv("T,P1,P2,P3", 70, 80, 90), None, "3 columns of power"),
    "load is not power": (csv("time,load", 3.5), None, "not an energy recording"),
    "per cent": (csv("time,power (%)", 55), None, "not an energy recording"),
    "apparent power": (csv("time,power (VA)", 55), None, "not an energy recording"),
    "energy": (csv("time,consumption (kWh)", 7), None, "not an energy recording"),
    "megawatts": (csv("time,power (MW)", 150000), None, "not an energy recording"),
    "a named energy": (csv("time,use (kWh)", 7), "use", "has the unit kwh, which is not a power"),
    "no such column": (csv("time,a_power,b_power", 250, 400), "c_power", "it has no column 'c_power'"),
    "date and time": (csv("date,time,power", 100, times=lambda n: f"2025-11-24,16:00:{second(n)}"), None, "not a time"),
    "German dates": (csv("time,power", 100, times=lambda n: f"24.11.2025 16:00:{second(n)}"), None, "not a time"),
    "American dates": (csv("time,power", 100, times=lambda n: f"11/24/2025 04:00:{second(n)} PM"), None, "not a time"),
    "dates alone": (csv("date,power", 100, times=lambda n: f"2025-11-1{n}"), None, "not a time"),
    "Home Assistant": (HISTORY, None, "a history of Home Assistant, which powerprof does not read"),
    "a named sensor of Home Assistant": (HISTORY, "sensor.rack_power", "a history of Home Assistant"),
}


@pytest.mark.parametrize("title", UNKNOWN)
def test_the_power_of_the_machine_is_never_guessed(tmp_path: Path, title: str) -> None:
    text, column, reason = UNKNOWN[title]
    with pytest.raises(DataError, match=reason) as caught:
        total_watts(tmp_path, text, column)
    assert caught.value.hint
    assert "not a time" not in reason or "epoch seconds or in ISO 8601" in caught.value.hint
    assert "\n" not in caught.value.message


HEADINGS = [
    "power",
    "watts",
    "cpu_power",
    "gpu (W)",
    "psu1_power",
    "Outlet 2 (W)",
    "voltage",
    "max_power",
    "note",
    "P3",
]


@given(headings=st.lists(st.sampled_from(HEADINGS), min_size=1, max_size=5, unique=True))
def test_one_power_of_the_whole_machine_or_a_named_one(headings: list[str]) -> None:
    text = csv(",".join(["time", *headings]), *range(1, len(headings) + 1))
    powers = [heading for heading in headings if heading not in ("voltage", "max_power", "note")]
    if powers in (["power"], ["watts"]):
        assert parse_meter_log(text, "log").samples[0].watts == 1 + headings.index(powers[0])
    else:
        with pytest.raises(DataError):
            parse_meter_log(text, "log")
    for heading in set(powers) - {"cpu_power", "gpu (W)"}:
        assert parse_meter_log(text, "log", column=heading).samples[0].watts == 1 + headings.index(heading)


def test_two_columns_of_one_heading_have_no_name() -> None:
    with pytest.raises(DataError, match="2 columns are called 'power'"):
        parse_meter_log(csv("time,power,power", 1, 2), "log", column="power")


def test_a_log_in_progress_has_a_named_column(tmp_path: Path) -> None:
    path = tmp_path / "pdu.csv"
    path.write_text("time,psu1_power,psu2_power\n")
    with pytest.raises(DataError, match="2 columns of power"):
        open_meters("meter_log", meter_log=path)
    with open_meters("meter_log", meter_log=Path(f"{path}#psu1_power+psu2_power")) as meters:
        meters.sample()
        start_s, now = time.monotonic(), time.time()
        with path.open("a") as file:
            file.writelines(f"{now + step / 10:.6f},100,{100 + step}\n" for step in range(11))
        meters.sample()
        assert meters.readings(start_s, start_s + 1.0)[0].watts == pytest.approx(205.0, abs=0.5)


def test_a_file_with_a_mark_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "wall#1.csv"
    path.write_text(csv("time,power", 100))
    assert replay([path]).total.watts == 100


def test_no_capability_is_needed_for_recordings(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        replay([tmp_path / "absent.csv#power"])
    with pytest.raises((CapabilityError, DataError), match="no such file"):
        open_meters("meter_log", meter_log=tmp_path / "absent.csv")
