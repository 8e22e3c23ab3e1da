# SPDX-License-Identifier: Apache-2.0
"""`--otlp` sends once, without rights, within its deadline, nowhere else; and nothing of the result depends on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesPartialSuccess,
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

from powerprof.cli.options import Saving
from powerprof.cli.output import deliver
from powerprof.model.attribution import Attribution
from powerprof.report.exports import export
from powerprof.system import sending
from powerprof.system.errors import PowerprofError
from tests.conftest import Cli
from tests.system.safety.conftest import UID
from tests.unit.report.sample_records import attribution


@dataclass
class Collector:
    """A server that keeps what it got and answers as it is told."""

    address: str = ""
    status: int = 200
    answer: bytes = b""
    location: str = ""
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    silent: bool = False
    senders: list[int] = field(default_factory=list)


def _owner(port: int) -> int:
    """Whose the socket of that local port is, an account's number (proc_pid_net(5))."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return next(int(words[7]) for words in lines if words[1].endswith(f":{port:04X}"))


@pytest.fixture
def collector() -> Iterator[Collector]:
    """One on this host."""
    mine = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            mine.senders.append(_owner(self.client_address[1]))
            body = self.rfile.read(int(self.headers["Content-Length"]))
            mine.got.append((self.path, dict(self.headers), body))
            if mine.silent:
                mine.over.wait(60)
                return
            self.send_response(mine.status)
            if mine.location:
                self.send_header("Location", mine.location)
            self.send_header("Content-Length", str(len(mine.answer)))
            self.end_headers()
            self.wfile.write(mine.answer)

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        mine.address = f"http://127.0.0.1:{server.server_address[1]}"
        yield mine
        mine.over.set()
        server.shutdown()


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A saved attribution."""
    path = tmp_path / "a.json"
    path.write_bytes(msgspec.json.encode(attribution()))
    return str(path)


def _new() -> Attribution:
    """One that has not been saved."""
    return msgspec.structs.replace(attribution(), id=None)


def test_a_collector_gets_the_profile_once(powerprof_cli: Cli, collector: Collector, saved: str) -> None:
    done = powerprof_cli(["report", saved, "--otlp", collector.address])
    assert (done.code, done.out, done.err) == (0, "", "")
    ((path, headers, body),) = collector.got
    assert path == "/v1development/profiles" and headers["Content-Type"] == "application/x-protobuf"
    assert body == export(attribution(), "otlp")
    assert ExportProfilesServiceRequest.FromString(body).resource_profiles[0].scope_profiles[0].profiles


def test_a_path_of_ones_own_is_kept(powerprof_cli: Cli, collector: Collector, saved: str) -> None:
    assert powerprof_cli(["report", saved, "--otlp", f"{collector.address}/api/x/v1/profiles?stream=a"]).code == 0
    assert [path for path, _, _ in collector.got] == ["/api/x/v1/profiles?stream=a"]


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(("behind", "whose"), [("1", 1), (None, UID)])
def test_it_is_sent_without_the_rights_of_root(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, behind: str | None, whose: int
) -> None:
    if behind is None:
        monkeypatch.delenv("SUDO_UID", raising=False)
    else:
        monkeypatch.setenv("SUDO_UID", behind)
    sending.send(collector.address, b"x")
    assert collector.senders == [whose]


def test_a_proxy_is_not_asked(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    sending.send(collector.address, b"x")
    assert [body for _, _, body in collector.got] == [b"x"]


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 404, 503])
def test_a_refusal_or_redirect_is_an_error_in_a_line(
    powerprof_cli: Cli, collector: Collector, saved: str, status: int
) -> None:
    collector.status = status
    collector.location = f"{collector.address}/elsewhere" if status < 400 else ""
    done = powerprof_cli(["report", saved, "--otlp", f"{collector.address}/v1?key=secret"])
    assert done.code == 1 and "secret" not in done.err
    assert done.err.startswith(f"error: cannot send the profile to {collector.address} (HTTP {status}")
    assert len(done.err.splitlines()) == 2 and len(collector.got) == 1


def test_what_was_rejected_is_said(collector: Collector) -> None:
    said = ExportProfilesPartialSuccess(rejected_profiles=2, error_message="too \x1b[31mold\n")
    collector.answer = ExportProfilesServiceResponse(partial_success=said).SerializeToString()
    with pytest.raises(PowerprofError) as caught:
        sending.send(collector.address, b"x")
    assert "it rejected 2 of the profiles: too ?[31mold?" in caught.value.message


@pytest.mark.parametrize("answer", [b"", b"{}", b"\xff" * 100, b"\x0a\x7f", b"\x0a\x02\x10", b"<html>", b"\x0a\x00"])
def test_an_answer_of_another_form_is_no_failure(collector: Collector, answer: bytes) -> None:
    collector.answer = answer
    sending.send(collector.address, b"x")


def test_a_collector_that_never_answers_is_left_at_the_deadline(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "TOTAL_S", 1.0)
    collector.silent = True
    with pytest.raises(PowerprofError, match="no answer after 1 s"):
        sending.send(collector.address, b"x")


@pytest.mark.parametrize("quiet", [False, True])
def test_the_report_is_shown_before_it_is_sent_and_is_never_lost(
    collector: Collector, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    collector.status = 503
    with pytest.raises(PowerprofError, match="HTTP 503"):
        deliver(_new(), "attribute", Saving(no_save=True, quiet=quiet), {"otlp": collector.address})
    assert "wakes the CPUs 6.8 times a second" in capsys.readouterr().out


def test_a_saved_run_names_itself_and_no_address(
    collector: Collector, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    collector.status = 503
    saving = Saving(runs_dir=tmp_path, quiet=True)
    with pytest.raises(PowerprofError) as caught:
        deliver(_new(), "attribute", saving, {"otlp": f"{collector.address}/secret"})
    assert "powerprof report attribute-0001" in (caught.value.hint or "")
    assert capsys.readouterr().out == ""
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert kept and not any(b"secret" in data for data in kept)


def test_json_on_stdout_stays_alone(collector: Collector, capsys: pytest.CaptureFixture[str]) -> None:
    collector.status = 503
    saving = Saving(no_save=True, quiet=True, json="-")
    with pytest.raises(PowerprofError, match="HTTP 503"):
        deliver(_new(), "attribute", saving, {"otlp": collector.address})
    assert msgspec.json.decode(capsys.readouterr().out)["schema"] == "powerprof.attribution/1"


@pytest.mark.parametrize("command", ["attribute", "profile"])
@pytest.mark.parametrize("target", ["ftp://h", "http://user:secret@h:1", "localhost:4318", "http://h:x"])
def test_a_bad_address_ends_it_before_anything_is_measured(powerprof_cli: Cli, command: str, target: str) -> None:
    done = powerprof_cli([command, "--system", "--duration", "3600", "--otlp", target])
    assert (done.code, done.out) == (2, "") and done.err.startswith("error: --otlp")
    assert "secret" not in done.err and len(done.err.splitlines()) == 2
