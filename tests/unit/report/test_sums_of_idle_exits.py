# SPDX-License-Identifier: Apache-2.0
"""What is said of the balance: "complete" is a claim that needs a count."""

from __future__ import annotations

import pytest

from powerprof.model.records import Conservation
from powerprof.report.metrics import describe_accounting, describe_balance, is_blind


def found(total: int, unknown: int = 0, lost: int = 0, **more: object) -> Conservation:
    return Conservation(
        idle_exits_count=total,
        cpuidle_usage_delta_count=more.pop("usage", None),  # type: ignore[arg-type]
        classified_count=total - unknown - lost,
        unknown_count=unknown,
        lost_count=lost,
        coverage_percent=100.0 * (total - unknown - lost) / total if total else None,
        **more,  # type: ignore[arg-type]
    )


def test_it_names_what_it_was_checked_against() -> None:
    by_cpuidle = found(10, usage=11, checked_against="cpuidle", reference_count=11)
    assert describe_balance(by_cpuidle).endswith("= 10 idle exits; cpuidle counted 11.")
    by_calls = found(10, checked_against="perf", reference_count=1234)
    assert describe_balance(by_calls).endswith("= 10 idle exits; the kernel's cpu_idle tracepoint counted 1,234.")
    assert describe_balance(found(10)).endswith(
        "= 10 idle exits; not checked: this kernel has no other counter of idle exits."
    )


def test_a_run_saved_by_an_earlier_version_was_checked_against_cpuidle() -> None:
    assert describe_balance(found(10, usage=11)).endswith("cpuidle counted 11.")


@pytest.mark.parametrize("idle_percent", [None, 97.0])
def test_no_exit_on_a_host_that_idled_is_never_complete(idle_percent: float | None) -> None:
    blind = found(0, idle_percent=idle_percent)
    assert is_blind(blind)
    assert "causes are unknown" in describe_accounting(blind)
    assert "All" not in describe_accounting(blind)


def test_a_host_that_was_busy_throughout_has_none() -> None:
    busy = found(0, idle_percent=0.0)
    assert not is_blind(busy)
    assert describe_accounting(busy) == "No CPU went idle."


def test_what_is_missing_is_said() -> None:
    assert describe_accounting(found(10)) == "All accounted for."
    assert describe_accounting(found(1000, unknown=2, lost=1)) == "2 unknown, 1 lost."
