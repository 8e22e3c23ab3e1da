# SPDX-License-Identifier: Apache-2.0
"""A signal or an error ends a measurement early; the measured part is kept, and nothing is hidden without one."""

from __future__ import annotations

import pytest

from powerprof.experiment.ending import Ending
from powerprof.model.records import Ended, ended_by_signal
from powerprof.system.errors import CapabilityError, Interrupted, PowerprofError, Retryable, UsageError

ENDS = (
    (Interrupted("interrupted"), None),
    *((kind("the server ended"), "the server ended") for kind in (PowerprofError, Retryable, CapabilityError)),
)


@pytest.mark.parametrize(("error", "failure"), ENDS, ids=lambda value: type(value).__name__)
def test_a_measured_part_is_kept(error: BaseException, failure: str | None) -> None:
    ending, windows = Ending(), []
    with ending.keeping(lambda: windows):
        windows.append("window")
        raise error
    assert ending.ended == (ended_by_signal(True) if failure is None else Ended("failed", failure))


@pytest.mark.parametrize("error", [each for each, _ in ENDS], ids=lambda value: type(value).__name__)
def test_without_a_result_the_end_is_raised(error: BaseException) -> None:
    ending = Ending()
    with pytest.raises(type(error)) as raised, ending.keeping(lambda: []):
        raise error
    assert raised.value is error and ending == Ending()


def test_some_errors_are_always_raised() -> None:
    with pytest.raises(UsageError), Ending().keeping(lambda: True, always_raised=(UsageError,)):
        raise UsageError("no such workload")


def test_the_first_error_is_the_reason_and_a_complete_measurement_has_none() -> None:
    ending = Ending()
    with ending.keeping(lambda: True):
        pass
    assert ending == Ending()
    with ending.keeping(lambda: True):
        with ending.keeping(lambda: True):
            raise PowerprofError("the server ended")
        raise UsageError("no server")
    assert ending.ended == Ended("failed", "the server ended")


def test_a_fault_of_the_program_is_never_kept() -> None:
    with pytest.raises(ZeroDivisionError), Ending().keeping(lambda: True):
        raise ZeroDivisionError
