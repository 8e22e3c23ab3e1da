# SPDX-License-Identifier: Apache-2.0
"""Questions on the terminal: a no is an answer, and not an error."""

from __future__ import annotations

import os
import subprocess

import pytest
import typer

from powerprof.attribution import profile
from powerprof.cli import app, options
from powerprof.cure import session


@pytest.mark.parametrize("answer", [False, typer.Abort()])
def test_a_no_ends_the_command_without_an_error(
    answer: bool | Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(question: str, **how: object) -> bool:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(options, "require_terminal", lambda hint: None)
    monkeypatch.setattr(typer, "confirm", reply)
    monkeypatch.setattr(profile, "count_functions", lambda target, request, say, agree: agree("a risk"))
    code = app.run_app(["functions", "main", "--pid", str(os.getpid()), "--allow-unwinding-risk", "--no-save"])
    printed = capsys.readouterr()
    assert (code, printed.out) == (0, "")
    assert printed.err.endswith("Declined: no probe was placed.\n")
    assert "error" not in printed.err and "hint" not in printed.err


def test_a_missing_terminal_is_refused_before_the_window(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "predict_change", lambda *_: pytest.fail("a window was measured"))
    with subprocess.Popen(["sleep", "60"]) as process:
        target = str(process.pid)
        code = app.run_app(["cure", "--pid", target, "--thread", target, "--slack", "1ms"])
        process.kill()
    assert code == 2
    assert capsys.readouterr().err == "error: confirmation needs a terminal\nhint: add --yes\n"
