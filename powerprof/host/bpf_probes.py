# SPDX-License-Identifier: Apache-2.0
"""Probes of BPF programs: carried ones, or bcc and kernel headers to compile them. A real program is loaded."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from powerprof.host.capabilities import Capability, limited, missing, none, ok, other_host
from powerprof.host.kernel_probes import probe_privileges
from powerprof.stacks.registers import this_machine
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.pid_namespaces import check_process_ids, is_in_pid_namespace
from powerprof.tracing.bpf import carried, features
from powerprof.tracing.bpf.btf import read_kernel_btf
from powerprof.tracing.bpf.headers import find_kernel_headers
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.permission import may_load_programs, not_permitted_error
from powerprof.tracing.idle_program import build_idle_definitions

_INSTALL_BCC = "apt install python3-bpfcc"


def has_carried_programs() -> bool:
    """Return whether the carried programs of `attribute`, `idle`, `watch` and `export` fit the running kernel."""
    try:
        return carried.find_carried("idle.bpf.c", build_idle_definitions(read_kernel_btf())) is not None
    except PowerprofError:
        return False


def _mark_not_needed(name: str, capability: Capability) -> Capability:
    """Return a missing part of the compiler as `none` if the carried programs fit, or may fit."""
    if capability.status != "missing":
        return capability
    detail = capability.detail
    if not may_load_programs():
        return none(name, f"{detail}: not needed where carried programs fit, which this process may not try")
    if not has_carried_programs():
        return capability
    return none(name, f"{detail}: not needed, the programs that powerprof carries fit this kernel")


def probe_bcc() -> Capability:
    """Return whether bcc is installed, or is not needed."""
    return _mark_not_needed("bcc", _find_bcc())


def probe_headers() -> Capability:
    """Return whether the headers of the running kernel are installed, or are not needed."""
    return _mark_not_needed("headers", _find_headers()) if paths.is_this_host() else other_host("headers")


def _find_bcc() -> Capability:
    # PyPI has an unrelated package of the same name.
    spec = find_spec("bcc")
    if spec is None or not spec.origin:
        if Path("/usr/lib/python3/dist-packages/bcc/libbcc.py").exists():
            return missing("bcc", "installed, but this Python does not see Debian's packages", "make setup")
        return missing("bcc", "the Python bindings of BPF are not installed", _INSTALL_BCC)
    folder = Path(spec.origin).parent
    if not (folder / "libbcc.py").exists():
        return missing("bcc", f"{folder} is another package of that name", f"pip uninstall bcc && {_INSTALL_BCC}")
    return ok("bcc", f"{folder}")


def _find_headers() -> Capability:
    running = os.uname().release
    try:
        tree = find_kernel_headers()
    except CapabilityError as error:
        return missing("headers", error.message, error.hint)
    except PowerprofError as error:
        return limited("headers", error.message, "set XDG_CACHE_HOME to a writable folder")
    if tree is None:
        return ok("headers", f"of the running kernel {running}")
    # The name of a merged tree ends with a fingerprint.
    version = re.sub(r"-[0-9a-f]{12}$", "", tree.name.removeprefix("linux-headers-"))
    return ok("headers", f"{version} stands in for {running}")


def probe_stacks() -> Capability:
    """Return whether stacks of sleeping threads can be read, and the source of their registers."""
    if not paths.is_this_host():
        return other_host("stacks")
    try:
        machine = this_machine()
    except CapabilityError as error:
        return none("stacks", f"{error.message}: idle exits and their causes are known without them")
    for feature in (features.RING_BUFFER, features.TASK_REGISTERS):
        if features.has_feature(feature) is None:
            return missing("stacks", "cannot try BPF: not permitted", probe_privileges().remedy)
    if not features.has_feature(features.RING_BUFFER):
        return none("stacks", f"this kernel has no BPF ring buffer (Linux {features.RING_BUFFER.since})")
    if not features.has_feature(features.TASK_REGISTERS):
        since = f"{features.TASK_REGISTERS.name}, Linux {features.TASK_REGISTERS.since}"
        return limited("stacks", f"{machine.name}: without {since}: registers are searched for on the kernel's stacks")
    return ok("stacks", f"{machine.name}, registers by {features.TASK_REGISTERS.name}")


def _make_not_permitted() -> Capability:
    # The seccomp profile of a container, or lockdown, refuse root too.
    error, privileges = not_permitted_error(), probe_privileges()
    return missing("tracing", error.message, privileges.remedy if privileges.status != "ok" else error.hint)


def probe_tracing() -> Capability:
    """Return whether the smallest BPF program can be loaded, attached and removed.

    The program is a carried one, or bcc compiles it now: 0.7 s, and minutes if the host is overloaded.
    """
    if not paths.is_this_host():
        return other_host("tracing")
    if not may_load_programs():
        return _make_not_permitted()
    is_carried = has_carried_programs()
    for needed in () if is_carried else (_find_bcc(), _find_headers()):
        if needed.status not in ("ok", "limited"):
            return missing("tracing", needed.detail, needed.remedy)
    try:
        with LoadedProgram("trial.bpf.c", {**features.TRIAL_DEFINITIONS, "IS_ATTACHED": 1}, cached=is_carried):
            pass
    except PowerprofError as error:
        if probe_privileges().status != "ok" or error.message == not_permitted_error().message:
            return _make_not_permitted()
        return missing("tracing", error.message, error.hint)
    try:
        check_process_ids()
    except CapabilityError as error:
        return limited("tracing", f"functions only: {error.message}", error.hint)
    origin = "carried, not compiled here" if is_carried else "compiled by bcc"
    ids = "; process ids are those of this pid namespace" if is_in_pid_namespace() else ""
    return ok("tracing", f"a BPF program was loaded and attached to a raw tracepoint ({origin}){ids}")
