# SPDX-License-Identifier: Apache-2.0
"""Power models in TOML: the keys, and the checks of a file that a person wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from powerprof.model.records import EstimateRange
from powerprof.system import files as toml
from powerprof.system import paths
from powerprof.system.errors import DataError
from powerprof.system.files import loader, read_outside_text, try_text

# Which CPU this is, by its numbers: guests hide the name ("Intel(R) Xeon(R) Processor"), never family and model.


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


SCHEMA = "powerprof.model/1"

Watts = Annotated[float, msgspec.Meta(ge=0, le=10_000)]
Odds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Joules = Annotated[float, msgspec.Meta(ge=0, le=1_000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=120)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class CpuMatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPUs that a model is for; `models` empty means all of the family. `nearest` says whose neighbour stands in."""

    vendor: Name
    family: int | None = None
    models: list[int] = []
    steppings: tuple[int, int] | None = None
    nearest: Name | None = None

    def holds(self, cpu: CpuIdentity) -> bool:
        """Whether that CPU is one of them."""
        if self.vendor != cpu.vendor or self.family != cpu.family or cpu.model is None:
            return False
        if self.models and cpu.model not in self.models:
            return False
        if self.steppings is None:
            return True
        return cpu.stepping is not None and self.steppings[0] <= cpu.stepping <= self.steppings[1]


class StateWatts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Watts of one CPU while it is in one idle state, with a 95 % interval."""

    name: Name
    watts: Watts
    range_watts: tuple[Watts, Watts]


class WakeupJoules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Energy of one wake-up, with a 95 % interval."""

    joules: Joules
    range_joules: tuple[Joules, Joules]


class PowerModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Watts of one logical CPU: asleep (`idle_watts`, its deepest state) and running (`full_watts`).

    `range_from`: `results` (a prediction interval from published results), `fit` (a 95 % interval of a calibration)
    or `user`. `slope_range_watts` is the interval of what a running CPU draws above an idle one: that, and not the
    figures' own, is the doubt in a difference; `odds_range` that of idle watts ÷ slope, the doubt in a ratio.
    `threads_per_core` of the servers that the figures are from.
    `cross_validated_percent`: the mean error of a calibration on windows it did not see.
    """

    name: Name
    idle_watts: Watts
    full_watts: Watts
    idle_range_watts: tuple[Watts, Watts]
    full_range_watts: tuple[Watts, Watts]
    source: Text
    slope_range_watts: tuple[Watts, Watts] | None = None
    odds_range: tuple[Odds, Odds] | None = None
    threads_per_core: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    results_count: Annotated[int, msgspec.Meta(ge=0)] | None = None
    range_from: Literal["results", "fit", "user"] = "user"
    cpus: list[CpuMatch] = []
    states: list[StateWatts] = []
    wakeup: WakeupJoules | None = None
    cross_validated_percent: Annotated[float, msgspec.Meta(ge=0)] | None = None
    scope: Text = "a share of the whole server at the wall"
    doubts: list[Text] = []


def slope_range(model: PowerModel) -> tuple[float, float]:
    """The interval of what a running CPU draws above an idle one; what the model's ends allow where it has none."""
    if model.slope_range_watts is not None:
        return model.slope_range_watts
    low = max(model.full_range_watts[0] - model.idle_range_watts[1], 0.0)
    return low, model.full_range_watts[1] - model.idle_range_watts[0]


def estimate_range_of(model: PowerModel, *, low: float = 1.0, typical: float = 1.0, high: float = 1.0) -> EstimateRange:
    """What an estimate by this model goes by: its watts of one CPU times these factors."""
    slope_low, slope_high = slope_range(model)
    # Idle watts and slope of a neighbour are off together; how far apart they are off is in the ratio's interval.
    odds = model.odds_range
    return EstimateRange(
        idle_watts=model.idle_watts * typical,
        idle_low_watts=model.idle_range_watts[0] * low,
        idle_high_watts=model.idle_range_watts[1] * high,
        slope_watts=(model.full_watts - model.idle_watts) * typical,
        slope_low_watts=slope_low * low,
        slope_high_watts=slope_high * high,
        odds_low=None if odds is None else odds[0],
        odds_high=None if odds is None else odds[1],
    )


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal["powerprof.model/1"]
    model: Annotated[list[PowerModel], msgspec.Meta(min_length=1)]


@loader
def parse_models(text: str, path: Path | str) -> list[PowerModel]:
    """Models of a TOML text. Raises DataError with the line of a syntax error, or the key of a wrong value."""
    data = toml.parse(text, path)
    try:
        models = msgspec.convert(data, _File).model
    except msgspec.ValidationError as error:
        raise DataError(path, _plain(str(error))) from None
    for index, model in enumerate(models):
        _check(model, f"model[{index}] ({model.name})", path)
    return models


def _plain(message: str) -> str:
    """msgspec's `… - at `$.model[0].idle_watts`` with the key first."""
    text, _, where = message.partition(" - at `$.")
    return f"{where.rstrip('`')}: {text}" if where else text


def _check(model: PowerModel, where: str, path: Path | str) -> None:
    for key, value, (low, high) in (
        ("idle_range_watts", model.idle_watts, model.idle_range_watts),
        ("full_range_watts", model.full_watts, model.full_range_watts),
        *((f"states.{s.name}.range_watts", s.watts, s.range_watts) for s in model.states),
        *((("wakeup.range_joules", model.wakeup.joules, model.wakeup.range_joules),) if model.wakeup else ()),
    ):
        # Written as not-less so that NaN, which TOML allows, is refused too.
        if not low <= value <= high:
            raise DataError(path, f"{where}.{key}: {value:g} is not within [{low:g}, {high:g}]")
    if not model.idle_watts <= model.full_watts:
        raise DataError(path, f"{where}.full_watts: below idle_watts")
    odds, idle = model.odds_range, model.idle_watts
    if odds is not None and not odds[0] * (model.full_watts - idle) <= idle <= odds[1] * (model.full_watts - idle):
        raise DataError(path, f"{where}.odds_range: idle_watts ÷ (full_watts − idle_watts) is not within it")
    slope = model.slope_range_watts
    if slope is not None and not slope[0] <= model.full_watts - model.idle_watts <= slope[1]:
        raise DataError(path, f"{where}.slope_range_watts: full_watts − idle_watts is not within it")
    names = [state.name for state in model.states]
    if len(set(names)) < len(names):
        raise DataError(path, f"{where}.states: a name appears twice")


def user_models() -> list[PowerModel]:
    """The models of `*.toml` in the configuration's `models` folder, by file name. Raises DataError."""
    folder = paths.config_dir() / "models"
    models: list[PowerModel] = []
    try:
        files = sorted(folder.glob("*.toml"))
    except PermissionError:  # somebody else's home (HOME is left as it was by setpriv and su): nothing there is meant
        return []
    for file in files:
        models += parse_models(read_outside_text(file), file)
    return models


def encode_model(model: PowerModel) -> str:
    """One model as the TOML that `parse_models` reads."""
    lines = [f'schema = "{SCHEMA}"', "", "[[model]]"]
    fields = msgspec.to_builtins(model)
    lines += [f"{key} = {_toml(value)}" for key, value in fields.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, str):
        # TOML's basic strings have JSON's escapes (toml.io v1.0.0).
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return repr(value)
