# SPDX-License-Identifier: Apache-2.0
"""The generated world: its shape, its rows, and the same bytes everywhere."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from statistics import median
from typing import Any

import pytest

from powerprof.workloads import dataset
from powerprof.workloads.dataset import generate, row_statements

WORLD = dataset.generate()


def test_the_tables_have_the_published_sizes() -> None:
    assert (len(WORLD.cities), len(WORLD.countries), len(WORLD.languages)) == (4079, 239, 984)
    assert len({city.id for city in WORLD.cities}) == 4079
    assert len({country.code for country in WORLD.countries}) == 239
    assert len({(row.country, row.name) for row in WORLD.languages}) == 984


def test_names_are_as_distinct_as_the_original_and_there_is_one_amsterdam() -> None:
    names = Counter(city.name for city in WORLD.cities)
    assert len(names) == 4001
    assert names["Amsterdam"] == 1
    assert max(len(name) for name in names) <= 35
    assert max(len(country.name) for country in WORLD.countries) <= 52


def test_populations_have_the_published_quantiles() -> None:
    values = sorted(city.population for city in WORLD.cities)
    assert (values[0], values[-1]) == (42, 10_500_000)
    assert sum(value > 8_000_000 for value in values) == 10
    assert sum(value > 9_000_000 for value in values) == 6
    # 2 %: the rank of a quantile of 4,079 values is a whole number, and the targets have two or three digits.
    published = {0.05: 92_000, 0.25: 115_000, 0.50: 167_000, 0.75: 311_000, 0.95: 1_110_000, 0.99: 3_360_000}
    for share, value in published.items():
        assert values[round(share * 4078)] == pytest.approx(value, rel=0.02)


def test_cities_are_spread_over_the_countries_as_published() -> None:
    counts = Counter(city.country for city in WORLD.cities)
    assert len(counts) == 232
    assert [counts[code] for code in ("CHN", "IND", "USA", "BRA", "JPN")] == [363, 341, 274, 250, 248]
    assert median(counts.values()) == 2
    assert {country.code for country in WORLD.countries} >= set(counts)


def test_the_data_are_always_the_same() -> None:
    digest = hashlib.sha256("\n".join(dataset.row_statements()).encode()).hexdigest()
    assert digest == "ed817cd57f28b8a4f4f0d5c2ddf5bc26a998013cbbb450d6f2f897078c317155"
    assert dataset.generate(2).cities != WORLD.cities


def test_rows_are_inserted_in_statements_that_a_default_server_takes() -> None:
    statements = list(dataset.row_statements())
    assert max(map(len, statements)) < 1 << 20  # max_allowed_packet is 16 MB in MariaDB, 1 MB in MySQL 5.5
    assert dataset.huge_statements(5) == dataset.huge_statements(1) * 5


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
