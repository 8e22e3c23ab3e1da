# SPDX-License-Identifier: Apache-2.0
"""Hosts with energy counters of their processors: powercap zones, the perf `power` PMU, amd_energy.

Each function draws the hosts of one family. Its comment names the source of the names, units and ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.unit.energy.simulated_host import UNREADABLE, Demand, Host, Load, Signal, between, constant, counter

# The 32-bit counters in µJ: units of 61 µJ (Intel's usual ESU) and of 15.3 µJ (AMD, and dram of Intel servers).
RANGE_61_UJ, RANGE_15_UJ = 262_143_328_850, 65_532_610_987
# (vendor, family, model, name) as /proc/cpuinfo shows them.
SKYLAKE = ("GenuineIntel", 6, 94, "Intel(R) Core(TM) i7-6700K CPU @ 4.00GHz")
ALDER_LAKE = ("GenuineIntel", 6, 154, "12th Gen Intel(R) Core(TM) i7-1260P")
ICE_LAKE_SP = ("GenuineIntel", 6, 106, "Intel(R) Xeon(R) Platinum 8360Y CPU @ 2.40GHz")
SAPPHIRE_RAPIDS = ("GenuineIntel", 6, 143, "Intel(R) Xeon(R) Platinum 8480+")
GRANITE_RAPIDS = ("GenuineIntel", 6, 173, "Intel(R) Xeon(R) 6980P")
CASCADE_LAKE_AP = ("GenuineIntel", 6, 85, "Intel(R) Xeon(R) Platinum 9242 CPU @ 2.30GHz")
SKYLAKE_SP_8S = ("GenuineIntel", 6, 85, "Intel(R) Xeon(R) Platinum 8180 CPU @ 2.50GHz")
MILAN = ("AuthenticAMD", 25, 1, "AMD EPYC 7763 64-Core Processor")
GENOA = ("AuthenticAMD", 25, 17, "AMD EPYC 9654 96-Core Processor")
THREADRIPPER = ("AuthenticAMD", 23, 1, "AMD Ryzen Threadripper 1950X 16-Core Processor")
RYZEN = ("AuthenticAMD", 25, 33, "AMD Ryzen 9 5950X 16-Core Processor")
BULLDOZER = ("AuthenticAMD", 21, 2, "AMD Opteron(tm) Processor 6386 SE")
HYGON = ("HygonGenuine", 24, 1, "Hygon C86 7185 32-core Processor")


def _load(draw: Random, low: float, high: float) -> Load:
    return Load(round(draw.uniform(low, high), 1), swing=draw.uniform(0.005, 0.03), phase=draw.uniform(0, 6.28))


def _count(draw: Random, load: Load, *, range_uj: int = RANGE_61_UJ, skew_s: float = 0.0) -> Signal:
    """Return a counter with a start anywhere in the lower half of its range: it does not wrap."""
    return counter(load, draw.randrange(range_uj // 2), range_uj, skew_s)


# Intel's clients. Zones package-0 with core, uncore and (some) dram inside, and psys next to it: Documentation/power/
# powercap/powercap.rst, drivers/powercap/intel_rapl_common.c (rapl_domain_names, "package-%d"), intel_rapl_msr.c.
# intel-rapl-mmio: drivers/thermal/intel/int340x_thermal/processor_thermal_rapl.c, the same counter by another way.
def _client(draw: Random, name: str, *, has_dram: bool = True) -> tuple[Host, Load]:
    host = Host(name, "Intel client", demand="figure")
    host.cpus(*(ALDER_LAKE if has_dram else SKYLAKE))
    package = _load(draw, 8, 60)
    host.zone("intel-rapl:0", "package-0", _count(draw, package), max_watts=65)
    host.zone("intel-rapl:0:0", "core", _count(draw, Load(package.watts * 0.7)))
    host.zone("intel-rapl:0:1", "uncore", _count(draw, Load(package.watts * 0.1)))
    host.truth = {"package": package.watts}
    if has_dram:
        dram = _load(draw, 1, 4)
        host.zone("intel-rapl:0:2", "dram", _count(draw, dram))
        host.truth["dram"] = dram.watts
    return host, package


def intel_clients(draw: Random) -> Iterator[Host]:
    yield _client(draw, "desktop without dram", has_dram=False)[0]
    yield _client(draw, "laptop with dram")[0]

    host, package = _client(draw, "laptop with psys")
    platform = _load(draw, package.watts + 6, package.watts + 9)
    host.zone("intel-rapl:1", "psys", _count(draw, platform))
    host.truth["psys"] = platform.watts
    yield host

    host, package = _client(draw, "laptop with an MMIO duplicate of its package", has_dram=False)
    start = draw.randrange(RANGE_61_UJ // 2)
    host.zone("intel-rapl:0", "package-0", counter(package, start), max_watts=28)
    host.zone("intel-rapl-mmio:0", "package-0", counter(package, start, skew_s=0.0004), max_watts=28)
    yield host

    host, package = _client(draw, "desktop whose package stands still", has_dram=False)
    host.demand, host.truth = "unknown", {}
    host.zone("intel-rapl:0", "package-0", constant(4_711_000_000))
    host.zone("intel-rapl:0:0", "core", constant(0))
    host.zone("intel-rapl:0:1", "uncore", constant(0))
    yield host

    host = Host("laptop with MMIO only", "Intel client", demand="figure")
    host.cpus(*ALDER_LAKE)
    package = _load(draw, 8, 20)
    host.zone("intel-rapl-mmio:0", "package-0", _count(draw, package), max_watts=28)
    host.truth = {"package": package.watts}
    yield host

    host, _ = _client(draw, "desktop with disabled zones", has_dram=False)
    for zone in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:0:1"):
        host.put(f"class/powercap/{zone}/enabled", 0)
    yield host

    host, package = _client(draw, "desktop whose counter wraps", has_dram=False)
    start = RANGE_61_UJ - round(package.joules(draw.uniform(2, 8)) * 1e6)
    host.zone("intel-rapl:0", "package-0", counter(package, start), max_watts=65)
    yield host

    # A reloaded driver or firmware starts again from 0 (rapl_pm_callback restores the limits only).
    host, package = _client(draw, "desktop whose counter is reset", has_dram=False)
    host.demand = "either"
    before, after = counter(package, 90_000_000_000), counter(package, 1000 - round(package.joules(6.0) * 1e6))
    host.zone("intel-rapl:0", "package-0", lambda t: before(t) if t < 6 else after(t), max_watts=65)
    yield host

    host, package = _client(draw, "desktop whose package has no name", has_dram=False)
    host.demand = "unknown"
    del host.files["class/powercap/intel-rapl:0/name"]
    yield host

    # powercap.rst: energy_uj and power_uw are both optional.
    host, package = _client(draw, "desktop whose package has power_uw only", has_dram=False)
    host.demand = "either"
    del host.files["class/powercap/intel-rapl:0/energy_uj"]
    host.put("class/powercap/intel-rapl:0/power_uw", package)
    yield host

    host, package = _client(draw, "laptop whose dram zone goes away")
    host.demand = "either"
    for leaf in ("name", "energy_uj", "max_energy_range_uj", "enabled"):
        path = f"class/powercap/intel-rapl:0:2/{leaf}"
        host.files[path] = between(host.files[path], 0, 5)
    yield host

    host, _ = _client(draw, "desktop whose counters only root may read", has_dram=False)
    host.demand = "unknown"
    for zone in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:0:1"):
        host.put(f"class/powercap/{zone}/energy_uj", UNREADABLE)
    yield host

    host, package = _client(draw, "desktop whose package cannot be read, its cores can", has_dram=False)
    host.demand = "unknown"
    host.put("class/powercap/intel-rapl:0/energy_uj", UNREADABLE)
    yield host

    host, package = _client(draw, "laptop whose counter stops half-way")
    host.demand = "either"
    running = host.files["class/powercap/intel-rapl:0/energy_uj"]
    host.put("class/powercap/intel-rapl:0/energy_uj", lambda t: running(min(t, 5.0)))
    yield host


# Intel's servers. Zone intel-rapl:N is package-N with dram inside (intel_rapl_common.c). dram has units of 15.3 µJ from
# Haswell-EP on (rapl_defaults_hsw_server, dram_domain_energy_unit). psys of Sapphire Rapids has units of 1 J
# (rapl_defaults_spr_server, psys_domain_energy_unit): older kernels show it 16,384 times too small.
def _server(
    draw: Random,
    name: str,
    sockets: int,
    *,
    has_dram: bool = True,
    cpu: tuple[str, int, int, str] = ICE_LAKE_SP,
    control: str = "intel-rapl",
    low: float = 90,
    high: float = 240,
) -> tuple[Host, list[Load]]:
    host = Host(name, "Intel server", demand="figure")
    host.cpus(*cpu, sockets=sockets)
    loads = [_load(draw, low, high) for _ in range(sockets)]
    drams = [_load(draw, 8, 30) for _ in range(sockets)] if has_dram else []
    for number, load in enumerate(loads):
        host.zone(f"{control}:{number}", f"package-{number}", _count(draw, load), max_watts=270)
    for number, load in enumerate(drams):
        energy = _count(draw, load, range_uj=RANGE_15_UJ)
        host.zone(f"{control}:{number}:0", "dram", energy, max_energy_range_uj=RANGE_15_UJ, max_watts=60)
    host.truth = {"package": sum(load.watts for load in loads)}
    if drams:
        host.truth["dram"] = sum(load.watts for load in drams)
    return host, loads


def _limit(host: Host, zone: str, since_s: float = 0.0, until_s: float = 1e9) -> None:
    """Let a zone and its children exist for a part of the window only."""
    for path, signal in list(host.files.items()):
        if path.startswith((f"class/powercap/{zone}/", f"class/powercap/{zone}:")):
            host.files[path] = between(signal, since_s, until_s)


def intel_servers(draw: Random) -> Iterator[Host]:
    for sockets in (1, 2, 4, 8):
        cpu = SKYLAKE_SP_8S if sockets > 2 else ICE_LAKE_SP
        yield _server(draw, f"{sockets} sockets with dram", sockets, cpu=cpu)[0]
        yield _server(draw, f"{sockets} sockets without dram", sockets, has_dram=False, cpu=cpu)[0]

    host, _ = _server(draw, "2 sockets with dram that reads 0", 2)
    for number in range(2):
        host.zone(f"intel-rapl:{number}:0", "dram", constant(0), max_energy_range_uj=RANGE_15_UJ)
    del host.truth["dram"]
    yield host

    # Both sockets idle alike, and were booted together: equal loads, counters of their own.
    host, _ = _server(draw, "2 idle sockets of almost the same power", 2, has_dram=False)
    loads = [Load(61.0, 0.01, 0.3), Load(61.3, 0.01, 2.1)]
    for number, load in enumerate(loads):
        host.zone(f"intel-rapl:{number}", f"package-{number}", counter(load, 61_000_000_000 + 400_000_000 * number))
    host.truth = {"package": 122.3}
    yield host

    host, _ = _server(draw, "2 sockets in step since boot, 0.5 % apart", 2, has_dram=False)
    host.demand = "either"
    loads = [Load(200.0, 0.01, 0.3), Load(201.0, 0.01, 0.3)]
    for number, load in enumerate(loads):
        host.zone(f"intel-rapl:{number}", f"package-{number}", counter(load, round(load.watts * 100e6)))
    host.truth = {"package": 401.0}
    yield host

    # drivers/powercap/intel_rapl_tpmi.c: zones package-N by TPMI's package id.
    host, _ = _server(draw, "2 sockets by TPMI only", 2, cpu=GRANITE_RAPIDS, control="intel-rapl-tpmi")
    yield host

    host, loads = _server(draw, "2 sockets by MSR and TPMI", 2, has_dram=False, cpu=GRANITE_RAPIDS)
    for number, load in enumerate(loads):
        host.zone(f"intel-rapl-tpmi:{number}", f"package-{number}", _count(draw, load, skew_s=0.0006))
    yield host

    host, loads = _server(draw, "2 sockets, MSR shows one and MMIO both", 2, has_dram=False)
    host.demand = "either"
    for number, load in enumerate(loads):
        host.zone(f"intel-rapl-mmio:{number}", f"package-{number}", _count(draw, load))
    _drop(host, "intel-rapl:1")
    yield host

    host, loads = _server(draw, "2 sockets, the second with power_uw only", 2, has_dram=False)
    host.demand = "either"
    del host.files["class/powercap/intel-rapl:1/energy_uj"]
    host.put("class/powercap/intel-rapl:1/power_uw", loads[1])
    yield host

    host, _ = _server(draw, "2 sockets, the second unreadable", 2, has_dram=False)
    host.demand = "unknown"
    host.put("class/powercap/intel-rapl:1/energy_uj", UNREADABLE)
    yield host

    host, _ = _server(draw, "2 sockets, the second stands still", 2)
    host.demand = "unknown"
    host.put("class/powercap/intel-rapl:1/energy_uj", 18_000_000_000)
    yield host

    host, _ = _server(draw, "2 sockets, one unreadable for 3 s", 2, has_dram=False)
    host.demand = "either"
    path = "class/powercap/intel-rapl:1/energy_uj"
    host.files[path] = _gap(host.files[path], 4, 7)
    yield host

    host, _ = _server(draw, "2 sockets, the second goes offline", 2)
    host.demand = "unknown"
    _limit(host, "intel-rapl:1", until_s=draw.choice([3, 6, 8]))
    yield host

    host, _ = _server(draw, "2 sockets, the second comes online", 2)
    host.demand = "unknown"
    _limit(host, "intel-rapl:1", since_s=draw.choice([2, 5, 9]))
    yield host

    host, _ = _server(draw, "2 sockets, the second goes and returns", 2, has_dram=False)
    host.demand = "either"
    for path, signal in list(host.files.items()):
        if path.startswith("class/powercap/intel-rapl:1/"):
            host.files[path] = _gap(signal, 4, 6, None)
    yield host

    host, loads = _server(draw, "4 sockets, the third is not shown", 4, has_dram=False, cpu=SKYLAKE_SP_8S)
    host.demand = "unknown"
    _drop(host, "intel-rapl:2")
    yield host

    # Two zones swap places: the ids of powercap follow the order of registration, not the package.
    host, loads = _server(draw, "2 sockets registered in reverse order", 2, has_dram=False)
    for number in (0, 1):
        host.put(f"class/powercap/intel-rapl:{number}/name", f"package-{1 - number}")
    yield host

    host, _ = _server(draw, "2 sockets, dram of one only", 2)
    host.demand = "either"
    _drop(host, "intel-rapl:1:0")
    yield host

    host, _ = _server(draw, "2 sockets, dram of the second unreadable", 2)
    host.demand = "either"
    host.put("class/powercap/intel-rapl:1:0/energy_uj", UNREADABLE)
    yield host

    host, loads = _server(draw, "Sapphire Rapids whose psys is scaled wrongly", 2, cpu=SAPPHIRE_RAPIDS)
    platform = Load((sum(load.watts for load in loads) + 120) / 16384)
    host.zone("intel-rapl:2", "psys", _count(draw, platform))
    yield host

    # psys of a server with its supplies' view of both sockets: intel_rapl_common.c names it psys, and psys-%d with
    # several (commit "powercap: RAPL: fix the platform domain names").
    host, loads = _server(draw, "2 sockets with one psys each", 2, cpu=SAPPHIRE_RAPIDS, has_dram=False)
    platforms = [Load(load.watts + 60) for load in loads]
    for number, load in enumerate(platforms):
        host.zone(f"intel-rapl:{2 + number}", ("psys", "psys-1")[number], _count(draw, load))
    host.truth["psys"] = sum(load.watts for load in platforms)
    yield host

    host, loads = _server(draw, "2 sockets, psys of the second goes away", 2, cpu=SAPPHIRE_RAPIDS, has_dram=False)
    host.demand = "either"
    for number, load in enumerate(Load(load.watts + 60) for load in loads):
        host.zone(f"intel-rapl:{2 + number}", ("psys", "psys-1")[number], _count(draw, load))
    _limit(host, "intel-rapl:3", until_s=7)
    yield host

    # Cascade Lake AP: two dies with MSRs of their own per package (x86 "Multi-die/package" of Linux 5.3,
    # Documentation/arch/x86/topology.rst; intel_rapl_common.c "package-%d-die-%d").
    for sockets in (1, 2):
        yield _dies(draw, f"Cascade Lake AP, {sockets} packages of 2 dies", sockets)
    host = _dies(draw, "Cascade Lake AP, one die is not shown", 1)
    host.demand = "unknown"
    _drop(host, "intel-rapl:1")
    yield host
    host = _dies(draw, "Cascade Lake AP, one die stands still", 2)
    host.demand = "unknown"
    host.put("class/powercap/intel-rapl:2/energy_uj", 1_000_000)
    yield host


def _dies(draw: Random, name: str, sockets: int) -> Host:
    host = Host(name, "Intel server")
    host.cpus(*CASCADE_LAKE_AP, sockets=sockets, dies=2)
    loads = [_load(draw, 80, 170) for _ in range(2 * sockets)]
    for number, load in enumerate(loads):
        zone = f"package-{number // 2}-die-{number % 2}"
        host.zone(f"intel-rapl:{number}", zone, _count(draw, load), max_watts=175)
    host.truth = {"package": sum(load.watts for load in loads)}
    return host


def _drop(host: Host, zone: str) -> None:
    for path in [p for p in host.files if p.startswith((f"class/powercap/{zone}/", f"class/powercap/{zone}:"))]:
        del host.files[path]


def _gap(signal: Signal, start_s: float, end_s: float, content: str | None = UNREADABLE) -> Signal:
    return lambda time_s: content if start_s <= time_s < end_s else signal(time_s)


# AMD and Hygon. Zones package-N with `core` inside, which counts one core (arch/x86/events/rapl.c: the core MSR has
# the scope of a core; intel_rapl_msr.c, rapl_msr_priv_amd), without constraints. The package MSR has the scope of the
# package, whatever leaf 0x80000026 says of dies: kernels before rapl_msrs_are_pkg_scope() (intel_rapl_common.c, and
# "perf/x86/rapl: Fix the energy-pkg event for AMD CPUs") show it once per die.
def _amd(
    draw: Random,
    name: str,
    sockets: int,
    *,
    dies: int = 1,
    cpu: tuple[str, int, int, str] = MILAN,
    skew_s: float = 0.0,
    low: float = 60,
    high: float = 260,
) -> tuple[Host, list[Load]]:
    host = Host(name, "AMD", demand="figure" if dies == 1 else "either")
    host.cpus(*cpu, sockets=sockets, dies=dies)
    loads = [_load(draw, low, high) for _ in range(sockets)]
    for socket, load in enumerate(loads):
        start = draw.randrange(RANGE_15_UJ // 2)
        for die in range(dies):
            number = socket * dies + die
            zone = f"package-{socket}-die-{die}" if dies > 1 else f"package-{socket}"
            energy = counter(load, start, RANGE_15_UJ, skew_s * die)
            host.zone(f"intel-rapl:{number}", zone, energy, enabled=0, max_energy_range_uj=RANGE_15_UJ)
            core = _count(draw, Load(load.watts / 40), range_uj=RANGE_15_UJ)
            host.zone(f"intel-rapl:{number}:0", "core", core, enabled=0, max_energy_range_uj=RANGE_15_UJ)
    host.truth = {"package": sum(load.watts for load in loads)}
    return host, loads


def amd_hosts(draw: Random) -> Iterator[Host]:
    yield _amd(draw, "Ryzen", 1, cpu=RYZEN, low=25, high=120)[0]
    yield _amd(draw, "EPYC of 1 socket", 1)[0]
    yield _amd(draw, "EPYC of 2 sockets", 2, cpu=GENOA)[0]
    yield _amd(draw, "EPYC whose 8 CCDs show one counter", 1, dies=8, cpu=GENOA)[0]
    yield _amd(draw, "EPYC whose 12 CCDs show one counter, read 0.3 ms apart", 1, dies=12, cpu=GENOA, skew_s=3e-4)[0]
    yield _amd(draw, "2 EPYC whose 8 CCDs each show one counter", 2, dies=8, cpu=GENOA)[0]
    yield _amd(draw, "2 EPYC whose 4 CCDs each show one counter, read 1 ms apart", 2, dies=4, cpu=MILAN, skew_s=1e-3)[0]
    # github.com/mlco2/codecarbon issue 1274: package-0-die-0 and package-0-die-1 with the same values.
    yield _amd(draw, "Threadripper 1950X of 2 dies", 1, dies=2, cpu=THREADRIPPER, low=60, high=120)[0]
    # Hygon's Dhyana is a Zen of the first generation: arch/x86/events/rapl.c treats it like AMD's.
    yield _amd(draw, "Hygon of 2 sockets of 4 dies", 2, dies=4, cpu=HYGON)[0]
    yield _amd(draw, "Hygon of 1 socket of 4 dies, read 0.5 ms apart", 1, dies=4, cpu=HYGON, skew_s=5e-4)[0]
    yield _amd(draw, "Hygon of 1 socket without dies", 1, cpu=HYGON)[0]

    host, loads = _amd(draw, "8 CCDs of one counter that wraps", 1, dies=8, cpu=GENOA)
    start = RANGE_15_UJ - round(loads[0].joules(6.2) * 1e6)
    for die in range(8):
        host.put(f"class/powercap/intel-rapl:{die}/energy_uj", counter(loads[0], start, RANGE_15_UJ, 1e-4 * die))
    yield host

    host, _ = _amd(draw, "8 CCDs of one counter, one of them unreadable", 1, dies=8, cpu=GENOA)
    host.put("class/powercap/intel-rapl:3/energy_uj", UNREADABLE)
    yield host

    host, _ = _amd(draw, "8 CCDs of one counter, two of them go offline", 1, dies=8, cpu=GENOA)
    _limit(host, "intel-rapl:6", until_s=5)
    _limit(host, "intel-rapl:7", until_s=5)
    yield host

    host = Host("Ryzen that shows its core zone only", "AMD", demand="unknown")
    host.cpus(*RYZEN)
    host.zone("intel-rapl:0", "core", _count(draw, Load(3.0)))
    yield host


# Documentation/hwmon/amd_energy.rst (Linux 5.8 to 5.17): EcoreNNN of each core, EsocketN of each socket, in µJ.
def amd_energy(draw: Random) -> Iterator[Host]:
    def drawn(name: str, sockets: int, demand: Demand = "either") -> tuple[Host, list[Load]]:
        host = Host(name, "amd_energy", demand=demand)
        host.cpus(*MILAN, sockets=sockets)
        loads = [_load(draw, 70, 220) for _ in range(sockets)]
        files: dict[str, str | Signal] = {}
        cores = 2 * sockets
        for core in range(cores):
            files[f"energy{core + 1}_label"] = f"Ecore{core:03}"
            files[f"energy{core + 1}_input"] = counter(Load(1.5), 0, None)
        for socket, load in enumerate(loads):
            files[f"energy{cores + socket + 1}_label"] = f"Esocket{socket}"
            files[f"energy{cores + socket + 1}_input"] = counter(load, draw.randrange(10**12), None)
        host.chip(3, "amd_energy", files)
        host.truth = {"package": sum(load.watts for load in loads)}
        return host, loads

    yield drawn("1 socket", 1)[0]
    yield drawn("2 sockets", 2)[0]
    host, loads = drawn("2 sockets next to RAPL's", 2)
    host.demand = "figure"
    for number, load in enumerate(loads):
        energy = _count(draw, load, range_uj=RANGE_15_UJ)
        host.zone(f"intel-rapl:{number}", f"package-{number}", energy, max_energy_range_uj=RANGE_15_UJ)
    yield host
    host, _ = drawn("2 sockets, the label of the second is missing", 2)
    del host.files["class/hwmon/hwmon3/energy6_label"]
    yield host
    host, _ = drawn("2 sockets, the second stands still", 2, "unknown")
    host.put("class/hwmon/hwmon3/energy6_input", 5_000_000)
    yield host
    host, _ = drawn("2 sockets, the second is not shown", 2, "unknown")
    del host.files["class/hwmon/hwmon3/energy6_label"], host.files["class/hwmon/hwmon3/energy6_input"]
    yield host
    host, _ = drawn("2 sockets, the driver is unloaded", 2, "unknown")
    host.files |= {p: between(s, 0, 6) for p, s in host.files.items() if "hwmon3" in p}
    yield host


# The perf PMU: arch/x86/events/rapl.c (events energy-pkg, energy-cores, energy-ram, energy-gpu, energy-psys; scale
# 2^-32 J; cpumask names one CPU per package or die).
def perf_hosts(draw: Random) -> Iterator[Host]:
    def drawn(name: str, cpu: tuple[str, int, int, str], sockets: int = 1, dies: int = 1) -> Host:
        host = Host(name, "perf PMU")
        host.cpus(*cpu, sockets=sockets, dies=dies)
        return host

    host = drawn("desktop", SKYLAKE)
    package = _load(draw, 10, 60)
    host.perf({"energy-pkg": {0: package}, "energy-cores": {0: Load(8.0)}, "energy-gpu": {0: Load(1.0)}})
    host.truth = {"package": package.watts}
    yield host

    host = drawn("2 sockets with dram", ICE_LAKE_SP, 2)
    loads = [_load(draw, 90, 200) for _ in range(4)]
    host.perf({"energy-pkg": {0: loads[0], 2: loads[1]}, "energy-ram": {0: Load(12.0), 2: Load(15.0)}})
    host.truth = {"package": loads[0].watts + loads[1].watts, "dram": 27.0}
    yield host

    host = drawn("laptop with psys", ALDER_LAKE)
    host.perf({"energy-pkg": {0: Load(14.0)}, "energy-psys": {0: Load(21.0)}})
    host.truth = {"package": 14.0, "psys": 21.0}
    yield host

    host = drawn("EPYC with one CPU per CCD", GENOA, 1, 8)
    host.perf({"energy-pkg": dict.fromkeys(range(0, 16, 2), Load(150.0))})
    host.truth = {"package": 150.0}
    yield host

    host = drawn("2 EPYC with one CPU per CCD", GENOA, 2, 4)
    first, second = _load(draw, 100, 200), _load(draw, 100, 200)
    host.perf({"energy-pkg": {cpu: first if cpu < 8 else second for cpu in range(0, 16, 2)}})
    host.truth = {"package": first.watts + second.watts}
    yield host

    host = drawn("Cascade Lake AP of 2 dies", CASCADE_LAKE_AP, 1, 2)
    loads = [_load(draw, 90, 160) for _ in range(2)]
    host.perf({"energy-pkg": {0: loads[0], 2: loads[1]}})
    host.truth = {"package": loads[0].watts + loads[1].watts}
    yield host

    host = drawn("2 sockets, the second cannot be opened", ICE_LAKE_SP, 2)
    host.demand = "unknown"
    host.perf({"energy-pkg": {0: Load(100.0), 2: None}})
    yield host

    host = drawn("2 sockets, the second reads 0", ICE_LAKE_SP, 2)
    host.demand = "unknown"
    host.perf({"energy-pkg": {0: Load(100.0), 2: Load(0.0)}})
    yield host

    host = drawn("2 sockets, cpumask names one of them", ICE_LAKE_SP, 2)
    host.demand = "unknown"
    host.perf({"energy-pkg": {0: Load(100.0)}})
    yield host
