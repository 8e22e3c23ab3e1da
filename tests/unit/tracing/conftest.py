# SPDX-License-Identifier: Apache-2.0
"""The kernel's state machine, compiled natively once."""

from __future__ import annotations

import ctypes

import pytest

from tests.unit.tracing import machine


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return machine.build(tmp_path_factory.mktemp("native"))
