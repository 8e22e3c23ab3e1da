# SPDX-License-Identifier: Apache-2.0
"""Which CPU this is, by its numbers: guests hide the name ("Intel(R) Xeon(R) Processor"), never family and model."""

from __future__ import annotations

from dataclasses import dataclass

from powerprof import paths
from powerprof.files import try_text


@dataclass(frozen=True)
class CpuIdentity:
    """`vendor` is x86's vendor_id or Arm's implementer (0x41); `model` is x86's model or Arm's part number."""

    vendor: str | None
    family: int | None
    model: int | None
    stepping: int | None = None
    name: str | None = None

    def __str__(self) -> str:
        if self.vendor is None or self.model is None:
            return "an unknown CPU"
        if self.vendor.startswith("0x"):
            return f"Arm implementer {self.vendor} part {self.model:#x}"
        return f"{self.vendor} family {self.family} model {self.model}"


def parse_cpuinfo(text: str) -> CpuIdentity:
    """The identity of the first CPU in /proc/cpuinfo's text; its unknown parts are None."""
    fields: dict[str, str] = {}
    for line in text[:200_000].splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    if "CPU implementer" in fields:
        return CpuIdentity(
            fields["CPU implementer"], None, _number(fields.get("CPU part")), _number(fields.get("CPU revision")), None
        )
    return CpuIdentity(
        fields.get("vendor_id"),
        _number(fields.get("cpu family")),
        _number(fields.get("model")),
        _number(fields.get("stepping")),
        fields.get("model name"),
    )


def this_cpu() -> CpuIdentity:
    """The identity of this host's CPUs."""
    return parse_cpuinfo(try_text(paths.procfs() / "cpuinfo") or "")


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None
