# SPDX-License-Identifier: Apache-2.0
"""The run store: one folder per run with `run.json` and further files of a command.

Files are written next to their final name and renamed, with the caller's rights: a run is either complete or absent.
Runs may come from other machines, so their content is not trusted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from powerprof.model.records import Ended
from powerprof.system import paths
from powerprof.system.acting import as_caller
from powerprof.system.errors import DataError, PowerprofError, UnknownNameError, UsageError, reason_of
from powerprof.system.folders import Folder
from powerprof.system.foreign_data import check_json, loader
from powerprof.system.next_steps import command_line
from powerprof.system.outside_files import read_outside

T = TypeVar("T", bound=msgspec.Struct)

_NAME = re.compile(r"[a-z][a-z-]{,30}-\d{4,18}")
_RUN_FILE = "run.json"
_ABOUT_FILE = "about.json"
# A label is a word such as a release or a branch. `last` means the newest run; the others are commands.
_LABEL = re.compile(r"[A-Za-z0-9][\w.+/-]{0,39}")
_NO_LABELS = ("last", "prune", "export")
_LIMIT_BYTES = 64 << 20
_SHOWN_NAME = 80
# A capture of a busy host takes some MB, any other run less than one.
_NEEDED_BYTES = 1 << 20


class RecordHead(msgspec.Struct):
    """The common fields of all records."""

    schema: str
    command: str | None = None
    started_at: str | None = None
    ended: Ended | None = None


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The file next to a run: the caller's labels, the target, and the answer in one sentence."""

    labels: list[str] = []
    target: str | None = None
    answer: str | None = None


class RunInfo(msgspec.Struct, frozen=True):
    """One line of `powerprof runs`. `problem` is the reason why a run cannot be read."""

    id: str
    path: Path
    schema: str | None
    started_at: str | None
    ended: Ended | None = None
    problem: str | None = None
    labels: Sequence[str] = ()
    target: str | None = None
    answer: str | None = None

    @property
    def command(self) -> str:
        """The command that saved it."""
        return self.id.rpartition("-")[0]


def check_label(label: str) -> str:
    """Return the label. Raise UsageError for an invalid one."""
    if not _LABEL.fullmatch(label) or label in _NO_LABELS or _NAME.fullmatch(label):
        shown = label if len(label) <= _SHOWN_NAME else label[:_SHOWN_NAME] + "…"
        raise UsageError(f"--label {shown} is not a label", "letters, digits and . _ + / -, at most 40, not a run's id")
    return label


@loader(0)
def decode_record(path: Path, kind: type[T]) -> T:
    """Return one record of a file. Raise DataError with the field that does not fit."""
    data = read_outside(path, _LIMIT_BYTES)
    check_json(data, path)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(
            path, f"not a record of powerprof ({error})", hint=f"to list them: {command_line('runs')}"
        ) from None


def read_head(path: Path) -> RecordHead:
    """Return the common fields of a record. Raise DataError."""
    return decode_record(path, RecordHead)


def read_schema(path: Path) -> str:
    """Return the schema of a record. Raise DataError."""
    return read_head(path).schema


def _number_of(name: str) -> int | None:
    """Return the number at the end of a run's name; None without one."""
    number = re.search(r"-(\d{1,18})$", name, re.ASCII)
    return int(number[1]) if number else None


class RunStore:
    """Saved runs below one directory (default: the state directory of the caller)."""

    def __init__(self, directory: Path | None = None) -> None:
        self._is_given = directory is not None
        self.directory = directory or paths.state_dir() / "runs"

    @property
    def listing(self) -> str:
        """The hint with the command that lists the runs of this store."""
        folder = ["--runs-dir", str(self.directory)] if self._is_given else []
        return f"to list them: {command_line('{} runs', folder)}"

    def prepare(self) -> None:
        """Create the directory. Raise PowerprofError if it cannot be created or written."""
        try:
            if self.directory.exists() and not self.directory.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except OSError as error:  # also for another user's closed home
            raise self._explain_failure(error) from error
        paths.private_directory(self.directory)
        with as_caller():
            # The effective ids include those that write files. Plain access(2) checks the real ids.
            if not os.access(self.directory, os.W_OK | os.X_OK, effective_ids=True):
                raise self._explain_failure(PermissionError(errno.EACCES, os.strerror(errno.EACCES)))

    def check(self) -> None:
        """Create the directory and check that a run can be saved now. Raise PowerprofError."""
        self.prepare()
        try:
            with as_caller(), Folder.open(self.directory) as store:
                store.check_room(_NEEDED_BYTES)
        except OSError as error:
            raise self._explain_failure(error) from error

    def create(self, command: str) -> tuple[str, Path]:
        """Create an empty run and return its id, such as idle-0042, and its folder. Raise PowerprofError on failure."""
        self.prepare()
        numbers = [int(name.rsplit("-", 1)[1]) for name in self.names() if name.rsplit("-", 1)[0] == command]
        number = max(numbers, default=0) + 1
        try:
            with as_caller(), Folder.open(self.directory) as store:
                while True:
                    name = f"{command}-{number:04d}"
                    try:
                        store.make(name)
                    except FileExistsError:
                        number += 1
                    else:
                        return name, self.directory / name
        except OSError as error:
            raise self._explain_failure(error) from error

    def write(self, folder: Path, name: str, data: bytes) -> Path:
        """Write one file of a run, completely or not at all. Raise PowerprofError (disk full, no permission)."""
        try:
            with as_caller(), Folder.open(folder) as run:
                run.write(name, data)
        except OSError as error:
            raise self._explain_failure(error) from error
        return folder / name

    def save(self, command: str, record: T, extra: dict[str, bytes] | None = None, about: About | None = None) -> T:
        """Save a record with an `id` field and other files next to it. Return the record with its id."""
        name, folder = self.create(command)
        named = msgspec.structs.replace(record, id=name)
        try:
            for file, data in (extra or {}).items():
                self.write(folder, file, data)
            if about is not None:
                self.write(folder, _ABOUT_FILE, encode_record(about))
            self.write(folder, _RUN_FILE, encode_record(named))
        except PowerprofError:
            with contextlib.suppress(PowerprofError):
                self.remove(name)
            raise
        return named

    def remove(self, name: str) -> None:
        """Remove a run by its id, with all of its files. Raise UsageError, PowerprofError."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not a run's id", self.listing)
        try:
            with as_caller(), Folder.open(self.directory) as store:
                with store.folder(name) as run:
                    for leftover in run.names():
                        run.remove(leftover)
                store.remove_folder(name)
        except OSError as error:
            raise PowerprofError(
                f"cannot remove {self.directory / name} ({reason_of(error)})",
                "remove it as the user that it belongs to",
            ) from error

    def about(self, name: str) -> About:
        """Return the labels, target and answer of a run. Empty without the file, or for a damaged one."""
        path = self.directory / name / _ABOUT_FILE
        try:
            return decode_record(path, About) if path.is_file() else About()
        except (DataError, PermissionError):
            return About()

    def describe(self, name: str, about: About) -> None:
        """Add labels, target and answer to a run of the store.

        Raise UsageError for an unknown run, PowerprofError if the file cannot be written.
        """
        if not _NAME.fullmatch(name) or self.find(name).parent != self.directory / name:
            raise UsageError(f"no run {name[:_SHOWN_NAME]!r} in {self.directory}", self.listing)
        old = self.about(name)
        both = About(
            labels=list(dict.fromkeys([*old.labels, *about.labels])),
            target=about.target or old.target,
            answer=about.answer or old.answer,
        )
        self.write(self.directory / name, _ABOUT_FILE, encode_record(both))

    def find(self, name: str) -> Path:
        """Return the file of a record by run id, run folder or JSON file.

        Raise UsageError without a file, PowerprofError if this user may not see whether there is one.
        """
        kept, path = self.directory / name / _RUN_FILE, Path(name)
        try:
            if _NAME.fullmatch(name) and kept.is_file():
                return kept
            if path.is_dir() and (path / _RUN_FILE).is_file():
                return path / _RUN_FILE
            if path.is_file():
                return path
            if path.is_dir():
                raise UsageError(f"{name} is a directory without a {_RUN_FILE}", self.listing)
            if path.exists():
                raise UsageError(f"{name} is not a regular file", self.listing)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise PowerprofError(
                    f"cannot look for the run {name[:_SHOWN_NAME]} ({reason_of(error)}: {error.filename})",
                    "run as the owner of that folder, or as root",
                ) from error
            # The name may be too long for a file.
        self._require_directory()
        shown = name if len(name) <= _SHOWN_NAME else name[:_SHOWN_NAME] + "…"
        # Another number is another run, and no spelling of this one.
        names = [each for each in self.names() if _number_of(each) == (_number_of(name) or _number_of(each))]
        raise UnknownNameError(f"no run {shown!r} in {self.directory}", name, names, self.listing)

    def find_earlier(self, name: str, label: str) -> str:
        """Return the id of the newest other run of the same command and target with a label.

        `last` means any run before this one. Raise UsageError if there is none, or if `name` is not in this store.
        """
        self.find(name)
        runs = self.list()
        this = next((run for run in runs if run.id == name), None)
        if this is None:
            raise UsageError(f"{name} is not the id of a run in {self.directory}", self.listing)
        others = [run for run in runs if run.command == this.command and run.id != name and run.problem is None]
        if label == "last":
            moment = (this.started_at or "", name)
            others = [run for run in others if (run.started_at or "", run.id) < moment]
        else:
            others = [run for run in others if label in run.labels]
        same_target = [run for run in others if run.target == this.target]
        if not same_target:
            wanted = "earlier run" if label == "last" else f"run with the label {label[:_SHOWN_NAME]}"
            raise UsageError(f"no {wanted} of the same command and target as {name}", self.listing)
        return same_target[-1].id

    def load(self, name: str, kind: type[T]) -> T:
        """Return a run by id, folder or file."""
        return decode_record(self.find(name), kind)

    def list(self) -> list[RunInfo]:
        """Return all runs, oldest first, also damaged ones with the reason."""
        self._require_directory()
        infos = []
        for name in self.names():
            path = self.directory / name / _RUN_FILE
            try:
                if not path.is_file():
                    continue
                head = decode_record(path, RecordHead)
            except PermissionError as error:
                infos.append(RunInfo(name, path, None, None, problem=f"cannot be read ({reason_of(error)})"))
            except DataError as error:
                infos.append(RunInfo(name, path, None, None, problem=error.reason))
            else:
                about = self.about(name)
                infos.append(
                    RunInfo(
                        name,
                        path,
                        head.schema,
                        head.started_at,
                        head.ended,
                        labels=about.labels,
                        target=about.target,
                        answer=about.answer,
                    )
                )
        return sorted(infos, key=lambda run: (run.started_at or "", run.id))

    def _require_directory(self) -> None:
        if self._is_given and not self.directory.exists():
            raise UsageError(f"--runs-dir {self.directory}: no such directory", "name a directory with saved runs")

    def names(self) -> Iterator[str]:
        """Yield the ids of the saved runs, sorted. Raise PowerprofError if the folder cannot be read."""
        try:
            names = sorted(entry.name for entry in self.directory.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise PowerprofError(
                f"cannot read {self.directory} ({reason_of(error)})", "name another folder with --runs-dir"
            ) from error
        yield from (name for name in names if _NAME.fullmatch(name))

    def _explain_failure(self, error: OSError) -> PowerprofError:
        return PowerprofError(
            f"cannot save the run in {self.directory} ({reason_of(error)})",
            "make room there, or use --runs-dir DIR"
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            else "use --runs-dir DIR",
        )


def encode_record(record: Any) -> bytes:
    """Return a record as indented JSON with a final newline. Equal records give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(record, enc_hook=_plain), indent=1) + b"\n"


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is in no record")
