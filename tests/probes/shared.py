# SPDX-License-Identifier: Apache-2.0
"""The numbers that programs in the kernel share with their readers: read in probes/bpf, written as a Python module.

The C sources are the one table. `python -m tests.probes.shared` writes powerprof/tracing/bpf/shared_numbers.py from
them, and a test fails where the two are not the same (tests/unit/tracing/test_shared_numbers.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Not from conftest: that imports what imports the module which this one writes.
REPOSITORY = Path(__file__).parents[2]
PROBES = REPOSITORY / "probes/bpf"
MODULE = REPOSITORY / "powerprof/tracing/bpf/shared_numbers.py"
_WIDTH = 120
_HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""Numbers that programs in the kernel and their readers share, as the sources in probes/bpf have them.

Written by `make probes`, not by hand: change the sources.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
'''


@dataclass(frozen=True)
class Member:
    """A number that C gives a name, with the comment behind it."""

    name: str
    number: int
    comment: str

    def line(self, indent: str = "") -> str:
        """It in Python; what is above 0xFFFF is masked or compared by its bits."""
        value = f"0x{self.number:X}" if self.number > 0xFFFF else str(self.number)
        line = f"{indent}{self.name} = {value}"
        whole = f"{line}  # {self.comment}"
        if not self.comment or len(whole) <= _WIDTH:
            return whole if self.comment else line
        return f"{indent}# {self.comment}\n{line}"


@dataclass(frozen=True)
class Shared:
    """An enum of `file`, without what its members begin with, and without those in `sizes`, which count the others."""

    file: str
    enum: str
    python: str
    purpose: str
    prefix: str = ""
    sizes: Sequence[str] = ()
    base: str = "IntEnum"


ENUMS = [
    Shared("idle.bpf.c", "shared_value", "Shared", "What is read often and written seldom", "SHARED_"),
    Shared("idle.bpf.c", "counter", "Count", "What is counted beside the sums, on each CPU", "COUNT_", ("COUNTERS",)),
    Shared("idle_period.h", "phase", "CpuPhase", "Where a CPU is between two idle entries", "PHASE_"),
    Shared("idle_period.h", "evidence", "WakeEvidence", "What was first seen to end an idle period", "EVIDENCE_"),
    Shared("idle_period.h", "idle_flags", "Flag", "Flags of an idle exit", "IDLE_", base="IntFlag"),
    Shared("idle_period.h", "waker_context", "WakerContext", "In whose context a waking was done", "WAKER_"),
    Shared("looks.bpf.h", "stack_kind", "StackKind", "Whose stack a record has", "STACK_"),
    Shared("running.bpf.h", "run_kind", "RunKind", "Whose a thread's running time is", "RUN_"),
    Shared(
        *("filled.bpf.h", "filling", "FilledTable", "What fills while nobody reads, tables first", "(?:TABLE|RING)_"),
        sizes=("FILLINGS",),
    ),
    Shared(
        *("paths.bpf.h", "path_counter", "PathCount", "What became of samples and page faults", "PATH_"),
        sizes=("PATH_COUNTERS",),
    ),
    Shared("paths.bpf.h", "record_kind", "RecordKind", "Which half of a path a record has", "RECORD_"),
    Shared("functions.bpf.c", "counter", "FunctionCount", "What became of hits", "COUNT_", ("COUNTERS",)),
    Shared(
        "functions.bpf.c", "stat_field", "FunctionSum", "A function's sums, in this order", "STAT_", ("STAT_FIELDS",)
    ),
    Shared("offcpu.bpf.c", "why", "OffCpuReason", "Why a thread left the CPU", "WHY_", ("WHYS",)),
    Shared("syscalls.bpf.c", "kind", "CallKind", "What a system call is to a file", "KIND_"),
    Shared("queries.bpf.c", "counter", "StatementCount", "What became of packets", "COUNT_", ("COUNTERS",)),
    Shared(
        *("waitkinds.bpf.h", "wait", "StatementWait", "What a thread that does not run waits for", "WAIT_"),
        sizes=("WAITS",),
    ),
    Shared("moments.bpf.c", "counter", "MomentCount", "What became of moments", "COUNT_", ("COUNTERS",)),
    Shared("activity.bpf.h", "message", "Message", "What reports a statement; UNSURE: one of a client's"),
]

# Definitions, and members of enums that count others.
NUMBERS: Mapping[str, Sequence[str]] = {
    "idle_period.h": ("COMM_BYTES", "IDLE_LIFE"),
    "causes.h": ("CAUSE_STATES", "CAUSE_HALF"),
    "looks.bpf.h": ("CODE_NEWBORN",),
    "interpreter.bpf.h": ("INTERPRETER_FRAMES",),
    "busy.bpf.h": ("GROUP_SPAN",),
    "joins.bpf.h": ("GROWS_FAMILY", "GROWS_GROUP"),
    "functions.bpf.c": ("COOKIE_STEPPED",),
    "offcpu.bpf.c": ("WHYS",),
    "syscalls.bpf.c": ("NAME_BYTES", "NUMBERS"),
    "queries.bpf.c": ("COM_QUERY", "COM_STMT_PREPARE", "COM_PART", "POSTGRESQL", "PREPARING"),
    "dispatch.bpf.h": ("COM_STMT_EXECUTE", "COM_EVENT"),
    "uses.bpf.h": ("SQUARED_NS_LOG",),
    "whole.bpf.h": ("MOST_WALKS", "WALKED_AT_ONCE"),
    "waitkinds.bpf.h": ("WAITS",),
    "activity.bpf.h": ("FASTPATH",),
}

_COMMENT = r"(?:[ \t]*/\*[ \t]*(?P<comment>[^\n]*?)[ \t]*\*/)?"
_DEFINITION = rf"^#define {{}} (?P<number>0x[0-9a-fA-F]+|[0-9]+)U?L{{{{0,2}}}}{_COMMENT}[ \t]*$"
_MEMBER = re.compile(rf"(?P<name>\w+)(?:[ \t]*=[ \t]*(?P<number>\w+))?[ \t]*,?{_COMMENT}")


def members(text: str, enum: str) -> list[Member]:
    """Of a C enum. Raises ValueError."""
    body = re.search(rf"^enum {enum} \{{(.*?)\}};", text, re.DOTALL | re.MULTILINE)
    if body is None:
        raise ValueError(f"no enum {enum}")
    found: list[Member] = []
    for member in _MEMBER.finditer(body[1]):
        number = int(member["number"], 0) if member["number"] else found[-1].number + 1 if found else 0
        found.append(Member(member["name"], number, member["comment"] or ""))
    return found


def number_of(text: str, name: str) -> Member:
    """A definition, or a member of an enum. Raises ValueError."""
    if defined := re.search(_DEFINITION.format(name), text, re.MULTILINE):
        return Member(name, int(defined["number"], 0), defined["comment"] or "")
    enums = re.findall(r"^enum (\w+) \{", text, re.MULTILINE)
    found = next((one for enum in enums for one in members(text, enum) if one.name == name), None)
    if found is None:
        raise ValueError(f"no {name}")
    return found


def _numbers(texts: Mapping[str, str]) -> Iterator[str]:
    for file, names in NUMBERS.items():
        yield f"\n# {file}\n"
        for name in names:
            number = number_of(texts[file], name)
            for other, text in texts.items():
                again = re.search(_DEFINITION.format(name), text, re.MULTILINE)
                if again and int(again["number"], 0) != number.number:
                    raise ValueError(f"{name} is another number in {other} than in {file}")
            yield f"{number.line()}\n"


def _enum(shared: Shared, text: str) -> Iterator[str]:
    yield f"\n\nclass {shared.python}({shared.base}):\n"
    yield f'    """{shared.purpose}: enum {shared.enum} of {shared.file}."""\n\n'
    for member in members(text, shared.enum):
        if member.name not in shared.sizes:
            name = re.sub(f"^{shared.prefix}", "", member.name)
            yield f"{Member(name, member.number, member.comment).line('    ')}\n"


def module(folder: Path = PROBES) -> str:
    """The text of the module. Raises ValueError where the sources have no such number, or two."""
    texts = {path.name: path.read_text() for path in sorted(folder.glob("*.[ch]"))}
    enums = (line for shared in ENUMS for line in _enum(shared, texts[shared.file]))
    return "".join([_HEAD, *_numbers(texts), *enums])


if __name__ == "__main__":
    MODULE.write_text(module())
