# SPDX-License-Identifier: Apache-2.0
"""Headers for bcc: the running kernel's if they are there, else the nearest installed ones, merged by links."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.tracing.bpf import headers

ARCH = headers._name_architecture()[0]


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{root.name}\n")


def debian(sources: Path, version: str, flavour: str = "amd64") -> None:
    """The two packages of Debian: generated files here, all others there, one folder in both."""
    own, common = sources / f"linux-headers-{version}-{flavour}", sources / f"linux-headers-{version}-common"
    generated = f"arch/{ARCH}/include/generated/asm/x.h"
    write(own, "include/generated/autoconf.h", "include/config/auto.conf", generated, "include/linux/both.h")
    write(common, "include/linux/kconfig.h", "include/linux/both.h", f"arch/{ARCH}/include/asm/y.h")


def find(tmp_path: Path) -> Path | None:
    absent = tmp_path / "kheaders.tar.xz"
    return headers.find_kernel_headers(tmp_path / "modules", tmp_path / "src", tmp_path / "cache", absent)


def test_the_running_kernels_own_headers_need_nothing(tmp_path: Path) -> None:
    write(tmp_path / "modules" / os.uname().release, "build/include/linux/kconfig.h")
    debian(tmp_path / "src", "6.1.0-56")
    assert find(tmp_path) is None
    assert not (tmp_path / "cache").exists()


def test_a_build_folder_without_headers_is_not_left_to_bcc(tmp_path: Path) -> None:
    """bcc would go on to /tmp/kheaders-RELEASE, a name that anybody can take first."""
    write(tmp_path / "modules" / os.uname().release, "build/Makefile")
    debian(tmp_path / "src", "6.1.0-56")
    assert find(tmp_path) is not None


def carried(tmp_path: Path, *names: str) -> Path:
    """What a kernel with CONFIG_IKHEADERS shows in sysfs."""
    path = tmp_path / "kheaders.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"text\n"))
        link = tarfile.TarInfo("./include/link.h")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return path


def test_what_the_kernel_carries_is_unpacked_in_the_cache_once(tmp_path: Path) -> None:
    archive = carried(tmp_path, "./include/linux/kconfig.h")
    paths = (tmp_path / "modules", tmp_path / "src", tmp_path / "cache", archive)
    tree = headers.find_kernel_headers(*paths)
    assert tree is not None and tree.is_relative_to(tmp_path / "cache")
    assert [str(one.relative_to(tree)) for one in tree.rglob("*.h")] == ["include/linux/kconfig.h"]
    made = tree.stat().st_ino
    assert headers.find_kernel_headers(*paths) == tree and tree.stat().st_ino == made


def test_root_compiles_no_headers_of_another_user(root: None, tmp_path: Path) -> None:
    debian(tmp_path / "src", "6.1.0-56")
    os.chown(tmp_path / "src/linux-headers-6.1.0-56-common", 1234, 1234)
    with pytest.raises(CapabilityError, match=r"kernel headers 6\.1\.0-56-amd64 are not root's alone \(.*user 1234\)"):
        find(tmp_path)


def test_debians_two_packages_become_one_tree_of_links(tmp_path: Path) -> None:
    debian(tmp_path / "src", "6.1.0-56")
    tree = find(tmp_path)
    assert tree.name.startswith("6.1.0-56-amd64-")
    assert (tree / "include/linux/kconfig.h").read_text() == "linux-headers-6.1.0-56-common\n"
    assert (tree / f"arch/{ARCH}/include/asm").is_symlink()
    assert (tree / f"arch/{ARCH}/include/generated").is_symlink()
    assert (tree / "include/linux/both.h").read_text() == "linux-headers-6.1.0-56-amd64\n"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [tree.name]


def test_a_tree_is_used_again(tmp_path: Path) -> None:
    debian(tmp_path / "src", "6.1.0-56")
    tree = find(tmp_path)
    made = tree.stat().st_ino
    assert find(tmp_path) == tree
    assert tree.stat().st_ino == made
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [tree.name]


def test_a_new_package_of_the_same_version_makes_a_new_tree(tmp_path: Path) -> None:
    debian(tmp_path / "src", "6.1.0-56")
    first = find(tmp_path)
    os.utime(tmp_path / "src/linux-headers-6.1.0-56-amd64", (1, 1))
    assert find(tmp_path) != first


def test_a_cloud_flavour_shares_the_common_package(tmp_path: Path) -> None:
    debian(tmp_path / "src", "6.1.0-56", "cloud-amd64")
    tree = find(tmp_path)
    assert tree.name.startswith("6.1.0-56-cloud-amd64-")


def test_a_single_complete_tree_is_used_as_it_is(tmp_path: Path) -> None:
    own = tmp_path / "src/kernels/5.14.0-503.el9"
    write(own, "include/generated/autoconf.h", "include/linux/kconfig.h")
    write(own, f"arch/{ARCH}/include/generated/x.h", f"arch/{ARCH}/include/asm/y.h")
    assert find(tmp_path) == own


def test_half_of_debians_packages_is_none(tmp_path: Path) -> None:
    write(tmp_path / "src/linux-headers-6.1.0-56-amd64", "include/generated/autoconf.h")
    with pytest.raises(CapabilityError) as caught:
        find(tmp_path)
    assert "kernel headers for bcc" in caught.value.message
    assert str(caught.value.hint).startswith("apt install linux-headers-")


@pytest.mark.parametrize(
    ("running", "nearest"),
    [
        ("6.18.44", "6.12.9-amd64"),
        ("6.1.9", "6.1.0-56-amd64"),
        ("5.19.1", "6.1.0-56-amd64"),
        ("5.4.0", "5.10.0-9-amd64"),
    ],
)
def test_the_nearest_version_is_chosen(running: str, nearest: str) -> None:
    installed = ["5.10.0-9-amd64", "6.12.9-amd64", "6.1.0-56-amd64"]
    assert min(installed, key=lambda release: headers._measure_distance(release, running)) == nearest


def test_the_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    debian(tmp_path / "src", "6.1.0-56")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(PowerprofError, match=r"cannot prepare kernel headers in .*cache"):
        find(tmp_path)
