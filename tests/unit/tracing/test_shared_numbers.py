# SPDX-License-Identifier: Apache-2.0
"""The numbers that programs in the kernel share with their readers are those that the C sources have."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from powerprof.stacks.registers import X86_64
from tests.probes.shared import ENUMS, MODULE, NUMBERS, PROBES, Shared, members, module, number_of


def test_the_module_is_what_the_sources_have() -> None:
    assert MODULE.read_text() == module(), "make probes writes it"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The sources, to be changed."""
    return Path(shutil.copytree(PROBES, tmp_path / "bpf"))


@pytest.mark.parametrize("shared", ENUMS, ids=lambda shared: f"{shared.file}: {shared.enum}")
def test_a_member_that_moves_is_found(shared: Shared, folder: Path) -> None:
    path = folder / shared.file
    text = path.read_text()
    first, second = (member.name for member in members(text, shared.enum)[:2])
    other = {first: second, second: first}

    def swapped(enum: re.Match[str]) -> str:
        return re.sub(rf"\b({first}|{second})\b", lambda name: other[name[0]], enum[0])

    path.write_text(re.sub(rf"^enum {shared.enum} \{{.*?\}};", swapped, text, flags=re.DOTALL | re.MULTILINE))
    assert module(folder) != MODULE.read_text()


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, names in NUMBERS.items() for name in names])
def test_a_number_that_changes_is_found(file: str, name: str, folder: Path) -> None:
    path = folder / file
    text = path.read_text()
    number = number_of(text, name).number
    changed = re.sub(rf"^(#define {name}) \w+", rf"\1 {number + 1}", text, flags=re.MULTILINE)
    if changed == text:
        changed = re.sub(rf"\b{name}\b( = \w+)?(?= *\n?\}};)", f"{name} = {number + 1}", text)
    assert changed != text
    path.write_text(changed)
    try:
        assert module(folder) != MODULE.read_text()
    except ValueError as error:
        assert f"{name} is another number" in str(error)


def test_what_is_gone_or_differs_between_sources_is_said(folder: Path) -> None:
    path = folder / "offcpu.bpf.c"
    path.write_text(path.read_text().replace("#define COMM_BYTES 16", "#define COMM_BYTES 32"))
    with pytest.raises(ValueError, match=r"COMM_BYTES is another number in offcpu\.bpf\.c than in idle_period\.h"):
        module(folder)
    with pytest.raises(ValueError, match="no enum nothing"):
        members("enum something { A };", "nothing")
    with pytest.raises(ValueError, match="no NOTHING"):
        number_of("#define SOMETHING 1", "NOTHING")


@pytest.mark.parametrize(
    ("name", "number"), [("REGISTER_COUNT", len(X86_64.names)), ("REGISTER_IP", X86_64.ip), ("REGISTER_SP", X86_64.sp)]
)
def test_the_registers_are_where_stacks_are_walked_from(name: str, number: int) -> None:
    assert number_of((PROBES / "paths.bpf.h").read_text(), name).number == number


def test_comments_and_members_of_every_form_are_read() -> None:
    text = (
        "enum a {\n    ONE = 1,   /* the first */\n    FOUR = 0x4, FIVE,\n    MORE,\n};\n#define X 0x10U   /* of C */\n"
    )
    assert [(one.name, one.number, one.comment) for one in members(text, "a")] == [
        *(("ONE", 1, "the first"), ("FOUR", 4, ""), ("FIVE", 5, ""), ("MORE", 6, ""))
    ]
    assert number_of(text, "X").line() == "X = 16  # of C"
    assert number_of(text, "FIVE").number == 5
