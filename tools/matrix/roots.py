# SPDX-License-Identifier: Apache-2.0
"""Root images: a small Debian of one suite with what powerprof needs."""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from powerprof.system.program_search import need
from powerprof.system.programs import run
from tools.matrix import cache, debian
from tools.matrix.arches import ARCHES, Arch

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# What runs inside. Nothing that compiles BPF programs: powerprof carries them.
PACKAGES = (
    "busybox-static",
    "iproute2",
    "mariadb-client-core",
    "mariadb-server-core",
    "python3",
    "sysbench",
    "util-linux",
)
# Where a root can be entered here: gcc makes the truth programs with the suite's own libc.
_ENTERED = ("gcc", "libc6-dev")
# Where it cannot, packages are only unpacked, and nothing is there by itself.
_UNPACKED = ("base-files", "base-passwd", "bash", "coreutils", "dash", "grep", "hostname", "libc-bin", "mount", "sed")
_PYTHON = {"bookworm": "3.11", "trixie": "3.13", "sid": "3.14"}
# Unchecked: the bytecode stays good whatever times the files get on their way into a machine.
COMPILE = ("python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
_LAYOUT, _FOREIGN_LAYOUT = "2", "3"
# Killed as one, with all that it started and mounted: apt would go on writing into a folder that is being removed.
_ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_LEFT_OUT = ("doc", "man", "locale", "info", "lintian", "bug")
_MAKE_S = 900.0
_SPARE_MIB = 64


@dataclass(frozen=True)
class Root:
    """A made root: the tree for namespaces on this kernel, and the same as an image of ext4 for machines."""

    suite: str
    arch: Arch
    tree: Path
    image: Path


def _dependencies(arch: Arch) -> list[str]:
    with (REPOSITORY / "pyproject.toml").open("rb") as handle:
        wanted = list(tomllib.load(handle)["project"]["dependencies"])
    return [one for one in wanted if not one.startswith(tuple(arch.not_on_pypi))]


def _packages(arch: Arch) -> tuple[str, ...]:
    return (*PACKAGES, *(_ENTERED if arch.is_native else _UNPACKED), *arch.not_on_pypi.values())


def _install_dependencies(suite: str, arch: Arch, tree: Path) -> None:
    """Wheels for the root's Python, unpacked by this host's pip: nothing inside needs a network."""
    python, version = need("python3", "python3"), _PYTHON[suite]
    run(
        [
            python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
            "--implementation=cp", f"--python-version={version}", *(f"--platform={name}" for name in arch.wheels),
            f"--target={tree / 'opt/python'}", *_dependencies(arch),
        ],
        timeout_s=_MAKE_S,
    )  # fmt: skip
    # Tests of numpy are a large part of all that is installed.
    for tests in [*tree.glob("opt/python/*py/**/tests")]:
        shutil.rmtree(tests, ignore_errors=True)
    # pip's own are of this host's Python.
    for stale in [*tree.glob("opt/python/**/__pycache__")]:
        shutil.rmtree(stale, ignore_errors=True)


def _make(suite: str, arch: Arch, place: Path) -> None:
    tree = place / "tree"
    excludes = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT]
    run(
        [
            *_ALONE, need("mmdebstrap", "mmdebstrap"), "--quiet", "--mode=root", f"--architectures={arch.debian}",
            f"--variant={'minbase' if arch.is_native else 'extract'}",
            '--aptopt=Acquire::Check-Valid-Until "false"', '--aptopt=Acquire::Languages "none"',
            '--aptopt=APT::Install-Recommends "false"', *excludes, "--dpkgopt=force-unsafe-io",
            f"--include={','.join(_packages(arch))}", suite, tree, debian.mirror(),
        ],
        timeout_s=_MAKE_S,
    )  # fmt: skip
    shutil.rmtree(tree / "var/lib/apt/lists", ignore_errors=True)
    if not arch.is_native:
        # What base-passwd's script would have made.
        (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nmysql:x:101:101::/:/bin/false\n")
        (tree / "etc/group").write_text("root:x:0:\nmysql:x:101:\n")
    # Where the project is laid, in a machine and in a namespace.
    (tree / "srv/powerprof").mkdir(parents=True)
    _install_dependencies(suite, arch, tree)
    # As an installation in a virtual environment is found: PYTHONPATH does not reach children, which get `python -I`.
    (tree / "usr/lib/python3/dist-packages/powerprof.pth").write_text("/srv/powerprof\n/opt/python\n")
    if arch.is_native:
        run(["chroot", tree, *COMPILE, "/opt/python"], timeout_s=_MAKE_S, check=False)
    else:
        compile_foreign(suite, tree, ["usr/lib/python3", f"usr/lib/python{_PYTHON[suite]}", "opt/python"])
    image = place / "root.ext4"
    used = int(run(["du", "--summarize", "--block-size=1M", tree]).stdout.split()[0])
    image.touch()
    os.truncate(image, (used * 5 // 4 + _SPARE_MIB) << 20)
    run([need("mke2fs", "e2fsprogs"), "-q", "-t", "ext4", "-O", "^has_journal", "-d", tree, image], timeout_s=_MAKE_S)


def root(suite: str, arch: Arch) -> Root:
    """The root of a suite, made now where the cache has none of this recipe."""
    layout = _LAYOUT if arch.is_native else _FOREIGN_LAYOUT
    recipe = cache.digest(layout, suite, " ".join(_packages(arch)), " ".join(_dependencies(arch)))
    name = f"root-{suite}-{arch.debian}-{recipe}"
    place = cache.made(name, lambda temporary: _make(suite, arch, temporary))
    return Root(suite, arch, place / "tree", place / "root.ext4")


def compile_foreign(suite: str, place: Path, folders: Sequence[str]) -> None:
    """Bytecode for folders of another architecture's root: it is the same for all that have the same Python."""
    native = root(suite, ARCHES["amd64"])
    # A file that is no Python of this version (tests of it) keeps nobody from going on.
    line = f"cd /srv/powerprof && {' '.join(COMPILE)} -s /srv/powerprof -p / {' '.join(folders)} || true"
    run_inside(native.tree, place, ["sh", "-c", line])


def run_inside(tree: Path, project: Path, argv: Sequence[str]) -> None:
    """Run a command in a root with a folder laid at /srv/powerprof; the mounts are gone with it."""
    mounting = 'mount --bind "$1" "$2/srv/powerprof" && mount -t proc proc "$2/proc" && shift && exec chroot "$@"'
    run([*_ALONE, "sh", "-c", mounting, "sh", project, tree, *argv], timeout_s=_MAKE_S)
