# SPDX-License-Identifier: Apache-2.0
"""What becomes of a record: saved first, then shown; and questions on the terminal, of which a no is an answer."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from powerprof import cli
from powerprof.attribution import profile
from powerprof.cli import app, output, terminal
from powerprof.cli.output import deliver
from powerprof.cli.outputs import Saving, parse_output
from powerprof.cure import session
from powerprof.model.records import Ended, ended_by_signal
from powerprof.model.runs import RunStore
from powerprof.report.document import Document, View
from powerprof.report.files import SUFFIXES
from powerprof.report.kinds import KIND_LOADERS, lines_of, load_saved
from powerprof.report.render import terminal as drawing
from powerprof.system.errors import Interrupted, PowerprofError
from tests.unit.report.distinct_records import make_kind

_SAVED = Path(__file__).parents[2] / "fixtures/saved"


def test_interrupt_during_the_report_names_the_saved_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_document: Document, _width: int) -> list[str]:
        raise Interrupted("interrupted")

    monkeypatch.setattr(drawing, "render_terminal", interrupt)
    record: Any = load_saved(str(_SAVED / "idle-0001"))
    saving = Saving(runs_dir=tmp_path)
    with pytest.raises(Interrupted) as caught:
        deliver(record, "idle", saving)
    assert caught.value.hint == "the measured part is saved as idle-0001"
    assert RunStore(tmp_path).find("idle-0001").is_file()


def test_killed_server_is_a_failure_not_an_interrupt(tmp_path: Path) -> None:
    record: Any = load_saved(str(_SAVED / "run-0001"))
    broken = msgspec.structs.replace(record, ended=Ended("failed", "the server was killed"))
    with pytest.raises(PowerprofError) as caught:
        deliver(broken, "run", Saving(runs_dir=tmp_path, quiet=True))
    assert (caught.value.message, caught.value.exit_code) == ("the server was killed", 1)
    assert caught.value.hint == "the measured part is saved as run-0001"


def _read_until(master: int, *ends: str) -> str:
    """Return the output of a terminal up to one of the ends; the kernel may pass it on in parts."""
    drawn = ""
    while not drawn.endswith(ends) and select.select([master], [], [], 10.0)[0]:
        drawn += os.read(master, 4096).decode()
    return drawn


def _drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, term: str) -> str:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", str(columns))
    with os.fdopen(slave, "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        terminal.print_progress("pair 1 of 4 · index · 36 s left, until 14:03:27")
        terminal.print_progress("pair 2 of 4 · 27 s left, until 14:03:27")
        terminal.print_progress("never shown", quiet=True)
        terminal.print_text("error: it ended", error=True)
        drawn = _read_until(master, "it ended\r\n")
    os.close(master)
    return drawn


def test_progress_is_one_line_that_the_next_text_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = _drawn_on_a_terminal(monkeypatch, 80, "xterm")
    parts = drawn.split("\r\x1b[K")
    assert [part.split(" · ")[0] for part in parts[:3]] == ["", "pair 1 of 4", "pair 2 of 4"]
    assert parts[3:] == ["error: it ended\r\n"] and "\n" not in "".join(parts[:3])


def test_progress_never_fills_the_last_column(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = _drawn_on_a_terminal(monkeypatch, 40, "xterm")
    assert max(len(part) for part in drawn.split("\r\x1b[K")[:3]) <= 39


@pytest.mark.parametrize("figures", ["", " · index", " · no-index ×10.4 so far (7.9 to 13.6)", " · 1 · 2 · 3"])
@pytest.mark.parametrize("left", ["36 s", "about 5 min"])
def test_progress_keeps_the_end_on_a_narrow_terminal(figures: str, left: str) -> None:
    text = f"pair 1 of 4{figures} · {left} left, until 14:03:27"
    for width in range(8, 120):
        fitted = terminal.fit_progress(text, width)
        assert len(fitted) <= width
        assert width < len(text) or fitted == text
        assert width < len("until 14:03:27") or fitted.endswith("until 14:03:27")
        assert width < len("pair 1 of 4 · until 14:03:27") or fitted.startswith("pair 1 of 4")


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = _drawn_on_a_terminal(monkeypatch, 80, "dumb")
    assert "\x1b" not in drawn and [line.split(" · ")[0] for line in drawn.splitlines()] == [
        "pair 1 of 4",
        "pair 2 of 4",
        "error: it ended",
    ]


def test_a_pipe_gets_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_progress("pair 1 of 4")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("columns", ["", "0", "x", "-5"])
@pytest.mark.parametrize("size", [(0, 0), (0, 24)])
def test_a_terminal_without_a_size_has_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, columns: str, size: tuple[int, int]
) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    monkeypatch.setenv("COLUMNS", columns)
    with os.fdopen(slave, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "__stdout__", stdout)
        assert (terminal.terminal_width(), terminal.terminal_size(obey_environment=False)) == (80, (80, 24))
        terminal.print_report(["the answer", "word " * 30, "last"])
        stdout.flush()
        printed = re.sub(r"\x1b\[[0-9;]*m", "", _read_until(master, "last\x1b[0m\r\n", "last\r\n")).split()
    assert printed == ["the", "answer", *["word"] * 30, "last"]
    os.close(master)


_IDLE_RUN: Any = msgspec.structs.replace(load_saved(str(_SAVED / "idle-0001")), id=None)
_ANSWER = lines_of(_IDLE_RUN, 80)[0]


@pytest.mark.parametrize(
    ("saving", "file", "shown", "error"),
    [
        ({}, None, "report", None),
        ({"quiet": True}, None, "", None),
        ({"no_save": True}, None, "report", None),
        ({"json": "-"}, None, "json", None),
        ({"json": "{}/x.json"}, None, "report", None),
        ({"quiet": True, "json": "{}/x.json"}, "{}/x.html", "", None),
        ({}, "-", "html", None),
        # A result in no place is printed in spite of --quiet.
        ({"quiet": True, "no_save": True}, "{}/none/x.html", "report", "cannot write {}/none/x.html"),
        ({"quiet": True}, "{}/none/x.html", "", "cannot write {}/none/x.html"),
        ({"json": "{}/none/x.json"}, "{}/x.html", "report", "cannot write {}/none/x.json"),
    ],
)
def test_a_result_is_shown_saved_and_written(
    saving: dict[str, Any],
    file: str | None,
    shown: str,
    error: str | None,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    places = Saving(
        runs_dir=tmp_path / "runs",
        **{key: text.format(tmp_path) if isinstance(text, str) else text for key, text in saving.items()},
    )
    targets = [places.json] if places.json else []
    targets += [file.format(tmp_path)] if file else []
    kinds = ("html:" if file and target == file.format(tmp_path) else "json:" for target in targets)
    files = tuple(parse_output(f"{kind}{target}", list(SUFFIXES)) for kind, target in zip(kinds, targets, strict=True))
    places = msgspec.structs.replace(places, files=files)
    if error is None:
        deliver(_IDLE_RUN, "idle", places)
    else:
        with pytest.raises(PowerprofError, match=re.escape(error.format(tmp_path))) as caught:
            deliver(_IDLE_RUN, "idle", places)
        again = f"report idle-0001 {' '.join(each.typed for each in files)}"
        assert ("the run is saved; write it again: " in (caught.value.hint or "")) == (not places.no_save)
        assert (caught.value.hint or "").endswith(again) == (not places.no_save)
    printed = capfdbinary.readouterr().out.decode()
    begins = {"": "", "report": _ANSWER, "json": '{\n "schema": "powerprof.run/1"', "html": "<!doctype html>"}[shown]
    assert printed.startswith(begins) and bool(printed) == bool(shown)
    assert ("Saved as idle-0001." in printed) == (shown == "report" and not places.no_save)
    assert (tmp_path / "runs/idle-0001/run.json").exists() == (not places.no_save)
    for target in targets:
        if target != "-" and "/none/" not in target:
            assert Path(target).stat().st_size > 1000


def test_the_error_of_the_measurement_comes_first(tmp_path: Path) -> None:
    broken = msgspec.structs.replace(_IDLE_RUN, ended=Ended("failed", "the server was killed"))
    with pytest.raises(PowerprofError, match=r"^the server was killed$"):
        files = (parse_output(f"{tmp_path}/none/x.html", ["html"]),)
        deliver(broken, "idle", Saving(runs_dir=tmp_path, quiet=True, files=files))


def test_an_interrupted_record_ends_as_an_interrupt(tmp_path: Path) -> None:
    record = msgspec.structs.replace(_IDLE_RUN, ended=ended_by_signal(True))
    with pytest.raises(Interrupted):
        deliver(record, "idle", Saving(runs_dir=tmp_path, quiet=True))
    assert deliver(_IDLE_RUN, "idle", Saving(runs_dir=tmp_path, quiet=True)).id == "idle-0002"


def test_each_file_is_written_even_if_another_one_fails(tmp_path: Path) -> None:
    names = (f"{tmp_path}/none/x.html", f"{tmp_path}/none/x.csv", f"{tmp_path}/x.md")
    files = [parse_output(name, list(SUFFIXES)) for name in names]
    with pytest.raises(PowerprofError, match=r"none/x\.html"):
        output.write_files(_IDLE_RUN, files)
    assert (tmp_path / "x.md").read_text().startswith("**")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "agreed"), [("\n", False), ("y\n", True), ("YES\n", True), ("n\n", False), ("x\n", False), ("", False)]
)
def test_only_yes_is_consent_to_a_download(answer: str, agreed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", _Terminal(answer))
    monkeypatch.setattr(sys, "stderr", _Terminal())
    assert terminal.ask_consent("7 MB of symbols", yes=False) is agreed
    assert terminal.ask_consent("7 MB of symbols", yes=True)


@pytest.mark.parametrize(("stream", "code"), [("stdout", 1), ("stderr", 0)])
def test_output_on_a_full_disk_is_an_error_of_stdout(stream: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, stream, full)
        print("lost", file=full)
        assert (cli._end_output(0), cli._end_output(3)) == (code, 3)


@pytest.mark.parametrize(("columns", "width"), [(1, 20), (19, 20), (21, 21), (300, 300)])
def test_a_terminal_has_at_least_twenty_columns(columns: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", _Terminal())
    assert terminal.terminal_width() == width


@pytest.mark.parametrize("name", KIND_LOADERS)
def test_a_view_of_any_record_is_printed_into_a_pipe(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = msgspec.structs.replace(make_kind(name, known=True), ended=None)
    deliver(record, record.command, Saving(no_save=True), view=View())
    assert capsys.readouterr().out


def test_statements_are_cut_on_a_terminal_and_whole_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_kind("powerprof.queries/1", known=True)
    long = msgspec.structs.replace(record.statements[0], text=f"SELECT {', '.join(f'column_{n}' for n in range(90))}")
    record = msgspec.structs.replace(record, statements=[long])
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert any(line.endswith("column_89") for line in terminal.report_lines(record))
    monkeypatch.setattr(sys, "stdout", _Terminal())
    assert not any("column_89" in line for line in terminal.report_lines(record))


@pytest.mark.parametrize("answer", [False, typer.Abort()])
def test_a_no_ends_the_command_without_an_error(
    answer: bool | Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(question: str, **how: object) -> bool:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(terminal, "require_terminal", lambda hint: None)
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
