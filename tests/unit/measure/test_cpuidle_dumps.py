# SPDX-License-Identifier: Apache-2.0
"""One reader for every layout in which tools print sysfs files."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.measure.cpuidle_dumps import DumpCell, read_dump_cells

Files = list[tuple[str, str]]
FILE = re.compile(r"(?:\S*/)?(intel-rapl[^/\s]*)/(name|energy_uj|max_energy_range_uj)")
# Each layout prints files as the named tool does.
LAYOUTS: dict[str, Callable[[str, str], str]] = {
    "grep -H": lambda path, value: f"{path}:{value}\n",
    "grep -nH": lambda path, value: f"{path}:1:{value}\n",
    "grep -HT": lambda path, value: f"{path}\t:{value}\n",
    "bars": lambda path, value: f"{path}|{value}\n",
    "spaced bars": lambda path, value: f"{path} | {value}\n",
    "sysctl": lambda path, value: f"{path} = {value}\n",
    "echo": lambda path, value: f"{path} {value}\n",
    "awk": lambda path, value: f"{path}: {value}\n",
    "find -print -exec cat": lambda path, value: f"{path}\n{value}\n",
    "blocks": lambda path, value: f"{path}:\n{value}\n\n",
    "tail -n +1": lambda path, value: f"==> {path} <==\n{value}\n\n",
    "head of a report, indented": lambda path, value: f"    ==> {path} <==\n    {value}\n\n",
    "more": lambda path, value: f"{':' * 14}\n{path}\n{':' * 14}\n{value}\n",
    "windows": lambda path, value: f"{path}:{value}\r\n",
}
ROOTS = ("/sys/class/powercap/", "/sys/devices/virtual/powercap/intel-rapl/", "./", "", "/tmp/host-a1/")
ZONES = st.sampled_from(["intel-rapl:0", "intel-rapl:0:0", "intel-rapl-mmio:0", "intel-rapl:12"])
VALUES = {
    "name": st.sampled_from(["package-0", "core", "psys-%d", "a b:c", "x|y", "N/A", "1st"]),
    "energy_uj": st.integers(0, 1 << 40).map(str),
    "max_energy_range_uj": st.integers(1, 1 << 40).map(str),
}
OTHER_FILES = [("/sys/class/powercap/intel-rapl/enabled", "1"), ("/sys/devices/system/cpu/cpu0/uevent", "A=/b/c")]


@st.composite
def drawn_files(draw: st.DrawFn) -> Files:
    root = draw(st.sampled_from(ROOTS))
    keys = draw(st.lists(st.tuples(ZONES, st.sampled_from(sorted(VALUES))), min_size=1, max_size=8, unique=True))
    return [(f"{root}{zone}/{leaf}", draw(VALUES[leaf])) for zone, leaf in keys]


def read(text: str) -> Files:
    return [(cell.path, cell.value or "") for cell in read_dump_cells(text, "dump", FILE)]


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=60, deadline=None)
@given(files=drawn_files(), data=st.data())
def test_every_layout_prints_the_same_files(layout: str, files: Files, data: st.DataObject) -> None:
    others = data.draw(st.lists(st.sampled_from(OTHER_FILES), max_size=3))
    mixed = data.draw(st.permutations([*files, *others]))
    text = "".join(LAYOUTS[layout](path, value) for path, value in mixed)
    assert read(text) == [(path, value) for path, value in mixed if (path, value) in files]


@pytest.mark.parametrize("layout", ["find -print -exec cat", "blocks", "tail -n +1", "bars", "grep -H", "more"])
def test_an_empty_file_has_no_value(layout: str) -> None:
    files = [
        ("/p/intel-rapl:0/energy_uj", ""),
        ("/p/intel-rapl:0/name", "package-0"),
        ("/p/intel-rapl:1/energy_uj", ""),
    ]
    text = "".join(LAYOUTS[layout](path, value) for path, value in files).replace("\n\n\n", "\n\n")
    if layout == "find -print -exec cat":
        text = text.replace("\n\n", "\n")
    assert read(text) == files


def test_an_unknown_file_after_an_empty_one_is_not_its_value() -> None:
    text = "/p/intel-rapl:0/energy_uj\n/p/intel-rapl:0/uevent\n./x/y\n/p/intel-rapl:0/name\ncore\n"
    assert read(text) == [("/p/intel-rapl:0/energy_uj", ""), ("/p/intel-rapl:0/name", "core")]


def test_messages_of_the_tools_and_prompts_are_ignored() -> None:
    text = (
        "root@db1:~# grep -r . /sys/class/powercap/intel-rapl:0/\n"
        "grep: /sys/class/powercap/intel-rapl:0/power/autosuspend_delay_ms: Input/output error\n"
        "cat: /sys/class/powercap/intel-rapl:0/energy_uj: Permission denied\n"
        "/sys/class/powercap/intel-rapl:0/name:package-0\n"
    )
    assert read(text) == [("/sys/class/powercap/intel-rapl:0/name", "package-0")]


def test_each_value_has_its_line() -> None:
    text = "# of db1\n==> /p/intel-rapl:0/name <==\ncore\n\n\n/p/intel-rapl:0/name:core\n"
    assert list(read_dump_cells(text, "dump", FILE)) == [
        DumpCell("/p/intel-rapl:0/name", "core", 3),
        DumpCell("/p/intel-rapl:0/name", "core", 6),
    ]
