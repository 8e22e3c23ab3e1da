# SPDX-License-Identifier: Apache-2.0
"""`diagnose` of real servers with one costly cause each, and of healthy servers: its first sentence is the answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from powerprof.database.builds import ServerBuild
from powerprof.report.diagnosis import answer_of
from tests.conftest import each_release
from tests.programs.costly_loads import COSTLY, HEALTHY, OF_MYSQL, Load, Servers, diagnose, names_cause, shared_servers

pytestmark = pytest.mark.usefixtures("mariadbd", "root_bpf", "counts_statements")
# The others take 10 s each.
_QUICK = ("long statement", "leak", "queue poll", "shop on MariaDB", "pool that grows once")


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with shared_servers() as servers:
        yield servers


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(load, id=load.name, marks=[] if load.name in _QUICK else [pytest.mark.nightly])
        for load in (*COSTLY, *HEALTHY)
    ],
)
def test_the_first_sentence_names_the_cause_or_none(servers: Servers, load: Load) -> None:
    check(servers, load)


def check(servers: Servers, load: Load) -> None:
    with load.start(servers) as place:
        found = diagnose(place)
    assert names_cause(load, answer_of(found)), (answer_of(found), found.findings)


@pytest.mark.nightly
@each_release("mysql-9.7")
def test_the_first_sentence_is_right_on_mysql(historical_build: ServerBuild) -> None:
    with shared_servers(historical_build) as servers:
        for load in (*COSTLY, *HEALTHY):
            if load.name in OF_MYSQL:
                check(servers, load)
