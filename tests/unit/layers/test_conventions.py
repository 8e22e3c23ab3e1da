# SPDX-License-Identifier: Apache-2.0
"""Conventions of the sources: errors with hints, used names, and short waits."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.layers import sources

_WITH_A_REMEDY = {"PowerprofError", "Retryable", "UsageError", "CapabilityError"}


def test_every_error_says_what_to_do() -> None:
    """DataError names file, line and reason, which is its remedy, and WorseError is an answer."""
    found = [
        f"{name}:{node.lineno}: {ast.unparse(node)}"
        for name, source in sources.modules().items()
        for node in sources.walk(source)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _WITH_A_REMEDY
        if len(node.args) < 2 and not any(keyword.arg in ("hint", None) for keyword in node.keywords)
    ]
    assert found == []


# Forms of records, whose names `report.kinds` puts together; and the counterparts of what the product reads.
_FORM = re.compile(r"render\w*_(terminal|html|markdown|csv)|\w+_document")
_FOR_TESTS = {"lines_of", "pack_carried"}


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            # Several names at once are an enumeration, which has all members.
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _used(source: str) -> Iterator[str]:
    for node in sources.walk(source):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield from re.findall(r"\w+", node.value)  # a name for getattr


def unused_names(package: Path) -> list[str]:
    """The names of modules that nothing in the package uses."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    used = Counter(name for text in texts.values() for name in _used(text))
    return [
        f"{path.relative_to(package)}: {name}"
        for path, text in texts.items()
        for name in _defined(sources.parse(text))
        if not used[name] and name not in _FOR_TESTS and not name.startswith("__") and not _FORM.fullmatch(name)
    ]


def test_the_product_has_no_code_for_tests_alone() -> None:
    assert unused_names(sources.PACKAGE) == []


def test_a_planted_function_is_found(tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text(
        'LIMIT = 1\nMOST = LIMIT\n\n\ndef look():\n    """See look at night."""\n    return MOST\n'
    )
    assert unused_names(tmp_path) == ["room.py: look"]


_AT_MOST_S = 1.5
# A program of its own whose handlers only leave a mark: it waits on after a signal.
_KEEPER = "tracing/dtrace_keeper.py"


def late(source: str) -> Iterator[str]:
    """What is slept for longer, or for nobody knows how long: what is no number, no constant, and no least of some."""
    tree = sources.parse(source)
    constants = {name: value for node in tree.body if isinstance(node, ast.Assign) for name, value in _numbers(node)}
    for node in sources.walk(source):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
            asked = node.args[0]
            least = asked.args if isinstance(asked, ast.Call) and ast.unparse(asked.func) == "min" else [asked]
            known = [constants.get(ast.unparse(one)) or _number(one) for one in least]
            if min((seconds for seconds in known if seconds is not None), default=_AT_MOST_S + 1) > _AT_MOST_S:
                yield ast.unparse(node)


def _numbers(node: ast.Assign) -> Iterator[tuple[str, float | None]]:
    """Names and numbers of an assignment, `A, B = 1, 2` too."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from ((ast.unparse(a), _number(b)) for a, b in zip(target.elts, node.value.elts, strict=True))
        else:
            yield ast.unparse(target), _number(node.value)


def _number(node: ast.expr) -> float | None:
    return float(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, int | float) else None


def test_nothing_sleeps_for_long_where_no_signal_is_heard() -> None:
    found = {name: list(late(source)) for name, source in sources.modules().items()}
    assert {name: sleeps for name, sleeps in found.items() if sleeps} == {_KEEPER: ["time.sleep(wait_s)"]}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\n_A_S, _B_S = 1.0, 60\ntime.sleep(_A_S)\ntime.sleep(_B_S)", ["time.sleep(_B_S)"]),
        ("from time import sleep\ndef f(plan):\n    sleep(plan.settle_s)", ["sleep(plan.settle_s)"]),
        (
            "import time\ntime.sleep(min(1.0, x))\ntime.sleep(2)\ntime.sleep(max(0.0, x))",
            ["time.sleep(2)", "time.sleep(max(0.0, x))"],
        ),
    ],
)
def test_a_long_one_is_found(source: str, found: list[str]) -> None:
    assert list(late(source)) == found
