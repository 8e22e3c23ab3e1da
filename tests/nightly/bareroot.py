# SPDX-License-Identifier: Apache-2.0
"""A Debian with nothing installed, entered in namespaces of its own: how a stranger's machine looks.

mmdebstrap makes the tree. Its processes see the host's kernel (/sys, /dev), network and process numbers, which BPF
programs report, and none of its files. What a host needs to reach the archives of Debian and PyPI (mirrors, proxies,
certificates) is its administrator's business: the tree gets the host's settings.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

# What the README's reader has: the checkout came by git, `make` starts all, sudo is Debian's custom.
_PACKAGES = "ca-certificates,git,make,sudo"
_CHECKOUT = "/root/powerprof"
_PASSED = re.compile(r"PIP_\w+|\w+_proxy|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE", re.IGNORECASE)
_PASSED_APT = re.compile(r"Acquire::(https?::|ftp::|Check-|Max-|Retries|Queue-Mode|ForceIPv)")
_COPIED = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf")
_CERTIFICATES = Path("usr/local/share/ca-certificates")

# Not chroot alone: the kernel refuses user namespaces to a process in one (user_namespaces(7)), and tests make some.
_ENTER = """
set -e
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount --rbind /sys "$0/sys"
mount --rbind /dev "$0/dev"
cd "$0"
pivot_root . mnt
exec chroot . /bin/sh -c 'umount -l /mnt && cd "$0" && exec "$@"' "$@"
"""


@dataclass(frozen=True)
class Finished:
    """How a command in the machine ended; `output` has stdout and stderr as they came."""

    status: int
    output: str

    def tail(self, lines: int = 60) -> str:
        """Its last lines, for a failed assertion."""
        return "\n".join(self.output.splitlines()[-lines:])


@dataclass(frozen=True)
class Machine:
    """A tree to run commands in, and the process that does it and cleans up (tests/nightly/keeper.py)."""

    suite: str
    root: Path
    keeper: subprocess.Popen[str]
    log: Path

    def run(self, *argv: str, folder: str = _CHECKOUT) -> Finished:
        """Run a command as root of the machine, to its end and that of all that it started."""
        environment = {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name)}
        environment |= {"HOME": "/root", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        words = [f"{name}={value}" for name, value in environment.items()]
        return self._kept("unshare", "--mount", "sh", "-c", _ENTER, str(self.root), folder, "env", "-i", *words, *argv)

    def packages(self) -> set[str]:
        """Names of what is installed."""
        listed = self.run("dpkg-query", "--show", "--showformat", "${db:Status-Abbrev} ${Package}\n", folder="/").output
        return {line.split()[1] for line in listed.splitlines() if line.startswith("ii ")}

    def build(self) -> None:
        """Make the tree: Debian, the host's settings, a clone of this checkout as it is committed."""
        options = [f"--aptopt={line}" for line in _lines("apt-config", "dump") if _PASSED_APT.match(line)]
        shape = ["--mode=root", "--variant=minbase", "--format=directory", f"--include={_PACKAGES}", *options]
        made = self._kept("mmdebstrap", *shape, self.suite, str(self.root), *_mirrors(self.suite))
        assert made.status == 0, made.tail()
        for name in _COPIED:
            source = Path(name).expanduser()
            if source.is_file():
                target = self.root / name.replace("~", "root").lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        if (Path("/") / _CERTIFICATES).is_dir():
            shutil.copytree(Path("/") / _CERTIFICATES, self.root / _CERTIFICATES, dirs_exist_ok=True)
        assert self.run("update-ca-certificates", folder="/").status == 0
        cloned = self._kept("git", "clone", "--quiet", str(REPOSITORY), f"{self.root}{_CHECKOUT}")
        assert cloned.status == 0, cloned.tail()

    def _kept(self, *argv: str) -> Finished:
        begin = self.log.stat().st_size
        assert self.keeper.stdin is not None
        assert self.keeper.stdout is not None
        self.keeper.stdin.write(json.dumps(argv) + "\n")
        self.keeper.stdin.flush()
        status = int(self.keeper.stdout.readline())
        return Finished(status, self.log.read_bytes()[begin:].decode(errors="replace"))


def _lines(*argv: str) -> list[str]:
    """What a program of the host prints."""
    return subprocess.run(argv, capture_output=True, check=True, encoding="utf-8").stdout.splitlines()


def _mirrors(suite: str) -> list[str]:
    """Where the host has this suite from; nothing (mmdebstrap knows where Debian is) on a host of another one."""
    targets = _lines(
        "apt-get", "indextargets", "--format", "$(ORIGIN)|$(SITE)|$(RELEASE)|$(COMPONENT)", "Created-By: Packages"
    )
    fields = [line.split("|") for line in dict.fromkeys(targets)]
    return [
        f"deb {site} {release} {component}"
        for origin, site, release, component in fields
        if origin == "Debian" and release.partition("-")[0] == suite
    ]


@contextmanager
def bare_machine(suite: str, log: Path) -> Iterator[Machine]:
    """A built machine; `log` is what its commands print. Its processes and files are gone afterwards in any case."""
    folder = Path(tempfile.mkdtemp(prefix="powerprof-bare-", dir="/var/tmp"))  # gigabytes: /tmp may be memory
    with (
        log.open("ab") as sink,
        # Leaving `with` closes its stdin, on which it cleans up, and waits for it.
        subprocess.Popen(
            [sys.executable, "-m", "tests.nightly.keeper", str(folder)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
            encoding="utf-8",
            start_new_session=True,  # a Ctrl-C in the terminal is not for it
        ) as keeper,
    ):
        machine = Machine(suite, folder / "root", keeper, log)
        machine.build()
        yield machine
