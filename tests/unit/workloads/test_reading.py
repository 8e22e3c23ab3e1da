# SPDX-License-Identifier: Apache-2.0
"""Keys, conditions and SQL of a workload.toml, and trust in its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from powerprof.system.errors import DataError
from powerprof.workloads.definition import Load, ServerDefinition, json_schema
from powerprof.workloads.reading import line_of, read_workload, resolve
from powerprof.workloads.statements import split_statements
from powerprof.workloads.trust import find_program_key, tree_digest
from tests.programs.cpu_time import least_cpu_s

REPOSITORY = Path(__file__).resolve().parents[3]

GOOD = """\
schema = "powerprof.workload/1"
name = "mine"
title = "A test"

[server]
my_cnf = { key_buffer_size = "16M" }

[load]
sql = ["SELECT 1"]
clients = 3
session = ["SET SESSION sort_buffer_size = 65536"]

[parameters]
clients = { key = "load.clients", values = [1, 2] }

[conditions.one]

[conditions.two]
title = "the second"
server.set_global = { query_cache_type = "ON" }
load = { sql = ["SELECT 2"] }
"""


def _folder(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "workload.toml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("clients = 3", 'clients = "three"', 10, "load.clients: expected int, got str"),
        ("clients = 3", "cleints = 3", 10, "load.cleints: unknown key"),
        ('title = "A test"\n', "", None, "the key title is missing"),
        ('title = "the second"', "title = 2", 19, "conditions.title: expected str, got int"),
        ('schema = "powerprof.workload/1"', 'schema = "powerprof.workload/9"', 1, "schema: invalid enum value"),
        ('name = "mine"', 'name = "other"', 2, "name: is other, but the folder is mine"),
        ('sql = ["SELECT 1"]', 'files = ["a.sql"]', 9, "a.sql: no such file in the workload's folder"),
        ('sql = ["SELECT 1"]', 'files = ["../a.sql"]', 9, "../a.sql lies outside the workload's folder"),
        ('sql = ["SELECT 1"]', 'kind = "command"', 16, "conditions.one: a load of kind command needs argv"),
        ('sql = ["SELECT 1"]', "", 16, "conditions.one: the load has neither sql nor files"),
        ('key = "load.clients"', 'key = "load.nothing"', 14, "parameters.clients: load.nothing cannot be set"),
        ("[load]", "[load", 8, "expected"),
    ],
)
def test_errors_name_file_line_and_key(tmp_path: Path, old: str, new: str, line: int | None, said: str) -> None:
    assert old in GOOD
    folder = _folder(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(DataError) as error:
        read_workload(folder)
    where = f"{folder}/workload.toml" + (f":{line}" if line else "")
    assert error.value.message.startswith(f"{where}: ")
    assert said.lower() in error.value.message.lower()
    assert "\n" not in error.value.message


@pytest.mark.parametrize("text", ["\x00", "a = [" + "[" * 5000, "[conditions]\n", "x = 1e999999", "=", "\ufeff"])
def test_hostile_files_are_refused_without_a_traceback(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError):
        read_workload(_folder(tmp_path, text))


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_workload(tmp_path)


def test_the_published_schema_is_that_of_the_code() -> None:
    published = json.loads((REPOSITORY / "docs/reference/workload.schema.json").read_text())
    assert published == json_schema(), "powerprof workloads --schema --json docs/reference/workload.schema.json"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('[server]\nkind = "postgresql"\n[load]\nkind = "tpcc"', "a load of kind tpcc does not know"),
        ('[load]\nkind = "pgbench"\nsql = ["SELECT 1"]', "a load of kind pgbench does not know a server of kind mysql"),
        (
            '[server]\nkind = "postgresql"\nmy_cnf = { port = 1 }\n[load]\nkind = "none"',
            "server.my_cnf is not for kind",
        ),
        (
            '[server]\npostgresql_conf = { a = 1 }\n[load]\nkind = "none"',
            "server.postgresql_conf is not for kind mysql",
        ),
        ('[server]\nkind = "postgresql"\n[dataset]\nkind = "world"\n[load]\nkind = "none"', "world is not for servers"),
        ('[server]\nkind = "postgresql"\n[topology]\nkind = "ring"\n[load]\nkind = "none"', "topologies, storms and"),
    ],
)
def test_unsupported_keys_of_a_server_kind_are_refused(tmp_path: Path, lines: str, said: str) -> None:
    (tmp_path / "w").mkdir()
    top = 'schema = "powerprof.workload/1"\nname = "w"\ntitle = "t"\n'
    (tmp_path / "w/workload.toml").write_text(f"{top}{lines}\n[conditions.one]\n")
    with pytest.raises(DataError, match=said):
        read_workload(tmp_path / "w")


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 1; SELECT 2", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';' ;", ["SELECT ';'"]),
        ("SELECT 'it''s; \\'x;' ; SELECT \"a;b\"", ["SELECT 'it''s; \\'x;'", 'SELECT "a;b"']),
        ("SELECT `a;b` FROM t;", ["SELECT `a;b` FROM t"]),
        ("-- one; two\nSELECT 1; # three;\nSELECT 2;", ["SELECT 1", "SELECT 2"]),
        ("SELECT 1 /* a; b */ + 1;", ["SELECT 1   + 1"]),
        ("/*!40101 SET NAMES utf8 */;", ["/*!40101 SET NAMES utf8 */"]),
        ("SELECT 5--1;", ["SELECT 5--1"]),
        ("delimiter //\nBEGIN; SELECT 1; END//\ndelimiter ;\nSELECT 2;", ["BEGIN; SELECT 1; END", "SELECT 2"]),
        (" \n;;-- nothing\n", []),
        ('SELECT "x\\"; y"; z', ['SELECT "x\\"; y"', "z"]),
        ("/*!50000 a; */ b", ["/*!50000 a", "*/ b"]),
        ("a;\nDELIMITER //\nb; c// d//\nDELIMITER ;\ne; f", ["a", "b; c", "d", "e", "f"]),
        ("SELECT `a``;b`; c", ["SELECT `a``;b`", "c"]),
        ("SELECT 'a\\;b'; c", ["SELECT 'a\\;b'", "c"]),
    ],
)
def test_statements_are_split_like_the_mariadb_client(text: str, statements: list[str]) -> None:
    assert split_statements(text) == statements


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 400_000,
        "/*" * 200_000,
        "'\"" * 200_000,
        "'\\" * 200_000,
        "'" * 400_001,
        " \t" * 200_000 + "delimiter",
        "delimiter " + "x" * 400_000 + " y",
        "-- \n" * 100_000,
        "\n /*" * 100_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_splitting_takes_linear_time(text: str) -> None:
    assert least_cpu_s(lambda: split_statements(text), 1.0) < 1.0


WORKLOAD = """\
schema = "powerprof.workload/1"
name = "w"
title = "Odd keys"
[server]
my_cnf = { innodb_io_capacity = 300, max_connections = 77 }
set_global = { innodb_read_ahead_threshold = "{{cpus}}" }
[load]
sql = ["SELECT 1;", "SELECT 2"]
files = ["more.sql"]
clients = 7
rate_hz = 41.0
[topology]
kind = "standalone"
[parameters.rate]
key = "load.rate_hz"
values = [3, 5]
[conditions.a]
[conditions.b]
title = "Another"
server = { my_cnf = { max_connections = 99, table_open_cache = 55 } }
load = { clients = 9 }
[conditions.c]
topology = { kind = "primary-replica", count = 3 }
load = { kind = "idle", sql = [], files = [] }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    own = tmp_path / "w"
    own.mkdir()
    (own / "workload.toml").write_text(WORKLOAD)
    (own / "more.sql").write_text("SELECT 3; SELECT 4;")
    return own


def test_a_condition_changes_single_keys_of_the_workload(folder: Path) -> None:
    loaded = read_workload(folder)
    plain, other, third = (resolve(loaded, name) for name in "abc")
    assert plain.server.my_cnf == {"innodb_io_capacity": 300, "max_connections": 77}
    assert other.server.my_cnf == {"innodb_io_capacity": 300, "max_connections": 99, "table_open_cache": 55}
    assert (plain.load.clients, other.load.clients, other.load.rate_hz) == (7, 9, 41.0)
    assert (plain.title, other.title, plain.qualified) == ("a", "Another", "w:a")
    assert (third.topology.kind, third.topology.count, third.load.is_silent, plain.load.is_silent) == (
        *("primary-replica", 3, True, False),
    )
    assert {case.server.set_global["innodb_read_ahead_threshold"] for case in (plain, other)} == {
        len(os.sched_getaffinity(0))
    }
    swept = resolve(loaded, "b", {"load.rate_hz": 5.0, "server.my_cnf.max_connections": 11})
    assert (swept.load.rate_hz, swept.load.clients, swept.load.sql) == (5.0, 9, ["SELECT 1;", "SELECT 2"])
    assert swept.server.my_cnf == {"innodb_io_capacity": 300, "max_connections": 11, "table_open_cache": 55}
    with pytest.raises(DataError, match=r"conditions\.b: "):
        resolve(loaded, "b", {"load.clients": 0})


def test_scaled_settings_have_the_usable_cpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5})
    assert resolve(read_workload(folder), "a").server.set_global == {"innodb_read_ahead_threshold": 3}


def test_inline_statements_come_before_those_of_files(folder: Path) -> None:
    assert resolve(read_workload(folder), "a").load_statements() == ["SELECT 1", "SELECT 2", "SELECT 3", "SELECT 4"]
    (folder / "copy").mkdir()
    (folder / "copy/more.sql").write_text("SELECT 7")
    checked = resolve(read_workload(folder), "a").load_statements(folder / "copy")
    assert checked == ["SELECT 1", "SELECT 2", "SELECT 7"], "what was checked is what runs"
    (folder / "more.sql").write_text("-- nothing\n")
    with pytest.raises(DataError, match="has no statement"):
        resolve(read_workload(folder), "a").load_statements()


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (["name"], 2),
        (["load", "clients"], 10),
        (["conditions", "b", "title"], 19),
        (["conditions", "c"], 22),
        (["no"], None),
    ],
)
def test_an_error_names_the_line_of_its_key(keys: list[str | int], line: int | None) -> None:
    assert line_of(WORKLOAD, keys) == line


def test_silent_loads_send_nothing_and_settings_are_of_either_product() -> None:
    assert [Load(kind=kind).is_silent for kind in ("idle", "none", "statements", "tpcc")] == [True, True, False, False]
    assert ServerDefinition(my_cnf={"a": 1}).settings == {"a": 1}
    assert ServerDefinition(kind="postgresql", postgresql_conf={"b": 2}).settings == {"b": 2}


def test_a_digest_shows_every_change_of_a_copy(tmp_path: Path) -> None:
    def copy(name: str, files: dict[str, str], mode: int = 0o644) -> str:
        place = tmp_path / name
        place.mkdir()
        for path, text in files.items():
            (place / path).write_text(text)
            (place / path).chmod(mode)
        return tree_digest(place)

    same = copy("one", {"a": "xy", "b": "z"})
    assert copy("two", {"a": "xy", "b": "z"}) == same
    others = [
        copy("three", {"a": "xy", "b": "z"}, 0o755),
        copy("four", {"a": "x", "b": "yz"}),
        copy("five", {"a": "xyb", "z": ""}),
        copy("six", {"a": "xy", "c": "z"}),
        copy("seven", {"ab": "xy", "b": "z"}),
    ]
    assert len({same, *others}) == 6
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/a").symlink_to("one")
    first = tree_digest(tmp_path / "linked")
    (tmp_path / "linked/a").unlink()
    (tmp_path / "linked/a").symlink_to("two")
    assert tree_digest(tmp_path / "linked") != first


def test_a_digest_keeps_names_and_contents_apart(tmp_path: Path) -> None:
    """Without their lengths a file `a` with `100000b` in it would equal two empty files."""
    digests = set()
    for number, files in enumerate(({"a": "", "b": ""}, {"a": "100000b"})):
        (tmp_path / str(number)).mkdir()
        for name, text in files.items():
            (tmp_path / str(number) / name).write_text(text)
        digests.add(tree_digest(tmp_path / str(number)))
    assert len(digests) == 2


def test_a_digest_does_not_depend_on_the_order_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).write_text(name)
    (tmp_path / "d").mkdir()
    first, walk = tree_digest(tmp_path), os.walk
    monkeypatch.setattr(os, "walk", lambda top: ((folder, dirs, names[::-1]) for folder, dirs, names in walk(top)))
    turned = tree_digest(tmp_path)
    monkeypatch.setattr(os, "walk", lambda top: ((folder, dirs, sorted(names)) for folder, dirs, names in walk(top)))
    assert first == turned == tree_digest(tmp_path)


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ('[conditions.z]\nload = { kind = "command", argv = ["./x", "y"], sql = [], files = [] }', "load.argv: ./x y"),
        ('[conditions.z]\nhost = ["epp=performance"]', "host: epp=performance"),
        ("[conditions.z]\nserver = { my_cnf = { x = 1 } }", "server.my_cnf: x"),
        ('[conditions.z]\nserver = { environment = { LD_PRELOAD = "/x" } }', "server.environment: LD_PRELOAD"),
        ("[conditions.z.topology.members.replica-1]\nmy_cnf = { x = 1 }", "topology.members.replica-1.my_cnf: x"),
        ("[conditions.z]", None),
    ],
)
def test_programs_and_settings_that_run_code_need_trust(folder: Path, more: str, key: str | None) -> None:
    (folder / "workload.toml").write_text(f"{WORKLOAD}{more}\n")
    assert find_program_key(resolve(read_workload(folder), "z")) == key
