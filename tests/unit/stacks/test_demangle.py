# SPDX-License-Identifier: Apache-2.0
"""C++ and Rust names, also hostile ones."""

from __future__ import annotations

import pytest

from powerprof.stacks.demangle import demangle
from powerprof.stacks.rust_names import demangle_legacy, demangle_v0

RUST_IMPL = "_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$core..ops..Drop$GT$"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("main", "main"),
        ("_ZN4core3ptr13drop_in_place17h0123456789abcdefE", "core::ptr::drop_in_place"),
        (f"_ZN{len(RUST_IMPL)}{RUST_IMPL}4drop17h0123456789abcdefE", "<alloc::vec::Vec<T> as core::ops::Drop>::drop"),
        ("_ZN3foo3barEv", "foo::bar()"),
        ("_ZN3foo3barEv.part.0", "foo::bar() [part.0]"),
        ("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back(int const&)"),
        ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
        ("_RNvMs_CsKxQ_7mycrateNtB4_3Foo3bar", "<mycrate::Foo>::bar"),
        ("_RNCNvCs1_1a1fs_0", "a::f::{closure#1}"),
        ("_RINvCs1_1a1fhReE", "a::f::<u8, &str>"),
        ("_RNvXCs1_1aNtB2_1SNtB2_1T1m", "<a::S as a::T>::m"),
        # Types and constants (RFC 2603).
        ("_RINvCs1_1a1fRShE", "a::f::<&[u8]>"),
        ("_RINvCs1_1a1fAhj3_E", "a::f::<[u8; 3]>"),
        ("_RINvCs1_1a1fSmBa_E", "a::f::<[u32], [u32]>"),
        ("_RINvCs1_1a1fThEThmEE", "a::f::<(u8,), (u8, u32)>"),
        ("_RINvCs1_1a1fQhPhOhE", "a::f::<&mut u8, *const u8, *mut u8>"),
        ("_RINvCs1_1a1fFUKChmEuFhEmE", 'a::f::<unsafe extern "C" fn(u8, u32), fn(u8) -> u32>'),
        ("_RINvCs1_1a1fFK8fastcallEuFG_RL0_hEuE", 'a::f::<extern "fastcall" fn(), fn(&u8)>'),
        ("_RINvCs1_1a1fDNtCs1_1a1Tp4ItemhEL_E", "a::f::<dyn a::T<Item = u8>>"),
        ("_RINvCs1_1a1fDINtCs1_1a1ThEp4ItemmEL_E", "a::f::<dyn a::T<u8, Item = u32>>"),
        ("_RINvCs1_1a1fKb1_Kc41_Kan5_KpL_E", "a::f::<true, 'A', -5, _, '_>"),
        # Two nameless closures: each has the length 0.
        ("_RNCNCNvCs1_1a1f00B4_", "a::f::{closure#0}::{closure#0}"),
        ("_Znonsense", "_Znonsense"),
        ("_R", "_R"),
    ],
)
def test_names_are_demangled(name, shown):
    assert demangle(name) == shown


def test_hostile_names_are_bounded():
    # Each level doubles the one before: written out it would be 2^60 long.
    bomb = "_Z1f" + "".join(f"St4pairI{'S' + str(i) + '_' if i else 'i'}S{i}_E" for i in range(60))
    assert len(demangle(bomb)) <= 4096
    assert demangle("_Z" + "N" * 100_000)[:3] == "_ZN"
    assert demangle_v0("_R" + "B" * 5000) is None
    assert demangle_v0("_RI" * 3000) is None
    assert demangle_legacy("_ZN99999999999999999999E") is None
