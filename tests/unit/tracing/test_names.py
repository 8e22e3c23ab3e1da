# SPDX-License-Identifier: Apache-2.0
"""Kernel functions by name and by address, from kallsyms."""

from __future__ import annotations

from collections.abc import Callable

from powerprof.tracing import names

# Modules' functions come last, each with its module.
LINES = [f"{0xFFFFFFFF81000000 + 16 * at:016x} t function_{at}" for at in range(50_000)]
KALLSYMS = "\n".join([*LINES, "ffffffffc0000010 t of_a_module\t[module]"]) + "\n"


def test_a_name_is_found_wherever_the_pieces_are_cut(fake_tree: Callable[[dict[str, str]], object]) -> None:
    fake_tree({"proc/kallsyms": KALLSYMS})
    for at in (0, 6553, 6554, 13_107, 49_999):
        assert names.address_of(("no_such", f"function_{at}")) == 0xFFFFFFFF81000000 + 16 * at
    assert names.address_of(("function_", "unction_1")) == 0
    assert names.kernel_functions({0xFFFFFFFF81000010, 0xFFFFFFFF81000011}) == {0xFFFFFFFF81000010: "function_1"}


def test_hidden_addresses_are_none(fake_tree: Callable[[dict[str, str]], object]) -> None:
    fake_tree({"proc/kallsyms": "0000000000000000 t function_1\n"})
    assert names.address_of(("function_1",)) == 0
    assert names.kernel_functions({0xFFFFFFFF81000010}) == {}
