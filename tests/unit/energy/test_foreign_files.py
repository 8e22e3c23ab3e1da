# SPDX-License-Identifier: Apache-2.0
"""Files of other tools: columns of CSV logs, listings of ipmitool, and powercap dumps in every layout."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.energy.meter_log import looks_like_meter_log, parse_meter_log
from powerprof.energy.meters import open_meters
from powerprof.energy.program_meters import parse_ipmi
from powerprof.energy.recordings import replay
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
    f"sensor.rack_power,{'unavailable' if n == 2 else 100},2025-11-24T16:00:{second(n)}.000Z\n" for n in range(6)
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
    "date and time": (csv("date,time,power", 100, times=lambda n: f"2025-11-24,16:00:{second(n)}"), None, 100),
    "time and date": (csv("time,date,power", 100, times=lambda n: f"16:00:{second(n)},2025-11-24"), None, 100),
    "German dates": (csv("date;time;power", times=lambda n: f"24.11.2025;16:00:{second(n)};100,5"), None, 100.5),
    "American dates": (csv("date,time,watts", 100, times=lambda n: f"11/24/2025,04:00:{second(n)} PM"), None, 100),
    "a date and a time in one cell": (
        csv("date,watts", 100, times=lambda n: f"24.11.2025 16:00:{second(n)}"),
        None,
        100,
    ),
    "the history of one entity": (HISTORY, None, 100),
    "a named entity": (HISTORY + HISTORY.replace("rack", "lab").replace("100", "7")[29:], "sensor.rack_power", 100),
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
    "day or month": (
        csv("date,time,watts", 100, times=lambda n: f"03/04/2025,16:00:{second(n)}"),
        None,
        "may begin with its day or its month",
    ),
    "two entities": (
        HISTORY + HISTORY[29:].replace("rack", "lab"),
        None,
        "the history of sensor.rack_power, sensor.lab",
    ),
}


@pytest.mark.parametrize("title", UNKNOWN)
def test_the_power_of_the_machine_is_never_guessed(tmp_path: Path, title: str) -> None:
    text, column, reason = UNKNOWN[title]
    with pytest.raises(DataError, match=reason) as caught:
        total_watts(tmp_path, text, column)
    assert caught.value.hint
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


def test_listings_without_times_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="listings of ipmitool without times") as caught:
        total_watts(tmp_path, "Pwr Consumption  | 77h | ok  |  7.1 | 98 Watts\n")
    assert "Timestamp |" in str(caught.value.hint)


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


# ipmitool.


def listings(*rows: Callable[[int], str], count: int = 4) -> str:
    """Return listings a minute apart."""
    return "".join(f"Timestamp | {START_S + 60 * n}\n" + "".join(row(n) for row in rows) for n in range(count))


def elist(name: str, reading: Cell, state: str = "ok") -> Callable[[int], str]:
    return lambda n: f"{name:<17}| 77h | {state:<3} |  7.1 | {reading(n) if callable(reading) else reading}\n"


def sdr(name: str, reading: Cell, state: str = "ok") -> Callable[[int], str]:
    return lambda n: f"{name:<17}| {reading(n) if callable(reading) else reading:<17} | {state}\n"


def sensor(name: str, reading: str, unit: str = "Watts", state: str = "ok") -> Callable[[int], str]:
    limits = "na        | na        | na        | 1400.000  | 1470.000  | na        "
    return lambda n: f"{name:<17}| {reading:<10} | {unit:<10} | {state:<6}| {limits}\n"


def rising(first: int) -> Callable[[int], str]:
    return lambda n: f"{first + n} Watts"


def dcmi(form: str, tail: str = "    Sampling period:                          00000005 Seconds.") -> str:
    return "".join(
        f"\n    Instantaneous power reading:                   {200 + n} Watts\n"
        "    Minimum during sampling period:                 10 Watts\n"
        f"    IPMI timestamp:                           {time.strftime(form, time.gmtime(START_S + 60 * n))}{tail}\n"
        "    Power reading state is:                   activated\n\n"
        for n in range(4)
    )


AMPS = elist("Current 2", "0 Amps")
IPMI: dict[str, tuple[str, float]] = {
    "Dell, sdr elist": (listings(elist("Current 1", "0.40 Amps"), AMPS, elist("Pwr Consumption", rising(98))), 99.5),
    "Supermicro, sdr elist": (
        listings(elist("Current", "No Reading", "ns"), AMPS, elist("System Level", rising(105))),
        106.5,
    ),
    "IBM, sdr elist": (
        listings(elist("PS1 Power In", rising(132)), elist("PS2 Power In", lambda n: f"{160 - n} Watts")),
        292,
    ),
    "HPE, sdr elist": (
        listings(elist("Power Meter", "150 Watts"), elist("Power Supply 1", "80 Watts, Presence detected")),
        150,
    ),
    "sdr list": (listings(sdr("Pwr Consumption", rising(98))), 99.5),
    "sensor": (listings(sensor("Pwr Consumption", "98.000")), 98),
    "sensor, two supplies": (
        listings(
            sensor("PS1 Power In", "132.000"),
            sensor("PS2 Power In", "100.000"),
            sensor("PS1 Input", "230.000", "Volts"),
            sensor("PS2 Input", "na", "Volts", "na"),
        ),
        232,
    ),
    "-c sdr": (listings(lambda n: f"Pwr Consumption,{98 + n},Watts,ok\n"), 99.5),
    "beyond a threshold": (listings(elist("Pwr Consumption", rising(98), "ucr")), 99.5),
    "a silent supply beside the whole server": (
        listings(elist("Pwr Consumption", rising(98)), elist("PS2 Power In", "No Reading", "ns")),
        99.5,
    ),
    "one listing without a supply": (
        listings(
            sdr("PS1 Power In", "132 Watts"),
            lambda n: sdr("PS2 Power In", *(("no reading", "ns") if n == 2 else ("100 Watts", "ok")))(n),
            count=6,
        ),
        232,
    ),
    "DCMI, EDT": (dcmi("%m/%d/%Y %H:%M:%S EDT"), 201.5),
    "DCMI, EDT with PM": (dcmi("%m/%d/%Y %I:%M:%S %p EDT"), 201.5),
    "DCMI, UTC": (dcmi("%m/%d/%Y %H:%M:%S UTC", ""), 201.5),
    "DCMI, an offset": (dcmi("%m/%d/%Y %H:%M:%S +0100", ""), 201.5),
    "DCMI, CEST at the end": (dcmi("%a %b %d %H:%M:%S %Y CEST", ""), 201.5),
    "DCMI, CET before the year": (dcmi("%a %b %d %H:%M:%S CET %Y", ""), 201.5),
}


@pytest.mark.parametrize("title", IPMI)
def test_the_figure_of_ipmitools_listings(tmp_path: Path, title: str) -> None:
    text, watts = IPMI[title]
    assert total_watts(tmp_path, text) == pytest.approx(watts)


NO_SERVER: dict[str, tuple[str, str]] = {
    "elist, a silent supply": (
        listings(elist("PS1 Power In", rising(132)), elist("PS2 Power In", "No Reading", "ns")),
        "PS2 Power In has no reading, so the total is unknown",
    ),
    "sdr, a disabled supply": (
        listings(sdr("PS1 Power In", "132 Watts"), sdr("PS2 Power In", "disabled", "ns")),
        "PS2 Power In has no reading",
    ),
    "sensor, a supply that is na": (
        listings(sensor("PS1 Power In", "132.000"), sensor("PS2 Power In", "na", "Watts", "na")),
        "PS2 Power In has no reading",
    ),
    "parts alone": (
        listings(elist("CPU1 Power", "80 Watts"), elist("CPU2 Power", "80 Watts")),
        r"no sensor of the whole server in it \(CPU1 Power 80 W, CPU2 Power 80 W\)",
    ),
    "two servers": (
        listings(elist("System Level", "100 Watts"), elist("System Level", "150 Watts")),
        "two sensors are called System Level",
    ),
    "two zones": (dcmi("%m/%d/%Y %H:%M:%S EDT") + dcmi("%m/%d/%Y %H:%M:%S EST"), "time does not advance|several zones"),
}


@pytest.mark.parametrize("title", NO_SERVER)
def test_a_listing_without_the_whole_server_is_refused(tmp_path: Path, title: str) -> None:
    text, reason = NO_SERVER[title]
    with pytest.raises(DataError, match=reason) as caught:
        total_watts(tmp_path, text)
    assert caught.value.hint or "advance" in caught.value.message


def test_a_supply_that_goes_away_leaves_no_total(tmp_path: Path) -> None:
    gone = listings(
        sdr("PS1 Power In", lambda n: "150 Watts" if n < 4 else "300 Watts"),
        lambda n: sdr("PS2 Power In", *(("150 Watts", "ok") if n < 4 else ("no reading", "ns")))(n),
        count=6,
    )
    assert total_watts(tmp_path, gone) is None


def test_times_of_a_named_zone_are_not_compared_with_others() -> None:
    log = parse_ipmi(dcmi("%m/%d/%Y %H:%M:%S EDT"), "log")
    assert not log.has_epoch
    assert log.notes == ("its times are in the zone EDT and are not compared with other recordings",)
    assert parse_ipmi(dcmi("%m/%d/%Y %H:%M:%S UTC"), "log").has_epoch


# Powercap dumps.

RANGE_UJ = 262_143_328_850
Series = list[tuple[str, str | None, float | None]]


def dumps(zones: Series, step_s: float, count: int = 3, range_uj: int = RANGE_UJ) -> str:
    """Return dumps `step_s` apart, of zones with an id, a name and a power. None: the file is missing."""
    text = ""
    for n in range(count):
        text += f"Timestamp | {START_S + step_s * n}\n"
        for zone, name, watts in zones:
            root = f"/sys/class/powercap/{zone}"
            start_uj = 5_000_000_000 * (1 + int(zone.rsplit(":", 1)[1]))
            uj = None if watts is None else round(start_uj + watts * 1e6 * step_s * n) % (range_uj + 1)
            text += "" if name is None else f"{root}/name|{name}\n"
            text += "" if uj is None else f"{root}/energy_uj|{uj}\n"
            text += f"{root}/max_energy_range_uj|{range_uj}\n"
    return text


P0, P1 = ("intel-rapl:0", "package-0", 300.0), ("intel-rapl:1", "package-1", 200.0)
LAYOUTS = {
    "bars": "{}|{}\n",
    "grep -H": "{}:{}\n",
    "grep -nH": "{}:1:{}\n",
    "tail": "==> {} <==\n{}\n\n",
    "find": "{}\n{}\n",
    "blocks": "{}:\n{}\n\n",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dumps_of_every_layout(tmp_path: Path, layout: str) -> None:
    lines = dumps([P0, P1], 60).splitlines(keepends=True)
    text = "".join(
        line if line.startswith("Time") else LAYOUTS[layout].format(*line.strip().split("|")) for line in lines
    )
    assert total_watts(tmp_path, text) == pytest.approx(500)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (dumps([P0], 1800), "package-0"),
        (dumps([P0], 600, range_uj=65_532_610_987), "package-0"),
        (dumps([P0], 86400, 2), "package-0"),
        (dumps([P0, ("intel-rapl:1", "psys", 400)], 900), "p"),
        (dumps([("intel-rapl:0", "package-0", 20), ("intel-rapl:0:0", "dram", 20)], 3600), ""),
    ],
)
def test_dumps_too_far_apart_are_refused(tmp_path: Path, text: str, label: str) -> None:
    with pytest.raises(DataError, match=rf"the counter of {label}.* may wrap unseen after \d+ s") as caught:
        total_watts(tmp_path, text)
    assert "at most" in str(caught.value.hint)


def test_the_stated_distance_is_usable(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        total_watts(tmp_path, dumps([P0], 1800))
    longest_s = int(str(caught.value.hint).split()[4])
    assert total_watts(tmp_path, dumps([P0], longest_s)) == pytest.approx(300)


def test_a_package_without_a_counter_leaves_no_total(tmp_path: Path) -> None:
    assert total_watts(tmp_path, dumps([P0, ("intel-rapl:1", "package-1", None)], 60)) is None


def test_a_counter_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="intel-rapl:1 has a counter and no name") as caught:
        total_watts(tmp_path, dumps([P0, ("intel-rapl:1", None, 200.0)], 60))
    assert "name, energy_uj and max_energy_range_uj" in str(caught.value.hint)


def test_names_in_the_first_dump_count_for_all(tmp_path: Path) -> None:
    first, second, third = (f"Timestamp{text}" for text in dumps([P0, P1], 60).split("Timestamp")[1:])
    rest = "".join(line for line in (second + third).splitlines(keepends=True) if "/name|" not in line)
    assert total_watts(tmp_path, first + rest) == pytest.approx(500)


def test_dies_that_count_alike_are_one_counter(tmp_path: Path) -> None:
    text = ""
    for n in range(3):
        text += f"Timestamp | {START_S + 10 * n}\n"
        for die in (0, 1):
            zone = f"/sys/class/powercap/intel-rapl/intel-rapl:{die}"
            uj = 31_000_000_000 + 680_000_000 * n + 900 * die * n
            text += f"{zone}/name|package-0-die-{die}\n{zone}/energy_uj|{uj}\n{zone}/max_energy_range_uj|65532610987\n"
    assert total_watts(tmp_path, text) == pytest.approx(68, rel=1e-3)


def test_no_capability_is_needed_for_recordings(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        replay([tmp_path / "absent.csv#power"])
    with pytest.raises((CapabilityError, DataError), match="no such file"):
        open_meters("meter_log", meter_log=tmp_path / "absent.csv")
