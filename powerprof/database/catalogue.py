# SPDX-License-Identifier: Apache-2.0
"""Servers of other releases and Java connectors, fetched on request.

They are verified once and kept in the cache. No release of powerprof contains them.
"""

from __future__ import annotations

import os
import platform
import shutil
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import msgspec

from powerprof.database.builds import ServerBuild
from powerprof.database.debian_packages import DebianPackages
from powerprof.database.maven import MavenJar
from powerprof.database.runtree import RunTree
from powerprof.model.text import Say
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, Declined, PowerprofError, UnknownNameError, reason_of
from powerprof.system.next_steps import command_line

_CATALOGUE = Path(__file__).with_name("catalogue.toml")


class Fetchable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server or a Java connector in catalogue.toml. `warning` is what to know before it is run.

    A connector has the `scheme` of its addresses, and its `options` besides the account.
    """

    name: str
    version: str
    description: str
    licence: str
    source: DebianPackages | MavenJar
    licence_text: str | None = None
    warning: str = "It runs with its own data, which no other account can reach"
    machine: str | None = None
    scheme: str | None = None
    options: Mapping[str, str] = {}

    @property
    def terms(self) -> str:
        """Licence and warning, without the last full stop."""
        text = f" ({self.licence_text})" if self.licence_text else ""
        return f"{self.licence}{text}. {self.warning}"

    @property
    def place(self) -> Path:
        """Its folder or jar in the cache."""
        if self.scheme is not None and isinstance(self.source, MavenJar):
            return paths.cache_dir() / "connectors" / self.source.file_name
        return paths.cache_dir() / "servers" / self.name

    @property
    def is_fetched(self) -> bool:
        """Whether it is in the cache."""
        try:
            return self.place.exists()
        except PermissionError:
            return False

    @property
    def size_text(self) -> str:
        """The size of the download."""
        megabytes = self.source.download_bytes / 1e6
        return f"{megabytes:.{1 if megabytes < 10 else 0}f} MB"


@cache
def load_catalogue() -> dict[str, Fetchable]:
    """Return the servers and connectors by name, servers first."""
    entries = tomllib.loads(_CATALOGUE.read_text(encoding="utf-8"))["entry"]
    return {entry.name: entry for entry in msgspec.convert(entries, list[Fetchable])}


def find_entry(name: str) -> Fetchable:
    """Return the server or connector of that name. Raise UsageError."""
    catalogue = load_catalogue()
    return catalogue[name] if name in catalogue else find_server(name)


def find_server(name: str) -> Fetchable:
    """Return the server of that name. Raise UsageError."""
    servers = {entry.name: entry for entry in load_catalogue().values() if entry.scheme is None}
    if name not in servers:
        raise UnknownNameError(f"no server is called {name!r}", name, servers)
    return servers[name]


def find_fetched(entry: Fetchable) -> Path:
    """Return its place in the cache. Raise CapabilityError if it is missing, PowerprofError if others may write there.

    It was verified during the download, and only the account of the cache can change it.
    """
    if not entry.is_fetched:
        raise CapabilityError(
            f"{entry.name} has not been fetched", f"fetch it: {command_line('servers fetch {}', entry.name)}"
        )
    paths.cache_folder(entry.place.parent.name)
    return entry.place


def load_build(name: str) -> ServerBuild:
    """Return the fetched server for `PrivateServer(build=…)`. Raise CapabilityError if it has not been fetched."""
    server = find_server(name)
    return server.source.load_build(find_fetched(server))


def read_jar(name: str) -> bytes:
    """Return the fetched jar. Raise CapabilityError if it has not been fetched, PowerprofError if it is unreadable."""
    path = find_fetched(find_entry(name))
    try:
        return path.read_bytes()
    except OSError as error:
        raise PowerprofError(
            f"cannot read {path} ({reason_of(error)})", f"fetch it again: {command_line('servers fetch {}', name)}"
        ) from error


def fetch_entry(entry: Fetchable, consent: Callable[[str], bool], progress: Say = lambda text: None) -> None:
    """Download, check and unpack it, and start a server once. Do nothing if it is in the cache.

    `consent` is called once with the question. It reaches its place whole or not at all. Raises PowerprofError without
    consent, or if it cannot be downloaded or kept, and CapabilityError if this host cannot run it.
    """
    from powerprof.database.private_server import PrivateServer

    if entry.machine not in (None, platform.machine()):
        raise CapabilityError(
            f"{entry.name} runs on {entry.machine} only, this host is {platform.machine()}",
            f"to list the others: {command_line('servers')}",
        )
    if entry.is_fetched:
        return
    question = (
        f"Download {entry.description}, {entry.size_text}, from {entry.source.origin}? Its licence is {entry.terms}"
    )
    if not consent(question):
        raise Declined(f"Declined: {entry.name} was not fetched.")
    with RunTree() as tree:
        partial = paths.cache_folder(entry.place.parent.name) / f".{tree.path.name}"
        tree.also_remove(partial)
        entry.source.bring(partial, tree, progress)
        if entry.scheme is None:
            progress("starting it once")
            # A server that does not start is not kept.
            with PrivateServer(build=entry.source.load_build(partial), tree=tree, name="trial"):
                pass
        try:
            partial.replace(entry.place)
        except OSError as error:
            raise PowerprofError(
                f"cannot keep {entry.place} ({reason_of(error)})", "set XDG_CACHE_HOME to another place"
            ) from error
        tree.keep(partial)


def remove_fetched(entry: Fetchable) -> None:
    """Remove it from the cache. Raise CapabilityError if it is missing, PowerprofError if it cannot be removed."""
    place = find_fetched(entry)
    # Renamed first: it is either whole or absent.
    removed = place.with_name(f".removed-{os.urandom(8).hex()}")
    try:
        place.rename(removed)
        removed.unlink() if removed.is_file() else shutil.rmtree(removed)
    except OSError as error:
        raise PowerprofError(f"cannot remove {place} ({reason_of(error)})", "remove it as its owner") from error
