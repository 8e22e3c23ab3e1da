# SPDX-License-Identifier: Apache-2.0
"""Ten thousand hosts: one Prometheus scrapes all of them each minute, and a host's series are few."""

from __future__ import annotations

import pytest

from tests.soak.fleet import measure

pytestmark = pytest.mark.soak


def test_ten_thousand_hosts() -> None:
    found = measure(10_000, 130.0, "60s")
    assert found["up"] >= 0.99 * found["hosts"]
    assert found["series_per_host"] <= 120
    assert found["samples_hz"] >= 10_000
