# SPDX-License-Identifier: Apache-2.0
"""Name the control group of a process: a service, a container, a pod.

systemd, Docker, Podman, containerd, CRI-O, Kubernetes, LXC, libvirt, Amazon ECS and Nomad make these paths. The name of
a container is the runtime's, if its files can be read.
"""

from __future__ import annotations

import ctypes
import heapq
import os
import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count, repeat
from pathlib import Path
from typing import Any

import msgspec

from powerprof.system import paths
from powerprof.system.errors import DataError
from powerprof.system.files import try_text
from powerprof.system.foreign_text import printable
from powerprof.system.outside_files import read_outside_text

NO_UNIT = "no unit"
_MAX_NAME = 120
_MAX_CONTAINERS = 2000
# Any account with a delegated subtree can make groups without limit. These limits hold for one scan.
_MAX_GROUPS = 20_000
_MAX_SUBTREE_GROUPS = 2000
_MAX_PATH = 1000
_MAX_SCAN_S = 2.0
_LIMIT_BYTES = 4 << 20
_SHORT_ID = 12
# A scan (of groups, or of container names) is followed by a pause of this many times its duration.
_PAUSE_FACTOR = 20
_ID = r"[0-9a-f]{64}"
# Forms of the folders that name an owner. Tests list paths of each runtime with their sources.
#
# Containers: docker-ID.scope, libpod-ID.scope, libpod-payload-ID, cri-containerd-ID.scope, crio-ID, nerdctl-ID.scope;
# ID alone if the runtime uses no systemd.
_CONTAINER = re.compile(rf"(?:([a-z][a-z-]*?)-)?(?:conmon-|payload-)?({_ID})(?:\.scope)?")
_RUNTIMES = {"docker": "docker", "libpod": "podman", "cri-containerd": "containerd", "crio": "cri-o"}
# A runtime without systemd support makes a folder of the systemd form SLICE:PREFIX:NAME (runc, docs/systemd.md).
_COLONS = re.compile(rf"([^:]*):([a-z][a-z-]*):({_ID})")
_POD = re.compile(r"(?:[a-z0-9]+-)*pod([0-9a-f]{8}[-_0-9a-f]{4,32})(?:\.slice)?")
# Amazon ECS: /ecs/TASK/ID, /ecstasks.slice/ecstasks-TASK.slice/docker-ID.scope; on Fargate /ecs/TASK/TASK-NUMBER.
_ECS_ROOTS = ("ecs", "ecs.slice", "ecstasks", "ecstasks.slice")
_ECS_TASK = re.compile(r"(?:ecs(?:tasks)?-)?([0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4,12}){4})(?:\.slice)?")
_FARGATE = re.compile(r"[0-9a-f]{32}-[0-9]+")
# Nomad: ALLOCATION.TASK.scope below nomad.slice, ALLOCATION.TASK below /nomad.
_NOMAD = re.compile(r"([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\.(.+?)(?:\.scope)?")
# Machines: systemd-nspawn and systemd-vmspawn; systemd-machined, also for libvirt (KIND, number, name); libvirt without
# systemd; LXC, LXD and Incus.
_MACHINES = (
    re.compile(r"systemd-(?:nspawn|vmspawn)@(?P<name>.+)\.service"),
    re.compile(r"machine-(?:(?P<kind>qemu|lxc)-(?:[0-9]+-)?)?(?P<name>.+)\.scope"),
    re.compile(r"(?:(?:qemu|lxc)-[0-9]+-)?(?P<name>.+)\.libvirt-(?P<kind>qemu|lxc)"),
)
_LXC = re.compile(r"lxc\.(?:payload|monitor)\.(.+)")
_UNITS = (".service", ".scope", ".socket", ".mount", ".swap")
# Services of root that keep the control groups of containers and machines below their own.
_RUNTIME_UNIT = re.compile(
    r"(?:containerd|docker|cri-docker|crio|podman|kubelet|k3s(?:-agent)?|rke2-(?:server|agent)|k0s(?:controller|worker)"
    r"|nomad|ecs|buildkit|lxc|lxc@.+|lxc-net|lxd|incus|libvirtd|virtlxcd"
    r"|snap\.(?:docker|lxd|microk8s)\.(?:dockerd|daemon(?:-containerd|-kubelite)?))\.service"
)
_USER = re.compile(r"user-([0-9]+)\.slice|user@([0-9]+)\.service")
# The links in `/var/log/containers` are called POD_NAMESPACE_CONTAINER-ID.log.
_KUBELET = re.compile(rf"([^_]+)_([^_]+)_(.+)-({_ID})\.log")
# name_to_handle_at(2): the handle of a control group is its number (FILEID_KERNFS of include/linux/exportfs.h).
_HANDLE = struct.Struct("=IiQ")
_FILEID_KERNFS = 0xFE


def unit_of(path: str, containers: Mapping[str, str]) -> str:
    """Return the name of the owner of a control group. `containers`: the runtimes' names of containers, by id.

    The innermost container or machine names the group, else the outermost unit. An owner can make any group below its
    own: a name from there begins with the outermost owner (a user, service, container or machine), which no width of a
    table cuts off, and no container there has a name of root's runtimes.
    """
    parts = _split(path)
    owner, inner = _find_owners(parts)
    if inner is not None:
        name = _name(parts[: inner + 1], containers if inner == owner else {})
        return _cut(name) if inner == owner else f"{_cut(_name_owner(parts, owner, containers))}: {_cut(name)}"
    user = _find_user(parts, owner)
    if user is not None and parts[owner + 1 : owner + 2] == [f"user@{user}.service"]:
        owner += 1
    below = parts[owner + 1 :]
    unit = _find_outermost(below)
    if user is None or unit == len(below):
        return _cut(_name(parts[: owner + 1], containers))
    return f"user {_cut(user)}: {_cut(_name(below[: unit + 1], {}))}"


class UnitLabels(msgspec.Struct, frozen=True):
    """The owner of a control group as labels, as kube-state-metrics names them: a pod, a container or another unit."""

    unit: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""


_POD_WORDS = re.compile(r"pod ([^/ :]+)/([^/ :]+): ([^/ :]+)")
_CONTAINER_WORDS = re.compile(r"container ([^ :]+)(?: \([a-z-]+\))?")


def label_unit(name: str) -> UnitLabels:
    """Return the labels of a name from `unit_of`. A pod without a known name, and a cut name, stay a unit.

    The name of a group below a user's or another owner's begins with that owner, and stays a unit too.
    """
    if len(name) < _MAX_NAME:
        if match := _POD_WORDS.fullmatch(name):
            return UnitLabels(namespace=match[1], pod=match[2], container=match[3])
        if match := _CONTAINER_WORDS.fullmatch(name):
            return UnitLabels(container=match[1])
    return UnitLabels(unit=name)


def is_made_by_root(path: str) -> bool:
    """Return whether only root (systemd, a runtime) can make this control group: no parent is a unit or user."""
    parts = _split(path)
    return _find_outermost(parts) >= len(parts) - 1


def _split(path: str) -> list[str]:
    """Return the parts of a path, with a part SLICE:PREFIX:ID as the slice and the scope that it stands for."""
    parts: list[str] = []
    for part in path.split("/"):
        if match := _COLONS.fullmatch(part):
            parts += [*filter(None, [match[1]]), f"{match[2]}-{match[3]}.scope"]
        elif part not in ("", "..", "."):
            parts.append(part)
    return parts


def _find_outermost(parts: Sequence[str]) -> int:
    """Return the index of the first part that belongs to a user, unit, container or machine; else their number.

    pam_cgfs makes /user/NAME for LXC without root.
    """
    for number, part in enumerate(parts):
        is_pam_user = number == 1 and parts[0] == "user"
        if part.endswith(_UNITS) or _USER.fullmatch(part) or is_pam_user or _name_container(parts[: number + 1], {}):
            return number
    return len(parts)


def _find_owners(parts: Sequence[str]) -> tuple[int, int | None]:
    """Return the indexes of the outermost owner, and of the innermost container or machine (None if there is none).

    A service of a container runtime owns no container.
    """
    numbers = range(len(parts))
    inner = max((number for number in numbers if _name_container(parts[: number + 1], {})), default=None)
    owner = _find_outermost(parts)
    while inner is not None and owner < inner and _RUNTIME_UNIT.fullmatch(parts[owner]):
        owner += 1 + _find_outermost(parts[owner + 1 :])
    return owner, inner


def _find_user(parts: Sequence[str], at: int) -> str | None:
    """Return the number (with pam_cgfs the name) of the user of the outermost part; None if it is not a user's."""
    if at >= len(parts):
        return None
    if match := _USER.fullmatch(parts[at]):
        return match[1] or match[2]
    return parts[at] if at == 1 and parts[0] == "user" else None


def _name_owner(parts: Sequence[str], at: int, containers: Mapping[str, str]) -> str:
    """Return the short name of the outermost owner: `user 1001`, `container web`, `machine db1`, `app.service`."""
    user = _find_user(parts, at)
    name = _name(parts[: at + 1], containers)
    return f"user {user}" if user is not None else re.sub(r" \([^()]*\)$", "", name)


def _find_container(path: str) -> str | None:
    """Return the container id of a control group that only root can make; None if it has no container."""
    parts = _split(path)
    owner, inner = _find_owners(parts)
    match = _CONTAINER.fullmatch(parts[inner]) if inner is not None and inner == owner else None
    return match[2] if match else None


def _name(parts: Sequence[str], containers: Mapping[str, str]) -> str:
    """Return the name of the last part: a container, machine, pod, unit or slice; otherwise the path."""
    if not parts:
        return NO_UNIT
    last = parts[-1]
    if name := _name_container(parts, containers):
        return name
    if (pod := _find_pod(parts)) is not None:
        return f"pod {pod}"
    is_unit = last.endswith(_UNITS) or all(part.endswith(".slice") for part in parts)
    return _unescape(last) if is_unit else "/".join(parts)


def _name_container(parts: Sequence[str], containers: Mapping[str, str]) -> str | None:
    """Return the name of the container or machine that the last part names; None if it names none."""
    last, folders = parts[-1], parts[:-1]
    is_ecs = bool(folders) and folders[0] in _ECS_ROOTS
    match = _CONTAINER.fullmatch(last)
    if match or (is_ecs and _FARGATE.fullmatch(last)):
        number, prefix = (match[2], match[1] or "") if match else (last, "")
        return _word_container(number, prefix, folders, containers)
    if match := _LXC.fullmatch(last):
        return f"lxc {_unescape(match[1])}"
    if len(folders) == 1 and folders[0] in ("lxc", "lxc.payload"):
        return f"lxc {last}"
    if "nomad.slice" in folders or folders[:1] == ["nomad"]:
        match = _NOMAD.fullmatch(last)
        return f"nomad {_unescape(match[2])} ({match[1]})" if match else None
    plain = _unescape(last)
    for form in _MACHINES:
        if match := form.fullmatch(plain):
            kind = match.groupdict().get("kind")
            return f"machine {match['name']}{f' ({kind})' if kind else ''}"
    return None


def _find_pod(folders: Sequence[str]) -> str | None:
    """Return the id of the innermost pod; None if there is none."""
    return next((match[1].replace("_", "-") for part in reversed(folders) if (match := _POD.fullmatch(part))), None)


def _word_container(number: str, prefix: str, folders: Sequence[str], containers: Mapping[str, str]) -> str:
    name, shown = containers.get(number), number[:_SHORT_ID]
    # Pods of an outer container are not those of this one.
    nearest = next((n + 1 for n in reversed(range(len(folders))) if _CONTAINER.fullmatch(folders[n])), 0)
    if (pod := _find_pod(folders[nearest:])) is not None:
        return f"pod {name}" if name else f"pod {pod}: {shown}"
    if folders and folders[0] in _ECS_ROOTS:
        task = next((match[1] for part in reversed(folders) if (match := _ECS_TASK.fullmatch(part))), None)
        shown = number.rpartition("-")[2] if _FARGATE.fullmatch(number) else shown
        return f"ecs task {task}: {name or shown}" if task else f"container {name or shown} (ecs)"
    runtime = _RUNTIMES.get(prefix) or next((runtime for runtime in ("docker", "podman") if runtime in folders), None)
    return f"container {name or shown}{f' ({runtime})' if runtime else ''}"


def _unescape(name: str) -> str:
    r"""Return a unit's name without systemd's escapes such as \x2d."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), name)


def _cut(name: str) -> str:
    return printable(name)[:_MAX_NAME]


def container_names(root: Path = Path("/")) -> dict[str, str]:
    """Return the names that Docker, Podman and the kubelet give containers, by id: `web`, `shop/web-5d8: nginx`."""
    names: dict[str, str] = {}
    for link in _names_in(root / "var/log/containers"):
        if match := _KUBELET.fullmatch(link):
            names[match[4]] = f"{match[2]}/{match[1]}: {match[3]}"
    for number in _names_in(root / "var/lib/docker/containers"):
        container = _read_json(root / "var/lib/docker/containers" / number / "config.v2.json")
        if isinstance(container, dict) and isinstance(name := container.get("Name"), str):
            names[number] = name.removeprefix("/")
    for folder in ("var/lib/containers/storage", "run/containers/storage"):
        for container in _select_entries(_read_json(root / folder / "overlay-containers/containers.json")):
            ident, labels = container.get("id"), container.get("names")
            if isinstance(ident, str) and isinstance(labels, list) and labels and isinstance(labels[0], str):
                names[ident] = labels[0]
    return names


def _names_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for _, entry in zip(range(_MAX_CONTAINERS), entries, strict=False)]
    except OSError:
        return []


def _read_json(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_outside_text(path, _LIMIT_BYTES))
    except (DataError, msgspec.MsgspecError, RecursionError):
        return None


def _select_entries(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def group_of(pid: int) -> str | None:
    """Return the path of a process's control group (the unified one, else systemd's); None if it ended."""
    text = try_text(paths.procfs() / str(pid) / "cgroup")
    if text is None:
        return None
    groups: dict[str, str] = {}
    for line in text.split("\n"):
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            groups[controllers] = path.removesuffix(" (deleted)")
    first = [groups.pop("", "/"), groups.pop("name=systemd", "/")]
    return next((path for path in [*first, *groups.values()] if path != "/"), "/")


def exists_group(path: str) -> bool:
    """Return whether a control group of the unified hierarchy still exists; True if there is no such hierarchy."""
    root = _find_unified()
    return root is None or (root / path.lstrip("/")).is_dir()


def find_frozen_group(pid: int) -> Path | None:
    """Return the folder of the control group that froze a process (`docker pause`, cgroup.freeze); None without one."""
    root, path = _find_unified(), group_of(pid)
    if root is None or not path:
        return None
    folder = root / path.lstrip("/")
    if "frozen 1" not in (try_text(folder / "cgroup.events") or "").splitlines():
        return None
    # A group is frozen with the groups above it.
    above = [group for group in (folder, *folder.parents) if group.is_relative_to(root)]
    return next((group for group in above if try_text(group / "cgroup.freeze") == "1"), folder)


def service_of(pid: int) -> str | None:
    """Return the system's service of a process; None if it belongs to none, or to a user's: drop-ins would miss it."""
    group = group_of(pid)
    if group is None or not is_made_by_root(group) or not group.endswith(".service"):
        return None
    return Path(group).name


def groups_below(root: Path) -> Iterator[tuple[str, int]]:
    """Yield the path below `root` and the number (inode) of each control group, at most 20,000.

    Root's groups come first. Other accounts can make groups without limit. At most 2,000 groups of each of their
    subtrees follow, breadth first and one subtree after the other, for at most 2 s.
    """
    deadline = time.monotonic() + _MAX_SCAN_S
    # Folders to read, ordered by rank: 0 for root's, otherwise the position within the subtree.
    folders = [(0, 0, "/", "")]
    ranks: dict[str, Iterator[int]] = {"": repeat(0, _MAX_GROUPS)}
    ties = count(1)
    for _ in range(_MAX_GROUPS):
        if not folders or (folders[0][0] and time.monotonic() > deadline):
            return
        _, _, path, subtree = heapq.heappop(folders)
        folder = Path(f"{root}{path}")
        try:
            info = folder.stat()
            if info.st_uid != 0 and not subtree:
                ranks[path] = iter(range(2, _MAX_SUBTREE_GROUPS + 1))
                heapq.heappush(folders, (1, next(ties), path, path))
                continue
            yield path, info.st_ino
            with os.scandir(folder) as entries:
                for entry in entries:
                    below = f"{path.rstrip('/')}/{entry.name}"
                    if len(below) > _MAX_PATH or not entry.is_dir(follow_symlinks=False):
                        continue
                    rank = next(ranks[subtree], None)
                    if rank is None:
                        break
                    heapq.heappush(folders, (rank, next(ties), below, subtree))
        except OSError:
            continue  # The group was removed.


@lru_cache(maxsize=1)
def _find_unified() -> Path | None:
    """Return the folder of the unified hierarchy: BPF programs see the numbers (inodes) of its groups."""
    for folder in (paths.sysfs() / "fs/cgroup", paths.sysfs() / "fs/cgroup/unified"):
        if (folder / "cgroup.controllers").exists():
            return folder
    return None


def _find_path(number: int) -> str | None:
    """Return the path of a control group by its number; None if it was removed, or if the kernel refuses the call."""
    root = _find_unified()
    if root is None:
        return None
    libc, handle = ctypes.CDLL(None), ctypes.create_string_buffer(_HANDLE.pack(8, _FILEID_KERNFS, number))
    try:
        mount = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        group = libc.open_by_handle_at(mount, handle, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(mount)
    if group < 0:
        return None
    try:
        path = os.readlink(f"/proc/self/fd/{group}")
    except OSError:
        return None
    finally:
        os.close(group)
    return (path.removeprefix(str(root)) or "/")[:_MAX_PATH] if path.startswith(str(root)) else None


class Units:
    """The units of processes. The names of containers are read for the first container, and again for a new one."""

    def __init__(self) -> None:
        self._containers: dict[str, str] = {}
        self._by_path: dict[str, str] = {}
        self._groups: dict[int, str] = {}
        self._next_names_s = self._next_scan_s = 0.0

    def scan(self) -> None:
        """Remember the present control groups, because a removed group has no name."""
        root, began_s = _find_unified(), time.monotonic()
        if root is not None:
            self._remember({number: path for path, number in groups_below(root)})
        self._next_scan_s = time.monotonic() + _PAUSE_FACTOR * (time.monotonic() - began_s)

    def of(self, pid: int) -> str | None:
        """Return the unit of a process; None if the process has ended."""
        path = group_of(pid)
        return None if path is None else self._name_of(path)

    def of_group(self, number: int) -> str | None:
        """Return the unit of a control group by its number in the unified hierarchy; None if it is unknown.

        The kernel resolves the number of a group that exists. Groups are scanned only for the numbers that it does not
        resolve, and not more often than the pause after a scan allows: thousands may have been removed.
        """
        if number not in self._groups and (path := _find_path(number)) is not None:
            self._remember({number: path})
        if number not in self._groups and time.monotonic() >= self._next_scan_s:
            self.scan()
        path = self._groups.get(number)
        return None if path is None else self._name_of(path)

    def _remember(self, groups: Mapping[int, str]) -> None:
        if len(self._groups) + len(groups) > 2 * _MAX_GROUPS:
            # Other accounts can make and remove groups without limit. Root's removed groups keep their names.
            self._groups = {number: path for number, path in self._groups.items() if is_made_by_root(path)}
            if len(self._groups) > _MAX_GROUPS:
                self._groups.clear()
        self._groups.update(groups)

    def _name_of(self, path: str) -> str:
        path = path[:_MAX_PATH]
        name = self._by_path.get(path)
        if name is not None:
            return name
        container = _find_container(path)
        if container is not None and container not in self._containers:
            began_s = time.monotonic()
            if began_s < self._next_names_s:
                # The name is not cached: the container may have one at the next scan.
                return unit_of(path, self._containers)
            self._containers = container_names()
            self._next_names_s = time.monotonic() + _PAUSE_FACTOR * (time.monotonic() - began_s)
        if len(self._by_path) > _MAX_GROUPS:
            self._by_path.clear()
        self._by_path[path] = unit_of(path, self._containers)
        return self._by_path[path]
