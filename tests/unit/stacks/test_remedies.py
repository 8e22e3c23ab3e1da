# SPDX-License-Identifier: Apache-2.0
"""Names that files have, and the packages and commands that provide missing ones; nothing is executed."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerprof.model.records import Note
from powerprof.stacks.file_names import FileNames, mapped_files, survey_names
from powerprof.stacks.image import ProcessImage, snapshot
from powerprof.stacks.remedies import Distribution, Remedies, missing_names
from powerprof.stacks.store import TableStore
from powerprof.system.programs import run, start, stop
from tests.programs.ground_truth import running
from tests.programs.ptracing import wait_asleep

Built = Callable[[str], Path]


def _names(program: Path) -> tuple[ProcessImage, dict[str, FileNames]]:
    with running(program) as info:
        image = snapshot(info["pid"])
        return image, {file.module: file for file in survey_names(image, mapped_files(image), TableStore())}


def test_names_are_counted_by_source(built: Built, tmp_path: Path) -> None:
    whole = built("sleepers")
    _, files = _names(whole)
    file = files["sleepers"]
    assert (file.names_from, file.debug_from, file.is_complete) == ("symtab", None, True)
    assert file.named_count and file.functions_count and file.named_count > 0.7 * file.functions_count
    stripped, debug = tmp_path / "bare", tmp_path / "bare.debug"
    run(["objcopy", "--only-keep-debug", whole, debug])
    run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", whole, stripped])
    _, files = _names(stripped)
    assert (files["bare"].names_from, files["bare"].debug_from) == ("dynsym", "debuglink")
    assert files["bare"].named_count == file.named_count
    debug.unlink()
    _, files = _names(stripped)
    assert (files["bare"].debug_from, files["bare"].is_complete) == (None, False)
    assert files["bare"].named_count is not None and files["bare"].named_count < 5
    assert files["bare"].functions_count == file.functions_count


def test_stripped_go_program_is_complete(built: Built) -> None:
    program = built("goroutines-stripped")
    image, files = _names(program)
    assert (files[program.name].names_from, files[program.name].is_complete) == ("gopclntab", True)
    assert missing_names([(program.name, False), (program.name, True)], [image]) is None


def test_generated_code_needs_no_debug_package(built: Built, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copy(built("sleepers-stripped"), bare)
    image, _ = _names(bare)
    of_file = [("bare", False)] + [("bare", True)] * 200
    assert missing_names([*of_file, *[("[Java code]", False)] * 100], [image]) is None
    assert missing_names([*of_file, *[("bare", False)] * 100], [image]) is not None


def test_note_names_files_and_command_only_for_missing_names(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copy(built("sleepers-stripped"), bare)
    with running(bare) as info:
        image = snapshot(info["pid"])
        frames = [("bare", False)] * 3 + [("libc.so.6", True)] * 3
        # Nobody distributes it.
        note = missing_names(frames, [image])
        assert note == Note("names_stripped", {"percent": 50.0, "files": "bare"})
        # JIT code, memory and few frames are no reason.
        assert missing_names([("[anonymous]", False), ("perf-1.map", False), ("[unmapped]", False)], [image]) is None
        assert missing_names([*[("libc.so.6", True)] * 200, ("bare", False)], [image]) is None
        assert missing_names([], [image]) is None
        files = survey_names(image, mapped_files(image), TableStore())
        monkeypatch.delenv("SUDO_UID", raising=False)
        monkeypatch.setenv("DEBUGINFOD_URLS", "http://127.0.0.1:9/")
        assert Remedies(info["pid"], files).command() == f"powerprof doctor --pid {info['pid']} --fetch"
        assert Remedies(info["pid"], files).command(asked=True) is None
    # What has a symbol table is not to be had any better.
    with running(built("sleepers")) as info:
        assert missing_names([("sleepers", False)], [snapshot(info["pid"])]) is None


def _lacking(path: str, build_id: str) -> FileNames:
    return FileNames(path=path, module=Path(path).name, build_id=build_id, names_from="dynsym")


def test_command_depends_on_distribution_and_container(debian: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    server = _lacking("/usr/sbin/mariadbd", "8d6f" * 10)
    libc = _lacking("/usr/lib/x86_64-linux-gnu/libc.so.6", "22" * 20)
    own = _lacking("/opt/own/server", "33" * 20)

    def command(*files: FileNames, contained: bool = False) -> str | None:
        remedies = Remedies(7, files)
        remedies._distribution, remedies._is_contained = Distribution(debian), contained
        return remedies.command()

    fetch = "DEBUGINFOD_URLS=https://debuginfod.debian.net powerprof doctor --pid 7 --fetch"
    # No index has the package: apt could not install it.
    assert command(server, own) == fetch
    # Nobody has the debug file of a program built at home.
    assert command(own) is None
    assert command() is None
    index = debian / "var/lib/apt/lists/deb.debian.org_debian-debug_dists_bookworm-debug_main_binary-amd64_Packages"
    index.write_text(f"Package: mariadb-server-core-dbgsym\nVersion: 1:10.11\nBuild-Ids: {server.build_id}\n")
    assert command(server, own) == "apt install mariadb-server-core-dbgsym=1:10.11"
    assert command(server, libc) == fetch
    # What the host installs is not in a container.
    assert command(server, contained=True) == fetch
    monkeypatch.setenv("SUDO_UID", "65534")
    assert command(libc) == f"sudo {fetch}"
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://a/$(reboot) https://b")
    assert command(own) == "sudo DEBUGINFOD_URLS='http://a/$(reboot) https://b' powerprof doctor --pid 7 --fetch"


@contextmanager
def _asleep(program: Path, *words: str | Path) -> Iterator[int]:
    child = start([program, *(words or ("60",))])
    try:
        wait_asleep(child.pid, child.pid)
        yield child.pid
    finally:
        stop(child)


def test_program_has_the_name_of_the_link_that_started_it(tmp_path: Path) -> None:
    file, link = tmp_path / "check-rdb", tmp_path / "server"
    shutil.copy("/bin/sleep", file)
    link.symlink_to(file)
    with _asleep(link) as pid:
        image = snapshot(pid)
        own = next(mapping for mapping in image.mappings if mapping.path == str(file))
        libc = next(mapping for mapping in image.mappings if "libc" in mapping.path)
        assert (image.called, image.module_of(own), image.module_of(libc)) == ("server", "server", libc.module)
        # A name that leads elsewhere by now is a claim.
        link.unlink()
        assert snapshot(pid).called is None
        link.symlink_to("/bin/sleep")
        assert snapshot(pid).called is None
    with _asleep(file) as pid:
        assert snapshot(pid).called is None


@pytest.mark.parametrize("comm", ["../../bin/sh", "\x1b[31mx", "a b", "libc.so.6", "fifteen-letters", "-", ""])
def test_forged_comm_is_not_a_program_name(tmp_path: Path, comm: str) -> None:
    file, pipe = tmp_path / "program", tmp_path / "pipe"
    shutil.copy("/bin/sh", file)
    os.mkfifo(pipe)
    with _asleep(file, "-c", 'printf %s "$1" > /proc/$$/comm; read line < "$2"', "sh", comm, pipe) as pid:
        assert snapshot(pid).called is None


BUILD_ID = "8d6f" * 10
INDEX = f"""Package: other-dbgsym
Version: 1
Build-Ids: {"00" * 20}

Package: mariadb-server-core-dbgsym
Source: mariadb
Version: 1:10.11.14-0+deb12u2
Build-Ids: {"11" * 20} {BUILD_ID}

"""


@pytest.mark.parametrize("packed", [False, True])
def test_debug_package_is_found_by_build_id(debian: Path, packed: bool) -> None:
    lists = debian / "var/lib/apt/lists"
    name = "deb.debian.org_debian-debug_dists_bookworm-debug_main_binary-amd64_Packages"
    (lists / (f"{name}.gz" if packed else name)).write_bytes(
        gzip.compress(INDEX.encode()) if packed else INDEX.encode()
    )
    found = Distribution(debian).debug_packages([BUILD_ID, "22" * 20])
    assert found == {BUILD_ID: "mariadb-server-core-dbgsym=1:10.11.14-0+deb12u2"}


def test_damaged_package_files_are_ignored(debian: Path) -> None:
    (debian / "var/lib/apt/lists/debug_Packages.gz").write_bytes(b"\x1f\x8bjunk")
    (debian / "var/lib/apt/lists/debug_Packages").symlink_to("/dev/zero")
    here = Distribution(debian)
    assert here.debug_packages([BUILD_ID]) == {}
    assert Distribution(debian / "nowhere").debug_packages([BUILD_ID]) == {}


def test_index_that_others_may_write_or_with_shell_syntax_is_ignored(debian: Path) -> None:
    index = debian / "var/lib/apt/lists/debug_Packages"
    index.write_text(INDEX)
    index.chmod(0o666)
    assert Distribution(debian).debug_packages([BUILD_ID]) == {}
    index.chmod(0o644)
    index.write_text(INDEX.replace("1:10.11.14-0+deb12u2", "1;reboot"))
    assert Distribution(debian).debug_packages([BUILD_ID]) == {BUILD_ID: "mariadb-server-core-dbgsym"}
    index.write_text(INDEX.replace("mariadb-server-core-dbgsym", "$(reboot)"))
    assert Distribution(debian).debug_packages([BUILD_ID]) == {}


@pytest.mark.parametrize(
    ("release", "server"),
    [
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "https://debuginfod.elfutils.org"),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'", "https://debuginfod.ubuntu.com"),
        ("ID=debian", "https://debuginfod.debian.net"),
        ("", "https://debuginfod.elfutils.org"),
    ],
)
def test_debuginfod_server_depends_on_the_distribution(tmp_path: Path, release: str, server: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(release + "\n")
    assert Distribution(tmp_path).server == server
