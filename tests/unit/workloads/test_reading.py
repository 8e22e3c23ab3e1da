# SPDX-License-Identifier: Apache-2.0
"""A workload.toml is refused with its file, line and key; what is written is what is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from powerprof.system.errors import DataError
from powerprof.workloads.definition import json_schema
from powerprof.workloads.reading import line_of, read_workload, resolve

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


def test_a_condition_overrides_what_it_names_and_inherits_the_rest(tmp_path: Path) -> None:
    loaded = read_workload(_folder(tmp_path, GOOD))
    one, two = resolve(loaded, "one"), resolve(loaded, "two")
    assert (one.load.sql, one.load.clients, one.server.set_global) == (["SELECT 1"], 3, {})
    assert (two.load.sql, two.load.clients) == (["SELECT 2"], 3)
    assert two.load.session == ["SET SESSION sort_buffer_size = 65536"]
    assert two.server.my_cnf == {"key_buffer_size": "16M"}
    assert two.server.set_global == {"query_cache_type": "ON"}
    assert two.qualified == "mine:two"
    assert two.title == "the second"


def test_an_override_wins_over_the_condition(tmp_path: Path) -> None:
    loaded = read_workload(_folder(tmp_path, GOOD))
    assert resolve(loaded, "two", {"load.clients": 64}).load.clients == 64
    assert resolve(loaded, "two", {"server.my_cnf.key_buffer_size": 8}).server.my_cnf == {"key_buffer_size": 8}
    with pytest.raises(DataError, match=r"workload\.toml: conditions\.two: .*>= 1"):
        resolve(loaded, "two", {"load.clients": 0})


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


def test_the_line_of_a_key_is_that_of_its_table_where_it_is_not_written() -> None:
    assert line_of(GOOD, ["load", "rate_hz"]) == 8
    assert line_of(GOOD, ["conditions", "two", "load", "sql"]) == 21
    assert line_of(GOOD, ["nothing"]) is None


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
