# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus, VictoriaMetrics and Alertmanager on ports and folders of their own, and somebody who takes the
messages."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tests.conftest import REPOSITORY

MONITORING = REPOSITORY / "monitoring"
T = TypeVar("T")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def fetch(url: str, **query: str) -> Any:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=20) as reply:
        return json.load(reply)


def wait_for(what: str, look: Callable[[], T | None], seconds: float = 60.0) -> T:
    """What `look` gives as soon as it gives something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            if found := look():
                return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not in {seconds:g} s")


@contextmanager
def running(words: Sequence[str | Path], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program with its output in a file of `folder`; ended afterwards."""
    log = folder / f"{Path(str(words[0])).name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen([str(word) for word in words], stdout=out, stderr=out, cwd=folder)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Prometheus:
    """What is asked of one that runs."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[Any]:
        """The samples of an expression now."""
        answer = fetch(f"{self.url}/api/v1/query", query=expression)
        assert answer["status"] == "success", answer
        found: list[Any] = answer["data"]["result"]
        return found

    def value(self, expression: str) -> float | None:
        """The one sample of an expression, None where there is none yet."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else None


@contextmanager
def prometheus(folder: Path, targets: Sequence[str], alertmanager_port: int, every: str = "1s") -> Iterator[Prometheus]:
    """The shipped configuration with these targets and a quick pace; rules look at what they look at in production,
    over a shorter time.
    """
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": every, "evaluation_interval": every}
    config["scrape_configs"][0]["static_configs"] = [{"targets": list(targets)}]
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{alertmanager_port}"]
    for name in config["rule_files"]:
        shutil.copy(MONITORING / name, folder / name)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    words = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
    with running([*words, "--storage.tsdb.path=data", "--log.level=warn"], folder):
        found = Prometheus(port)
        wait_for("Prometheus answers", lambda: found.query("vector(1)"))
        yield found


class Victoria(Prometheus):
    """VictoriaMetrics, which is asked as a Prometheus is."""

    def take(self, page: bytes, labels: Mapping[str, str], at_s: float) -> None:
        """Store a page of metrics as if it had been scraped then."""
        words = [("timestamp", str(round(at_s * 1000))), *(("extra_label", f"{k}={v}") for k, v in labels.items())]
        url = f"{self.url}/api/v1/import/prometheus?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(urllib.request.Request(url, data=page), timeout=60):
            pass

    def flush(self) -> None:
        """What was stored is found from now on."""
        with urllib.request.urlopen(f"{self.url}/internal/force_flush", timeout=60):
            pass


@contextmanager
def victoria(folder: Path) -> Iterator[tuple[Victoria, subprocess.Popen[bytes]]]:
    """VictoriaMetrics on one node. It would hide the last half minute, for scrapers that are late."""
    port = free_port()
    words = ["victoria-metrics", f"-httpListenAddr=127.0.0.1:{port}", "-storageDataPath=vm-data"]
    with running([*words, "-search.latencyOffset=0s", "-retentionPeriod=1", "-loggerLevel=ERROR"], folder) as process:
        store = Victoria(port)
        wait_for("VictoriaMetrics answers", lambda: store.query("vector(1)"))
        yield store, process


@contextmanager
def vmalert(folder: Path, store: Victoria, alertmanager_port: int, every: str = "1s") -> Iterator[str]:
    """What evaluates the shipped rules over VictoriaMetrics and writes there what they record; its URL."""
    port = free_port()
    words = ["vmalert", f"-httpListenAddr=127.0.0.1:{port}", f"-evaluationInterval={every}", "-loggerLevel=WARN"]
    words += [f"-rule={MONITORING / name}" for name in ("recording.yml", "alerts.yml")]
    words += [f"-{part}.url={store.url}" for part in ("datasource", "remoteWrite", "remoteRead")]
    words += [f"-notifier.url=http://127.0.0.1:{alertmanager_port}", "-remoteWrite.flushInterval=100ms"]
    with running(words, folder):
        yield f"http://127.0.0.1:{port}"


def fill_variables(expression: str, interval: str) -> str:
    """Return a query of the dashboard with a value for each variable."""
    for name in ("cluster", "instance", "namespace"):
        expression = expression.replace(f"${name}", ".*")
    return expression.replace("$__rate_interval", interval)


class Messages:
    """A webhook: every alert that came, in order, as (status, name, labels)."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str, dict[str, str]]] = []
        messages = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for one in body["alerts"]:
                    messages.received.append((one["status"], one["labels"]["alertname"], one["labels"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, status: str, name: str) -> dict[str, str] | None:
        """The labels of the first such message."""
        return next((labels for own, alert, labels in self.received if (own, alert) == (status, name)), None)


@contextmanager
def alertmanager(folder: Path) -> Iterator[tuple[int, Messages]]:
    """The shipped configuration with no time lost in grouping, and who gets its messages."""
    with ExitStack() as stack:
        messages = Messages()
        stack.callback(messages.close)
        config = yaml.safe_load((MONITORING / "alertmanager.yml").read_text())
        config["route"].update(group_wait="0s", group_interval="1s")
        config["receivers"][0]["webhook_configs"][0]["url"] = f"http://127.0.0.1:{messages.port}/"
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        words = ["prometheus-alertmanager", "--config.file=alertmanager.yml", f"--web.listen-address=127.0.0.1:{port}"]
        stack.enter_context(running([*words, "--storage.path=am-data", "--cluster.listen-address="], folder))
        wait_for("Alertmanager answers", lambda: fetch(f"http://127.0.0.1:{port}/api/v2/status"))
        yield port, messages
