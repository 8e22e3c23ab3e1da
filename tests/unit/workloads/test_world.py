# SPDX-License-Identifier: Apache-2.0
"""The generated world has the shape that the published queries depend on."""

from __future__ import annotations

import hashlib
from collections import Counter
from statistics import median

import pytest

from powerprof.workloads import dataset

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
