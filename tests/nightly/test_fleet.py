# SPDX-License-Identifier: Apache-2.0
"""Ten thousand hosts: one Prometheus scrapes all of them each minute and VictoriaMetrics keeps what it saw; a host's
series are few in both, and both answer the shipped rules and panels.
"""

from __future__ import annotations

import os
import time
import urllib.request

from tests.conftest import Cli
from tests.nightly.fleet import made_up, measure
from tests.system.live.test_export import exporter

HOSTS = int(os.environ.get("POWERPROF_HOSTS", "10000"))


def page_of_this_host(cli: Cli) -> bytes:
    """Of a real exporter, as soon as it has as many rows as it shows; of a host that others keep from idling, one that
    is made up.
    """
    with exporter(cli, "--interval", "1", "--no-ask") as (port, _):
        for _ in range(40):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
                page: bytes = reply.read()
            if sum(not line.startswith(b"#") for line in page.splitlines()) >= 60:
                return page
            time.sleep(1.0)
    return made_up()


def test_ten_thousand_hosts(powerprof_cli: Cli, root_bpf: None) -> None:
    page = page_of_this_host(powerprof_cli)
    found = measure(HOSTS, 130.0, "60s", page)
    print("\n".join(f"{name:<28} {value:,.2f}" for name, value in found.items()))
    assert found["up"] >= 0.99 * HOSTS
    assert found["long_term_up"] >= 0.99 * HOSTS
    assert 60 <= found["series_per_host"] <= 120
    # What Prometheus adds about each scrape, and what its rules record and alert by host.
    assert found["long_term_series_per_host"] <= found["series_per_host"] + 20
    assert found["samples_hz"] >= 0.75 * found["series_per_host"] * HOSTS / 60
    assert found["long_term_samples_hz"] >= 0.75 * found["samples_hz"]
    assert found["failed"] == 0
    assert 0.0 < found["idle_ratio"] <= 1.0 and found["difference_percent"] <= 1.0
