# SPDX-License-Identifier: Apache-2.0
"""Ten thousand hosts' metrics to one real Prometheus, which passes them on to VictoriaMetrics: what that costs both.

Every host is an address of the loopback network (127.x.y.z), all answered by one process with the page of one exporter,
whose counters go on as they went, at a pace of each host's own. `python -m tests.nightly.fleet --hosts 10000 --seconds
130 --page http://127.0.0.1:9477/metrics` prints the figures; without --page the page is of a made-up host with 20
rows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socketserver
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing import Process
from pathlib import Path

import yaml

from powerprof.live.metrics import SharedTotals, Totals, render_metrics
from powerprof.measure.clock import format_now
from tests.system.live.engines import (
    MONITORING,
    Prometheus,
    fetch,
    fill_variables,
    free_port,
    running,
    victoria,
    wait_for,
)
from tests.system.live.test_monitoring import queries
from tests.unit.live.intervals import interval, row

_TICKS = os.sysconf("SC_CLK_TCK")


def made_up() -> bytes:
    """The page of a host with 20 rows."""
    shared = SharedTotals(Totals(), {"version": "1", "kernel": "6.1", "driver": "intel_idle"})
    for _ in range(3):
        rows = (row(f"function_number_{n}", 10 + n) for n in range(20))
        shared.add(interval(*rows, untraced=1, ended_at=format_now()))
        render_metrics(shared)
    return render_metrics(shared)[0]


def hosts_page(page: bytes) -> Callable[[str, float], bytes]:
    """What a host (its address) shows so many seconds later, if its counters go on as they did on the page.

    Idle time and the time measured go on alike everywhere, wake-ups, C0 time and joules at the host's own pace.
    """
    samples: list[tuple[bytes, float | None, bool]] = []
    measured_s = 1.0
    for line in page.splitlines():
        if line.startswith(b"# HELP") or not line.strip():
            continue
        name, _, value = line.rpartition(b" ")
        counts = not line.startswith(b"#") and b"_total" in name
        steady = name.startswith((b"powerprof_idle_seconds", b"powerprof_measured", b"powerprof_intervals"))
        samples.append((name if counts else line, float(value) if counts else None, steady))
        if name.startswith(b"powerprof_measured_seconds"):
            measured_s = float(value)

    def at(address: str, seconds: float) -> bytes:
        pace = pace_of(address)
        lines = [
            text if begun is None else b"%s %.6f" % (text, begun * (1 + (1 if steady else pace) * seconds / measured_s))
            for text, begun, steady in samples
        ]
        return b"\n".join(lines) + b"\n"

    return at


def pace_of(address: str) -> float:
    """Between 1 and 3."""
    return 1.0 + zlib.crc32(address.encode()) % 1000 / 500.0


def serve(port: int, page: bytes) -> None:
    """Answer for every address at once."""
    at, began = hosts_page(page), time.monotonic()

    def answer(address: str) -> bytes:
        return at(address, time.monotonic() - began)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            # Prometheus keeps its connection: one a host.
            address = self.request.getsockname()[0]
            while True:
                line = self.rfile.readline()
                if not line:
                    return
                while self.rfile.readline() not in (b"\r\n", b""):
                    pass
                body = answer(address)
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n")
                self.wfile.write(b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                return

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True
        request_queue_size = 4096

    with Server(("0.0.0.0", port), Handler) as server:
        server.serve_forever()


def address(number: int) -> str:
    return f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"


def used(pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def measure(hosts: int, seconds: float, every: str, page: bytes) -> dict[str, float]:
    """Scrape that many hosts for so long after the first round, and ask both stores; the figures."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, port = Path(name), free_port()
        hosting = Process(target=serve, args=(port, page), daemon=True)
        hosting.start()
        stack.callback(hosting.join)
        stack.callback(hosting.terminate)
        store, storing = stack.enter_context(victoria(folder))
        config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": every, "evaluation_interval": every}
        config["scrape_configs"][0]["static_configs"] = [{"targets": [f"{address(n)}:{port}" for n in range(hosts)]}]
        config["remote_write"] = [{"url": f"{store.url}/api/v1/write"}]
        config.pop("alerting")
        for rules in config["rule_files"]:
            shutil.copy(MONITORING / rules, folder / rules)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        own = free_port()
        words = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{own}"]
        scraping = stack.enter_context(running([*words, "--storage.tsdb.path=data", "--log.level=warn"], folder))
        db = Prometheus(own)
        wait_for("Prometheus answers", lambda: db.query("vector(1)"), 120)
        wait_for("all hosts are scraped", lambda: (db.value("count(up == 1)") or 0) >= 0.99 * hosts, 300)
        before, stored, began = (used(scraping.pid), used(storing.pid)), counted(store, _ROWS), time.monotonic()
        time.sleep(seconds)
        after, lasted = (used(scraping.pid), used(storing.pid)), time.monotonic() - began
        rows = counted(store, _ROWS)
        store.flush()
        data_bytes = sum(file.stat().st_size for file in (folder / "vm-data").rglob("*") if file.is_file())
        return {
            "hosts": hosts,
            "up": db.value("count(up == 1)") or 0.0,
            "series_per_host": db.value("avg(scrape_samples_scraped)") or 0.0,
            "samples_hz": (db.value("sum(scrape_samples_scraped)") or 0.0) / float(every.rstrip("s")),
            "cpu_percent": 100.0 * (after[0][0] - before[0][0]) / lasted,
            "memory_mb": after[0][1] / 1e6,
            "rules_s": sum(fetch_groups(db).values()),
            "failed": counted(db, "prometheus_remote_storage_samples_failed_total"),
            "long_term_up": store.value("count(up == 1)") or 0.0,
            "long_term_series_per_host": store.value(f'count({{instance="{address(0)}:{port}"}})') or 0.0,
            "long_term_samples_hz": (rows - stored) / lasted,
            "long_term_cpu_percent": 100.0 * (after[1][0] - before[1][0]) / lasted,
            "long_term_memory_mb": after[1][1] / 1e6,
            "long_term_bytes_per_sample": data_bytes / max(1.0, rows),
            **asked_of(store),
            "idle_ratio": db.value("fleet:powerprof_idle:ratio5m") or 0.0,
            "difference_percent": difference(db, store),
        }


# What VictoriaMetrics took, by whatever protocol.
_ROWS = "vm_rows_inserted_total"


def counted(store: Prometheus, name: str) -> float:
    """The sum of a counter on the store's own page."""
    with urllib.request.urlopen(f"{store.url}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def rules() -> dict[str, str]:
    """The shipped expressions by the series or the alert that they make."""
    return {
        rule.get("record") or rule["alert"]: rule["expr"]
        for name in ("recording.yml", "alerts.yml")
        for group in yaml.safe_load((MONITORING / name).read_text())["groups"]
        for rule in group["rules"]
    }


def asked_of(store: Prometheus) -> dict[str, float]:
    """How long every rule and every panel takes there, once each; one that is refused raises."""
    found = {}
    for what, expressions in (("rules", rules().values()), ("panels", [expression for _, expression in queries()])):
        began = time.monotonic()
        for expression in expressions:
            store.query(fill_variables(expression, "5m"))
        found[f"long_term_{what}_s"] = time.monotonic() - began
    return found


def difference(one: Prometheus, other: Prometheus) -> float:
    """How far the fleet's idle share as the one recorded it is from the other's own, in percent of it."""
    recorded = one.value("fleet:powerprof_idle:ratio5m") or 0.0
    own = other.value(f"avg({rules()['instance:powerprof_idle:ratio5m']})") or 0.0
    return 100.0 * abs(recorded - own) / max(recorded, own, 1e-9)


def fetch_groups(db: Prometheus) -> dict[str, float]:
    """How long each group of rules took the last time."""
    found = fetch(f"{db.url}/api/v1/rules")["data"]["groups"]
    return {group["name"]: float(group["evaluationTime"]) for group in found}


def main() -> None:
    """The figures, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--every", default="60s")
    parser.add_argument("--page", help="URL of an exporter")
    given = parser.parse_args()
    if given.page is None:
        page = made_up()
    else:
        with urllib.request.urlopen(given.page, timeout=60) as reply:
            page = reply.read()
    for name, value in measure(given.hosts, given.seconds, given.every, page).items():
        print(f"{name:<28} {value:,.2f}")


if __name__ == "__main__":
    main()
