# SPDX-License-Identifier: Apache-2.0
"""What people call the control group of a process: a service, a container, a pod.

Paths are those that systemd, Docker, Podman, containerd, CRI-O, Kubernetes and LXC make
(systemd.slice(5), k8s: pkg/kubelet/cm). A container's name is the runtime's, where its files can be read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from powerprof import paths
from powerprof.errors import DataError
from powerprof.files import read_outside_text, try_text
from powerprof.untrusted import printable

NO_UNIT = "no unit"
_MOST_NAME = 120
_MOST_CONTAINERS = 2000
_MOST_GROUPS = 20_000
_LIMIT_BYTES = 4 << 20
_SHORT = 12
# Times as long as a look for the names of containers took, none is made again.
_REST = 20
_ID = r"[0-9a-f]{64}"
# docker-ID.scope, libpod-ID.scope, cri-containerd-ID.scope, crio-ID.scope; ID alone where cgroupfs is the driver.
_CONTAINER = re.compile(rf"(?:([a-z][a-z-]*?)-)?(?:conmon-)?({_ID})(?:\.scope)?")
_POD = re.compile(r"(?:kubepods(?:-[a-z]+)*-)?pod([0-9a-f]{8}[-_0-9a-f]{4,32})(?:\.slice)?")
_SESSION = re.compile(r"session-[0-9a-zA-Z]+\.scope")
_USER = re.compile(r"user-([0-9]+)\.slice")
_LXC = re.compile(r"lxc(?:\.payload)?[./](.+)")
# What `/var/log/containers` names its links: POD_NAMESPACE_CONTAINER-ID.log.
_KUBELET = re.compile(rf"([^_]+)_([^_]+)_(.+)-({_ID})\.log")
_HOW = (("docker", "docker"), ("libpod", "podman"), ("cri-containerd", "containerd"), ("crio", "cri-o"))


def unit_of(path: str, containers: Mapping[str, str]) -> str:
    """The unit of a control group's path. `containers`: what runtimes call them, by id."""
    parts = [part for part in path.split("/") if part not in ("", "..", ".")]
    pod = None
    for number, part in enumerate(parts):
        found = _CONTAINER.fullmatch(part)
        if found is not None:
            return _container(found[2], found[1] or "", pod, parts[:number], containers)
        known = _POD.fullmatch(part)
        pod = known[1].replace("_", "-") if known else pod
    if pod is not None:
        return f"pod {pod}"
    lxc = _LXC.match("/".join(parts))
    return _cut(f"lxc {lxc[1].split('/')[0]}" if lxc else _systemd(parts))


def _container(number: str, prefix: str, pod: str | None, above: list[str], containers: Mapping[str, str]) -> str:
    name = containers.get(number)
    if pod is not None:
        return _cut(f"pod {name}" if name else f"pod {pod}: {number[:_SHORT]}")
    runtime = dict(_HOW).get(prefix) or next((one for one in ("docker", "podman") if one in above), None)
    return _cut(f"container {name or number[:_SHORT]}{f' ({runtime})' if runtime else ''}")


def _systemd(parts: list[str]) -> str:
    """The innermost service, scope or socket; of a user's session also whose; else the path."""
    if not parts:
        return NO_UNIT
    user = next((found[1] for part in parts if (found := _USER.fullmatch(part))), None)
    for part in reversed(parts):
        if part.endswith((".service", ".scope", ".socket", ".mount", ".swap")):
            name = _unescaped(part)
            of_user = user is not None and not name.startswith("user@")
            return f"{name} (user {user})" if of_user and (_SESSION.fullmatch(part) or len(parts) > 2) else name
    slices = [part for part in parts if part.endswith(".slice")]
    return _unescaped(slices[-1]) if len(slices) == len(parts) else "/".join(parts)


def _unescaped(name: str) -> str:
    r"""systemd writes what no name of a unit may hold as \x2d."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), name)


def _cut(name: str) -> str:
    return printable(name)[:_MOST_NAME]


def container_names(root: Path = Path("/")) -> dict[str, str]:
    """What Docker, Podman and the kubelet call the containers of this host, by id: `web`, `shop/web-5d8: nginx`."""
    names: dict[str, str] = {}
    for link in _names_in(root / "var/log/containers"):
        if found := _KUBELET.fullmatch(link):
            names[found[4]] = f"{found[2]}/{found[1]}: {found[3]}"
    for number in _names_in(root / "var/lib/docker/containers"):
        container = _json(root / "var/lib/docker/containers" / number / "config.v2.json")
        if isinstance(container, dict) and isinstance(name := container.get("Name"), str):
            names[number] = name.removeprefix("/")
    for folder in ("var/lib/containers/storage", "run/containers/storage"):
        for one in _listed(_json(root / folder / "overlay-containers/containers.json")):
            ident, called = one.get("id"), one.get("names")
            if isinstance(ident, str) and isinstance(called, list) and called and isinstance(called[0], str):
                names[ident] = called[0]
    return names


def _names_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for _, entry in zip(range(_MOST_CONTAINERS), entries, strict=False)]
    except OSError:
        return []


def _json(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_outside_text(path, _LIMIT_BYTES))
    except (DataError, msgspec.MsgspecError, RecursionError):
        return None


def _listed(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def group_of(pid: int) -> str | None:
    """The path of a process's control group: the unified one, else systemd's, else another's; None if it is gone."""
    text = try_text(paths.procfs() / str(pid) / "cgroup")
    if text is None:
        return None
    found: dict[str, str] = {}
    for line in text.split("\n"):
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            found[controllers] = path.removesuffix(" (deleted)")
    first = [found.pop("", "/"), found.pop("name=systemd", "/")]
    return next((path for path in [*first, *found.values()] if path != "/"), "/")


@lru_cache(maxsize=1)
def _unified() -> Path | None:
    """Where control groups of the unified hierarchy are: their numbers (inodes) are those that BPF programs see."""
    for place in (paths.sysfs() / "fs/cgroup", paths.sysfs() / "fs/cgroup/unified"):
        if (place / "cgroup.controllers").exists():
            return place
    return None


def groups_by_id() -> dict[int, str]:
    """The path of every control group of the unified hierarchy, by its number."""
    root = _unified()
    if root is None:
        return {}
    found: dict[int, str] = {}
    left = [(root, "/")]
    while left and len(found) < _MOST_GROUPS:
        folder, path = left.pop()
        try:
            found[folder.stat().st_ino] = path
            with os.scandir(folder) as entries:
                left += [
                    (Path(entry.path), f"{path.rstrip('/')}/{entry.name}")
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False)
                ]
        except OSError:
            continue  # it was removed meanwhile
    return found


class Units:
    """The units of processes. Names of containers are read when the first container is met, and again for a new one."""

    def __init__(self) -> None:
        self._containers: dict[str, str] = {}
        self._by_path: dict[str, str] = {}
        self._groups: dict[int, str] = {}
        self._again_s = 0.0

    def look(self) -> None:
        """Remember every control group: one that is removed later has no name any more."""
        self._groups |= groups_by_id()
        if len(self._groups) > _MOST_GROUPS:
            self._groups = groups_by_id()

    def of(self, pid: int) -> str | None:
        """Of a process that lives; None for one that is gone."""
        path = group_of(pid)
        return None if path is None else self._named(path)

    def of_group(self, number: int) -> str | None:
        """Of a control group by its number in the unified hierarchy; None for one that nobody knows."""
        if number not in self._groups:
            self.look()
        path = self._groups.get(number)
        return None if path is None else self._named(path)

    def _named(self, path: str) -> str:
        known = self._by_path.get(path)
        if known is not None:
            return known
        if re.search(_ID, path) and not any(number in path for number in self._containers):
            began_s = time.monotonic()
            if began_s < self._again_s:
                # Any account may make control groups all day. Not remembered: it may have a name at the next look.
                return unit_of(path, self._containers)
            self._containers = container_names()
            self._again_s = time.monotonic() + _REST * (time.monotonic() - began_s)
        if len(self._by_path) > _MOST_GROUPS:
            self._by_path.clear()
        self._by_path[path] = unit_of(path, self._containers)
        return self._by_path[path]
