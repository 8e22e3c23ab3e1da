# SPDX-License-Identifier: Apache-2.0
"""One emulated machine: QEMU with a kernel, a disk, and a port for results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powerprof.system.program_search import need
from tools.matrix import acpi, clock, initramfs
from tools.matrix.cells import Cell
from tools.matrix.kernels import Kernel
from tools.matrix.roots import Root
from tools.matrix.running import CONSOLE, RESULTS

# Emulated CPUs work at about a tenth of the host's speed: limits of steps are multiplied by this.
TIME_SCALE = 8.0


# One thread takes turns at all CPUs. With a thread each, code that the kernel changes under a running CPU (every
# tracepoint that is switched on or off) is seen half changed: 6.12 died of an int3 in handle_softirqs, 6.1 hung.
_ACCELERATOR = "tcg,thread=single"
# 2^3 ns an instruction; where all CPUs idle, the clock goes to the next timer at once.
_COUNTED = "shift=3,sleep=off"


def command(cell: Cell, root: Root, kernel: Kernel, project: Path, job: str, place: Path) -> Sequence[str | Path]:
    """The argument list of QEMU; writes the machine's first root into `place`."""
    first = initramfs.build(root.tree / "bin/busybox", kernel.modules, project, job)
    (place / "initrd").write_bytes(first)
    arch = root.arch
    extra: list[str] = []
    if cell.idle_states:
        (place / "ssdt.aml").write_bytes(acpi.power_table(cell.cpus, cell.idle_states, frequencies=cell.frequencies))
        extra = ["-acpitable", f"file={place / 'ssdt.aml'}"]
    rate_khz = clock.counter_khz() if arch.is_native else None
    if cell.counted_time:
        extra += ["-icount", _COUNTED]
        rate_khz = 1_000_000  # the time-stamp counter counts these nanoseconds then
    append = [
        f"console={arch.console}", "oops=panic", "panic=-1", "rdinit=/init", "loglevel=4", "mitigations=off",
        "tsc=reliable", *([f"tsc_early_khz={rate_khz}"] if rate_khz else []), cell.append,
    ]  # fmt: skip
    disk = "if=virtio,format=raw,readonly=on,file.locking=off"
    return [
        need(*arch.qemu), "-accel", _ACCELERATOR, *arch.machine,
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-m", f"{cell.memory_mib}M",
        "-smp", f"{cell.cpus},sockets={cell.sockets},cores={cell.cpus // cell.sockets}",
        "-kernel", kernel.vmlinuz, "-initrd", place / "initrd", "-append", " ".join(append).strip(),
        "-drive", f"{disk},file={root.image}",
        "-serial", f"file:{place / CONSOLE}",
        "-device", "virtio-serial-pci", "-chardev", f"file,id=results,path={place / RESULTS}",
        "-device", f"virtserialport,chardev=results,name={initramfs.PORT}", *extra,
    ]  # fmt: skip
