# SPDX-License-Identifier: Apache-2.0
"""The rules on logins: refused ones, and replicas that connect again and again."""

from __future__ import annotations

import msgspec
import pytest

from powerprof.diagnosis.evidence import DUMPS, DeniedAccount, Evidence, LogSummary
from powerprof.diagnosis.rules_logins import find_failed_logins, find_refused_replicas, find_returning_replicas
from tests.unit.diagnosis.examples import client, counted, evidence, faults


def with_denied(*denied: DeniedAccount, failed: int = 10) -> Evidence:
    return evidence(denied=list(denied), replica_accounts=["repl@%"], **counted(Aborted_connects=failed))


def test_unknown_account_may_be_a_replica_unless_it_is_connected() -> None:
    (fault,) = faults(with_denied())
    assert fault.text == "A client, perhaps a replica, fails to log in 1.0 times/s and tries again."
    dump = client(4, "Binlog Dump", user="repl")
    (fault,) = faults(
        evidence(replica_accounts=["repl@%"], clients_before=[dump], samples=[[dump]], **counted(Aborted_connects=10))
    )
    assert fault.text.startswith("A client fails to log in")


def test_a_replica_is_refused_at_the_rate_of_the_log_or_of_the_counter() -> None:
    """The counter belongs to an account if no other one was refused recently."""

    def rate(failed: int, **denied: int) -> float | None:
        log = LogSummary(
            span_s=40.0,
            denied={f"{user}@h": count for user, count in denied.items()},
            denied_last_s={f"{user}@h": 2.0 for user in denied},
        )
        here = evidence(log=log, replica_accounts=["repl@%", "two@%"], window_s=8.0, **counted(Aborted_connects=failed))
        return next(one.rate_hz for one in find_refused_replicas(here) if "repl@h" in one.text)

    assert rate(0, repl=6) == pytest.approx(6 / 40)
    assert rate(10, repl=6) == pytest.approx(1.25)
    assert rate(10, repl=6, app=1) == pytest.approx(6 / 40)
    assert rate(10, repl=6, two=2) == pytest.approx(6 / 40)
    short = LogSummary(span_s=2.0, denied={"repl@h": 6}, denied_last_s={"repl@h": 2.0})
    (fault,) = find_refused_replicas(evidence(log=short, replica_accounts=["repl@%"], window_s=8.0))
    assert fault.rate_hz == pytest.approx(6 / 8)
    assert fault.evidence[0] == "the error log: access was denied 6 times in 2.0 s, last 2.0 s ago"


@pytest.mark.parametrize(("last_s", "count", "found"), [(119.0, 2, 1), (120.0, 2, 0), (119.0, 1, 0)])
def test_a_refusal_is_recent_for_two_minutes_and_repeated(last_s: float, count: int, found: int) -> None:
    log = LogSummary(span_s=600.0, denied={"repl@h": count}, denied_last_s={"repl@h": last_s})
    assert len(find_refused_replicas(evidence(log=log, replica_accounts=["repl@%"]))) == found
    entry = DeniedAccount(account="repl@h", count=count, window_count=0, last_s=last_s, span_s=50.0)
    (*findings,) = find_refused_replicas(evidence(denied=[entry], replica_accounts=["repl@%"]))
    assert len(findings) == found
    if found:
        assert findings[0].rate_hz == pytest.approx((count - 1) / 50)
        assert findings[0].evidence[0] == (
            f"performance_schema: access was denied {count} times in 50 s, last {last_s:.0f} s ago"
        )


@pytest.mark.parametrize(("failed", "window_s", "found"), [(2, 10.0, 1), (1, 5.0, 0), (2, 10.1, 0), (20, 10.0, 1)])
def test_failed_logins_are_a_fault_from_one_in_five_seconds(failed: int, window_s: float, found: int) -> None:
    here = evidence(window_s=window_s, replica_accounts=["a@%", "b@%"], **counted(Aborted_connects=failed))
    here = msgspec.structs.replace(here, samples=[[client(4, "Binlog Dump GTID", user="b")]])
    result = find_failed_logins(here)
    assert [one.rate_hz for one in result] == [pytest.approx(failed / window_s)] * found
    for finding in result:
        assert finding.evidence[1] == "a@% may replicate, but no replica is connected with that account"


@pytest.mark.parametrize(("count", "found"), [(1, 0), (2, 1)])
def test_a_replica_that_reads_twice_returns(count: int, found: int) -> None:
    seen = [client(4, "Binlog Dump", user="r", host="10.0.0.9:41"), client(5, "Binlog Dump", user="r", host="h2")]
    result = find_returning_replicas(evidence(window_s=8.0, samples=[seen], **counted(**{DUMPS: count})))
    assert [one.rate_hz for one in result] == [count / 8.0] * found
    for finding in result:
        assert finding.evidence == [
            "replicas requested the binary log 2 times (performance_schema)",
            "seen: r@10.0.0.9, r@h2",
        ]
