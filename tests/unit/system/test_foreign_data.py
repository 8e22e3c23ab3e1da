# SPDX-License-Identifier: Apache-2.0
"""Damaged or too large data from outside is one line."""

from __future__ import annotations

import pytest

from powerprof.system.errors import DataError
from powerprof.system.foreign_data import check_json, loader, parse_toml


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [("a = 1\nb = \n", 2, "invalid value"), ("a = [1,\n", 1, "unclosed|invalid"), ("a = 1\na = 2", 2, "overwrite")],
)
def test_an_error_of_toml_has_its_line(text: str, line: int, reason: str) -> None:
    with pytest.raises(DataError, match=rf"(?i)f:{line}: not TOML: .*({reason})"):
        parse_toml(text, "f")


def _json(values: int, width: str = "a") -> bytes:
    return ("[" + ",".join(["0"] * values) + f',"{width}"]').encode()


def test_a_text_that_would_fill_memory_is_refused_before_it_is_decoded() -> None:
    # 125 bytes for each value, and two for each byte of an ASCII text: 1.6 million values need 206 of 209.7 MB.
    check_json(_json(1_600_000), "f")
    with pytest.raises(DataError, match="too large: 1,7"):
        check_json(_json(1_700_000), "f")
    # With a wide character, each byte needs five: 212 MB. With one of two bytes, three: 206 MB.
    check_json(_json(1_570_000, "é"), "f")
    with pytest.raises(DataError, match="too large"):
        check_json(_json(1_570_000, "\N{GRINNING FACE}"), "f")
    for size, refused in ((250 << 10, False), (3 * (256 << 10), True)):
        data = b'["' + b"x" * size + b'"]'
        if refused:
            with pytest.raises(DataError, match="a string of more than 256 KiB"):
                check_json(data, "f")
        else:
            check_json(data, "f")


def test_an_error_names_the_argument_at_its_place() -> None:
    @loader(1)
    def read(text: str, path: str, minimum: int = 1) -> int:
        return int(text) + minimum

    assert read("7", "log", minimum=2) == 9
    with pytest.raises(DataError, match=r"^log: damaged \(invalid literal"):
        read("x", "log")
