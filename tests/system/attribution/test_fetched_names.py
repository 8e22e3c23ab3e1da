# SPDX-License-Identifier: Apache-2.0
"""A stripped program whose debug file a debuginfod server has: unnamed, the command, named."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from powerprof.stacks.elf import parse_elf
from powerprof.system.programs import run
from tests.conftest import Cli, CliResult
from tests.programs.ground_truth import build, running
from tests.system.attribution.conftest import functions_of

CHAIN = ["wait_poll", "poll_level2", "poll_level1", "poll_thread"]


@pytest.fixture
def stripped(tmp_path: Path) -> Path:
    """`sleepers` without symbols, and its debug file beside it under a name that nothing leads to."""
    program, file = build("sleepers", tmp_path), tmp_path / "bare"
    run(["objcopy", "--only-keep-debug", program, tmp_path / "kept"])
    run(["objcopy", "--strip-all", program, file])
    return file


@pytest.fixture
def debuginfod(stripped: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """(address, what was asked for) of a server that has the debug file of `stripped` and nothing else."""
    asked: list[str] = []
    build_id, data = parse_elf(stripped.read_bytes(), "x").build_id, (stripped.parent / "kept").read_bytes()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            has = self.path == f"/buildid/{build_id}/debuginfo"
            self.send_response(200 if has else 404)
            self.end_headers()
            self.wfile.write(data if has else b"")

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_fetched_debug_file_names_functions(
    root_bpf: None, stripped: Path, debuginfod: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, asked = debuginfod
    cli = Cli(tmp_path / "home")  # a cache of its own: other tests have programs with this build id
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)

    def attributed(pid: int) -> dict[str, Any]:
        return _json(
            cli(
                [
                    "attribute",
                    "--max-cost",
                    "none",
                    "--pid",
                    str(pid),
                    "--duration",
                    "2",
                    "--meter",
                    "none",
                    "--json",
                    "-",
                ]
            )
        )

    with running(stripped) as info:
        pid = str(info["pid"])
        before = attributed(info["pid"])
        assert not set(CHAIN) & _functions(before)
        # No package has it: there is no command that would help, and the report says so.
        assert any("in bare: these files are stripped, and no package" in note for note in before["notes"])
        monkeypatch.setenv("DEBUGINFOD_URLS", address)
        seen = _json(cli(["doctor", "--pid", pid, "--json", "-"]))
        assert asked == []
        assert seen["command"] == f"powerprof doctor --pid {pid} --fetch"
        assert (seen["files"][0]["module"], seen["files"][0]["names_from"]) == ("bare", "dynsym")
        # Without a terminal a download needs --yes.
        refused = cli(["doctor", "--pid", pid, "--fetch"])
        assert (refused.code, asked) == (1, [])
        assert "--yes" in refused.err
        fetched = _json(cli(["doctor", "--pid", pid, "--fetch", "--yes", "--json", "-"]))
        file = next(file for file in fetched["files"] if file["module"] == "bare")
        assert (file["debug_from"], file["fetched"]) == ("debuginfod", True)
        assert file["named_count"] > seen["files"][0]["named_count"]
        # What was fetched is used without a server.
        monkeypatch.delenv("DEBUGINFOD_URLS")
        after = attributed(info["pid"])
    assert set(CHAIN) <= _functions(after)
    assert not any("stripped" in note and "bare" in note for note in after["notes"])
    assert _json(cli(["doctor", "--from", after["id"], "--json", "-"]))["wakeups_named_percent"] == 100.0
    assert _json(cli(["doctor", "--from", before["id"], "--json", "-"]))["wakeups_named_percent"] < 50.0


def _functions(record: dict[str, Any]) -> set[str | None]:
    return functions_of([*record["wakeups"], *record["wakings_without_exit"]])


def _json(result: CliResult) -> dict[str, Any]:
    assert result.code == 0, result.err
    read: dict[str, Any] = json.loads(result.out)
    return read
