# SPDX-License-Identifier: Apache-2.0
"""Rows of the generated tables, merged keys, trust in folders, and the rules of studies."""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from powerprof.system.errors import DataError, UsageError
from powerprof.workloads import catalogue, dataset
from powerprof.workloads.catalogue import PublishedFinding, Study, StudyCommand, find_condition
from powerprof.workloads.dataset import generate, row_statements
from powerprof.workloads.definition import Load, ServerDefinition
from powerprof.workloads.reading import find_program_key, line_of, read_workload, resolve, split_statements, tree_digest

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


# The generated tables.


def rows_of(seed: int, table: str) -> list[tuple[Any, ...]]:
    """Return the rows of the INSERT statements of a table, read back from their text."""
    rows: list[tuple[Any, ...]] = []
    for statement in row_statements(seed):
        head, _, values = statement.partition(" VALUES ")
        if head == f"INSERT INTO {table}":
            for text in re.findall(r"\(((?:'(?:[^']|'')*'|[^()'])*)\)", values):
                fields = re.findall(r"'((?:[^']|'')*)'|([^,]+)", text)
                rows.append(tuple(word if word or not other else other for word, other in fields))
    return rows


def test_every_row_of_the_tables_is_inserted_in_the_order_of_its_columns() -> None:
    world = generate(5)
    assert [(int(i), n, c, int(p)) for i, n, c, p in rows_of(5, "City")] == [
        (city.id, city.name, city.country, city.population) for city in world.cities
    ]
    assert [(c, n, float(s), int(p), k) for c, n, s, p, k in rows_of(5, "Country")] == [
        (each.code, each.name, each.surface_km2, each.population, "NULL" if each.capital is None else str(each.capital))
        for each in world.countries
    ]
    assert [(c, n, float(p)) for c, n, p in rows_of(5, "CountryLanguage")] == [
        (each.country, each.name, each.percentage) for each in world.languages
    ]
    assert rows_of(6, "City") != rows_of(5, "City")


def test_a_country_is_three_times_its_cities_and_its_capital_is_the_first() -> None:
    world = generate(3)
    people: dict[str, int] = defaultdict(int)
    first: dict[str, int] = {}
    for city in world.cities:
        people[city.country] += city.population
        first.setdefault(city.country, city.id)
    owned = [country for country in world.countries if country.code in people]
    assert len(owned) == 232 < len(world.countries) == 239
    assert all(country.population == 3 * people[country.code] for country in owned)
    assert all(country.capital == first[country.code] for country in owned)
    assert all(
        900 <= country.population < 3 * 30_300 and country.capital is None
        for country in world.countries
        if country.code not in people
    )
    assert all(10 <= country.surface_km2 < 2_000_010 for country in world.countries)
    assert len({country.surface_km2 for country in world.countries}) > 200


def test_populations_are_log_linear_between_the_quantiles() -> None:
    """Half way between 5 % and 25 % of the cities: the geometric mean of 92,000 and 115,000."""
    assert dataset._population_at(0.15) == round(math.sqrt(92_000 * 115_000))
    assert dataset._population_at(0.03) == round(math.exp((math.log(9_000) + math.log(92_000)) / 2))
    assert [dataset._population_at(share) for share in (0.0, 0.01, 0.25, 1.0)] == [42, 9_000, 115_000, 7_900_000]
    populations = sorted(city.population for city in generate(2).cities)
    assert len(populations) == 4_079 and populations[-10:] == sorted(
        1000 * each for each in (10500, 9980, 9960, 9690, 9600, 9260, 8790, 8590, 8390, 8120)
    )
    assert populations[1019] == pytest.approx(115_000, rel=0.01) and populations[2039] == pytest.approx(
        167_000, rel=0.01
    )


def test_languages_are_shared_out_with_percentages_below_100() -> None:
    languages = generate(4).languages
    counts = Counter(each.country for each in languages)
    assert len(languages) == 984 and set(counts.values()) == {4, 5} and Counter(counts.values())[5] == 984 - 4 * 239
    assert len({(each.country, each.name) for each in languages}) == 984
    percentages = [each.percentage for each in languages]
    assert min(percentages) < 5 and 95 < max(percentages) < 100
    assert all(round(10 * each) == pytest.approx(10 * each) for each in percentages)


# Keys of a workload.


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


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 'it''s; here'; SELECT 2", ["SELECT 'it''s; here'", "SELECT 2"]),
        ("SELECT 'a''; b' ; c", ["SELECT 'a''; b'", "c"]),
        ('SELECT "x\\"; y"; z', ['SELECT "x\\"; y"', "z"]),
        ("a /* ; */ b; c", ["a   b", "c"]),
        ("/*!50000 a; */ b", ["/*!50000 a", "*/ b"]),
        ("a -- ; no\nb; # ;\nc", ["a  \nb", "c"]),
        ("a;\nDELIMITER //\nb; c// d//\nDELIMITER ;\ne; f", ["a", "b; c", "d", "e", "f"]),
        ("SELECT `a``;b`; c", ["SELECT `a``;b`", "c"]),
    ],
)
def test_sql_is_split_at_the_delimiters_in_force(text: str, statements: list[str]) -> None:
    assert split_statements(text) == statements


# Trust.


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
    """Without their lengths `a` with `b100644c…` would equal two files."""
    digests = set()
    for number, files in enumerate(({"a": "", "b": ""}, {"a": "100644b"})):
        (tmp_path / str(number)).mkdir()
        for name, text in files.items():
            (tmp_path / str(number) / name).write_text(text)
        digests.add(tree_digest(tmp_path / str(number)))
    assert len(digests) == 2


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


# The catalogue and studies.


def test_the_other_condition_of_a_comparison_chooses_the_workload(tmp_path: Path) -> None:
    for name, conditions in (("one", "same alone"), ("two", "same beside")):
        (tmp_path / name).mkdir()
        tables = "\n".join(f"[conditions.{condition}]" for condition in conditions.split())
        text = f'schema = "powerprof.workload/1"\nname = "{name}"\ntitle = "T"\n[load]\nsql = ["SELECT 1"]\n{tables}\n'
        (tmp_path / name / "workload.toml").write_text(text)
    for beside, workload in (("beside", "two"), ("one:alone", "one")):
        assert find_condition("same", [tmp_path], beside=beside)[0].definition.name == workload
    with pytest.raises(UsageError, match="is a condition of several workloads"):
        find_condition("same", [tmp_path])


def test_a_step_is_printed_as_its_command_line() -> None:
    step = StudyCommand(
        name="s", command="run", conditions=["city:index"], rate_hz=70.0, load_percent=30.5, attribute_s=2.0,
        build="mariadb-5.5", on_cpu=True,
    )  # fmt: skip
    assert step.typed == (
        "powerprof run city:index --rate 70 --load 30.5 --attribute 2 --server-build mariadb-5.5 --on-cpu"
    )
    swept = StudyCommand(name="s", command="sweep", conditions=["city"], values=[1, 8])
    assert swept.typed == "powerprof sweep city --clients 1,8"
    assert replace(swept, parameter="rate").typed == "powerprof sweep city --set rate=1,8"
    assert replace(swept, values=[]).typed == "powerprof sweep city --set clients"
    assert StudyCommand(name="s", command="idle", clients=7).typed == "powerprof idle --clients 7"


STUDY = Study(
    title="A study",
    published="2009.",
    page="a.md",
    steps=[StudyCommand(name="i", command="idle"), StudyCommand(name="r", command="run", conditions=["x"])],
    findings=[PublishedFinding(label="l", then="t", metric="m", a="i:server", b="i:clients", expected="higher")],
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"expected": "same"}, "within"),
        ({"within": 2.0}, "within"),
        ({"expected": "same", "within": 2.0}, None),
        ({"a": None}, "nothing that it could be higher than"),
        ({"a": None, "expected": None}, None),
        ({"b": "gone:x"}, "there is no step gone"),
        ({"b": "i"}, "i is not a side of idle"),
        ({"b": "r:x"}, "r:x is not a side of run"),
    ],
)
def test_a_finding_follows_its_rules(change: dict[str, Any], reason: str | None) -> None:
    study = replace(STUDY, findings=[replace(STUDY.findings[0], **change)])
    if reason is None:
        catalogue._check(Path("a.toml"), study)
    else:
        with pytest.raises(DataError, match=reason):
            catalogue._check(Path("a.toml"), study)
    assert msgspec.json.decode(msgspec.json.encode(study), type=Study) == study


def test_steps_have_names_and_conditions_of_their_own() -> None:
    for steps, reason in (
        ([STUDY.steps[0], STUDY.steps[0]], "two steps have one name"),
        ([*STUDY.steps, StudyCommand(name="c", command="compare", conditions=["x"])], "compare takes 2 conditions"),
    ):
        with pytest.raises(DataError, match=reason):
            catalogue._check(Path("a.toml"), replace(STUDY, steps=steps))
