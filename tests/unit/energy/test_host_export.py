# SPDX-License-Identifier: Apache-2.0
"""A host's figures as a guest's meter: shared trees, metrics pages, and whose figures they are."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from powerprof.energy.domains import host_energy
from powerprof.energy.host_export import choose_figures, open_host, parse_metrics
from powerprof.energy.meters import open_meters
from powerprof.system.errors import CapabilityError
from tests.programs.cpu_time import least_cpu_s

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
    meter = open_host(f"{url}#db1")
    meter.sample(10.0)
    Page.text = KEPLER.replace("{db1}", "103")
    meter.sample(12.0)
    (energy,) = meter.energies(10.0, 12.0)
    assert (energy.domain, energy.energy.joules) == ("share of host", pytest.approx(3.0))
    assert any("this guest's share of its host" in note for note in meter.notes())
    with open_meters(f"host:{url}#db1") as meters:
        meters.sample()
        (reading,) = meters.readings(time.monotonic() - 1.0, time.monotonic())
        assert (reading.source, reading.domain, reading.kind) == ("host", "share of host", "measured")
        assert host_energy([msgspec.structs.replace(reading, joules=3.0, watts=1.5)]).domains == ["share of host"]


def test_several_guests_need_a_name(url: str) -> None:
    Page.text = KEPLER.replace("{db1}", "100")
    with pytest.raises(CapabilityError, match=r"2 guests: db1 \(id a1\), web \(id b2\)") as caught:
        open_meters(f"host:{url}")
    assert "#NAME" in str(caught.value.hint)
    with pytest.raises(CapabilityError, match="no guest 'nobody'"):
        open_meters(f"host:{url}#nobody")


def test_zones_within_zones_are_not_added() -> None:
    samples = parse_metrics(KEPLER.replace("{db1}", "100"))
    figures = choose_figures(samples, "db1")
    assert (figures.domain, sum(figures.joules.values())) == ("share of host", 110.0)


def test_figures_other_than_counters_are_left_out() -> None:
    page = 'kepler_vm_cpu_joules_total{vm_name="db1",zone="package"} %s\n'
    assert parse_metrics("".join(page % value for value in ("1e999", "-5", "1e", "NaN", "7"))) == parse_metrics(
        page % "7"
    )


def test_a_page_of_the_host_alone_is_the_whole_hosts() -> None:
    figures = choose_figures(parse_metrics('powerprof_host_energy_joules_total{kind="measured"} 70\n'), None)
    assert (figures.domain, list(figures.joules.values())) == ("host", [70.0])
    with pytest.raises(CapabilityError, match="no joules"):
        choose_figures(parse_metrics("up 1\n"), None)


def test_the_tree_that_scaphandre_shares(tmp_path: Path) -> None:
    counter = tmp_path / "intel-rapl:0/energy_uj"
    counter.parent.mkdir()
    (tmp_path / "intel-rapl:0:0").mkdir()
    counter.write_text("1000000")
    with open_meters(f"host:{tmp_path}") as meters:
        meters.sample()
        start_s = time.monotonic()
        time.sleep(0.5)  # beside it the time between a sample and its window is little, on a busy host too
        counter.write_text("1500000")
        end_s = time.monotonic()
        meters.sample()
        (reading,) = meters.readings(start_s, end_s)
    assert reading.joules == pytest.approx(0.5, rel=0.3)
    assert reading.domain == "share of host"


@pytest.mark.parametrize("where", ["/nonexistent", "http://127.0.0.1:9/metrics"])
def test_a_host_without_figures_is_a_missing_capability(where: str) -> None:
    with pytest.raises(CapabilityError) as caught:
        open_meters(f"host:{where}")
    assert caught.value.message.startswith("host: ")
    assert caught.value.hint


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answer, host: str = "127.0.0.1") -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(OSError):
                answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()


PAGE = b'kepler_node_cpu_joules_total{zone="package"} 7\n'


def sound(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(PAGE)


def test_a_host_that_sends_a_byte_now_and_then_is_left_at_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerprof.energy.host_export._TIMEOUT_S", 1.5)

    def drip(handler: BaseHTTPRequestHandler) -> None:
        """The whole page in 10 s, each byte within any time-out of a socket."""
        handler.send_response(200)
        handler.end_headers()
        for byte in PAGE:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(10 / len(PAGE))

    with serving(drip) as url, pytest.raises(CapabilityError, match=r"not finished after 1\.5 s"):
        open_meters(f"host:{url}")


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("http://127.0.0.2:{port}/metrics", "redirected to another host"),
        ("file:///etc/passwd", "not allowed"),
        ("ftp://127.0.0.1/x", "redirected"),
    ],
)
def test_a_host_leads_nowhere_else(to: str, why: str) -> None:
    with serving(sound, "127.0.0.2") as other:

        def redirect(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(302)
            handler.send_header("Location", to.format(port=other.rpartition(":")[2].partition("/")[0]))
            handler.end_headers()

        with serving(redirect) as url, pytest.raises(CapabilityError, match=why):
            open_meters(f"host:{url}")


def test_a_host_may_lead_to_another_page_of_its_own() -> None:
    def move(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/metrics":
            handler.send_response(301)
            handler.send_header("Location", "/v2/metrics")
            handler.end_headers()
        else:
            sound(handler)

    with serving(move) as url, open_meters(f"host:{url}") as meters:
        meters.sample()


def test_under_root_the_page_is_read_by_an_account_without_rights() -> None:
    if os.geteuid() != 0:
        pytest.skip("no capability: root (sudo make test)")
    readers: list[str] = []

    def note(handler: BaseHTTPRequestHandler) -> None:
        port = f":{handler.client_address[1]:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        readers.extend(row[7] for row in rows if row[1].endswith(port) and row[3] == "01")
        sound(handler)

    with serving(note) as url:
        open_meters(f"host:{url}").close()
    assert set(readers) == {"65534"}


@pytest.mark.parametrize(
    "line",
    [
        "kepler_node_cpu_joules_total{" + "a" * 60_000 + "} 1",
        'kepler_node_cpu_joules_total{a="' + "\\" * 60_001,
        "kepler_node_cpu_joules_total{" + 'a="b",' * 10_000 + " 1",
        "kepler_node_cpu_joules_total" + " " * 60_000 + "x",
        "kepler_node_cpu_joules_total " + "1" * 60_000,
        "joules_total" * 5000,
    ],
)
def test_an_invalid_line_takes_linear_time(line: str) -> None:
    text = "\n".join([line] * 50)

    def read() -> None:
        assert parse_metrics(text) == []

    # 3 MB: 50 such lines took twenty minutes.
    assert least_cpu_s(read, 5.0) < 5.0


def test_labels_with_quotes_commas_and_brackets_in_them() -> None:
    (sample,) = parse_metrics('kepler_vm_cpu_joules_total{vm_name="a\\"},b", zone="x{y}" ,} 5e3 1700000000000')
    assert (dict(sample.labels), sample.value) == ({"vm_name": 'a\\"},b', "zone": "x{y}"}, 5000.0)


def test_a_pipe_in_the_place_of_a_counter_is_not_waited_for(tmp_path: Path) -> None:
    counter = tmp_path / "vm/intel-rapl:0/energy_uj"
    counter.parent.mkdir(parents=True)
    os.mkfifo(counter)
    with pytest.raises(CapabilityError, match="not a regular file"):
        open_meters(f"host:{tmp_path}")
