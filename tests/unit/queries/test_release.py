# SPDX-License-Identifier: Apache-2.0
"""The tested releases, and the rows about a release."""

from __future__ import annotations

import re

import pytest

from powerprof.queries.release import TESTED, is_tested
from tests.conftest import REPOSITORY


def test_the_tested_releases_are_those_of_the_page() -> None:
    page = (REPOSITORY / "docs/support.md").read_text("utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| servers |"))
    listed = {
        product: tuple(re.findall(r"\d+(?:\.\d+)*", part))
        for product, part in re.findall(r"(MySQL|MariaDB|PostgreSQL) ([^;|]+)", row)
    }
    assert {product: tuple(".".join(each.split(".")[:2]) for each in listed[product]) for product in listed} == TESTED


@pytest.mark.parametrize(
    ("product", "version", "tested"),
    [
        *(("MySQL", version, True) for version in ("5.5.9", "9.7.4", "9.7")),
        *(("MySQL", version, False) for version in ("8.0.36", "8.4.3", "9.70.1", "5.50.1")),
        ("MariaDB", "10.11.19-deb12", True),
        ("MariaDB", "10.1.48", False),
        ("PostgreSQL", "15.18", True),
        ("PostgreSQL", "16.2", False),
        ("PostgreSQL", "150.1", False),
    ],
)
def test_a_version_is_tested_or_not(product: str, version: str, tested: bool) -> None:
    assert is_tested(product, version) is tested
