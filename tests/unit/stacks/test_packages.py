# SPDX-License-Identifier: Apache-2.0
"""Debug packages by what a package manager wrote; nothing is executed and no word of it becomes a command unchecked."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from powerprof.stacks.packages import Distribution, Package, debug_package

BUILD_ID = "8d6f" * 10
INDEX = f"""Package: other-dbgsym
Version: 1
Build-Ids: {"00" * 20}

Package: mariadb-server-core-dbgsym
Source: mariadb
Version: 1:10.11.14-0+deb12u2
Build-Ids: {"11" * 20} {BUILD_ID}

"""


def test_owner_is_the_package_that_lists_the_file(debian: Path) -> None:
    paths = ["/usr/sbin/mariadbd", "/usr/lib/x86_64-linux-gnu/libc.so.6", "/opt/own/server", "/usr/bin/not-a-list"]
    owners = Distribution(debian).owners(paths)
    assert owners == {
        "/usr/sbin/mariadbd": Package("mariadb-server-core", "1:10.11.14-0+deb12u2"),
        "/usr/lib/x86_64-linux-gnu/libc.so.6": Package("libc6", "2.36-9+deb12u13"),
    }
    assert debug_package(owners["/usr/sbin/mariadbd"]).word == "mariadb-server-core-dbgsym=1:10.11.14-0+deb12u2"
    assert debug_package(owners["/usr/lib/x86_64-linux-gnu/libc.so.6"]).name == "libc6-dbg"
    assert debug_package(Package("libpython3.11-minimal")).word == "python3.11-dbg"


def test_version_with_shell_syntax_is_left_out(debian: Path) -> None:
    assert Distribution(debian).owners(["/usr/bin/evil"])["/usr/bin/evil"].word == "evil"


def test_list_that_others_may_write_is_ignored(debian: Path) -> None:
    (debian / "var/lib/dpkg/info/mariadb-server-core.list").chmod(0o666)
    assert Distribution(debian).owners(["/usr/sbin/mariadbd"]) == {}


@pytest.mark.parametrize("packed", [False, True])
def test_debug_package_is_found_by_build_id(debian: Path, packed: bool) -> None:
    lists = debian / "var/lib/apt/lists"
    name = "deb.debian.org_debian-debug_dists_bookworm-debug_main_binary-amd64_Packages"
    (lists / (f"{name}.gz" if packed else name)).write_bytes(
        gzip.compress(INDEX.encode()) if packed else INDEX.encode()
    )
    found = Distribution(debian).debug_packages([BUILD_ID, "22" * 20])
    assert found == {BUILD_ID: Package("mariadb-server-core-dbgsym", "1:10.11.14-0+deb12u2")}


def test_damaged_package_files_are_ignored(debian: Path) -> None:
    (debian / "var/lib/apt/lists/debug_Packages.gz").write_bytes(b"\x1f\x8bjunk")
    (debian / "var/lib/apt/lists/debug_Packages").symlink_to("/dev/zero")
    (debian / "var/lib/dpkg/status").write_bytes(b"\xff\0" * 1000)
    here = Distribution(debian)
    assert here.debug_packages([BUILD_ID]) == {}
    assert here.owners(["/usr/sbin/mariadbd"]) == {}
    assert Distribution(debian / "nowhere").ids == ()


@pytest.mark.parametrize(
    ("release", "command", "server"),
    [
        (
            "ID=fedora",
            f"dnf '--enablerepo=*debug*' install /usr/lib/debug/.build-id/8d/{BUILD_ID[2:]}.debug",
            "https://debuginfod.fedoraproject.org",
        ),
        (
            'ID="rocky"\nID_LIKE="rhel centos fedora"',
            f"dnf '--enablerepo=*debug*' install /usr/lib/debug/.build-id/8d/{BUILD_ID[2:]}.debug",
            "https://debuginfod.centos.org",
        ),
        (
            'ID="opensuse-leap"\nID_LIKE="suse opensuse"',
            f"zypper install 'debuginfo(build-id)={BUILD_ID}'",
            "https://debuginfod.opensuse.org",
        ),
        ("ID=arch", None, "https://debuginfod.archlinux.org"),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'", None, "https://debuginfod.ubuntu.com"),
        ("ID=own", None, "https://debuginfod.elfutils.org"),
    ],
)
def test_other_distributions_install_by_build_id(
    tmp_path: Path, release: str, command: str | None, server: str
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(release + "\n")
    here = Distribution(tmp_path)
    assert (here.by_build_id([BUILD_ID]), here.server) == (command, server)
