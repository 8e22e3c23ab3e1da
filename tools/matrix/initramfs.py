# SPDX-License-Identifier: Apache-2.0
"""The first root of a machine: modules, the project and the job, and a script that mounts the real one."""

from __future__ import annotations

import gzip
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

PORT = "powerprof.results"
_INIT = """#!/bin/busybox sh
# The root is a read-only disk, and all that is written is memory.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs dev /dev
for module in $($bb ls /modules); do $bb insmod /modules/$module; done
disk=0
while [ ! -b /dev/vda ] && [ $disk -lt 100 ]; do $bb sleep 0.1; disk=$((disk + 1)); done
$bb mount -t ext4 -o ro /dev/vda /below &&
    $bb mount -t tmpfs -o size=100% tmpfs /above && $bb mkdir /above/upper /above/work || $bb poweroff -f
layers=lowerdir=/below,upperdir=/above/upper,workdir=/above/work
$bb mount -t overlay -o $layers overlay /new || $bb poweroff -f
$bb cp -a /project/. /new/srv/powerprof
for name in proc sys dev; do $bb mount --move /$name /new/$name; done
exec $bb switch_root /new /bin/sh /srv/powerprof/start
"""
_START = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp/home LANG=C.UTF-8
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mkdir -p /tmp/home /dev/shm /run/lock
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
hostname machine
echo "127.0.0.1 localhost machine" > /etc/hosts
cd /srv/powerprof
python3 -m tools.matrix.inside /srv/powerprof/job.json "$(ls /dev/vport*)"
busybox poweroff -f
"""


def _entry(number: int, name: str, mode: int, data: bytes) -> bytes:
    """One file of the newc format (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def cpio(files: Iterable[tuple[str, int, bytes]]) -> bytes:
    """An archive of files and folders with their modes; folders that lead there come first by themselves."""
    entries: list[tuple[str, int, bytes]] = []
    known: set[str] = set()
    for name, mode, data in files:
        for parent in reversed(Path(name).parents):
            if str(parent) != "." and str(parent) not in known:
                known.add(str(parent))
                entries.append((str(parent), stat.S_IFDIR | 0o755, b""))
        if name not in known:
            known.add(name)
            entries.append((name, mode, data))
    packed = [_entry(number, name, mode, data) for number, (name, mode, data) in enumerate(entries, 1)]
    return b"".join([*packed, _entry(0, "TRAILER!!!", 0, b"")])


def build(busybox: Path, modules: Iterable[Path], project: Path, job: str) -> bytes:
    """The initramfs of one machine, compressed."""

    def files() -> Iterator[tuple[str, int, bytes]]:
        executable, plain = stat.S_IFREG | 0o755, stat.S_IFREG | 0o644
        for folder in ("proc", "sys", "dev", "below", "above", "new"):
            yield folder, stat.S_IFDIR | 0o755, b""
        yield "init", executable, _INIT.encode()
        yield "bin/busybox", executable, busybox.read_bytes()
        for module in modules:
            yield f"modules/{module.name}", plain, module.read_bytes()
        for file in sorted(project.rglob("*")):
            if file.is_file():
                mode = executable if file.stat().st_mode & 0o100 else plain
                yield f"project/{file.relative_to(project)}", mode, file.read_bytes()
        yield "project/start", executable, _START.encode()
        yield "project/job.json", plain, job.encode()

    return gzip.compress(cpio(files()), 1)
