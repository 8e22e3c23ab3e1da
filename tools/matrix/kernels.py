# SPDX-License-Identifier: Apache-2.0
"""Kernels of Debian's suites: the image to boot, and the modules that reach the root."""

from __future__ import annotations

import json
import lzma
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tools.matrix import cache, debian

# What stands between a Debian kernel and a root on a virtio disk, an overlay on it, and the port for results; then a
# cpufreq driver, which loads where ACPI names frequencies, and a governor.
_DISKS = ("virtio_pci", "virtio_mmio", "virtio_blk", "virtio_console", "crc32c_generic", "ext4", "overlay")
MODULES = (*_DISKS, "acpi_cpufreq", "cpufreq_powersave")
_LAYOUT = "4"


@dataclass(frozen=True)
class Kernel:
    """A kernel ready to boot. `modules`: what to load, in this order."""

    release: str
    package_version: str
    vmlinuz: Path
    modules: tuple[Path, ...]


def _read(module: Path) -> bytes:
    """A module as insmod of any age takes it: newer kernels' are compressed."""
    data = module.read_bytes()
    return lzma.decompress(data) if module.suffix == ".xz" else data


def _load_order(folder: Path) -> dict[str, bytes]:
    """MODULES and what they need, what is needed first, as each says itself. Built-in ones are no files."""
    by_name = {path.name.split(".")[0].replace("-", "_"): path for path in folder.rglob("*.ko*")}
    order: dict[str, bytes] = {}

    def load(name: str) -> None:
        if name in order or name not in by_name:
            return
        data = _read(by_name[name])
        said = re.search(rb"\0depends=([^\0]*)\0", data)
        for needed in said[1].decode().split(",") if said else ():
            load(needed.replace("-", "_"))
        order[name] = data

    for name in MODULES:
        load(name)
    return order


def _make(suite: str, flavour: str, arch: str, place: Path) -> None:
    scratch = place / "scratch"
    archive = debian.Archive(suite, arch, scratch / "apt")
    archive.place.mkdir(parents=True)
    archive.update()
    image = next(name for name in archive.depends(f"linux-image-{flavour}") if name.startswith("linux-image-"))
    image = image.removesuffix("-unsigned")
    release = image.removeprefix("linux-image-")
    # Since 7.x the image is a package of packages: the binary and the modules are in two of their own.
    parts = [name for name in archive.depends(image) if name in (f"linux-binary-{release}", f"linux-modules-{release}")]
    tree = scratch / "tree"
    for package in archive.fetch([image, *parts], scratch):
        debian.unpack(package, tree)
    kept = place / "modules"
    kept.mkdir()
    order = []
    # Files of the package are below /usr since trixie.
    modules = next(one for one in (tree / "usr/lib/modules", tree / "lib/modules") if one.is_dir())
    for number, (name, data) in enumerate(_load_order(modules / release).items()):
        order.append(f"{number:02}-{name}.ko")
        (kept / order[-1]).write_bytes(data)
    binary = [*tree.glob("boot/vmlinu[xz]-*"), *tree.glob(f"usr/lib/modules/{release}/vmlinuz")]
    shutil.copy(binary[0], place / "vmlinuz")
    (place / "kernel.json").write_text(
        json.dumps({"release": release, "package_version": archive.version(image), "modules": order})
    )
    shutil.rmtree(scratch)


def kernel(suite: str, flavour: str, arch: str) -> Kernel:
    """`flavour` as in Debian's names: amd64, cloud-amd64, arm64. Fetched now where the cache has none."""
    name = f"kernel-{suite}-{flavour}-{cache.digest(_LAYOUT, suite, flavour, arch, *MODULES)}"
    place = cache.made(name, lambda temporary: _make(suite, flavour, arch, temporary))
    about = json.loads((place / "kernel.json").read_text())
    return Kernel(
        release=about["release"],
        package_version=about["package_version"],
        vmlinuz=place / "vmlinuz",
        modules=tuple(place / "modules" / one for one in about["modules"]),
    )
