# SPDX-License-Identifier: Apache-2.0
"""Generate the `world` dataset, always the same, with the shape that the published queries need.

The licence of the original does not permit copying, so names are composed of syllables, except Amsterdam, which the
queries search. The shape is the original's: 4,079 cities in 232 of 239 countries, the quantiles of their populations
(10 above 8 million, 6 above 9 million), 4,001 distinct names, columns and widths.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec

_T = TypeVar("_T")

CITIES = 4_079
COUNTRIES = 239
COUNTRIES_WITH_CITIES = 232
LANGUAGES = 984
DISTINCT_NAMES = 4_001
SCHEMA_NAME = "powerprof_world"

# Cities of the five countries with most cities, by ISO 3166 code.
_LARGEST = {"CHN": 363, "IND": 341, "USA": 274, "BRA": 250, "JPN": 248}
# Six above 9 million, ten above 8 million.
_TOP = tuple(1000 * thousands for thousands in (10500, 9980, 9960, 9690, 9600, 9260, 8790, 8590, 8390, 8120))
# (Share of smaller cities, population); log-linear in between.
_QUANTILES = (
    (0.0, 42),
    (0.01, 9_000),
    (0.05, 92_000),
    (0.25, 115_000),
    (0.50, 167_000),
    (0.75, 311_000),
    (0.95, 1_110_000),
    (0.99, 3_360_000),
    (1.0, 7_900_000),
)
_ONSETS = "b br ch d dr f g h j k kr l m n p r s st t v w z".split()  # noqa: SIM905  - one line instead of 22
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_CODAS = ("", "", "n", "r", "l", "s", "m", "t")
_ENDINGS = ("", "", "", "burg", "ville", "ton", "grad", "pur", "stad", "mouth")


class City(msgspec.Struct, frozen=True):
    """A row of City."""

    id: int
    name: str
    country: str
    population: int


class Country(msgspec.Struct, frozen=True):
    """A row of Country; `capital` is the ID of a city, None for a country without cities."""

    code: str
    name: str
    surface_km2: float
    population: int
    capital: int | None


class Language(msgspec.Struct, frozen=True):
    """A row of CountryLanguage."""

    country: str
    name: str
    percentage: float


class World(msgspec.Struct, frozen=True):
    """The three tables."""

    cities: Sequence[City]
    countries: Sequence[Country]
    languages: Sequence[Language]


class _Dice:
    """A source of random numbers from `random.Random(seed).random()` alone, whose sequence Python guarantees."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed).random  # noqa: S311 - test data

    def below(self, limit: int) -> int:
        return int(self._draw() * limit)

    def pick(self, choices: Sequence[str]) -> str:
        return choices[self.below(len(choices))]

    def shuffled(self, values: Sequence[_T]) -> list[_T]:
        items = list(values)
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]
        return items


def _names(dice: _Dice, count: int, taken: set[str], limit: int) -> list[str]:
    """Return `count` new names of at most `limit` characters, none of them in `taken`."""
    made: list[str] = []
    while len(made) < count:
        syllables = [dice.pick(_ONSETS) + dice.pick(_VOWELS) + dice.pick(_CODAS) for _ in range(2 + dice.below(2))]
        name = ("".join(syllables) + dice.pick(_ENDINGS)).capitalize()
        if len(name) <= limit and name not in taken:
            taken.add(name)
            made.append(name)
    return made


def _codes(dice: _Dice) -> list[str]:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    codes = [*_LARGEST, "NLD"]
    while len(codes) < COUNTRIES:
        code = "".join(dice.pick(letters) for _ in range(3))
        if code not in codes:
            codes.append(code)
    return codes


def _cities_per_country() -> list[int]:
    """Return the number of cities of each country: five given, then a tail like the original's.

    The median of the tail is 2, its values are below the fifth largest, and there are 232 countries in all.
    """
    small = [1] * 60 + [2] * 60
    middle = COUNTRIES_WITH_CITIES - len(_LARGEST) - len(small)
    share = CITIES - sum(_LARGEST.values()) - sum(small) - 3 * middle
    weights = [1 / (rank + 8) for rank in range(middle)]
    counts = [3 + int(share * weight / sum(weights)) for weight in weights]
    for rank in range(CITIES - sum(_LARGEST.values()) - sum(small) - sum(counts)):
        counts[rank] += 1
    return [*_LARGEST.values(), *counts, *small]


def _population_at(share: float) -> int:
    for (low_share, low), (high_share, high) in pairwise(_QUANTILES):
        if share <= high_share:
            part = (share - low_share) / (high_share - low_share)
            return round(math.exp(math.log(low) + part * (math.log(high) - math.log(low))))
    return _QUANTILES[-1][1]


def _populations() -> list[int]:
    tail = CITIES - len(_TOP)
    return [*(_population_at(rank / (CITIES - 1)) for rank in range(tail)), *reversed(_TOP)]


def generate(seed: int = 1) -> World:
    """Return the dataset of `seed`; it is the same in every version of Python and on every machine."""
    dice = _Dice(seed)
    codes = _codes(dice)
    owners = [code for code, count in zip(codes, _cities_per_country(), strict=False) for _ in range(count)]
    distinct = ["Amsterdam", *_names(dice, DISTINCT_NAMES - 1, {"Amsterdam"}, 35)]
    # 78 names belong to two cities each; Amsterdam is not one of them.
    repeated = dice.shuffled(distinct[1:])[: CITIES - DISTINCT_NAMES]
    names = dice.shuffled(distinct[1:] + repeated)
    populations = dice.shuffled(_populations())
    place = owners.index("NLD")
    names.insert(place, "Amsterdam")
    cities = [City(index + 1, names[index], owners[index], populations[index]) for index in range(CITIES)]
    return World(cities, _countries(dice, codes, cities), _languages(dice, codes))


def _countries(dice: _Dice, codes: Sequence[str], cities: Sequence[City]) -> list[Country]:
    people: dict[str, int] = {}
    capitals: dict[str, int] = {}
    for city in cities:
        people[city.country] = people.get(city.country, 0) + city.population
        capitals.setdefault(city.country, city.id)
    names = _names(dice, COUNTRIES, set(), 52)
    return [
        Country(
            code,
            name,
            float(10 + dice.below(2_000_000)),
            3 * people.get(code, 300 + dice.below(30_000)),
            capitals.get(code),
        )
        for code, name in zip(codes, names, strict=True)
    ]


def _languages(dice: _Dice, codes: Sequence[str]) -> list[Language]:
    names = _names(dice, 300, set(), 30)
    rows: list[Language] = []
    for index, code in enumerate(codes):
        count = LANGUAGES // COUNTRIES + (1 if index < LANGUAGES % COUNTRIES else 0)
        start = dice.below(len(names))
        rows += [Language(code, names[(start + step) % len(names)], dice.below(1000) / 10) for step in range(count)]
    return rows


def _inserts(table: str, rows: Sequence[tuple[object, ...]]) -> Iterator[str]:
    for start in range(0, len(rows), 1000):
        values = ",".join("(" + ",".join(_literal(value) for value in row) + ")" for row in rows[start : start + 1000])
        yield f"INSERT INTO {table} VALUES {values}"  # noqa: S608 - our own rows


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return repr(value)


def schema_statements(engine: str = "InnoDB") -> list[str]:
    """Return the SQL that makes the four empty tables in the current schema."""
    city = "ID INT NOT NULL AUTO_INCREMENT, Name CHAR(35) NOT NULL, Country CHAR(3) NOT NULL, Population INT NOT NULL"
    tail = f"ENGINE={engine} DEFAULT CHARSET=latin1"
    return [
        f"CREATE TABLE City ({city}, PRIMARY KEY (ID), KEY (Population), KEY (Country)) {tail}",
        "CREATE TABLE Country (Code CHAR(3) NOT NULL, Name CHAR(52) NOT NULL, SurfaceArea FLOAT(10,2) NOT"
        f" NULL, Population INT NOT NULL, Capital INT, PRIMARY KEY (Code), UNIQUE KEY (Name)) {tail}",
        "CREATE TABLE CountryLanguage (Country CHAR(3) NOT NULL, Language CHAR(30) NOT NULL,"
        f" Percentage FLOAT(4,1) NOT NULL, PRIMARY KEY (Country, Language), KEY (Percentage)) {tail}",
        f"CREATE TABLE city_huge ({city}, PRIMARY KEY (ID)) {tail}",
    ]


def row_statements(seed: int = 1) -> Iterator[str]:
    """Return the SQL that fills City, Country and CountryLanguage with generated rows."""
    world = generate(seed)
    yield from _inserts("City", [(c.id, c.name, c.country, c.population) for c in world.cities])
    yield from _inserts("Country", [(c.code, c.name, c.surface_km2, c.population, c.capital) for c in world.countries])
    yield from _inserts("CountryLanguage", [(row.country, row.name, row.percentage) for row in world.languages])


def huge_statements(copies: int) -> list[str]:
    """Return the SQL that fills city_huge with `copies` copies of City, one after the other as in the study."""
    return ["INSERT INTO city_huge (Name, Country, Population) SELECT Name, Country, Population FROM City"] * copies


def official_statements(source: str) -> list[str]:
    """Return the SQL that fills the three tables from the schema `source` with the official world.sql."""
    countries = "Code, Name, SurfaceArea, Population, Capital"
    languages = "CountryCode, Language, Percentage"
    return [
        f"INSERT INTO City SELECT ID, Name, CountryCode, Population FROM `{source}`.city",  # noqa: S608
        f"INSERT INTO Country SELECT {countries} FROM `{source}`.country",  # noqa: S608
        f"INSERT INTO CountryLanguage SELECT {languages} FROM `{source}`.countrylanguage",  # noqa: S608
    ]
