# SPDX-License-Identifier: Apache-2.0
"""Eight CPUs made of files, which go offline and come back, over those of sysfs in a mount namespace."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from tests.conftest import Cli

CPUS = range(8)
OLD, OURS, DEFAULT = "schedutil", "performance", "powersave"
_CPU_FOLDER = Path("/sys/devices/system/cpu")
# The journal is separate, too: other commands of root on this host would restore it.
_WITHIN = (
    'mkdir -m 700 -p /run/powerprof-changed && mount --bind "$0"/changed /run/powerprof-changed && '
    f'mount --bind "$0"/cpu {_CPU_FOLDER} && exec "$@"'
)


@dataclass(frozen=True)
class FakeCpus:
    """The files of eight CPUs with a frequency governor and two idle states each, and a journal's folder."""

    root: Path

    @classmethod
    def make(cls, root: Path) -> FakeCpus:
        """Make the files. Counters stand still, as those of CPUs that never sleep."""
        for folder, mode in (("changed", 0o700), ("away", 0o755), ("cpu", 0o755)):
            (root / folder).mkdir(mode)
        for name in ("online", "possible", "present"):
            (root / "cpu" / name).write_text("0-7\n")
        for cpu in CPUS:
            frequency = root / f"cpu/cpu{cpu}/cpufreq"
            frequency.mkdir(parents=True)
            (frequency / "scaling_governor").write_text(OLD)
            (frequency / "scaling_available_governors").write_text(f"{OLD} {OURS} {DEFAULT}\n")
            for number, name in enumerate(("POLL", "C1")):
                state = root / f"cpu/cpu{cpu}/cpuidle/state{number}"
                state.mkdir(parents=True)
                files = {"name": name, "desc": name, "disable": "0", "time": "1000", "usage": "10", "latency": "1"}
                files |= {"residency": "1", "above": "0", "below": "0", "rejected": "0", "power": "0"}
                for leaf, text in files.items():
                    (state / leaf).write_text(f"{text}\n")
        (root / "cpu/cpuidle").mkdir()
        for leaf, text in {
            "current_driver": "fake",
            "current_governor": "menu",
            "available_governors": "menu teo",
        }.items():
            (root / "cpu/cpuidle" / leaf).write_text(f"{text}\n")
        return cls(root)

    def under(self, cli: Cli) -> Cli:
        """Return a command line that sees these CPUs instead of the host's."""
        return replace(
            cli, within=("unshare", "--mount", "--propagation", "private", "sh", "-c", _WITHIN, str(self.root))
        )

    def governor(self, cpu: int) -> Path:
        """Return the file of a CPU, online or not."""
        online = self.root / f"cpu/cpu{cpu}"
        return (online if online.exists() else self.root / f"away/cpu{cpu}") / "cpufreq/scaling_governor"

    def flag(self, cpu: int) -> Path:
        """Return the file of the disable flag of C1."""
        return self.governor(cpu).parents[1] / "cpuidle/state1/disable"

    def governors(self) -> list[str]:
        """Return the value of each CPU, online or not."""
        return [self.governor(cpu).read_text().strip() for cpu in CPUS]

    def flags(self) -> list[str]:
        """Return the disable flag of C1 of each CPU."""
        return [self.flag(cpu).read_text().strip() for cpu in CPUS]

    def go(self, *cpus: int) -> None:
        """Take CPUs offline: their folders disappear."""
        for cpu in cpus:
            (self.root / f"cpu/cpu{cpu}").rename(self.root / f"away/cpu{cpu}")

    def back(self, *cpus: int, governor: str | None = None) -> None:
        """Bring CPUs back, with the governor that they had or another one."""
        for cpu in cpus:
            if governor is not None:
                self.governor(cpu).write_text(governor)
            (self.root / f"away/cpu{cpu}").rename(self.root / f"cpu/cpu{cpu}")

    def finish_writes(self, value: str) -> None:
        """Write the value into each governor file that a killed writer left empty: sysfs has no such moment."""
        for cpu in CPUS:
            if not self.governor(cpu).read_text():
                self.governor(cpu).write_text(value)

    def journals(self) -> list[str]:
        """Return the names of the journals."""
        return sorted(path.name for path in (self.root / "changed").iterdir())

    def close(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.root, ignore_errors=True)
