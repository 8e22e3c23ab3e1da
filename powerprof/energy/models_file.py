# SPDX-License-Identifier: Apache-2.0
"""Power models in TOML: their keys, and the checks of a user's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from powerprof.model.records import EstimateRange
from powerprof.system import paths
from powerprof.system.errors import DataError
from powerprof.system.files import try_text
from powerprof.system.foreign_data import loader, parse_toml
from powerprof.system.outside_files import read_outside_table


class CpuIdentity(msgspec.Struct, frozen=True):
    """The numbers of a CPU. Guests hide the name ("Intel(R) Xeon(R) Processor") but never family and model.

    Attributes:
        vendor: x86's vendor_id or Arm's implementer (0x41).
        model: x86's model or Arm's part number.
    """

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
    """Return the identity of the first CPU in the text of /proc/cpuinfo. Unknown parts are None."""
    fields: dict[str, str] = {}
    for line in text[:200_000].splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    if "CPU implementer" in fields:
        return CpuIdentity(
            fields["CPU implementer"],
            None,
            _parse_number(fields.get("CPU part")),
            _parse_number(fields.get("CPU revision")),
            None,
        )
    return CpuIdentity(
        fields.get("vendor_id"),
        _parse_number(fields.get("cpu family")),
        _parse_number(fields.get("model")),
        _parse_number(fields.get("stepping")),
        fields.get("model name"),
    )


def this_cpu() -> CpuIdentity:
    """Return the identity of this host's CPUs."""
    return parse_cpuinfo(try_text(paths.procfs() / "cpuinfo") or "")


def _parse_number(text: str | None) -> int | None:
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
    """The CPUs of a model.

    Empty `models` means the whole family. `nearest` names a CPU that this neighbour stands in for.
    """

    vendor: Name
    family: int | None = None
    models: list[int] = []
    steppings: tuple[int, int] | None = None
    nearest: Name | None = None

    def holds(self, cpu: CpuIdentity) -> bool:
        """Return whether a CPU is one of them."""
        if self.vendor != cpu.vendor or self.family != cpu.family or cpu.model is None:
            return False
        if self.models and cpu.model not in self.models:
            return False
        if self.steppings is None:
            return True
        return cpu.stepping is not None and self.steppings[0] <= cpu.stepping <= self.steppings[1]


class StateWatts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Watts of one CPU in one idle state, with a 95 % interval."""

    name: Name
    watts: Watts
    range_watts: tuple[Watts, Watts]


class WakeupJoules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Energy of one wake-up, with a 95 % interval."""

    joules: Joules
    range_joules: tuple[Joules, Joules]


class PowerModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Watts of one logical CPU: asleep in its deepest state (`idle_watts`) and running (`full_watts`).

    Attributes:
        slope_range_watts: the interval of the power of a running CPU above an idle one. It is the doubt in a
            difference.
        odds_range: the interval of idle watts ÷ slope. It is the doubt in a ratio.
        range_from: `results` (a prediction interval from published results), `fit` (a 95 % interval of a
            calibration) or `user`.
        threads_per_core: of the servers behind the figures.
        cross_validated_percent: the mean error of a calibration on windows outside the fit.
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
    """Return the interval of a running CPU's power above an idle one. Default: the widest that the ends allow."""
    if model.slope_range_watts is not None:
        return model.slope_range_watts
    low = max(model.full_range_watts[0] - model.idle_range_watts[1], 0.0)
    return low, model.full_range_watts[1] - model.idle_range_watts[0]


def estimate_range_of(model: PowerModel, *, low: float = 1.0, typical: float = 1.0, high: float = 1.0) -> EstimateRange:
    """Return the range of an estimate by this model: the watts of one CPU times these factors."""
    slope_low, slope_high = slope_range(model)
    # Idle watts and slope of a neighbour deviate together. The ratio's interval covers their separate deviations.
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


@loader(1)
def parse_models(text: str, path: Path | str) -> list[PowerModel]:
    """Return the models of a TOML text. Raise DataError with the line of a syntax error or the key of a wrong value."""
    data = parse_toml(text, path)
    try:
        models = msgspec.convert(data, _File).model
    except msgspec.ValidationError as error:
        message, _, key = str(error).partition(" - at `$.")
        raise DataError(path, f"{key.rstrip('`')}: {message}" if key else message) from None
    for index, model in enumerate(models):
        _check_model(model, f"model[{index}] ({model.name})", path)
    return models


def _check_model(model: PowerModel, where: str, path: Path | str) -> None:
    for key, value, (low, high) in (
        ("idle_range_watts", model.idle_watts, model.idle_range_watts),
        ("full_range_watts", model.full_watts, model.full_range_watts),
        *((f"states.{s.name}.range_watts", s.watts, s.range_watts) for s in model.states),
        *((("wakeup.range_joules", model.wakeup.joules, model.wakeup.range_joules),) if model.wakeup else ()),
    ):
        # The negated form also refuses NaN, which TOML allows.
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
    """Return the models of `*.toml` in the configuration's `models` folder, ordered by file name. Raise DataError."""
    folder = paths.config_dir() / "models"
    models: list[PowerModel] = []
    try:
        files = sorted(folder.glob("*.toml"))
    except PermissionError:  # another user's home: setpriv and su may leave HOME unchanged
        return []
    for file in files:
        models += parse_models(read_outside_table(file), file)
    return models


def encode_model(model: PowerModel) -> str:
    """Return one model as the TOML that `parse_models` reads."""
    lines = [f'schema = "{SCHEMA}"', "", "[[model]]"]
    fields = msgspec.to_builtins(model)
    lines += [f"{key} = {_encode_toml(value)}" for key, value in fields.items() if value is not None]
    return "\n".join(lines) + "\n"


def _encode_toml(value: object) -> str:
    if isinstance(value, str):
        # TOML's basic strings use JSON's escapes (toml.io v1.0.0).
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_encode_toml(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_encode_toml(v) for v in value) + "]"
    return repr(value)
