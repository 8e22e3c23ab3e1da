# SPDX-License-Identifier: Apache-2.0
"""The systemd unit of the exporter: root's name, and of what root may do only what tracing takes."""

from __future__ import annotations

import sys
from pathlib import Path

from powerprof.system.caller import TRACING

# Beyond what measuring takes (privileges.TRACING, less what acts as the caller), to be given up once all is open:
# tracefs and the table of BPF programs' run time ask for it on kernels where CAP_PERFMON is not enough.
_NOT_ALONE = ("setuid", "setgid")


def capabilities() -> list[str]:
    """What the service may do at most, by name."""
    return sorted(f"CAP_{name.upper()}" for name in TRACING if name not in _NOT_ALONE)


def this_installation() -> Path:
    """The program that this process was started by."""
    return Path(sys.argv[0]).resolve()


def unit_text(program: Path) -> str:
    """The unit. `systemd-analyze security` scores it; docs/how-to/prometheus.md has the figure and why each line."""
    return _UNIT.format(program=program, capabilities=" ".join(capabilities()))


_UNIT = """\
[Unit]
Description=powerprof: idle states, wake-ups and joules for Prometheus
Documentation=man:powerprof(1)
After=network.target

[Service]
Type=exec
ExecStart={program} export --quiet $POWERPROF_EXPORT_OPTIONS
EnvironmentFile=-/etc/default/powerprof
Restart=on-failure
RestartSec=10
# It polls nothing and is in nobody's way.
Nice=5
CacheDirectory=powerprof
RuntimeDirectory=powerprof
StateDirectory=powerprof
Environment=HOME=/var/lib/powerprof XDG_STATE_HOME=/var/lib XDG_CONFIG_HOME=/etc

# Measuring needs these, and nothing else of what root may do.
CapabilityBoundingSet={capabilities}
AmbientCapabilities=
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
IPAddressDeny=any
IPAddressAllow=localhost
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service bpf perf_event_open kcmp open_by_handle_at
SystemCallErrorNumber=EPERM
UMask=0027
# 60 to 70 MB, and for a moment as much again where the tables of a large program are read.
MemoryMax=512M
TasksMax=64

[Install]
WantedBy=multi-user.target
"""
