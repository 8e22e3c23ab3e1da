# SPDX-License-Identifier: Apache-2.0
"""Scars of merged and renamed code: there is none, and each kind is found if it is planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import scars


def test_no_file_has_a_scar() -> None:
    assert scars.find_all_scars() == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("# Licence\n\nx = 1\n\n# Parts.\n# More.\n\ny = 2\n\n# Of z.\nz = 3\n", {5: "a section comment"}),
        ('TEXT = """\n\n# Heading\n\n"""\n', {}),
        ("import os\n\n\ndef f(os):\n    return os\n", {4: "local os"}),
        ("def f():\n    return [g for g in ()]\n\n\ndef g():\n    f = lambda: 0\n", {2: "local g", 6: "local f"}),
        ("try:\n    import a\nexcept ImportError:\n    import c as a\n\nf = lambda a: a\n", {6: "local a"}),
        ("from a import b\n\n\ndef f():\n    from a import b\n    from c import b\n", {6: "local b"}),
        ("def f():\n    global f\n    f = 1\n\n\nclass C:\n    f = 1\n", {}),
        ("def f(a_):\n    b_ = c._d_ = a_\n", {1: "the name a_", 2: "the name b_"}),
        ("class C:\n    _fields_ = ()\n    __slots__ = ()\n", {}),
        ("from a import b\n\n\ndef f():\n    import a.b\n    from a import b as c\n", {6: "a.b is imported"}),
        ("def f():\n    g(1)\n    g(1)\n    a, b = g(b)\n    a, b = g(b)\n", {3: "the statement before is equal"}),
        ('"""See `system.files`, `system.nowhere` and `word.other`."""\n', {1: "there is no module system.nowhere"}),
        ("x = 1  # powerprof.system.errors.reason_of, powerprof.nothing.at_all\n", {1: "there is no module nothing"}),
        ("x = 1  # system/files.py and nowhere/at_all.py\n", {1: "there is no file nowhere/at_all.py"}),
    ],
)
def test_a_planted_scar_is_found(source: str, found: dict[int, str], tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(source)
    texts = dict(scars.find_scars(planted))
    assert list(texts) == list(found)
    assert [line for line, text in found.items() if not texts[line].startswith(text)] == []
