# SPDX-License-Identifier: Apache-2.0
"""Every loader of files and words from outside. A new one is added by one line of LOADERS.

Each reads bytes to the end of what a command would do with them and may refuse by PowerprofError alone. Seeds are
sound: made here, recorded where the recordings are, or found cases in `corpus/NAME/`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from powerprof.attribution import attribute, capture
from powerprof.diagnosis.collect import summarise_log
from powerprof.energy import replay
from powerprof.energy.meters import host, meter_log
from powerprof.measure import cpuidle_dumps, powertop, turbostat
from powerprof.measure.residency_recordings import read_recording
from powerprof.report.exports import export
from powerprof.report.kinds import KIND_LOADERS, RecordKind, lines_of, load_saved
from powerprof.stacks import demangle, elf, image, perf_map, runtimes, store, symtab, unwind_tables
from powerprof.system.errors import UsageError
from powerprof.system.foreign_data import reading
from powerprof.tracing.idle_data import CAUSE, IDLE_EXIT, RUN_TIME
from powerprof.workloads.reading import read_workload
from powerprof.workloads.statements import split_statements
from tests.nightly.fuzz.records import made, several
from tests.unit.stacks.elves import Part, make, symbol, with_go_table, with_symbols

CORPUS = Path(__file__).parent / "corpus"
REPOSITORY = Path(__file__).resolve().parents[2]
_NOW = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class Loader:
    """`read` takes a file that holds the bytes, and the bytes; `seeds` are sound ones."""

    name: str
    read: Callable[[Path, bytes], object]
    seeds: Callable[[], Iterable[bytes]]

    @functools.cached_property
    def all_seeds(self) -> list[bytes]:
        """The seeds and the cases that were found."""
        found = sorted((CORPUS / self.name).glob("*")) if (CORPUS / self.name).is_dir() else []
        return [*self.seeds(), *(case.read_bytes() for case in found)]


def _text(parse: Callable[[str, Path], object]) -> Callable[[Path, bytes], object]:
    """A parser of text that was decoded strictly before: as `read_outside_table` would."""

    def read(path: Path, data: bytes) -> object:
        from powerprof.system.outside_files import read_outside_table

        return parse(read_outside_table(path), path)

    return read


def _lenient(parse: Callable[[str], object]) -> Callable[[Path, bytes], object]:
    return lambda path, data: parse(data.decode("utf-8", "replace"))


def _report(path: Path, data: bytes) -> object:
    """As `report`: the text of a record, and some of the files that are made of it."""
    record = load_saved(str(path))
    with reading(path):
        for kind in ("csv", "md", "html") if len(data) % 16 == 0 else ():
            with contextlib.suppress(UsageError):
                export(record, kind)
        return lines_of(record, 80)


def _recorded(*names: str, most: int = 20_000) -> Callable[[], list[bytes]]:
    """Read the beginnings of recorded files when called."""
    folder = Path(os.environ.get("POWERPROF_RECORDINGS") or REPOSITORY / "tests/fixtures/recordings")

    def read() -> list[bytes]:
        found = []
        for name in names:
            if (folder / name).is_file():
                data = (folder / name).read_bytes()[:most]
                found.append(data[: data.rfind(b"\n") + 1])
        return found

    return read


def _with(made_here: bytes, recorded: Callable[[], list[bytes]]) -> Callable[[], list[bytes]]:
    return lambda: [made_here, *recorded()]


_TURBOSTAT = b"""turbostat version 2024.11.30 - Len Brown
CPUID(0): GenuineIntel 0x16 CPUID levels
CPUID(1): family:model:stepping 0x6:4f:1 (6:79:1) microcode 0xb000040
Measurement interval: 1.0 s
current_driver: intel_idle
cpu0: C6: MWAIT 0x20
usec\tTime_Of_Day_Seconds\tPackage\tCore\tCPU\tAvg_MHz\tBusy%\tC6\tC6%\tCPU%c6\tPkgWatt
100\t1700000000.5\t-\t-\t-\t100\t5.0\t7\t90.0\t89.0\t30.5
100\t1700000000.5\t0\t0\t0\t100\t5.0\t7\t90.0\t89.0\t30.5
100\t1700000001.5\t-\t-\t-\t100\t5.0\t7\t90.0\t89.0\t30.5
100\t1700000001.5\t0\t0\t0\t100\t5.0\t7\t90.0\t89.0\t30.5
"""
_POWERTOP = b"""____________________________________________________________________
                 P o w e r T O P   Report
PowerTOP Version;v2.14 ran at Mon Nov 16 2026
Target:;1 units/s;System: 38.5 wakeup/s;CPU: 1.0% usage
 *  *  *   Processor Idle State Report   *  *  *
Package;0
C2 (pc2);  1.0%
CPU;0;CPU;1
C0 active;  1.0%;  2.0%
C6; 90.0%; 50.0 ms; 91.0%; 51.0 ms
 *  *  *   Overview of Software Power Consumers   *  *  *
Usage;Wakeups/s;GPU ops/s;Disk IO/s;GFX Wakeups/s;Category;Description;PW Estimate
  10.0 us/s;  2.5;;;;Process;[PID 812] mariadbd; 1.0 mW
"""
_PAGE = (
    b'kepler_vm_cpu_joules_total{vm_id="a1",vm_name="db1",zone="package",node_name="h"} 100\n'
    b'kepler_node_cpu_joules_total{zone="package",path="/sys/class/powercap/intel-rapl:0",node_name="h"} 300\n'
    b'kepler_node_cpu_joules_total{zone="dram",node_name="h"} 30\n'
    b'powerprof_host_energy_joules_total{kind="measured"} 5\n'
)
_METER = b"time,watts\n1700000000,100.5\n1700000001,101.5\n2026-01-01T00:00:00+01:00,99\nInterrupted, exiting\n"
_CPUIDLE = b"".join(
    b"/sys/devices/system/cpu/cpu%d/cpuidle/state%d/%s|%s\n" % (cpu, state, name, value)
    for cpu in (0, 1)
    for state, label in ((0, b"POLL"), (1, b"C6"))
    for name, value in (
        (b"name", label),
        (b"time", b"1253058"),
        (b"usage", b"77"),
        (b"above", b"1"),
        (b"disable", b"0"),
    )
)
_WORKLOAD = b"""schema = "powerprof.workload/1"
name = "fuzzed"
title = "a workload"
[dataset]
kind = "world"
[load]
sql = ["SELECT 1"]
clients = 4
[server.my_cnf]
innodb_buffer_pool_size = "8M"
[conditions.index]
setup = ["CREATE INDEX i ON City(Name)"]
[conditions.no-index]
load = {clients = 2}
[parameters.clients]
key = "load.clients"
values = [1, 2]
"""
_SQL = b"""-- a comment
CREATE TABLE t (a INT, b VARCHAR(10)) /* c */ ENGINE=InnoDB; # more
INSERT INTO t VALUES (1, 'it''s; \\' "x"'), (2, "a;b"); /*!40101 SET x=1 */;
DELIMITER //
CREATE TRIGGER t1 BEFORE INSERT ON t FOR EACH ROW BEGIN SET @a=1; END//
DELIMITER ;
SELECT `a;b` FROM t;
"""
_MAPS = b"""55d0c0000000-55d0c0100000 r--p 00000000 fe:01 1234                       /usr/sbin/mariadbd
55d0c0100000-55d0c0900000 r-xp 00100000 fe:01 1234                       /usr/sbin/mariadbd
7f0000000000-7f0000100000 r-xp 00000000 00:00 0
7f0000200000-7f0000300000 r-xp 00001000 fe:01 99                         /tmp/a b\\012c (deleted)
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
"""
_PERF_MAP = b"7f0000001000 40 LazyCompile:~foo app.js:1\n7f0000001040 20 Builtin:x\n0x7f0000001020 30 later\n"
_LOG = b"""2026-01-01 00:00:00 12 [Note] Slave I/O thread: connected to master 'repl@h:3306'
2025-12-31 23:59:50 13 [ERROR] Slave I/O: fatal error: equal MySQL server ids
261231 23:59:51 [Note] Start binlog_dump to slave_server(2), pos(mysql-bin.000001, 4)
2025-12-31T23:59:58.123456Z 0 [Note] reconnecting to retry
"""
_NAMES = [
    *(b"_ZN4core3ptr13drop_in_place17h0123456789abcdefE", b"_RNvMNtCs1234_7mycrate3fooNtB2_3Bar3baz"),
    *(b"_ZNSt6vectorIiSaIiEE9push_backERKi", b"_RINvCs_1a3foofNvB0_3barE", b"_Z3fooIJiiiEEvDpT_S0_S0_"),
    *(b"_ZN2\xc2\xb2E", b"_RNvNvC1u6gdel_5qa1b2.llvm.123", b"_ZN7mysqld_stmt_executeEv.part.0.cold"),
    *(b"_RNvXs_C1aINtB2_1TpE1f", b"_ZNK3fooIS_IS_IS_IS_EEEE3barEv"),
]


def _elf_seeds() -> list[bytes]:
    frame = struct.pack("<I", 0) + b"\x01zR\0\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01\0\0"
    cie = struct.pack("<I", len(frame)) + frame
    body = struct.pack("<IiIB", len(cie) + 4, 0x1000 - (0x8000 + len(cie) + 8), 0x40, 0) + b"\x07\x10\0"
    table = cie + struct.pack("<I", len(body)) + body
    note = struct.pack("<III", 4, 20, 3) + b"GNU\0" + bytes(range(20))
    strings = b"\0_start\0f@@V1\0"
    whole = make(
        [
            Part(".eh_frame", 1, table, flags=2, vaddr=0x8000),
            Part(".note.gnu.build-id", 7, note, flags=2),
            Part(".symtab", 2, bytes(24) + symbol(1, 0x1000, 64) + symbol(8, 0x1010, 8), link=4, entry_bytes=24),
            Part(".strtab", 3, strings),
            Part(".debug_frame", 1, struct.pack("<IIQQ", 1, 0, len(table), 1) + zlib.compress(table), flags=1 << 11),
        ],
        entry=0x1000,
    )
    go = [with_go_table([("f", 0), ("main.g", 32)], 64, told=told) for told in (True, False)]
    return [whole, with_symbols([("f", 0x100, 16, 0x12), ("_ZN1a1bE", 0x100, 32, 0x22)]), with_symbols([]), *go]


def _read_elf(path: Path, data: bytes) -> object:
    found = elf.parse_elf(data, path.name)
    symbols = symtab.read_symbols(found)
    unwind = unwind_tables.extract_table(found, symbols)
    unwind_tables.build_elf_image(unwind)
    return [symbols.lookup(0x1000), elf.code_vaddr(found, 0)]


def _table_seeds() -> list[bytes]:
    found = []
    for data in _elf_seeds():
        one = elf.parse_elf(data, "seed")
        tables = store.ModuleTables(
            schema=store.SCHEMA, key="k", unwind=unwind_tables.extract_table(one), symbols=symtab.read_symbols(one)
        )
        found.append(msgspec.msgpack.encode(tables))
    return found


def _workload_seeds() -> list[bytes]:
    shipped = (path.read_text() for path in sorted((REPOSITORY / "workloads").glob("*/workload.toml")))
    return [_WORKLOAD, *(re.sub('^name = ".*"', 'name = "fuzzed"', text, flags=re.M).encode() for text in shipped)]


def _images(seed: int) -> list[dict]:
    found = made(tuple[image.ProcessImage, ...], random.Random(seed))
    for number, one in enumerate(found):
        places = [{"start": 4096 * (k + 1), "end": 4096 * (k + 2)} for k in range(len(one["mappings"]))]
        one["mappings"] = [{**mapping, **place} for mapping, place in zip(one["mappings"], places, strict=True)]
        one["vdso"], one["pid"] = None, number + 7
    return found


def _read_tables(path: Path, data: bytes) -> object:
    found = store.decode_tables(data, path.name)
    unwind_tables.build_elf_image(found.unwind)
    return found.symbols.lookup(0x1000)


def _capture_seeds() -> list[bytes]:
    found = []
    for seed in range(4):
        raw = made(capture.Capture, random.Random(seed))
        raw.update(window_s=1.0, version=capture._VERSION, counted_from_ns=1, counted_to_ns=2_000_000_000, named=None)
        raw["exits"] = bytes(IDLE_EXIT.itemsize * 2)
        raw["causes"], raw["ran"] = bytes(CAUSE.itemsize * 2), bytes(RUN_TIME.itemsize * 2)
        raw["edges"] = [[0, 1, 2, 3]]
        raw["idle_cpus"] = []
        raw["sites"] = [[1, 7, 7, 0, 0x1000, 0x2000, 0, bytes(168), bytes(64)]]
        raw["images"] = _images(seed)
        found.append(zlib.compress(msgspec.msgpack.encode(raw), 1))
        # Unpacked: most changes of packed bytes are refused by zlib's checksum alone.
        found.append(b"RAW" + msgspec.msgpack.encode(raw))
    return found


def _read_capture(path: Path, data: bytes) -> object:
    if data[:3] == b"RAW":
        path.write_bytes(zlib.compress(data[3:], 1))
    return attribute.analyse(capture.load(path))


def _read_workload(path: Path, data: bytes) -> object:
    folder = path.parent / "fuzzed"
    folder.mkdir(exist_ok=True)
    (folder / "workload.toml").write_bytes(data)
    return read_workload(folder)


def _read_perf_map(path: Path, data: bytes) -> object:
    with path.open("rb") as file:
        found = perf_map._parse(file.fileno(), str(path))
    return [runtimes.translate_name(runtimes.NODE, name) for name in found.names]


def _saved(key: str, load: Callable[[], RecordKind]) -> Callable[[], list[bytes]]:
    schema, _, command = key.partition(" ")
    return lambda: several(load().record, 4, schema=schema, **({"command": command} if command else {}))


def _name(key: str) -> str:
    """powerprof.run/1 idle → run-idle."""
    return re.sub(r"powerprof\.|/1", "", key).replace(" ", "-")


LOADERS: tuple[Loader, ...] = (
    *(Loader(_name(key), _report, _saved(key, load)) for key, load in KIND_LOADERS.items()),
    Loader(
        "turbostat",
        _text(turbostat.parse_turbostat),
        _with(_TURBOSTAT, _recorded("adl0/turbostat.raw.txt", "corrupted/turbostat.raw.txt")),
    ),
    Loader(
        "powertop",
        _text(powertop.parse_powertop),
        _with(_POWERTOP, _recorded("powertop/powertop-2.14-laptop.csv", most=60_000)),
    ),
    Loader("meter-log", _text(meter_log.parse_meter_log), lambda: [_METER, *_recorded("genoa0/acpower.raw.txt")()]),
    Loader("host-page", _lenient(lambda text: host.choose_figures(host.parse_metrics(text), None)), lambda: [_PAGE]),
    Loader("cpuidle-dump", _text(cpuidle_dumps.parse_dump), _with(_CPUIDLE, _recorded("sysfs-trees/lnl0-cpuidle.txt"))),
    Loader(
        "residency-recording",
        lambda path, data: read_recording(path, None, source=None, elapsed_s=None, read_at=_NOW),
        lambda: [_CPUIDLE, _TURBOSTAT, _POWERTOP],
    ),
    Loader("energy-recording", lambda path, data: replay.replay([path]), lambda: [_TURBOSTAT, _METER]),
    Loader("workload", _read_workload, _workload_seeds),
    Loader("sql-text", _text(lambda text, path: split_statements(text)), lambda: [_SQL]),
    Loader("server-log", _lenient(lambda text: summarise_log(text, 1767225600.0)), lambda: [_LOG]),
    Loader("capture", _read_capture, _capture_seeds),
    Loader(
        "maps", lambda path, data: image.parse_maps(data.decode("utf-8", "surrogateescape"), str(path)), lambda: [_MAPS]
    ),
    Loader("perf-map", _read_perf_map, lambda: [_PERF_MAP]),
    Loader("elf", _read_elf, _elf_seeds),
    Loader("saved-tables", _read_tables, _table_seeds),
    Loader("symbol-name", _lenient(demangle.demangle), lambda: _NAMES),
)
