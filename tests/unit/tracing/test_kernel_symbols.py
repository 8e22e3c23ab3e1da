# SPDX-License-Identifier: Apache-2.0
"""Kernel functions by name and by address, from kallsyms."""

from __future__ import annotations

import numpy as np
import pytest

from powerprof.system.errors import CapabilityError
from powerprof.tracing import kernel_symbols
from powerprof.tracing.idle_data import CAUSE
from tests.conftest import Tree

# Modules' functions come last, each with its module.
LINES = [f"{0xFFFFFFFF81000000 + 16 * at:016x} t function_{at}" for at in range(50_000)]
KALLSYMS = "\n".join([*LINES, "ffffffffc0000010 t of_a_module\t[module]"]) + "\n"


def test_a_name_is_found_wherever_the_pieces_are_cut(fake_tree: Tree) -> None:
    fake_tree({"proc/kallsyms": KALLSYMS})
    for at in (0, 6553, 6554, 13_107, 49_999):
        assert kernel_symbols.find_kernel_address(("no_such", f"function_{at}")) == 0xFFFFFFFF81000000 + 16 * at
    assert kernel_symbols.find_kernel_address(("function_", "unction_1")) == 0
    assert kernel_symbols.name_kernel_functions({0xFFFFFFFF81000010, 0xFFFFFFFF81000011}) == {
        0xFFFFFFFF81000010: "function_1"
    }


# The tick's hrtimer calls the first of each; the others are there as well, and lie lower in 5.10, 5.15 and 6.8.
TICKS_OF_KERNELS = {
    "5.10": ("tick_sched_timer", "tick_nohz_handler", "tick_handle_periodic"),
    "5.15": ("tick_sched_timer", "tick_nohz_handler", "tick_sched_timer_dying_not"),
    "5.15 by clang": ("tick_sched_timer.llvm.4523", "tick_nohz_handler.llvm.4523"),
    "6.8": ("tick_nohz_highres_handler", "tick_nohz_lowres_handler"),
    "6.9": ("tick_nohz_handler", "tick_sched_timer_dying", "tick_nohz_lowres_handler", "__pfx_tick_nohz_handler"),
}


@pytest.mark.parametrize("kernel", TICKS_OF_KERNELS)
def test_the_tick_is_what_the_kernel_s_timer_calls(kernel: str, fake_tree: Tree) -> None:
    """Wherever the others lie, and in whatever order the table has them."""
    right, *others = TICKS_OF_KERNELS[kernel]
    own = [f"{0xFFFFFFFF81200000 + 16 * at:016x} t {name}" for at, name in enumerate([*others, right])]
    module = f"ffffffffc0000010 t {kernel_symbols.TICK_HANDLERS[0]}\t[module]"
    for lines in ([*own, *LINES, module], [*LINES, *reversed(own), module], [own[-1], *LINES, *own[:-1]]):
        fake_tree({"proc/kallsyms": "\n".join(lines) + "\n"})
        assert kernel_symbols.find_tick_handler() == 0xFFFFFFFF81200000 + 16 * len(others)


def test_hidden_addresses_are_none(fake_tree: Tree) -> None:
    tree = fake_tree({"proc/kallsyms": "0000000000000000 t function_1\n"})
    assert kernel_symbols.find_kernel_address(("function_1",)) == 0
    assert kernel_symbols.name_kernel_functions({0xFFFFFFFF81000010}) == {}
    with pytest.raises(CapabilityError, match="shows no addresses"):
        kernel_symbols.read_kernel_symbols()
    (tree / "proc/kallsyms").unlink()
    with pytest.raises(CapabilityError, match="cannot be read"):
        kernel_symbols.read_kernel_symbols()


def test_what_the_kernel_writes_is_a_function_its_start_and_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        0x1010: "tick_nohz_handler+0x10/0x150",
        0x2000: "blk_mq_put.constprop.0+0x0/0x20",
        0x3004: "vmx_exit+0x4/0x9 [kvm_intel]",
        0x4000: "0x4000",
        0x5000: "",
    }
    monkeypatch.setattr(
        kernel_symbols, "read_function_texts", lambda addresses: {each: texts[each] for each in addresses}
    )
    assert kernel_symbols.locate_kernel_addresses(texts) == {
        0x1010: ("tick_nohz_handler", "vmlinux", 0x1000),
        0x2000: ("blk_mq_put.constprop.0", "vmlinux", 0x2000),
        0x3004: ("vmx_exit", "kvm_intel", 0x3000),
    }
    assert kernel_symbols.name_kernel_functions(texts) == {0x2000: "blk_mq_put.constprop.0"}
    monkeypatch.setattr(kernel_symbols, "read_function_texts", lambda _addresses: {})
    assert kernel_symbols.locate_kernel_addresses([]) == {}


def test_interrupts_are_read_where_a_number_is_new(fake_tree: Tree) -> None:
    tree = fake_tree({"proc/interrupts": "  CPU0\n 24: 7 PCI-MSI 0-edge virtio0\n"})
    causes = np.zeros(1, dtype=CAUSE)
    causes["irq"] = 24
    interrupts = kernel_symbols.InterruptNames()
    assert interrupts.of(causes) == {24: "virtio0"}
    (tree / "proc/interrupts").write_text("  CPU0\n 24: 7 PCI-MSI 0-edge virtio0\n 25: 7 PCI-MSI 0-edge nvme0\n")
    assert interrupts.of(causes) == {24: "virtio0"}
    causes["irq"] = 25
    assert interrupts.of(causes) == {24: "virtio0", 25: "nvme0"}


def test_functions_end_at_the_next_symbol(fake_tree: Tree) -> None:
    """Data have no name, and end the function before them. Of two names of one address the shorter one counts."""
    fake_tree(
        {
            "proc/kallsyms": "ffffffff81000100 T first\nffffffff81000180 t __second_alias\nffffffff81000180 W second\n"
            "ffffffff81000200 D some_data\nbroken\nzz T x\nffffffffc0000000 t of_module\t[xfs]\n"
            "ffffffffc0000040 b end_data\t[xfs]\n"
        }
    )
    symbols = kernel_symbols.read_kernel_symbols()
    start = 0xFFFFFFFF81000100
    assert symbols.lookup(start - 1) is None
    assert symbols.lookup(start) == symbols.lookup(start + 0x7F) == ("first", "vmlinux", start)
    assert symbols.lookup(start + 0x80) == ("second", "vmlinux", start + 0x80)
    assert symbols.lookup(start + 0x100) is None
    assert symbols.lookup(0xFFFFFFFFC0000010) == ("of_module", "xfs", 0xFFFFFFFFC0000000)
    assert symbols.lookup(0xFFFFFFFFC0000040) is None and symbols.lookup(0xFFFFFFFFC0000050) is None
