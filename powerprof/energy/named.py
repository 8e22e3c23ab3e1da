# SPDX-License-Identifier: Apache-2.0
"""Kinds of CPU by name: which published results are of the CPU that a host shows or that a person names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from powerprof.energy.cpu import CpuIdentity
from powerprof.energy.families import generations, kind_model, published_results
from powerprof.energy.models_file import PowerModel
from powerprof.energy.results import PowerResult, by_kind
from powerprof.errors import UsageError
from powerprof.text import cut, listed
from powerprof.untrusted import printable

_LONGEST = 120
_SHOWN = 4
# What makers write beside the number: marks, words of the brand, the clock and the number of cores.
_NOISE = re.compile(r"\((r|tm|c)\)|[®™]|@.*|\b\d+-core\b|\b(cpu|processor|genuine)\b", re.I)
_BRANDS = {
    "AMD": ("AMD", "EPYC"),
    "Intel": ("INTEL", "XEON", "CORE", "PLATINUM", "GOLD", "SILVER", "BRONZE", "ULTRA", "MAX"),
    "Ampere": ("AMPERE", "ALTRA", "MAX"),
}


@dataclass(frozen=True)
class CpuKind:
    """One kind of CPU of the table, and its published results, of servers of one size where that was asked for."""

    name: str
    generation: str
    results: tuple[PowerResult, ...]
    cpus: int | None = None

    @property
    def title(self) -> str:
        size = f", servers of {self.cpus} CPUs" if self.cpus is not None else ""
        return f"{_full_name(self.name, self.generation)} ({self.generation}{size})"

    def model(self) -> PowerModel:
        """What the results say of one more server with this CPU."""
        return kind_model(self.title, self.results)

    def doubts_on(self, cpu: CpuIdentity) -> tuple[str, ...]:
        """What speaks against it on a host that shows this CPU."""
        here = next((name for name, cpus in generations() if any(match.holds(cpu) for match in cpus)), None)
        if here is None or here == self.generation:
            return ()
        return (f"this host shows a CPU of {here}, and --cpu-model names one of {self.generation}",)


@cache
def _kinds() -> dict[str, CpuKind]:
    return {
        name.upper(): CpuKind(name, generation, tuple(mine))
        for generation, results in published_results().items()
        for name, mine in by_kind(results).items()
    }


def find_kind(text: str) -> CpuKind:
    """The CPU that a person names: `EPYC 7763`, `xeon e5-2699 v4`, as /proc/cpuinfo has it, or by the number alone.

    With `:256` behind it only servers of so many logical CPUs. Raises UsageError, with names that are near.
    """
    shown = cut(printable(text), _LONGEST)
    named, colon, size = text.rpartition(":")
    if not colon:
        named = text
    kind = _kinds().get(_number(named)) if len(text) <= _LONGEST else None
    if kind is None or not _brand_fits(named, kind.generation):
        raise UsageError(f'--cpu-model "{shown}": no published result is of such a CPU', _near(named[:_LONGEST]))
    if not colon:
        return kind
    sizes = sorted({result.cpus for result in kind.results})
    if not re.fullmatch(r"[0-9]{1,5}", size.strip()) or int(size) not in sizes:
        published = listed([str(number) for number in sizes])
        raise UsageError(
            f'--cpu-model "{shown}": "{cut(printable(size), 20)}" is no number of logical CPUs of a published server',
            f"published are servers of {published}; or leave out the colon and what follows",
        )
    mine = tuple(result for result in kind.results if result.cpus == int(size))
    return CpuKind(kind.name, kind.generation, mine, int(size))


def kind_of(cpu: CpuIdentity) -> CpuKind | None:
    """The kind that this CPU says it is; None where a guest hides the name, or no result is published."""
    name = (cpu.name or "")[:_LONGEST]
    kind = _kinds().get(_number(name))
    if kind is None or not _brand_fits(name, kind.generation) or kind.doubts_on(cpu):
        return None
    return kind


def _words(text: str) -> list[str]:
    return _NOISE.sub(" ", text).upper().split()


def _number(text: str) -> str:
    """What is left of a name without its brand: `E5-2699V4`, `7763`."""
    brands = {word for words in _BRANDS.values() for word in words}
    # Intel wrote a 0 behind the number where later CPUs have a v2, and a class before it (Core Ultra 7 255H).
    words = [word for word in _words(text) if word not in brands and not re.fullmatch(r"[0-9]", word)]
    return "".join(words)


def _brand_fits(text: str, generation: str) -> bool:
    """Whether the brand's words, where there are any, are of that generation's maker."""
    mine = _BRANDS[generation.split(maxsplit=1)[0]]
    others = {word for words in _BRANDS.values() for word in words} - set(mine)
    return not others & set(_words(text))


def _full_name(name: str, generation: str) -> str:
    if generation.startswith("Intel"):
        return f"{'Core' if re.match(r'i[0-9]|[0-9]{3}H', name) else 'Xeon'} {name}"
    return f"{'EPYC' if generation.startswith('AMD') else 'Altra'} {name}"


def _near(text: str) -> str:
    """A remedy that names CPUs which the text may mean: alike by their numbers, or of the generation that it names."""
    kinds = _kinds()
    alike = difflib.get_close_matches(_number(text), list(kinds), _SHOWN, 0.5)
    words = set(_words(text))
    found: Sequence[CpuKind] = [kinds[name] for name in alike if _brand_fits(text, kinds[name].generation)]
    if not found:
        found = [kind for kind in kinds.values() if words & set(kind.generation.upper().split()[1:])]
        found = sorted(found, key=lambda kind: -len(kind.results))[:_SHOWN]
    if not found:
        return 'write the CPU\'s number as its maker does: --cpu-model "EPYC 7763", or leave --cpu-model out'
    names = listed([_full_name(kind.name, kind.generation) for kind in found])
    return f"near are {names}; a CPU without results is estimated by its generation: leave --cpu-model out"
