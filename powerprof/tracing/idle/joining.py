# SPDX-License-Identifier: Apache-2.0
"""Processes that join a target while it is traced: reported by the kernel when they start, or found later."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
import numpy as np

from powerprof.processes.targets import Target, has_ended
from powerprof.stacks.image import ProcessImage
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.definitions import argument_definitions, struct_definitions
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import GROWS_FAMILY, GROWS_GROUP

_FIELDS = {
    "task_struct_real_parent": ("task_struct", "real_parent"),
    "task_struct_signal": ("task_struct", "signal"),
    "signal_struct_live": ("signal_struct", "live"),
}


def _processes(count: int) -> str:
    return f"{count:,} process{'' if count == 1 else 'es'}"


class Joining:
    """Who joined one target, and how many were found too late."""

    def __init__(self, target: Target) -> None:
        self._grows = 0
        if not target.system:
            self._grows = GROWS_GROUP if target.cgroup is not None else GROWS_FAMILY * bool(target.roots)
        self.children = set[int]()
        self._late_count = self.unjoined_count = 0

    def begin(self) -> None:
        """A new window is near."""
        self._late_count = self.unjoined_count = 0

    def definitions(self, btf: Btf) -> dict[str, int | str]:
        """What joins.bpf.h is compiled with."""
        if not self._grows:
            return {"GROWS": 0}
        arguments = argument_definitions(btf, "sched_process_fork", ("parent", "child"))
        return {"GROWS": self._grows, **struct_definitions(btf, _FIELDS), **arguments}

    def taken(self, program: LoadedProgram, images: Mapping[int, list[ProcessImage]]) -> dict[int, list[ProcessImage]]:
        """Images of the processes that joined since the last call: each has its parent's memory, as it was.

        What is in the memory of one that has executed a program since is not known until somebody looks at it.
        """
        if not self._grows:
            return {}
        keys, values = program.hash_bytes("joined")
        program.delete("joined", keys)
        parents = dict(zip(np.frombuffer(keys, "<u4").tolist(), np.frombuffer(values, "<u4").tolist(), strict=True))
        found: dict[int, list[ProcessImage]] = {}
        for child in parents:
            line = [child]
            while parents.get(line[-1], 0) and parents[line[-1]] not in line:
                line.append(parents[line[-1]])
            oldest = line[-1]
            if oldest in parents:
                unknown = ProcessImage(pid=child, started_ticks=0, executable="", mappings=())
                found[child] = [*images.get(child, []), unknown]
            elif known := images.get(oldest):
                found[child] = [msgspec.structs.replace(known[-1], pid=child)]
        self.children |= found.keys()
        return found

    def ended(self, referenced: Collection[int]) -> set[int]:
        """Processes that joined, have ended, and are in no figure any more: they are forgotten."""
        gone = {pid for pid in self.children - set(referenced) if has_ended(pid)}
        self.children -= gone
        return gone

    def note_late(self, pids: Collection[int]) -> None:
        """These are of the target and were not started by it: what they did before they were found is not known."""
        self._late_count += len(pids)

    def notes(self) -> list[str]:
        """What is missing."""
        notes = []
        if late := self._late_count:
            notes.append(
                f"{_processes(late)} joined the target without being started by it: wake-ups "
                "before they were found are not in the figures"
            )
        if lost := self.unjoined_count:
            notes.append(f"the tracer had no room for {_processes(lost)} that the target started")
        return notes
