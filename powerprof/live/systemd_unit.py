# SPDX-License-Identifier: Apache-2.0
"""The systemd unit of `powerprof export`."""

from __future__ import annotations

from pathlib import Path

from powerprof.system.capabilities import TRACING

# The service runs nothing as another account. The other capabilities are dropped after loading: on some kernels
# CAP_PERFMON alone opens neither tracefs nor the run time of BPF programs.
_UNUSED_CAPABILITIES = ("setuid", "setgid")


def list_capabilities() -> list[str]:
    """Return the names of the capabilities in the bounding set of the service."""
    return sorted(f"CAP_{name.upper()}" for name in TRACING if name not in _UNUSED_CAPABILITIES)


def format_unit(program: Path) -> str:
    """Return the systemd unit. docs/how-to/prometheus.md explains each line and has the score of `systemd-analyze`."""
    return _UNIT.format(program=program, capabilities=" ".join(list_capabilities()))


_UNIT = """\
[Unit]
Description=powerprof: idle states, wake-ups and joules for Prometheus
Documentation=man:powerprof(1)
After=network.target

[Service]
Type=exec
ExecStart={program} --quiet export $POWERPROF_EXPORT_OPTIONS
EnvironmentFile=-/etc/default/powerprof
Restart=on-failure
RestartSec=10
# It runs at low priority.
Nice=5
CacheDirectory=powerprof
RuntimeDirectory=powerprof
StateDirectory=powerprof
Environment=HOME=/var/lib/powerprof XDG_STATE_HOME=/var/lib XDG_CONFIG_HOME=/etc

# Capabilities for measuring.
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
# 60 to 70 MB, and briefly twice as much while it reads the tables of a large program.
MemoryMax=512M
TasksMax=64

[Install]
WantedBy=multi-user.target
"""
