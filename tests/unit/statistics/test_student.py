# SPDX-License-Identifier: Apache-2.0
"""Student's t without SciPy is SciPy's."""

from __future__ import annotations

import pytest
from scipy.special import stdtrit

from powerprof.statistics.intervals import two_sided_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 101])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.999])
def test_quantiles_are_scipys(freedom: int, share: float) -> None:
    assert two_sided_quantile(share, freedom) == pytest.approx(float(stdtrit(freedom, (1 + share) / 2)), rel=1e-9)
