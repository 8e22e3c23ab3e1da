# SPDX-License-Identifier: Apache-2.0
"""The order of measuring: randomised balanced blocks, so that neither condition is always the first."""

from __future__ import annotations

import random
from typing import Literal

Arm = Literal["a", "b"]


def round_order(points: int, rounds: int, seed: int) -> list[list[int]]:
    """In which order the points are measured in each round.

    Two rounds make a block: an order shuffled by `seed`, then the same backwards, so that every point has the same
    place on average and a linear drift cancels. An odd last round has an order of its own.
    """
    orders: list[list[int]] = []
    for number in range(rounds):
        if number % 2:
            orders.append(orders[-1][::-1])
            continue
        order = list(range(points))
        random.Random(1000 * seed + number).shuffle(order)  # noqa: S311 - an order, not a secret
        orders.append(order)
    return orders


def block_order(pairs: int, seed: int) -> list[tuple[Arm, Arm]]:
    """`pairs` pairs in the order in which each is run.

    Two pairs make a block, ABBA or BAAB: a linear drift cancels within it. Blocks of both kinds come
    equally often (± one), shuffled by `seed`; an odd last pair takes either order.
    """
    if pairs < 1:
        raise ValueError("a comparison needs a pair")
    generator = random.Random(seed)  # noqa: S311 - an order of blocks, not a secret
    blocks = pairs // 2
    kinds: list[Arm] = ["a" if index % 2 == 0 else "b" for index in range(blocks)]
    if blocks % 2 and generator.random() < 0.5:
        kinds = ["b" if kind == "a" else "a" for kind in kinds]
    generator.shuffle(kinds)
    order: list[tuple[Arm, Arm]] = []
    for kind in kinds:
        order += [("a", "b"), ("b", "a")] if kind == "a" else [("b", "a"), ("a", "b")]
    if pairs % 2:
        order.append(("a", "b") if generator.random() < 0.5 else ("b", "a"))
    return order
