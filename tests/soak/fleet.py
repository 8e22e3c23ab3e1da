# SPDX-License-Identifier: Apache-2.0
"""Ten thousand hosts' metrics to one real Prometheus: what that costs it.

Every host is an address of the loopback network (127.x.y.z), all answered by one process, whose counters rise at a pace
of each host's own. `python -m tests.soak.fleet --hosts 10000 --seconds 240` prints the figures.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socketserver
import tempfile
import time
from multiprocessing import Process
from pathlib import Path

import yaml

from powerprof.live.metrics import Shared, render
from powerprof.live.totals import Totals
from tests.integration.monitoring.engines import MONITORING, Prometheus, free_port, running, wait_for
from tests.unit.live.intervals import interval, row

_TICKS = os.sysconf("SC_CLK_TCK")


def template() -> list[bytes]:
    """A host's answer with 20 rows, cut where figures stand."""
    shared = Shared(Totals(), {"version": "1", "kernel": "6.1", "driver": "intel_idle"})
    for _ in range(3):
        shared.add(interval(*(row(f"function_number_{n}", 10 + n) for n in range(20)), untraced=1), time.time())
        render(shared)
    lines = render(shared)[0].splitlines()
    return [line for line in lines if not line.startswith(b"# HELP")]


def serve(port: int) -> None:
    """Answer for every address at once."""
    lines = template()
    began = time.monotonic()

    def answer(address: str) -> bytes:
        pace = 1.0 + hash(address) % 1000 / 500.0
        value = b"%d" % int((time.monotonic() - began) * 100 * pace)
        found = []
        for line in lines:
            if line.startswith(b"#") or b"_total" not in line:
                found.append(line)
            else:
                found.append(line.rpartition(b" ")[0] + b" " + value)
        return b"\n".join(found) + b"\n"

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


def measure(hosts: int, seconds: float, every: str) -> dict[str, float]:
    """Scrape that many hosts for so long, the first two rounds aside; the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        hosting = Process(target=serve, args=(port,), daemon=True)
        hosting.start()
        try:
            config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
            config["global"] = {"scrape_interval": every, "evaluation_interval": every}
            config["scrape_configs"][0]["static_configs"] = [
                {"targets": [f"{address(n)}:{port}" for n in range(hosts)]}
            ]
            config.pop("alerting")
            for rules in config["rule_files"]:
                shutil.copy(MONITORING / rules, folder / rules)
            (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
            own = free_port()
            words = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{own}"]
            with running([*words, "--storage.tsdb.path=data", "--log.level=warn"], folder) as process:
                db = Prometheus(own)
                wait_for("Prometheus answers", lambda: db.query("vector(1)"), 120)
                wait_for("all hosts are scraped", lambda: (db.value("count(up == 1)") or 0) >= 0.99 * hosts, 300)
                before, began = used(process.pid), time.monotonic()
                time.sleep(seconds)
                after, lasted = used(process.pid), time.monotonic() - began
                groups = fetch_groups(db)
                return {
                    "hosts": hosts,
                    "up": db.value("count(up == 1)") or 0.0,
                    "series_per_host": db.value("avg(scrape_samples_scraped)") or 0.0,
                    "samples_hz": (db.value("sum(scrape_samples_scraped)") or 0.0) / float(every.rstrip("s")),
                    "cpu_percent": 100.0 * (after[0] - before[0]) / lasted,
                    "memory_mb": after[1] / 1e6,
                    "rules_s": sum(groups.values()),
                }
        finally:
            hosting.terminate()
            hosting.join()


def fetch_groups(db: Prometheus) -> dict[str, float]:
    """How long each group of rules took the last time."""
    from tests.integration.monitoring.engines import fetch

    found = fetch(f"{db.url}/api/v1/rules")["data"]["groups"]
    return {group["name"]: float(group["evaluationTime"]) for group in found}


def main() -> None:
    """The figures, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--every", default="60s")
    given = parser.parse_args()
    for name, value in measure(given.hosts, given.seconds, given.every).items():
        print(f"{name:<16} {value:,.2f}")


if __name__ == "__main__":
    main()
