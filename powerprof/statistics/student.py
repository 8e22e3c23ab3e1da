# SPDX-License-Identifier: Apache-2.0
"""Student's t without SciPy, for whole degrees of freedom: what runs all day must not load 20 MB for one number.

Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
"""

from __future__ import annotations

import math
from functools import cache


def within(t: float, freedom: int) -> float:
    """The probability that |T| < t, for t ≥ 0."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, is_odd = math.cos(angle), freedom % 2
    term = cosine if is_odd else 1.0
    total = 0.0 if freedom == 1 else term
    for step in range(3 if is_odd else 2, freedom - 1, 2):
        term *= (step - 1) / step * cosine**2
        total += term
    product = math.sin(angle) * total
    return 2 / math.pi * (angle + product) if is_odd else product


@cache
def two_sided(share: float, freedom: int) -> float:
    """How far from 0 the middle `share` of the distribution reaches, to within 1e-12 of it."""
    low, high = 0.0, 1.0
    while within(high, freedom) < share:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, freedom) < share else (low, middle)
    return (low + high) / 2
