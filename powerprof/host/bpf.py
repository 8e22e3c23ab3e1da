# SPDX-License-Identifier: Apache-2.0
"""Whether BPF programs can be loaded, carried ones or compiled here: a real one tried, bcc and kernel headers."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from powerprof import paths
from powerprof.errors import CapabilityError, PowerprofError
from powerprof.host import kernel
from powerprof.host.capability import Capability, limited, missing, none, ok
from powerprof.processes.namespaces import check_process_ids
from powerprof.stacks.registers import this_machine
from powerprof.tracing.bpf import features, objects
from powerprof.tracing.bpf.btf import kernel_btf
from powerprof.tracing.bpf.headers import kernel_headers
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.idle.build import idle_definitions

_BCC = "apt install python3-bpfcc"
_SYSTEM_SITE = "make setup"


def carried_fit() -> bool:
    """Whether powerprof carries the programs of `attribute`, `idle`, `watch` and `export` for the running kernel."""
    try:
        return objects.find_carried("idle.bpf.c", idle_definitions(kernel_btf())) is not None
    except PowerprofError:
        return False


def _without(name: str, found: Capability) -> Capability:
    """What compiles programs is missing: nothing to mend where carried ones fit."""
    if found.status != "missing":
        return found
    if not features.may_be_tried():
        return none(name, f"{found.detail}: not needed where carried programs fit, which this process may not try")
    if not carried_fit():
        return found
    return none(name, f"{found.detail}: not needed, the programs that powerprof carries fit this kernel")


def bcc() -> Capability:
    """Debian's python3-bpfcc, where it is needed; a package of the same name on PyPI has nothing to do with it."""
    return _without("bcc", _bcc())


def _bcc() -> Capability:
    spec = find_spec("bcc")
    if spec is None or not spec.origin:
        debian = Path("/usr/lib/python3/dist-packages/bcc/libbcc.py")
        if debian.exists():
            return missing("bcc", "installed, but this Python does not see Debian's packages", _SYSTEM_SITE)
        return missing("bcc", "the Python bindings of BPF are not installed", _BCC)
    folder = Path(spec.origin).parent
    if not (folder / "libbcc.py").exists():
        return missing("bcc", f"{folder} is another package of that name", f"pip uninstall bcc && {_BCC}")
    return ok("bcc", f"{folder}")


def headers() -> Capability:
    """Kernel headers that bcc can compile against, where it is needed."""
    if not paths.is_this_host():
        return kernel.not_this_host("headers")
    return _without("headers", _headers())


def _headers() -> Capability:
    running = os.uname().release
    try:
        tree = kernel_headers()
    except CapabilityError as error:
        return missing("headers", error.message, error.hint)
    except PowerprofError as error:
        return limited("headers", error.message, "set XDG_CACHE_HOME to a writable folder")
    if tree is None:
        return ok("headers", f"of the running kernel {running}")
    # The merged tree's name ends with a fingerprint.
    version = re.sub(r"-[0-9a-f]{12}$", "", tree.name.removeprefix("linux-headers-"))
    return ok("headers", f"{version} stands in for {running}")


def stacks() -> Capability:
    """Whether the stacks of sleeping threads can be had, and how their registers are found."""
    if not paths.is_this_host():
        return kernel.not_this_host("stacks")
    try:
        machine = this_machine()
    except CapabilityError as error:
        return none("stacks", f"{error.message}: idle exits and their causes are known without them")
    for feature in (features.RING_BUFFER, features.TASK_REGISTERS):
        if features.has(feature) is None:
            return missing("stacks", "cannot try BPF: not permitted", kernel.privileges().remedy)
    if not features.has(features.RING_BUFFER):
        return none("stacks", f"this kernel has no BPF ring buffer (Linux {features.RING_BUFFER.since})")
    if not features.has(features.TASK_REGISTERS):
        since = f"{features.TASK_REGISTERS.name}, Linux {features.TASK_REGISTERS.since}"
        return limited("stacks", f"{machine.name}: without {since}: registers are searched for on the kernel's stacks")
    return ok("stacks", f"{machine.name}, registers by {features.TASK_REGISTERS.name}")


def _not_permitted() -> Capability:
    """By capabilities; or by a container's seccomp profile or lockdown, which refuse root too."""
    error, lacking = features.not_permitted(), kernel.privileges()
    return missing("tracing", error.message, lacking.remedy if lacking.status != "ok" else error.hint)


def tracing() -> Capability:
    """Loads, attaches and removes the smallest BPF program: a carried one, or one that bcc compiles now.

    That takes 0.7 s, and minutes where the host is overloaded.
    """
    if not paths.is_this_host():
        return kernel.not_this_host("tracing")
    if not features.may_be_tried():
        return _not_permitted()
    carried = carried_fit()
    for needed in () if carried else (_bcc(), _headers()):
        if needed.status not in ("ok", "limited"):
            return missing("tracing", needed.detail, needed.remedy)
    try:
        with LoadedProgram("trial.bpf.c", {}, cached=carried):
            pass
    except PowerprofError as error:
        if kernel.privileges().status != "ok" or error.message == features.not_permitted().message:
            return _not_permitted()
        return missing("tracing", error.message, error.hint)
    try:
        check_process_ids()
    except CapabilityError as error:
        return limited("tracing", f"functions only: {error.message}", error.hint)
    which = "carried, not compiled here" if carried else "compiled by bcc"
    return ok("tracing", f"a BPF program was loaded and attached to a raw tracepoint ({which})")
