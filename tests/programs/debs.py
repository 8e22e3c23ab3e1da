# SPDX-License-Identifier: Apache-2.0
"""Debian packages and an archive of them, made by tests."""

from __future__ import annotations

import hashlib
import io
import lzma
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from powerprof.system.program_search import which


@dataclass(frozen=True)
class Link:
    """A symbolic link, or a hard one to what the archive has by that name."""

    target: str
    hard: bool = False


def make_deb(
    files: Mapping[str, bytes | Link],
    *,
    name: str = "x",
    modes: Mapping[str, int] | None = None,
    also: Callable[[tarfile.TarFile], None] | None = None,
    plain: bool = False,
) -> bytes:
    """A package of these files (deb(5)), `plain` not compressed, with a script that must not be run."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            runs = "bin/" in path or "/ld-" in path
            info.mode = (modes or {}).get(path, 0o755 if runs else 0o644)
            if isinstance(content, Link):
                info.type = tarfile.LNKTYPE if content.hard else tarfile.SYMTYPE
                info.linkname = content.target
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        if also is not None:
            also(archive)
    scripts = io.BytesIO()
    with tarfile.open(fileobj=scripts, mode="w:gz") as archive:
        lines = [f"Package: {name}", "Version: 1.0", "Architecture: all", "Maintainer: nobody", "Description: x"]
        for path, text in (("./control", "\n".join([*lines, ""])), ("./postinst", "#!/bin/sh\ntouch /ran\n")):
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(text), 0o755
            archive.addfile(info, io.BytesIO(text.encode()))
    parts = [("debian-binary", b"2.0\n"), ("control.tar.gz", scripts.getvalue())]
    content = packed.getvalue()
    parts.append(("data.tar", content) if plain else ("data.tar.xz", lzma.compress(content, preset=0)))
    made = b"!<arch>\n"
    for part, content in parts:
        made += f"{part:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        made += b"\n" if len(content) % 2 else b""
    return made


class Archive:
    """A signed suite `test` with these packages in a folder, to be served over HTTP; `keyring` verifies it."""

    def __init__(self, folder: Path, packages: Mapping[str, bytes]) -> None:
        self.folder = folder
        self._gpg_home = folder / "gpg"
        self._gpg_home.mkdir(mode=0o700, parents=True)
        self.keyring = folder / "keyring.gpg"
        self._gpg("--quick-generate-key", "--passphrase", "", "archive@example.org", "default", "default", "never")
        self.keyring.write_bytes(self._gpg("--export"))
        architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True)
        self._architecture = architecture.stdout.strip()
        self._lists = folder / f"dists/test/main/binary-{self._architecture}"
        self._lists.mkdir(parents=True)
        (folder / "pool").mkdir()
        stanzas = []
        for name, content in packages.items():
            (folder / f"pool/{name}_1.0_all.deb").write_bytes(content)
            stanzas.append(
                f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody\nDescription: x\n"
                f"Filename: pool/{name}_1.0_all.deb\nSize: {len(content)}\n"
                f"SHA256: {hashlib.sha256(content).hexdigest()}\n"
            )
        (self._lists / "Packages").write_text("\n".join(stanzas))
        self.sign()

    def sign(self) -> None:
        """InRelease for the lists as they are."""
        lists = (self._lists / "Packages").read_bytes()
        release = (
            f"Origin: Test\nSuite: test\nCodename: test\nArchitectures: {self._architecture} all\nComponents: main\n"
            "Date: Sat, 01 Jan 2022 00:00:00 UTC\nSHA256:\n"
            f" {hashlib.sha256(lists).hexdigest()} {len(lists)} main/binary-{self._architecture}/Packages\n"
        )
        signed = self._gpg("--clearsign", "--digest-algo", "SHA512", stdin=release.encode())
        (self.folder / "dists/test/InRelease").write_bytes(signed)

    def _gpg(self, *words: str, stdin: bytes = b"") -> bytes:
        gpg = which("gpg")
        assert gpg is not None
        command = [str(gpg), "--homedir", str(self._gpg_home), "--batch", "--quiet", "--pinentry-mode", "loopback"]
        return subprocess.run([*command, *words], input=stdin, capture_output=True, check=True).stdout

    def close(self) -> None:
        """End the agent that gpg started for its key."""
        subprocess.run(["gpgconf", "--homedir", str(self._gpg_home), "--kill", "all"], check=False)
