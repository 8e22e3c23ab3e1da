# SPDX-License-Identifier: Apache-2.0
"""Things that are fetched on request: only after consent, verified once, and kept in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from powerprof import paths
from powerprof.database.isolation.runtree import RunTree
from powerprof.errors import CapabilityError, PowerprofError
from powerprof.files import reason_of


class Fetchable(Protocol):
    """An entry of a catalogue of such things."""

    @property
    def name(self) -> str:
        """As `powerprof servers fetch` takes it."""

    @property
    def description(self) -> str:
        """What it is, for people."""

    @property
    def download_bytes(self) -> int:
        """How much is downloaded, about."""

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""

    @property
    def terms(self) -> str:
        """Under which licence, and what to know before it is run: whole sentences but for the last full stop."""

    @property
    def place(self) -> Path:
        """The file or folder that it is once fetched."""


def size_text(thing: Fetchable) -> str:
    """How much is downloaded, for people."""
    megabytes = thing.download_bytes / 1e6
    return f"{megabytes:.{1 if megabytes < 10 else 0}f} MB"


def question(thing: Fetchable) -> str:
    """What to ask before anything is downloaded."""
    return f"Download {thing.description}, {size_text(thing)}, from {thing.origin}? {thing.terms}"


def is_fetched(thing: Fetchable) -> bool:
    """Return whether it is in the cache."""
    try:
        return thing.place.exists()
    except PermissionError:
        return False


def place_of(thing: Fetchable) -> Path:
    """Return its place in the cache. Raises CapabilityError if it is missing, PowerprofError if others may write there.

    It was verified when it was fetched, and only the account of the cache can change it.
    """
    if not is_fetched(thing):
        raise CapabilityError(f"{thing.name} has not been fetched", f"powerprof servers fetch {thing.name}")
    paths.cache_folder(thing.place.parent.name)
    return thing.place


def fetch(
    thing: Fetchable, consent: Callable[[str], bool], bring: Callable[[Path, RunTree], None], *, kept_as: str
) -> None:
    """Ask, let `bring` make it beside its place, and move it there: whole or not at all.

    Does nothing where it is there already. `consent` is asked once, with what is about to happen. `kept_as` names it
    where it cannot be kept. Raises PowerprofError for that, and where consent is refused.
    """
    if is_fetched(thing):
        return
    if not consent(question(thing)):
        raise PowerprofError(f"{thing.name} was not fetched: consent was refused", "answer yes, or use --yes")
    with RunTree() as tree:
        partial = paths.cache_folder(thing.place.parent.name) / f".{tree.path.name}"
        tree.also_remove(partial)
        bring(partial, tree)
        with keeping(kept_as):
            partial.replace(thing.place)
        tree.keep(partial)


@contextmanager
def keeping(what: str) -> Iterator[None]:
    """What the file system refuses meanwhile, as a PowerprofError."""
    try:
        yield
    except OSError as error:
        raise PowerprofError(
            f"cannot keep {what} ({reason_of(error)})", "set XDG_CACHE_HOME to another place"
        ) from error
