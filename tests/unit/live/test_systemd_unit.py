# SPDX-License-Identifier: Apache-2.0
"""The systemd unit of the exporter."""

from __future__ import annotations

from powerprof.live.systemd_unit import list_capabilities


def test_the_capabilities_of_the_unit() -> None:
    assert list_capabilities() == [
        "CAP_BPF",
        "CAP_CHECKPOINT_RESTORE",
        "CAP_DAC_READ_SEARCH",
        "CAP_PERFMON",
        "CAP_SYSLOG",
        "CAP_SYS_PTRACE",
        "CAP_SYS_RESOURCE",
    ]
