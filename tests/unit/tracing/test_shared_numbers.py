# SPDX-License-Identifier: Apache-2.0
"""The numbers that BPF programs share with their readers are generated from the C sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from powerprof.stacks.registers import X86_64
from tools.probes.shared import MODULE, PROBES, members, module, number_of


def test_the_module_is_generated_from_the_sources() -> None:
    assert MODULE.read_text() == module(), "make probes writes it"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the sources, to be changed."""
    return Path(shutil.copytree(PROBES, tmp_path / "bpf"))


def test_missing_and_contradicting_numbers_are_refused(folder: Path) -> None:
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
def test_register_numbers_of_the_programs_are_those_of_the_unwinder(name: str, number: int) -> None:
    assert number_of((PROBES / "sampled_stacks.bpf.h").read_text(), name).number == number


def test_comments_and_members_of_every_form_are_read() -> None:
    text = (
        "enum a {\n    ONE = 1,   /* the first */\n    FOUR = 0x4, FIVE,\n    MORE,\n};\n#define X 0x10U   /* of C */\n"
    )
    assert [(one.name, one.number, one.comment) for one in members(text, "a")] == [
        *(("ONE", 1, "the first"), ("FOUR", 4, ""), ("FIVE", 5, ""), ("MORE", 6, ""))
    ]
    assert number_of(text, "X").line() == "X = 16  # of C"
    assert number_of(text, "FIVE").number == 5
