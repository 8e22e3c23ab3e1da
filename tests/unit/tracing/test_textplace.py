# SPDX-License-Identifier: Apache-2.0
"""What a few instructions add to an address: where a thread has its connection, and a connection its text."""

from __future__ import annotations

import pytest

from powerprof.stacks.decoding import instructions
from powerprof.tracing.statements.textplace import Code, connection_offset, text_offset


def code(data: str) -> Code:
    return [(words[-1], operands) for _, _, words, operands in instructions(bytes.fromhex(data))]


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        ("488d4768c3", 0x68),  # MariaDB 10.5 to 11.8: lea rax, [rdi + 0x68]; ret
        ("f30f1efa488d4768c3", 0x68),  # ... with a landing mark
        ("554889e5488d4768 5dc3", 0x68),  # ... with a frame
        ("f30f1efa488b8710050000488b9718050000c3", 0x510),  # MySQL 9.7: both are returned
        ("488b8710050000488b9720050000c3", None),  # the second is no length of the first
        ("488d4668c3", None),  # of what is passed second
        ("e800000000c3", None),  # calls another one
        ("c3", None),
    ],
)
def test_where_a_connection_has_its_text(data: str, offset: int | None) -> None:
    assert text_offset(code(data)) == offset


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        # MariaDB: mov rax, fs:[0] with prefixes; pop rbp; mov rax, [rax - 0x68]
        ("554889e566666664488b0425000000005d488b8098ffffffc3", -0x68),
        ("64488b042598ffffffc3", -0x68),  # at once
        ("64488b042510000000488b8098ffffffc3", None),  # from something else than the thread's pointer
        ("8b3dd2c5a100e96bfbfdff", None),  # MySQL 5.5 asks pthread_getspecific
    ],
)
def test_where_a_thread_has_its_connection(data: str, offset: int | None) -> None:
    assert connection_offset(code(data)) == offset
