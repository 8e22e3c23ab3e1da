# SPDX-License-Identifier: Apache-2.0
"""The kinds of private servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.database import mysql, postgresql
from powerprof.database.builds import Family, ServerBuild
from powerprof.database.products import Product, product_of


@pytest.mark.parametrize(("family", "product"), [("mariadb", mysql), ("mysql", mysql), ("postgresql", postgresql)])
def test_a_program_has_the_module_of_its_product(family: Family, product: Product) -> None:
    assert product_of(ServerBuild(Path("/opt/program"), family, (1, 2, 3), "")) is product
