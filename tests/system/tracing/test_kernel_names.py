# SPDX-License-Identifier: Apache-2.0
"""What the kernel calls its functions when a small program asks it, beside its own list."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from powerprof.tracing.bpf import kernel_functions, syscalls
from powerprof.tracing.kernel_symbols import (
    TICK_HANDLERS,
    find_kernel_address,
    find_tick_handler,
    locate_kernel_addresses,
    name_kernel_functions,
)

_SEED, _FUNCTIONS = 11, 500


def _listed() -> dict[int, set[str]]:
    """All names of each function of the kernel and its modules, by kallsyms; not what other tests' programs are."""
    found: dict[int, set[str]] = {}
    for line in Path("/proc/kallsyms").read_text().splitlines():
        address, kind, name, *module = line.split()
        if kind in "tT" and int(address, 16) and module != ["[bpf]"]:
            found.setdefault(int(address, 16), set()).add(name)
    return found


def test_the_kernel_s_names_are_those_of_its_list(root_bpf: None) -> None:
    """Functions drawn from all, at their beginning and three bytes behind it."""
    listed = _listed()
    # Thunks of the kernel's mitigations are two bytes long: there three bytes behind is another function.
    long = [address for address in sorted(listed) if not listed.keys() & {address + 1, address + 2, address + 3}]
    wanted = random.Random(_SEED).sample(long, _FUNCTIONS)
    begins = name_kernel_functions(wanted)
    assert begins.keys() == set(wanted)
    assert all(begins[address] in listed[address] for address in wanted)
    assert not name_kernel_functions([address + 3 for address in wanted])
    within = locate_kernel_addresses([address + 3 for address in wanted])
    assert {start for _, _, start in within.values()} == set(wanted)


def test_what_is_no_function_has_no_name(root_bpf: None) -> None:
    assert locate_kernel_addresses([0, 1, 0x1234, 1 << 46, (1 << 64) - 1]) == {}


def test_addresses_of_functions_match_the_list(root_bpf: None) -> None:
    """Names of 7, 8 and 9 characters fill one word and begin the next."""
    listed = _listed()
    unique = Counter(name for names in listed.values() for name in names)
    own = {name: address for address, names in listed.items() for name in names if unique[name] == 1}
    drawn = random.Random(_SEED).sample(sorted(own), 20)
    for name in [*drawn, *(next(one for one in own if len(one) == length) for length in (7, 8, 9))]:
        assert kernel_functions.find_function_address(name) == own[name], name
    assert kernel_functions.find_function_address("no_such_function") == 0
    assert find_tick_handler() == find_kernel_address(TICK_HANDLERS) != 0


def test_nothing_stays_open(root_bpf: None) -> None:
    before = os.listdir("/proc/self/fd")
    name_kernel_functions([find_kernel_address(TICK_HANDLERS)])
    kernel_functions.find_function_address(TICK_HANDLERS[0])
    assert os.listdir("/proc/self/fd") == before


def test_a_kernel_that_cannot_be_asked_is_read(root_bpf: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 5.13 there is no such program: the list says the same."""
    tick = find_kernel_address(TICK_HANDLERS)
    asked = locate_kernel_addresses([tick, tick + 3])

    def refuse(*_arguments: object, **_more: object) -> int:
        raise syscalls.RefusedError(22, "unknown func bpf_snprintf#165")

    monkeypatch.setattr(syscalls, "load_program", refuse)
    assert kernel_functions.read_function_texts([tick]) is None
    assert kernel_functions.find_function_address(TICK_HANDLERS[0]) is None
    assert find_tick_handler() == tick
    assert locate_kernel_addresses([tick, tick + 3]) == asked
