# SPDX-License-Identifier: Apache-2.0
"""`diagnose` of a real PostgreSQL by SQL and by processes: twenty faults, their remedies, and healthy servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.diagnosis import postgres_queries, rules_sessions
from powerprof.diagnosis.evidence import Finding
from tests.programs.costly_loads import connect
from tests.programs.postgres_faults import FAULTS, HEALTHY, Case, list_findings, list_statements, set_up, together
from tests.programs.waiting import wait_until

_BY_SQL = tuple(case for case in FAULTS if case.by == "sql")
_BY_PROCESSES = tuple(case for case in FAULTS if case.by == "processes")
_QUIET = HEALTHY[:9]
_WORKING = HEALTHY[11:]


@pytest.fixture
def calm() -> Iterator[PrivateServer]:
    """A healthy server that writes nothing, with short delays."""
    with together(_QUIET) as server:
        yield server


def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction counts as open after 2 s, so that a test need not wait for half a minute."""
    for module in (postgres_queries, rules_sessions):
        monkeypatch.setattr(module, "LEAST_OPEN_S", 2.0)


@pytest.fixture(scope="module")
def sick() -> Iterator[PrivateServer]:
    """A server with all faults by SQL at once."""
    with together(_BY_SQL) as server:
        yield server


@pytest.fixture(scope="module")
def found(sick: PrivateServer) -> dict[str, list[Finding]]:
    with pytest.MonkeyPatch.context() as patch:
        brief(patch)
        return list_findings(sick, 3.0)


def names(case: Case, findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.rule == case.rule and case.words in finding.text]


@pytest.mark.parametrize("case", _BY_SQL, ids=lambda case: case.name)
def test_each_fault_is_named_with_evidence_and_remedy(case: Case, found: dict[str, list[Finding]]) -> None:
    named = names(case, found["sql"])
    assert named, found
    assert all(finding.evidence and finding.remedy and "" not in finding.evidence for finding in named)


def test_faults_of_processes_need_no_login(calm: PrivateServer) -> None:
    assert list_findings(calm) == {"sql": [], "processes": []}
    for case in _BY_PROCESSES:
        set_up(calm, **dict(case.settings))
        with case.start(calm):
            # A look at a busy host misses some of the starts.
            wait_until(lambda case=case: names(case, list_findings(calm)["processes"]), case.name)


def test_the_printed_statements_are_accepted_and_end_their_faults(
    sick: PrivateServer, found: dict[str, list[Finding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    brief(monkeypatch)
    # Those of the cases: a failing subscription also has a slot without a reader between its attempts.
    statements = list_statements([finding for case in _BY_SQL for finding in names(case, found["sql"])])
    assert len(statements) >= 15
    with connect(sick, "boss", "shop") as connection:
        for statement in statements:
            sql.execute(connection, statement)
    ended = {"short_interval", "frequent_autovacuum", "idle_transaction", "frequent_checkpoints", "endless_vacuum"}

    def are_ended() -> bool:
        left = list_findings(sick, 1.0)["sql"]
        return not any(finding.rule in ended or "slot gone_" in finding.text for finding in left)

    wait_until(are_ended, "the end of the faults")


@pytest.mark.nightly
def test_a_healthy_server_at_work_is_silent() -> None:
    with together(_WORKING) as server:
        assert list_findings(server) == {"sql": [], "processes": []}


@pytest.mark.nightly
@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.name)
def test_a_fault_alone_is_named(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    brief(monkeypatch)
    with together([case]) as server:
        found = list_findings(server, 3.0)
    assert names(case, found[case.by]), found


@pytest.mark.nightly
@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_a_healthy_server_alone_is_silent(case: Case) -> None:
    with together([case]) as server:
        assert list_findings(server) == {"sql": [], "processes": []}
