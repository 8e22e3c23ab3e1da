# SPDX-License-Identifier: Apache-2.0
"""Compile programs by this host's bcc, in a child process, and keep the results in a cache.

A kept program is named by all its inputs: source and definitions, the kernel and its BTF, and the compiler. It is
loaded into the kernel, so its folder is writable only by root (or the acting user).
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
from contextlib import suppress
from pathlib import Path

from powerprof.system import paths, programs
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.folders import Folder
from powerprof.system.next_steps import command_line
from powerprof.tracing.bpf.objects import Compiled, Definitions, build_source_text, pack_compiled, unpack_compiled
from powerprof.tracing.bpf.permission import not_permitted_error

_FORMAT = "2"
_BTF = Path("/sys/kernel/btf/vmlinux")
_MOST_BYTES = 16 << 20
_KEPT = 32
# clang needs 4 s of CPU time; an emulated or overloaded host takes minutes, which is not a failure.
_COMPILE_AT_MOST_S = 600.0
_NO_BCC = 3


def _identify_compiler() -> str:
    """Return the identity of bcc without loading it, because it maps clang into this process."""
    spec = importlib.util.find_spec("bcc")
    if spec is None or not spec.origin:
        return "none"
    info = Path(spec.origin).stat()
    return f"{spec.origin} {info.st_size} {info.st_mtime_ns}"


def _build_key(text: str) -> str:
    digest = hashlib.sha256()
    system = os.uname()
    for part in (_FORMAT, system.machine, system.release, system.version, _identify_compiler(), text):
        digest.update(part.encode() + b"\0")
    with suppress(OSError):
        digest.update(_BTF.read_bytes())
    return digest.hexdigest()


def _compile(text: str) -> Compiled:
    from powerprof.tracing.bpf.headers import find_kernel_headers

    headers = find_kernel_headers()
    words = programs.python_command("-m", "powerprof.tracing.bpf.compiler", *([headers] if headers is not None else []))
    try:
        done = programs.run(words, stdin=text, timeout_s=_COMPILE_AT_MOST_S, check=False)
    except PowerprofError as error:
        raise PowerprofError(f"cannot compile BPF programs: {error.message}", error.hint) from error
    if done.returncode == _NO_BCC:
        raise CapabilityError("bcc is not installed", "apt install python3-bpfcc")
    result = None
    if done.returncode == 0:
        result = unpack_compiled(base64.b64decode(done.stdout))
    if result is None:
        raise _explain_failure(done.stderr)
    return result


def _explain_failure(output: str) -> PowerprofError:
    """Return the error for a failed compilation. `output`: of bcc and clang, with bcc's own message last."""
    text = output.lower()
    if os.geteuid() != 0 or "permitted" in text or "permission" in text:
        return not_permitted_error()
    if "kernel headers" in text or "file not found" in text:
        from powerprof.tracing.bpf.headers import install_command

        return CapabilityError("cannot compile BPF programs: kernel headers do not fit", install_command())
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = next((line for line in lines if "error:" in line), lines[-1] if lines else "no reason given")
    return PowerprofError(
        f"cannot compile BPF programs: {reason[:300]}", f"for what works here: {command_line('doctor')}"
    )


def find_compiled(name: str, definitions: Definitions, *, cached: bool = True) -> Compiled:
    """Return `probes/bpf/<name>` compiled by this host's bcc, from the cache unless `cached` is False.

    Raises CapabilityError if this host cannot compile (no bcc, no headers, not permitted), PowerprofError.
    """
    text = build_source_text(name, definitions)
    if not cached:
        return _compile(text)
    key = f"{name.partition('.')[0]}-{_build_key(text)[:40]}"
    try:
        with Folder.open(paths.cache_folder("bpf")) as cache:
            return _read_kept(cache, key) or _keep(cache, key, _compile(text))
    except (OSError, PowerprofError) as error:
        if isinstance(error, PowerprofError) and not str(error).startswith(("cannot create", "cannot keep")):
            raise
    return _compile(text)


def _read_kept(cache: Folder, key: str) -> Compiled | None:
    try:
        return unpack_compiled(cache.read(key, _MOST_BYTES))
    except OSError:
        return None


def _keep(cache: Folder, key: str, made: Compiled) -> Compiled:
    """Save a program and delete all but the latest others: every kernel and every setting makes one."""
    with suppress(OSError):  # nothing is kept then: the next run compiles again
        cache.write(key, pack_compiled(made))
        names = sorted(cache.names(), key=lambda entry: cache.stat(entry).st_mtime_ns)
        for name in names[:-_KEPT]:
            cache.remove(name)
    return made
