# SPDX-License-Identifier: Apache-2.0
"""A wait that a signal may come late to is short: longer ones are `wait_and_read`'s, which hears it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY
from tests.unit.layers import sources

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
    package = REPOSITORY / "powerprof"
    found = {str(path.relative_to(package)): list(late(path.read_text())) for path in sorted(package.rglob("*.py"))}
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
