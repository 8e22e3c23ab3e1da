# SPDX-License-Identifier: Apache-2.0
"""Option values that make no sense: said in one line, before anything is measured or started."""

from __future__ import annotations

import pytest

from tests.system.errors.conftest import QUICK, Refused

# QUICK without the option that the lines give themselves.
BARE = QUICK[: QUICK.index("--energy-source")]


@pytest.mark.parametrize("command", ["idle", "residency"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e9", "1e-9", "ten", "٣"])
def test_durations(refused: Refused, command: str, value: str) -> None:
    refused(
        2, r"--duration \S+: (must be at (least 0\.05|most 604800\.0) s|not a time)", [command, "--duration", value]
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("-1", r"--clients \S+: must be at least 0"),
        ("10000000", r"--clients \S+: must be at most 60000"),
        ("60001", r"--clients \S+: must be at most 60000"),
        ("1.5", r"--clients \S+: not a whole number"),
        ("many", r"--clients \S+: not a whole number"),
        ("9" * 400, r"clients"),
    ],
)
def test_numbers_of_clients(refused: Refused, value: str, said: str) -> None:
    """0 is allowed: the server alone is measured."""
    refused(2, said, ["idle", "--clients", value])


@pytest.mark.parametrize("value", ["0", "-1", "1001", "x"])
def test_numbers_of_windows(refused: Refused, value: str) -> None:
    refused(2, r"--repeat", ["idle", "--repeat", value])


@pytest.mark.parametrize("option", ["--residency-source", "--energy-source"])
@pytest.mark.parametrize("value", ["nonsense", "cpuidle;ls", "../../etc", "\x1b[31m"])
def test_sources(refused: Refused, option: str, value: str) -> None:
    refused(2, r"(no residency source|--energy-source .*: .* is not a choice)", ["idle", *BARE, option, value])


def test_the_source_of_residency_alone(refused: Refused) -> None:
    refused(2, r"no residency source 'nonsense'", ["residency", "--duration", "0.1", "--residency-source", "nonsense"])


# One of each kind of value, and of each place that an option is declared in.
EMPTY = [
    *(
        ("idle", f"--{option}")
        for option in ("duration", "clients", "residency-source", "energy-source", "server", "html")
    ),
    *(
        ("run", f"--{option}")
        for option in ("workloads", "server-binary", "server-basedir", "server-cpus", "world-sql")
    ),
    *(("attribute", f"--{option}") for option in ("pid", "cgroup", "from", "perfetto")),
    ("functions", "--backend"),
    ("compare", "--precision"),
    ("queries", "--save-workload"),
    ("energy", "--output"),
    ("export", "--web-config"),
    ("runs", "--runs-dir"),
]


@pytest.mark.parametrize(("command", "option"), EMPTY, ids=lambda value: value)
@pytest.mark.parametrize("written", ["apart", "joined"])
def test_empty_values(refused: Refused, command: str, option: str, written: str) -> None:
    """`--json "$FILE"` without such a variable; as a path it would mean the working folder."""
    refused(
        2,
        rf"^error: {option} has an empty value$",
        [command, *([f"{option}="] if written == "joined" else [option, ""])],
    )


@pytest.mark.parametrize(
    ("meters", "reason"),
    [
        ("auto,rapl", "auto,rapl: auto stands alone"),
        ("none,none", "none,none names none twice"),
        ("rapl,", "rapl,: an empty name is not a choice"),
        ("rapl,x", "rapl,x: x is not a choice"),
    ],
)
def test_lists_of_meters(refused: Refused, meters: str, reason: str) -> None:
    refused(2, rf"^error: --energy-source {reason}$", ["idle", *BARE, "--energy-source", meters])


def test_a_meter_that_is_not_there(refused: Refused, tmp_path_factory: pytest.TempPathFactory) -> None:
    """On a host without RAPL; a tree without powercap makes any host one."""
    empty = tmp_path_factory.mktemp("sys")
    refused(
        3, r"rapl: no RAPL energy counters", ["idle", *BARE, "--energy-source", "rapl"], {"POWERPROF_SYSFS": str(empty)}
    )


@pytest.mark.parametrize(
    "args",
    [
        ["idle", "more"],
        ["idle", "--clients"],
        ["residency", "after-without-from"],
        ["residency", "--elapsed", "5"],
        ["residency", "--from"],
        ["report"],
        ["runs", "a", "b"],
    ],
)
def test_arguments_that_do_not_fit(refused: Refused, args: list[str]) -> None:
    refused(2, r".", args)
