# SPDX-License-Identifier: Apache-2.0
"""Compiled programs: the one that powerprof carries where it fits (`carried.py`), else compiled here once and kept.

A program is kept under all that went into it: source and definitions, the kernel and its BTF, and the compiler. What
lies there is loaded into the kernel, so it lies where only root (or the acting user) writes.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from powerprof import paths, programs
from powerprof.errors import CapabilityError, PowerprofError
from powerprof.folders import Folder
from powerprof.tracing.bpf import carried, compiled
from powerprof.tracing.bpf.compiled import Compiled
from powerprof.tracing.bpf.features import not_permitted
from powerprof.tracing.bpf.headers import kernel_headers, remedy

_FORMAT = "2"
_BTF = Path("/sys/kernel/btf/vmlinux")
_MOST_BYTES = 16 << 20
_KEPT = 32
# clang needs 4 s of CPU time here; an emulated or overloaded host takes minutes, and is no reason to fail.
_COMPILE_AT_MOST_S = 600.0
_NO_BCC = 3


def source_of(name: str) -> str:
    """A shipped program with its own headers put in: bcc translates table operations in the main text only."""
    text = (paths.data_dir("probes") / "bpf" / name).read_text()
    return re.sub(r'^#include "([\w.]+)"$', lambda match: source_of(match[1]), text, flags=re.MULTILINE)


def text_of(name: str, definitions: Mapping[str, int | str]) -> str:
    """The whole text that is compiled."""
    return "".join(f"#define {key} {value}\n" for key, value in definitions.items()) + source_of(name)


def _compiler() -> str:
    """Which bcc there is, without loading it: it maps clang into this process."""
    spec = importlib.util.find_spec("bcc")
    if spec is None or not spec.origin:
        return "none"
    info = Path(spec.origin).stat()
    return f"{spec.origin} {info.st_size} {info.st_mtime_ns}"


def _key(text: str) -> str:
    digest = hashlib.sha256()
    system = os.uname()
    for part in (_FORMAT, system.machine, system.release, system.version, _compiler(), text):
        digest.update(part.encode() + b"\0")
    with suppress(OSError):
        digest.update(_BTF.read_bytes())
    return digest.hexdigest()


def _compile(text: str) -> Compiled:
    headers = kernel_headers()
    words = programs.python("-m", "powerprof.tracing.bpf.compiler", *([headers] if headers is not None else []))
    try:
        done = programs.run(words, stdin=text, timeout_s=_COMPILE_AT_MOST_S, check=False)
    except PowerprofError as error:
        raise PowerprofError(f"cannot compile BPF programs: {error.message}", error.hint) from error
    if done.returncode == _NO_BCC:
        raise CapabilityError("bcc is not installed", "apt install python3-bpfcc")
    result = None
    if done.returncode == 0:
        result = compiled.unpack(base64.b64decode(done.stdout))
    if result is None:
        raise _explained(done.stderr)
    return result


def _explained(output: str) -> PowerprofError:
    """Why nothing was compiled: `output` is what bcc and clang wrote, bcc's own message last."""
    text = output.lower()
    if os.geteuid() != 0 or "permitted" in text or "permission" in text:
        return not_permitted()
    if "kernel headers" in text or "file not found" in text:
        return CapabilityError("cannot compile BPF programs: kernel headers do not fit", remedy())
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = next((line for line in lines if "error:" in line), lines[-1] if lines else "no reason given")
    return PowerprofError(f"cannot compile BPF programs: {reason[:300]}", "powerprof doctor says what works here")


def may_be_carried() -> bool:
    """Whether carried programs are wanted: POWERPROF_CARRIED=0 has all compiled on this host."""
    return os.environ.get("POWERPROF_CARRIED") != "0"


def find_carried(name: str, definitions: Mapping[str, int | str]) -> Compiled | None:
    """The program `probes/bpf/<name>` as powerprof carries it; None where none fits, or none is wanted."""
    return carried.find(name, source_of(name), definitions) if may_be_carried() else None


def find(name: str, definitions: Mapping[str, int | str], *, cached: bool = True) -> Compiled:
    """The program `probes/bpf/<name>` as this host's bcc compiles it: from the cache or, unless `cached`, now.

    Raises CapabilityError where this host cannot compile (no bcc, no headers, not permitted), PowerprofError.
    """
    text = text_of(name, definitions)
    if not cached:
        return _compile(text)
    key = f"{name.partition('.')[0]}-{_key(text)[:40]}"
    try:
        with Folder.open(paths.cache_folder("bpf")) as folder:
            return _kept(folder, key) or _keep(folder, key, _compile(text))
    except (OSError, PowerprofError) as error:
        if isinstance(error, PowerprofError) and not str(error).startswith(("cannot create", "cannot keep")):
            raise
    return _compile(text)


def _kept(folder: Folder, key: str) -> Compiled | None:
    try:
        return compiled.unpack(folder.read(key, _MOST_BYTES))
    except OSError:
        return None


def _keep(folder: Folder, key: str, made: Compiled) -> Compiled:
    """Keep it, and the latest of the others: every kernel and every setting leaves one."""
    with suppress(OSError):  # nothing is kept then: the next run compiles again
        folder.write(key, compiled.pack(made))
        names = sorted(folder.names(), key=lambda entry: folder.stat(entry).st_mtime_ns)
        for name in names[:-_KEPT]:
            folder.remove(name)
    return made
