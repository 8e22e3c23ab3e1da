# SPDX-License-Identifier: Apache-2.0
"""Plans of statements of clients."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from powerprof.database import sql
from powerprof.database.base import Login, StatementError
from powerprof.database.plans import ExplainedStep, explain
from powerprof.system.errors import PowerprofError
from tests.programs.answers import Answers


def _explain(monkeypatch: pytest.MonkeyPatch, answers: Answers, schema: str | None = "sh`op") -> list[ExplainedStep]:
    monkeypatch.setattr(sql, "connect", lambda *_, **__: nullcontext(answers))
    return explain(Login(user="r"), "SELECT 1", schema)


def test_a_plan_has_the_steps_without_pushed_values(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"id": 1, "TABLE": "city", "type": "ref", "possible_keys": "a,b", "key": "b", "key_len": 5, "ref": "const"}
    row |= {"rows": 37, "r_rows": 4, "filtered": 12.5, "Extra": "Using where with pushed condition (`c` = 's3cret')"}
    other = {"table": None, "type": "", "rows": None, "Extra": None}
    answers = Answers({f"{sql.EXPLAIN}SELECT 1": [row, other], "CONNECTION_ID": [(77,)]})
    first = ExplainedStep("city", "ref", "b", 37, "Using where")
    assert _explain(monkeypatch, answers) == [first, ExplainedStep(None, None, None, None, None)]
    assert answers.sent[0] == "USE `sh``op`"
    assert {"SET SESSION TRANSACTION READ ONLY", "SET SESSION max_statement_time = 3"} <= set(answers.sent)
    long = Answers({"EXPLAIN": [row] * 21})
    assert len(_explain(monkeypatch, long, None)) == 20 and not any(text.startswith("USE") for text in long.sent)


@pytest.mark.parametrize(("number", "is_killed"), [(2013, True), (1142, False), (3024, False)])
def test_a_statement_without_an_answer_is_killed(monkeypatch: pytest.MonkeyPatch, number: int, is_killed: bool) -> None:
    answers = Answers({"EXPLAIN": StatementError("reason", None, number), "CONNECTION_ID": [(77,)]})
    with pytest.raises(StatementError, match="reason"):
        _explain(monkeypatch, answers)
    assert ("KILL 77" in answers.sent) is is_killed


@pytest.mark.parametrize(("number", "ends"), [(1193, False), (1227, False), (2006, True), (0, True)])
def test_limits_that_a_release_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch, number: int, ends: bool) -> None:
    answers = Answers({"max_execution_time": StatementError("unknown", None, number), "EXPLAIN": []})
    with pytest.raises(PowerprofError, match="unknown") if ends else nullcontext():
        assert _explain(monkeypatch, answers) == []
    assert any(text.startswith("EXPLAIN") for text in answers.sent) is not ends
