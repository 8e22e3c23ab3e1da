# SPDX-License-Identifier: Apache-2.0
"""A host's figures as a guest's meter: pages of exporters, shared trees, the choice of one guest, and the transport."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.energy.choice import open_meters
from powerprof.energy.meters.host import choose_figures, open_host, parse_metrics
from powerprof.energy.meters.meter import DomainEnergy
from powerprof.energy.readings import make_readings
from powerprof.energy.total import host_energy
from powerprof.system.errors import CapabilityError
from tests.programs.cpu_time import least_cpu_s


def line(metric: str, joules: float, labels: dict[str, str]) -> str:
    pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{metric}_joules_total{{{pairs}}} {joules:g}\n"


def vm(zone: str, joules: float, name: str = "db1", vm_id: str = "a1", **labels: str) -> str:
    """A line of Kepler 0.10 and later for a guest."""
    common = {"vm_id": vm_id, "vm_name": name, "hypervisor": "kvm", "zone": zone, "node_name": "host1"}
    return line("kepler_vm_cpu", joules, {**common, **labels})


def node(zone: str, joules: float, **labels: str) -> str:
    """A line of Kepler 0.10 and later for the node."""
    return line("kepler_node_cpu", joules, {"zone": zone, "node_name": "host1", **labels})


def old(kind: str, zone: str, joules: float, **labels: str) -> str:
    """A line of Kepler 0.9 and before."""
    return line(f"kepler_{kind}{'_' if zone else ''}{zone}", joules, {"instance": "host1", **labels})


def own(domain: str, joules: float, source: str = "rapl", kind: str = "measured") -> str:
    return line("powerprof_energy", joules, {"source": source, "domain": domain, "kind": kind})


def total(joules: float, kind: str = "measured") -> str:
    return line("powerprof_host_energy", joules, {"kind": kind})


def rapl(zone: str, index: int, joules: float, inner: str = "") -> str:
    """A line of node_exporter's collector rapl."""
    return line(f"node_rapl_{zone}", joules, {"index": str(index), "path": f"{RAPL}{index}{inner}"})


RAPL, MMIO = "/sys/class/powercap/intel-rapl:", "/sys/class/powercap/intel-rapl-mmio:"
TWO_DB1 = vm("package", 30) + vm("package", 40, vm_id="b2")
PAGES = {
    "powerprof: a card and two tiers": (
        own("server", 200, "ipmi") + own("package-0", 98) + own("dram", 10) + own("card", 150, "hwmon") + total(200),
        None,
        200,
    ),
    "powerprof: one package by two sources": (
        own("package-0", 100) + own("package-0", 100, "turbostat") + total(100),
        None,
        100,
    ),
    "powerprof: wall and psys": (own("wall", 220, "meter_log") + own("psys", 200) + total(220), None, 220),
    "powerprof: an estimate beside the measured sum": (total(33, "estimated") + total(200), None, 200),
    "platform of the whole node": (
        old("node", "", 300) + old("node", "package", 100) + old("node", "dram", 20),
        None,
        300,
    ),
    "platform by name": (old("node", "platform", 300) + old("node", "package", 100), None, 300),
    "the node and its platform": (old("node", "", 300) + old("node", "platform", 300), None, 300),
    "pp0 and pp1 are inside the package": (node("package", 100) + node("pp0", 50) + node("pp1", 15), None, 100),
    "zones with numbers": (
        node("package-0", 100) + node("package-1", 90) + node("core-0", 40) + node("dram-0", 5),
        None,
        195,
    ),
    "two sockets": (
        node("package", 100, path=f"{RAPL}0")
        + node("package", 90, path=f"{RAPL}1")
        + node("dram", 10)
        + node("core", 4),
        None,
        200,
    ),
    "mmio repeats a package": (node("package", 100, path=f"{RAPL}0") + node("package", 99, path=f"{MMIO}0"), None, 100),
    "psys includes the packages": (node("package", 100) + node("dram", 10) + node("psys", 180), None, 180),
    "two psys, which may contain each other": (
        node("package", 100) + node("psys", 180) + node("psys-1", 170),
        None,
        100,
    ),
    "node_exporter's RAPL": (
        rapl("package", 0, 60)
        + rapl("package", 1, 50)
        + rapl("dram", 0, 6, ":0")
        + rapl("dram", 1, 5, ":0")
        + rapl("core", 0, 30, ":1")
        + rapl("core", 1, 25, ":1"),
        None,
        121,
    ),
    "node_exporter's RAPL with MMIO": (
        rapl("package", 0, 60) + line("node_rapl_package", 60, {"index": "0", "path": f"{MMIO}0"}),
        None,
        60,
    ),
    "node_exporter's psys": (rapl("package", 0, 60) + rapl("psys", 0, 90), None, 90),
    "node_exporter's dies": (rapl("package_0_die", 0, 60) + rapl("package_0_die", 1, 70), None, 130),
    "idle and dynamic shares": (
        old("node", "package", 60, mode="idle") + old("node", "package", 40, mode="dynamic") + old("node", "dram", 10),
        None,
        110,
    ),
    "active and idle joules are parts": (
        node("package", 100) + line("kepler_node_cpu_active", 40, {"zone": "package"}),
        None,
        100,
    ),
    "other is inside the platform": (
        old("node", "package", 100) + old("node", "other", 90) + old("node", "platform", 200),
        None,
        200,
    ),
    "other without a platform": (
        old("vm", "package", 100, vm_id="a1") + old("vm", "dram", 10, vm_id="a1") + old("vm", "other", 90, vm_id="a1"),
        "a1",
        200,
    ),
    "a graphics card": (old("node", "package", 100) + old("node", "gpu", 250), None, 100),
    "a guest by its id": (TWO_DB1, "b2", 40),
    "a guest with its node's name": (vm("package", 30, "host1") + vm("package", 40, "web", "b2"), "host1", 30),
    "a guest with a zone's name": (vm("package", 30, "package") + vm("package", 40, "web", "b2"), "package", 30),
    "an ended guest of the same name": (
        vm("package", 30, state="running") + vm("package", 900, vm_id="z9", state="terminated"),
        "db1",
        30,
    ),
    "the only running guest": (
        vm("package", 30, state="running") + vm("package", 900, "web", "z9", state="terminated"),
        None,
        30,
    ),
    "containers beside a guest": (vm("package", 30) + line("kepler_container_cpu", 7, {"zone": "package"}), "db1", 30),
    "a guest's share of psys": (vm("psys", 50) + vm("package", 30) + vm("dram", 5), None, 50),
}


@pytest.mark.parametrize("title", PAGES)
def test_the_figure_of_a_page(title: str) -> None:
    page, guest, joules = PAGES[title]
    assert sum(choose_figures(parse_metrics(page), guest).joules.values()) == joules


REFUSED = {
    "two guests of one name": (TWO_DB1, "db1", "2 guests 'db1'", "by its id: host:URL#a1"),
    "an id that is another's name": (
        vm("package", 30, "x") + vm("package", 40, "a1", "b2"),
        "a1",
        "2 guests 'a1'",
        "the page of this guest's host",
    ),
    "one guest on two nodes": (
        vm("package", 30) + vm("package", 40, node_name="host2"),
        "db1",
        "2 guests 'db1'",
        "the page of this guest's host",
    ),
    "a label of another kind": (vm("package", 30) + vm("package", 40, "web", "b2"), "kvm", "no guest 'kvm'", "#NAME"),
    "two nodes": (node("package", 100) + node("package", 80, node_name="host2"), None, "2 hosts", "host:URL"),
    "two exporters": (node("package", 100) + total(200), None, "2 hosts or exporters", "host:URL"),
    "cores alone": (node("core", 100), None, "no package or platform", "zone package"),
    "dram alone": (node("dram", 100), None, "no package or platform", "zone package"),
    "an unknown zone": (node("package", 100) + node("accelerator", 70), None, "zone 'accelerator'", "--meter FILE"),
    "domains without their sum": (own("psys", 70) + own("package-0", 40), None, "no joules", "powerprof_host_energy"),
    "an estimate alone": (
        own("cpus", 33, kind="estimated") + total(33, "estimated"),
        None,
        "only an estimate",
        "measured",
    ),
    "one platform by two sources": (
        old("node", "platform", 200, source="acpi") + old("node", "platform", 210, source="redfish"),
        None,
        r"several sources \(acpi, redfish\)",
        "one of them",
    ),
    "more counters than a host has": (
        "".join(node("package", 1, path=str(n)) for n in range(300)),
        None,
        "300 counters for one figure",
        "host:URL",
    ),
}


@pytest.mark.parametrize("title", REFUSED)
def test_an_ambiguous_page_is_refused(title: str) -> None:
    page, guest, reason, remedy = REFUSED[title]
    with pytest.raises(CapabilityError, match=reason) as caught:
        choose_figures(parse_metrics(page), guest)
    assert remedy in str(caught.value.hint)


@given(
    st.permutations(["", "platform", "psys", "package", "dram", "core", "uncore", "gpu"]),
    st.sets(st.sampled_from(["", "platform", "psys", "package", "dram", "core", "uncore", "gpu"]), min_size=1),
)
def test_the_figure_is_the_outermost_level_in_any_order(order: list[str], shown: set[str]) -> None:
    joules = {"": 500, "platform": 400, "psys": 300, "package": 100, "dram": 20, "core": 60, "uncore": 5, "gpu": 250}
    lines = {zone: old("node", zone, watts) for zone, watts in joules.items()} | {"psys": node("psys", 300)}
    page = "".join(lines[zone] for zone in order if zone in shown)
    outer = next((joules[zone] for zone in ("", "platform", "psys") if zone in shown), None)
    if outer is None and "package" in shown:
        outer = 120 if "dram" in shown else 100
    if outer is None:
        with pytest.raises(CapabilityError):
            choose_figures(parse_metrics(page), None)
    else:
        assert sum(choose_figures(parse_metrics(page), None).joules.values()) == outer


def replay_pages(path: Path, *pages: str) -> DomainEnergy:
    """Return the energy of pages that follow each other by 10 s."""
    path.write_text(pages[0])
    meter = open_host(str(path))
    for number, page in enumerate(pages):
        path.write_text(page)
        meter.sample(10.0 * number)
    (energy,) = meter.energies(0.0, 10.0 * (len(pages) - 1))
    return energy


def test_a_counter_that_goes_or_comes_leaves_no_figure(tmp_path: Path) -> None:
    both, one = node("package-0", 100) + node("package-1", 90), node("package-0", 200)
    assert replay_pages(tmp_path / "page", both, one, one).energy.joules is None
    assert replay_pages(tmp_path / "page", one, both, both).energy.joules is None
    assert replay_pages(tmp_path / "page", both, node("package-0", 200) + node("package-1", 180)).energy.joules == 190


def test_sockets_of_one_counter_count_once(tmp_path: Path) -> None:
    pages = dies((31000, 31000), (31680, 31680), names=("package-0", "package-1"))
    assert replay_pages(tmp_path / "page", *pages).energy.joules == pytest.approx(680)
    pages = [rapl("package", 0, joules) + rapl("package", 1, joules + 1e4) for joules in (100, 700)]
    assert replay_pages(tmp_path / "page", *pages).energy.joules == pytest.approx(1200)


ESTIMATOR = 'kepler_node_info{components_power_source="estimator",platform_power_source="none",source="os"} 1\n'
KINDS = {
    "a trained model": ([old("node", "package", n, source="trained_power_model") for n in (5, 55)], "estimated"),
    "an estimator on the whole page": ([ESTIMATOR + old("node", "package", n) for n in (5, 55)], "estimated"),
    "registers": ([old("node", "package", n, source="rapl-sysfs") for n in (5, 55)], "measured"),
    "node_exporter": ([rapl("package", 0, n) for n in (5, 55)], "measured"),
}


@pytest.mark.parametrize("title", KINDS)
def test_the_figures_of_a_model_are_estimated(tmp_path: Path, title: str) -> None:
    pages, kind = KINDS[title]
    energy = replay_pages(tmp_path / "page", *pages)
    readings, _ = make_readings("host", [energy], 0.0, 10.0)
    assert (host_energy(readings).kind, host_energy(readings).watts) == (kind, pytest.approx(5.0))


EXPORTERS = {
    "scaph_host_power_microwatts 5e6": "Scaphandre",
    'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 71.2': "dcgm-exporter",
    'ipmi_power_watts{id="9",name="PSU1"} 110': "ipmi_exporter",
    'redfish_chassis_power_powersupply_last_power_output_watts{chassis_id="1"} 110': "Redfish",
    'node_hwmon_power_average_watt{chip="x"} 5': "node_exporter without its collector rapl",
    "mysql_up 1": "mysqld_exporter",
    "acme_power_watts 5": r"an unknown exporter \(acme_power_watts\)",
}


@pytest.mark.parametrize("page", EXPORTERS)
def test_every_other_exporter_is_named_and_refused(tmp_path: Path, page: str) -> None:
    path = tmp_path / "page.prom"
    path.write_text(f"# HELP x y\n{page}\n")
    with pytest.raises(CapabilityError, match=f"its page is of .*{EXPORTERS[page]}.*, which powerprof does not read"):
        open_host(str(path))


def dies(*joules: tuple[float, float], names: tuple[str, str] = ("package-0-die-0", "package-0-die-1")) -> list[str]:
    return [node(names[0], a) + node(names[1], b) for a, b in joules]


def test_dies_that_count_alike_are_one_counter(tmp_path: Path) -> None:
    alike = dies((31000, 31000.00002), (31680, 31680), (32360, 32360.00001))
    assert replay_pages(tmp_path / "page", *alike).energy.joules == pytest.approx(1360)
    assert replay_pages(tmp_path / "page", *dies((31000, 500), (31680, 1180))).energy.joules == pytest.approx(1360)
    same_name = dies((31000, 31000), (31680, 31680), names=("package", "package"))
    same_name = [page.replace('"host1"', '"host1",path="/a"', 1) for page in same_name]
    assert replay_pages(tmp_path / "page", *same_name).energy.joules == pytest.approx(680)


@pytest.mark.parametrize("zone", ["psys", "platform", ""])
def test_the_packages_replace_a_platform_that_stands_still(tmp_path: Path, zone: str) -> None:
    """A platform without a sensor shows one figure for ever; its packages and their memory are complete."""
    inner = (("package-0", 100), ("package-1", 50), ("dram", 20), ("core", 70))
    pages = ["".join(node(name, joules * n) for name, joules in inner) for n in range(3)]
    found = replay_pages(tmp_path / "page", *[node(zone, 5) + page for page in pages])
    assert (found.domain, found.energy.watts) == ("host, packages", pytest.approx(17.0))
    assert found.energy.notes[-1] == "are its packages and memory: its platform counter shows 0.0 W"
    low = replay_pages(tmp_path / "page", *[node(zone, 90 * n) + page for n, page in enumerate(pages)])
    assert (low.domain, low.energy.watts) == ("host, packages", pytest.approx(17.0))
    right = replay_pages(tmp_path / "page", *[node(zone, 300 * n) + page for n, page in enumerate(pages)])
    assert (right.domain, right.energy.watts) == ("host", pytest.approx(30.0))
    # Two dies that count alike are one counter inside of a platform as well.
    dies_alike = [node("psys", 5) + page for page in dies((0, 0), (680, 680), (1360, 1360))]
    assert replay_pages(tmp_path / "page", *dies_alike).energy.watts == pytest.approx(68.0)
    # Kepler's `other` is a difference to the platform.
    other = [node("platform", 5) + node("package", 100 * n) + node("other", 5) for n in range(3)]
    assert replay_pages(tmp_path / "page", *other).energy.watts == pytest.approx(10.0)


def test_a_guest_of_a_page_in_a_file(tmp_path: Path) -> None:
    page = tmp_path / "page.prom"
    page.write_text(vm("package", 30) + vm("package", 40, "web", "b2"))
    with pytest.raises(CapabilityError, match=r"2 guests: db1 \(id a1\), web \(id b2\)"):
        open_host(str(page))
    with open_meters(f"host:{page}#web") as meters:
        meters.sample()
        assert meters.readings(time.monotonic() - 1, time.monotonic())[0].domain == "share of host"


def test_scaphandres_page_and_tree_are_refused_by_name(tmp_path: Path) -> None:
    page, counter = tmp_path / "page.prom", tmp_path / "vm/intel-rapl:0/energy_uj"
    page.write_text("# HELP scaph_host_power_microwatts Power\nscaph_host_power_microwatts 5e6\n")
    counter.parent.mkdir(parents=True)
    counter.write_text("5000000\n")
    for where in (page, tmp_path / "vm"):
        with pytest.raises(CapabilityError, match=r"Scaphandre.*which powerprof does not read") as caught:
            open_meters(f"host:{where}")
        assert "Kepler" in str(caught.value.hint) and "host:URL" in str(caught.value.hint)


def test_figures_other_than_counters_are_left_out() -> None:
    page = 'kepler_vm_cpu_joules_total{vm_name="db1",zone="package"} %s\n'
    assert parse_metrics("".join(page % value for value in ("1e999", "-5", "1e", "NaN", "7"))) == parse_metrics(
        page % "7"
    )


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


PAGE_BYTES = b'kepler_node_cpu_joules_total{zone="package"} 7\n'


def sound(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(PAGE_BYTES)


def test_a_named_guest_of_a_served_page() -> None:
    joules = iter((100.0, 100.0, 103.0, 103.0))

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        figure = next(joules)
        page = vm("package", figure) + vm("core", 5) + vm("package", 9000, "web", "b2") + node("package", 1e6)
        handler.wfile.write(page.encode())

    with serving(answer) as url:
        meter = open_host(f"{url}#db1")
        meter.sample(10.0)
        meter.sample(12.0)
        (energy,) = meter.energies(10.0, 12.0)
        assert (energy.domain, energy.energy.joules) == ("share of host", pytest.approx(3.0))
        assert any("this guest's share of its host" in note for note in meter.notes)
    (reading,), _ = make_readings("host", [energy], 10.0, 12.0)
    assert (reading.source, reading.domain, reading.kind, reading.watts) == ("host", "share of host", "measured", 1.5)
    assert host_energy([reading]).domains == ["share of host"]


def test_a_host_that_sends_a_byte_now_and_then_is_left_at_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerprof.energy.meters.host._TIMEOUT_S", 1.5)

    def drip(handler: BaseHTTPRequestHandler) -> None:
        """The whole page in 10 s, each byte within any time-out of a socket."""
        handler.send_response(200)
        handler.end_headers()
        for byte in PAGE_BYTES:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(10 / len(PAGE_BYTES))

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


def test_a_pipe_in_the_place_of_a_page_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "page.prom")
    with pytest.raises(CapabilityError, match="not a regular file"):
        open_meters(f"host:{tmp_path / 'page.prom'}")
