# SPDX-License-Identifier: Apache-2.0
"""Settings of the host's idle states and frequencies that are changed temporarily: two kinds of settings.

Files of sysfs keep their value until a boot, which empties the journal of these settings too. A latency limit lasts as
long as its process: the keeper's end releases it, however it ends.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

import msgspec

from powerprof.measure.cpuidle import LATENCY_DEVICE, read_latency_us
from powerprof.system import files
from powerprof.system.errors import PowerprofError

NO_LIMIT = "none"


class HostFiles(msgspec.Struct, frozen=True, tag="host_files"):
    """A setting in one or more files of sysfs, such as the frequency governor of every CPU.

    Attributes:
        name: a name for people.
        paths: the files.
        value: the temporary value of all files. Different values of files are one text, joined by commas.
    """

    name: str
    paths: list[str]
    value: str

    @property
    def outlasts(self) -> bool:
        """False: a boot resets sysfs."""
        return False

    def read(self) -> str | None:
        """Return the common value, or the values joined by commas. Raise PowerprofError if one cannot be read."""
        values = [files.read_text(Path(path)) for path in self._places()]
        return values[0] if len(set(values)) == 1 else ",".join(values)

    def write(self, value: str) -> str | None:
        """Write the value of every file, and return what they read then. Raise PowerprofError if the kernel refuses."""
        values = value.split(",") if "," in value else [value] * len(self.paths)
        for path, text in zip(self._places(), values, strict=True):
            try:
                handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
                try:
                    os.write(handle, text.encode())
                finally:
                    os.close(handle)
            except OSError as error:
                raise PowerprofError(
                    f"the kernel refuses {text} for {self.name} ({path}: {files.reason_of(error)})",
                    "choose another value; run as root",
                ) from error
        return self.read()

    def by_hand(self, value: str) -> str:
        """Return the command that sets a value."""
        return f"echo {value} | tee {' '.join(self.paths)}"

    def _places(self) -> list[str]:
        if not self.paths:
            raise PowerprofError(f"{self.name} has no file", "choose another setting")
        return self.paths


class LatencyLimit(msgspec.Struct, frozen=True, tag="latency_limit"):
    """The host's CPU latency limit in µs, or none. The process that writes it holds the device open."""

    value: str

    @property
    def name(self) -> str:
        """The name for people."""
        return "the CPU latency limit"

    @property
    def outlasts(self) -> bool:
        """False: the limit ends with the process that holds it."""
        return False

    def read(self) -> str | None:
        """Return the limit of all processes together. Raise PowerprofError."""
        try:
            value = read_latency_us()
        except OSError as error:
            raise PowerprofError(f"cannot read {self.name} ({files.reason_of(error)})", "run as root") from error
        return NO_LIMIT if value is None else str(value)

    def write(self, value: str) -> str | None:
        """Hold the limit `value` if it is the temporary one, else release it. Return the limit of the host."""
        for handle in _held:
            with suppress(OSError):
                os.close(handle)
        _held.clear()
        if value == self.value and value != NO_LIMIT:
            try:
                handle = os.open(LATENCY_DEVICE, os.O_RDWR | os.O_CLOEXEC)
                _held.append(handle)
                os.write(handle, struct.pack("i", int(value)))
            except OSError as error:
                raise PowerprofError(f"cannot set {self.name} ({files.reason_of(error)})", "run as root") from error
        return self.read()

    def by_hand(self, value: str) -> str:
        """Return the way to set a value."""
        return f"end the process that holds {LATENCY_DEVICE} open; the limit was {value}"


# The open device of this process. The kernel drops the limit when it is closed.
_held: list[int] = []
