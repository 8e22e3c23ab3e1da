# SPDX-License-Identifier: Apache-2.0
"""Settings of the host's idle states and frequencies that are changed temporarily: three kinds of settings.

Files of sysfs keep their value until a boot, which empties the journal of these settings too. A latency limit lasts as
long as its process: the keeper's end releases it, however it ends. TuneD keeps its profile over a boot.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from powerprof.measure.cpuidle import LATENCY_DEVICE, read_latency_us
from powerprof.system import errors, programs
from powerprof.system.errors import PowerprofError

NO_LIMIT = "none"
# The end of a temporary value that nobody restores: with the process of the setting, at a boot, or never.
Lasting = Literal["process", "boot", "always"]
_CPU = re.compile(r"/cpu([0-9]+)/")
_AWAY = (errno.ENOENT, errno.ENODEV, errno.ENXIO)


class FileAway(PowerprofError):
    """An error: a file of sysfs is missing, usually because its CPU is offline. It may come back."""


class HostFile(msgspec.Struct, frozen=True, tag="host_file"):
    """A setting in one file of sysfs, such as the frequency governor of one CPU.

    A CPU that goes offline takes its files away. When it is back, the kernel may have kept the temporary value: cpufreq
    remembers the last governor of a CPU, and cpuidle the disabled states.

    Attributes:
        label: the setting, for people.
        path: the file.
        value: the temporary value.
    """

    label: str
    path: str
    value: str
    lasts: ClassVar[Lasting] = "boot"  # a boot resets sysfs

    @property
    def cpu(self) -> int | None:
        """The CPU of the file; None for a file of the whole host."""
        match = _CPU.search(self.path)
        return None if match is None else int(match[1])

    @property
    def name(self) -> str:
        """The name for people."""
        return self.label if self.cpu is None else f"{self.label} on CPU {self.cpu}"

    def read(self) -> str | None:
        """Return the present value. Raise FileAway if there is no file, and PowerprofError if it cannot be read."""
        try:
            return Path(self.path).read_bytes().decode("utf-8", "replace").strip()
        except OSError as error:
            # A policy of cpufreq without an online CPU answers EBUSY (drivers/cpufreq/cpufreq.c, show).
            if error.errno in _AWAY or error.errno == errno.EBUSY:
                remedy = "load its module" if self.cpu is None else f"set CPU {self.cpu} online"
                raise FileAway(f"{self.name} is missing ({self.path}: {errors.reason_of(error)})", remedy) from error
            raise PowerprofError(f"cannot read {self.path} ({errors.reason_of(error)})", "run as root") from error

    def write(self, value: str) -> str | None:
        """Write a value, and return what the file reads then. Raise FileAway, or PowerprofError for a refusal."""
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(handle, value.encode())
            finally:
                os.close(handle)
        except OSError as error:
            self.read()  # FileAway, if the CPU went offline just now
            raise PowerprofError(
                f"the kernel refuses {value} for {self.name} ({self.path}: {errors.reason_of(error)})",
                "choose another value; run as root",
            ) from error
        return self.read()

    def by_hand(self, value: str) -> str:
        """Return the command that sets a value."""
        return write_command(value, [self.path])


def write_command(value: str, paths: Sequence[str]) -> str:
    """Return the command that writes one value to files."""
    return f"echo {shlex.quote(value)} | tee {shlex.join(paths)}"


class LatencyLimit(msgspec.Struct, frozen=True, tag="latency_limit"):
    """The host's CPU latency limit in µs, or none. The process that writes it holds the device open."""

    value: str
    name: ClassVar[str] = "the CPU latency limit"
    lasts: ClassVar[Lasting] = "boot"  # it ends with the process that holds it

    def read(self) -> str | None:
        """Return the limit of all processes together. Raise PowerprofError."""
        try:
            value = read_latency_us()
        except OSError as error:
            raise PowerprofError(f"cannot read {self.name} ({errors.reason_of(error)})", "run as root") from error
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
                raise PowerprofError(f"cannot set {self.name} ({errors.reason_of(error)})", "run as root") from error
        return self.read()

    def by_hand(self, value: str) -> str:
        """Return the way to set a value."""
        return f"end the process that holds {LATENCY_DEVICE} open; the limit was {value}"


# A fixed path, whose file only root can write (`programs.run`): PATH could name another program.
TUNED_ADM = Path("/usr/sbin/tuned-adm")
_TUNED_S = 20.0
_AUTO = " (auto)"


class TunedProfile(msgspec.Struct, frozen=True, tag="tuned_profile"):
    """The active profile of TuneD, such as `balanced`, or `balanced (auto)` if TuneD has chosen it."""

    value: str
    name: ClassVar[str] = "the TuneD profile"
    lasts: ClassVar[Lasting] = "always"  # TuneD applies its profile again after a boot

    def read(self) -> str | None:
        """Return the active profile. Raise PowerprofError without TuneD, its daemon or an active profile."""
        lines = _run_tuned("active").splitlines()
        names = {key: name for key, found, name in (line.partition(": ") for line in lines) if found}
        profile = names.get("Current active profile")
        if profile is None:
            raise PowerprofError("TuneD has no active profile", "systemctl start tuned; tuned-adm profile NAME")
        # The active profile includes the post-loaded one, which every profile gets.
        profile = profile.removesuffix(f" {names.get('Current post-loaded profile')}")
        return profile + (_AUTO if _run_tuned("profile_mode").strip().endswith("auto") else "")

    def write(self, value: str) -> str | None:
        """Activate a profile, and return the active one. Raise PowerprofError."""
        _run_tuned(*(["auto_profile"] if value.endswith(_AUTO) else ["profile", *value.split()]))
        return self.read()

    def by_hand(self, value: str) -> str:
        """Return the command that sets a value."""
        return "tuned-adm auto_profile" if value.endswith(_AUTO) else f"tuned-adm profile {value}"


def list_tuned_profiles() -> list[str]:
    """Return the names of TuneD's profiles. Raise PowerprofError."""
    return re.findall(r"^- (\S+)", _run_tuned("list"), re.MULTILINE)


def _run_tuned(*words: str) -> str:
    """Return the output of tuned-adm. Raise PowerprofError if it fails; without an active profile it does."""
    done = programs.run([TUNED_ADM, *words], timeout_s=_TUNED_S, check=False)
    if done.returncode != 0 and words[0] != "active":
        raise PowerprofError(f"tuned-adm {' '.join(words)} failed ({done.tail()})", "see /var/log/tuned/tuned.log")
    return done.stdout


HostSetting = HostFile | LatencyLimit | TunedProfile

# The open device of this process. The kernel drops the limit when it is closed.
_held: list[int] = []
