# SPDX-License-Identifier: Apache-2.0
"""Names: only from a symbol that covers the address."""

from __future__ import annotations

import lzma
import shutil

import pytest

from powerprof.stacks import symtab
from powerprof.stacks.demangle import demangle
from powerprof.stacks.elf import parse_elf
from powerprof.stacks.image import snapshot
from powerprof.stacks.registers import SavedStack
from powerprof.stacks.rust_names import demangle_legacy, demangle_v0
from powerprof.stacks.store import TableStore, decode_tables
from powerprof.stacks.symbolizer import Frame, Symbolizer
from powerprof.stacks.symtab import read_symbols
from powerprof.stacks.unwind import Unwinder
from powerprof.system.errors import DataError
from powerprof.system.programs import run
from tests.programs.ground_truth import running
from tests.programs.ptracing import capture, wait_asleep
from tests.programs.web import Web
from tests.unit.stacks.elves import Part, make, with_symbols

RUST_IMPL = "_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$core..ops..Drop$GT$"


def table(entries):
    return read_symbols(parse_elf(with_symbols(entries), "x"))


def test_data_and_symbols_without_size_are_ignored():
    found = table([("label", 0x100, 0, 0x12), ("data", 0x200, 8, 0x11), ("ifunc", 0x300, 8, 0x1A)])
    assert found.lookup(0x100) is None
    assert found.lookup(0x200) is None
    assert found.lookup(0x300) == ("ifunc", 0x300, 0x308)


def test_public_alias_is_preferred_without_version():
    found = table(
        [
            ("__pthread_cond_timedwait", 0x100, 16, 0x12),
            ("pthread_cond_timedwait@@GLIBC_2.3.2", 0x100, 16, 0x12),
            ("local_alias", 0x200, 8, 0x02),
            ("weak", 0x200, 8, 0x22),
            ("global", 0x200, 8, 0x12),
        ]
    )
    assert found.lookup(0x100)[0] == "pthread_cond_timedwait"
    assert found.lookup(0x200)[0] == "global"


def test_minidebuginfo_adds_local_functions():
    inner = with_symbols([("hidden", 0x400, 32, 0x02)])
    outer = make([Part(".gnu_debugdata", 1, lzma.compress(inner))])
    assert read_symbols(parse_elf(outer, "x")).lookup(0x410) == ("hidden", 0x400, 0x420)


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


def test_unnamed_frame_is_labelled_by_address():
    assert Frame(None, "mariadbd", 0x1000, 5, 0x6E0F80).label == "mariadbd+0x6e0f80"
    assert Frame(None, "mariadbd", 0x1000, None, None, vaddr=0x77).label == "mariadbd+0x77"


def split(program, directory):
    """(stripped program, its debug file) in `directory`."""
    directory.mkdir()
    stripped, debug = directory / "split", directory / "split.debug"
    run(["objcopy", "--only-keep-debug", program, debug])
    run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", program, stripped])
    return stripped, debug


def names_of(program):
    with running(program) as info:
        tid = info["threads"]["poll"]["tid"]
        wait_asleep(info["pid"], tid)
        image = snapshot(info["pid"])
        result = Unwinder().unwind(image, SavedStack(info["pid"], tid, *capture(info["pid"], tid)))
        return [frame.function for frame in Symbolizer(image).stack(result) if frame.module == "split"]


CHAIN = ["wait_poll", "poll_level2", "poll_level1", "poll_thread"]


def test_linked_debug_file_is_used_if_its_checksum_matches(built, tmp_path):
    stripped, debug = split(built("sleepers"), tmp_path / "d")
    assert names_of(stripped) == CHAIN
    hidden = debug.parent / ".debug"
    hidden.mkdir()
    shutil.move(debug, hidden / debug.name)
    assert names_of(stripped) == CHAIN
    with (hidden / debug.name).open("ab") as file:
        file.write(b"changed")
    assert names_of(stripped) == [None] * 4


def test_debuginfod_is_queried_once_per_build_id(built, tmp_path, monkeypatch):
    stripped, debug = split(built("sleepers"), tmp_path / "d")
    data = debug.read_bytes()
    debug.unlink()
    build_id = parse_elf(stripped.read_bytes(), "x").build_id
    place = f"/buildid/{build_id}/debuginfo"
    with Web() as web:
        web.answers[place] = (200, data)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("DEBUGINFOD_URLS", f"file:///etc {web.address}/")
        assert names_of(stripped) == CHAIN
        before = len(web.requested)
        assert names_of(stripped) == CHAIN
    assert web.requested.count(place) == 1
    # What no server has is not asked for again either.
    assert len(web.requested) == before


def test_damaged_cache_files_are_rewritten(built, own_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with running(built("sleepers")) as info:
        image = snapshot(info["pid"])
        mapping = next(one for one in image.mappings if one.module == "sleepers")
        first = TableStore().tables(image, mapping)
        (cached,) = (tmp_path / "powerprof/symbols").glob(f"{mapping.build_id}*")
        assert cached.stat().st_mode & 0o777 == 0o600
        assert cached.parent.stat().st_mode & 0o777 == 0o700
        assert decode_tables(cached.read_bytes(), cached) == first
        for damage in (b"", b"junk", cached.read_bytes()[:-7]):
            cached.write_bytes(damage)
            with pytest.raises(DataError):
                decode_tables(damage, cached)
            assert TableStore().tables(image, mapping) == first


def test_inconsistent_cached_table_is_refused():
    good = table([("f", 0x100, 16, 0x12), ("g", 0x200, 16, 0x12)])
    bad = symtab.SymbolTable(starts=good.ends, ends=good.starts, offsets=good.offsets, names=good.names)
    with pytest.raises(DataError, match="damaged"):
        symtab.check_symbols(bad, "x")
    short = symtab.SymbolTable(starts=good.starts[:8], ends=good.ends, offsets=good.offsets, names=good.names)
    with pytest.raises(DataError, match="damaged"):
        symtab.check_symbols(short, "x")
