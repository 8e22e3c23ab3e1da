# SPDX-License-Identifier: Apache-2.0
"""Kinds of CPU by name, with their published results."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cache

import msgspec

from powerprof.energy.families import list_generations, model_kind, published_results
from powerprof.energy.models_file import CpuIdentity, PowerModel
from powerprof.energy.results import PowerResult, group_by_kind
from powerprof.model.text import join_words, shorten
from powerprof.system.errors import UsageError
from powerprof.system.foreign_text import printable

# Kinds of CPU by name.
_LONGEST = 120
_SHOWN = 4
# Makers add marks, brand words, the clock and the number of cores to the number.
_NOISE = re.compile(r"\((r|tm|c)\)|[®™]|@.*|\b\d+-core\b|\b(cpu|processor|genuine)\b", re.I)
_BRANDS = {
    "AMD": ("AMD", "EPYC"),
    "Intel": ("INTEL", "XEON", "CORE", "PLATINUM", "GOLD", "SILVER", "BRONZE", "ULTRA", "MAX"),
    "Ampere": ("AMPERE", "ALTRA", "MAX"),
}


class CpuKind(msgspec.Struct, frozen=True):
    """One kind of CPU with its published results. `cpus` is set if they are limited to servers of this size."""

    name: str
    generation: str
    results: tuple[PowerResult, ...]
    cpus: int | None = None

    @property
    def title(self) -> str:
        """The name, generation and size for reports."""
        size = f", servers of {self.cpus} CPUs" if self.cpus is not None else ""
        return f"{_format_name(self.name, self.generation)} ({self.generation}{size})"

    def model(self) -> PowerModel:
        """Return the prediction for one more server with this CPU."""
        return model_kind(self.title, self.results)

    def doubts_on(self, cpu: CpuIdentity) -> tuple[str, ...]:
        """Return the reasons against this kind on a host that shows `cpu`."""
        here = next((name for name, cpus in list_generations() if any(match.holds(cpu) for match in cpus)), None)
        if here is None or here == self.generation:
            return ()
        return (f"this host shows a CPU of {here}, and --meter names one of {self.generation}",)


@cache
def _load_kinds() -> dict[str, CpuKind]:
    return {
        name.upper(): CpuKind(name, generation, tuple(kind))
        for generation, results in published_results().items()
        for name, kind in group_by_kind(results).items()
    }


def find_kind(text: str) -> CpuKind:
    """Return the kind with the given name: `EPYC 7763`, `xeon e5-2699 v4`, as in /proc/cpuinfo, or the number alone.

    A suffix `:256` selects servers with this number of logical CPUs. Raise UsageError with similar names.
    """
    shown = shorten(printable(text), _LONGEST)
    named, colon, size = text.rpartition(":")
    if not colon:
        named = text
    kind = _load_kinds().get(_extract_model_number(named)) if len(text) <= _LONGEST else None
    if kind is None or not _has_brand_of(named, kind.generation):
        raise UsageError(
            f'--meter "model:{shown}": no published result is of such a CPU', _suggest_kinds(named[:_LONGEST])
        )
    if not colon:
        return kind
    sizes = sorted({result.cpus for result in kind.results})
    if not re.fullmatch(r"[0-9]{1,5}", size.strip()) or int(size) not in sizes:
        published = join_words([str(number) for number in sizes])
        raise UsageError(
            f'--meter "model:{shown}": "{shorten(printable(size), 20)}" is not the number of logical CPUs of '
            "a published server",
            f"published are servers of {published}; or leave out the colon and the number",
        )
    results = tuple(result for result in kind.results if result.cpus == int(size))
    return CpuKind(kind.name, kind.generation, results, int(size))


def identify_kind(cpu: CpuIdentity) -> CpuKind | None:
    """Return the kind of a CPU by its name. None if a guest hides the name, or no result is published."""
    name = (cpu.name or "")[:_LONGEST]
    kind = _load_kinds().get(_extract_model_number(name))
    if kind is None or not _has_brand_of(name, kind.generation) or kind.doubts_on(cpu):
        return None
    return kind


def _split_words(text: str) -> list[str]:
    return _NOISE.sub(" ", text).upper().split()


def _extract_model_number(text: str) -> str:
    """Return a CPU's name without its brand: `E5-2699V4`, `7763`."""
    brands = {word for words in _BRANDS.values() for word in words}
    # Intel wrote a 0 after the number where later CPUs have a v2, and a class before it (Core Ultra 7 255H).
    words = [word for word in _split_words(text) if word not in brands and not re.fullmatch(r"[0-9]", word)]
    return "".join(words)


def _has_brand_of(text: str, generation: str) -> bool:
    """Return whether the brand words of a name, if any, belong to the maker of that generation."""
    brands = _BRANDS[generation.split(maxsplit=1)[0]]
    others = {word for words in _BRANDS.values() for word in words} - set(brands)
    return not others & set(_split_words(text))


def _format_name(name: str, generation: str) -> str:
    if generation.startswith("Intel"):
        return f"{'Core' if re.match(r'i[0-9]|[0-9]{3}H', name) else 'Xeon'} {name}"
    return f"{'EPYC' if generation.startswith('AMD') else 'Altra'} {name}"


def _suggest_kinds(text: str) -> str:
    """Return a remedy that names CPUs with a similar number, or of the named generation."""
    kinds = _load_kinds()
    similar = difflib.get_close_matches(_extract_model_number(text), list(kinds), _SHOWN, 0.5)
    words = set(_split_words(text))
    matches: Sequence[CpuKind] = [kinds[name] for name in similar if _has_brand_of(text, kinds[name].generation)]
    if not matches:
        matches = [kind for kind in kinds.values() if words & set(kind.generation.upper().split()[1:])]
        matches = sorted(matches, key=lambda kind: -len(kind.results))[:_SHOWN]
    if not matches:
        return 'write the CPU\'s number as its maker does: --meter "model:EPYC 7763", or leave the CPU out'
    names = join_words([_format_name(kind.name, kind.generation) for kind in matches])
    return f"near are {names}; a CPU without results is estimated by its generation: leave the CPU out"
