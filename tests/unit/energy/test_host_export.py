# SPDX-License-Identifier: Apache-2.0
"""A host's figures as a guest's meter: shared trees, metrics pages, and whose figures they are."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from powerprof.energy.domains import host_energy
from powerprof.energy.meters import open_meters
from powerprof.errors import CapabilityError
from powerprof.sources.host_export import choose_samples, parse_metrics

KEPLER = """# HELP kepler_vm_cpu_joules_total Energy consumption of cpu at vm level in joules
# TYPE kepler_vm_cpu_joules_total counter
kepler_vm_cpu_joules_total{vm_id="a1",vm_name="db1",zone="package"} {db1}
kepler_vm_cpu_joules_total{vm_id="a1",vm_name="db1",zone="core"} 5
kepler_vm_cpu_joules_total{vm_id="a1",vm_name="db1",zone="dram"} 10
kepler_vm_cpu_joules_total{vm_id="b2",vm_name="web",zone="package"} 9000
kepler_node_cpu_joules_total{zone="package"} 1e6
"""


class Page:
    """A metrics page of the host that a test writes."""

    text = ""


@pytest.fixture
def url() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(Page.text.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()


def test_a_named_guest_of_keplers_page(url: str) -> None:
    Page.text = KEPLER.replace("{db1}", "100")
    with open_meters(f"host:{url}#db1") as meters:
        meters.sample()
        start_s = time.monotonic()
        time.sleep(0.1)
        Page.text = KEPLER.replace("{db1}", "103")
        end_s = time.monotonic()
        meters.sample()
        (reading,) = meters.readings(start_s, end_s)
        assert (reading.source, reading.domain, reading.kind) == ("host", "share of host", "measured")
        assert reading.joules == pytest.approx(3.0, rel=0.3)  # reading the page takes a part of the window
        assert host_energy([reading]).domains == ["share of host"]
        assert any("this guest's share of its host" in note for note in meters.notes())


def test_several_guests_have_to_be_told_apart(url: str) -> None:
    Page.text = KEPLER.replace("{db1}", "100")
    with pytest.raises(CapabilityError, match=r"2 guests \(db1, web\)") as caught:
        open_meters(f"host:{url}")
    assert "#NAME" in str(caught.value.hint)
    with pytest.raises(CapabilityError, match="no guest 'nobody'"):
        open_meters(f"host:{url}#nobody")


def test_zones_within_zones_are_not_added() -> None:
    samples = parse_metrics(KEPLER.replace("{db1}", "100"))
    domain, chosen = choose_samples(samples, "db1")
    assert (domain, sum(sample.value for sample in chosen)) == ("share of host", 110.0)


def test_figures_that_are_no_counters_are_left_out() -> None:
    page = 'kepler_vm_cpu_joules_total{vm_name="db1",zone="package"} %s\n'
    assert parse_metrics("".join(page % value for value in ("1e999", "-5", "1e", "NaN", "7"))) == parse_metrics(
        page % "7"
    )


def test_a_page_of_the_host_alone_is_the_whole_hosts() -> None:
    page = (
        'powerprof_energy_joules_total{domain="psys",kind="measured"} 70\n'
        'powerprof_energy_joules_total{domain="package-0",kind="measured"} 40\n'
        'powerprof_energy_joules_total{domain="cpus",kind="estimated"} 33\n'
    )
    domain, chosen = choose_samples(parse_metrics(page), None)
    assert (domain, [sample.value for sample in chosen]) == ("host", [70.0])
    with pytest.raises(CapabilityError, match="no joules"):
        choose_samples(parse_metrics("up 1\n"), None)


def test_the_tree_that_scaphandre_shares(tmp_path: Path) -> None:
    counter = tmp_path / "intel-rapl:0/energy_uj"
    counter.parent.mkdir()
    (tmp_path / "intel-rapl:0:0").mkdir()
    counter.write_text("1000000")
    with open_meters(f"host:{tmp_path}") as meters:
        meters.sample()
        start_s = time.monotonic()
        time.sleep(0.1)
        counter.write_text("1500000")
        end_s = time.monotonic()
        meters.sample()
        (reading,) = meters.readings(start_s, end_s)
    assert reading.joules == pytest.approx(0.5, rel=0.3)
    assert reading.domain == "share of host"


@pytest.mark.parametrize("where", ["/nonexistent", "http://127.0.0.1:9/metrics"])
def test_a_host_that_offers_nothing_is_a_missing_capability(where: str) -> None:
    with pytest.raises(CapabilityError) as caught:
        open_meters(f"host:{where}")
    assert caught.value.message.startswith("host: ")
    assert caught.value.hint
