# SPDX-License-Identifier: Apache-2.0
"""-o FILE: the suffix is the kind, and each command accepts the kinds that its record has."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from powerprof.cli.app import module_name
from powerprof.cli.commands import COMMANDS
from powerprof.cli.outputs import OutputFile, check_targets, parse_output
from powerprof.cli.parameters import walk_parameters
from powerprof.report.files import SUFFIXES
from powerprof.report.kinds import KIND_LOADERS
from powerprof.system.errors import PowerprofError, UsageError

# The record of each command; `report` reads all of them.
RECORDS = {
    "idle": "powerprof.run/1 idle",
    "residency": "powerprof.run/1 residency",
    "attribute": "powerprof.attribution/1",
    "deep-idle": "powerprof.attribution/1",
    "profile": "powerprof.oncpu/1",
    "functions": "powerprof.functions/1",
    "offcpu": "powerprof.offcpu/1",
    "syscalls": "powerprof.syscalls/1",
    "queries": "powerprof.queries/1",
    "diagnose": "powerprof.diagnosis/1",
    "run": "powerprof.run/1 run",
    "compare": "powerprof.comparison/1",
    "sweep": "powerprof.sweep/1",
    "study": "powerprof.study/1",
    "cure": "powerprof.cure/1",
    "energy": "powerprof.energy/1",
    "runs": "powerprof.trend/1",
}


def _accepted(command: str) -> set[str] | None:
    """Return the kinds of files that -o of a command accepts; None if it has no such option."""
    options = import_module(module_name(command)).Options
    parameter = next((each for _, _, each in walk_parameters(options) if each.flag == "-o"), None)
    if parameter is None:
        return None
    accepted = set()
    for kind, suffix in SUFFIXES.items():
        try:
            parameter.convert(f"file{suffix}")
        except UsageError as error:
            assert error.message == f"-o file{suffix}: this command has no {suffix} file"
        else:
            accepted.add(kind)
            assert suffix in parameter.help
    return accepted


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_accepts_the_kinds_of_its_record(command: str) -> None:
    accepted = _accepted(command)
    if command == "report":
        assert accepted == set(SUFFIXES)
    elif command in RECORDS:
        assert accepted == set(KIND_LOADERS[RECORDS[command]]().file_kinds())
    else:
        assert accepted is None


@pytest.mark.parametrize("kind", SUFFIXES)
def test_a_suffix_or_a_prefix_is_the_kind(kind: str) -> None:
    suffix = SUFFIXES[kind]
    for name in (f"a{suffix}", f"a.b{suffix.upper()}", f"./csv:a{suffix}"):
        assert parse_output(name, list(SUFFIXES)) == OutputFile(kind, name, f"-o {name}")
    for target in ("-", "page", "/dev/fd/3", "a:b", "x.csv"):
        assert parse_output(f"{kind}:{target}", list(SUFFIXES)) == OutputFile(kind, target, f"-o {kind}:{target}")


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("-", "-o -: stdout has no suffix"),
        ("page", "-o page: no kind of file has this suffix"),
        ("page.pdf", "-o page.pdf: no kind of file has this suffix"),
        ("page.html", "-o page.html: this command has no .html file"),
        ("html:-", "-o html:-: this command has no .html file"),
        ("csv:", "-o csv: has no name after the colon"),
    ],
)
def test_a_refusal_names_the_file_and_the_available_kinds(typed: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_output(typed, ["csv", "json"])
    assert caught.value.message == error
    assert caught.value.hint == (
        "such as csv:-, for stdout" if typed == "csv:" else "available: .csv and .json; for stdout such as -o csv:-"
    )


def test_two_names_of_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "folder").mkdir()
    names = [f"{tmp_path}/folder/a.csv", f"csv:{tmp_path}/link/a.csv"]
    with pytest.raises(UsageError) as caught:
        check_targets([parse_output(name, ["csv"]) for name in names])
    assert caught.value.message == f"-o {names[0]} and -o {names[1]} name the same file"


def test_an_error_of_a_file_names_its_option(tmp_path: Path) -> None:
    with pytest.raises(PowerprofError) as caught:
        check_targets([parse_output(f"{tmp_path}/{'x' * 300}.csv", ["csv"])])
    assert caught.value.message.startswith("-o: ")
