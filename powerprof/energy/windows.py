"""The energy of a measured window: what the meters say, and where no meter counts, the estimate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from powerprof import files, paths
from powerprof.energy.domains import total
from powerprof.energy.meters import MeterSet, open_meters
from powerprof.energy.model import ChosenModel, estimate, model_for_this_host
from powerprof.energy.session import estimate_window
from powerprof.energy.split import Consumer, split_energy
from powerprof.records import EnergyReading, EnergySplit, Window

_SMT = "devices/system/cpu/smt/active"


class WindowEnergy:
    """The meters of a run and the model that stands in for them; a context manager that closes the meters.

    `choice` is that of `--energy-source`. Raises UsageError and CapabilityError as `open_meters` does.
    """

    def __init__(self, choice: str, meter_log: Path | None = None) -> None:
        self._set = open_meters(choice, meter_log=meter_log)
        wanted = choice.strip() != "none" and not self._set.names
        self._model: ChosenModel | None = model_for_this_host() if wanted else None

    def __enter__(self) -> WindowEnergy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._set.close()

    @property
    def meters(self) -> MeterSet | None:
        """To be sampled at the edges of a window; None where there is no meter."""
        return self._set if self._set.names else None

    @property
    def notes(self) -> list[str]:
        """How the source was chosen, and the reasons to doubt an estimate."""
        doubts = list(self._model.doubts) if self._model else []
        return [f"energy: {self._set.why}", *(f"estimate: {doubt}" for doubt in doubts)]

    def _pricing(self) -> ChosenModel | None:
        """The model that knows the idle floor: the estimate's; beside a meter only one calibrated on this CPU."""
        if self._model is not None or not self._set.names:
            return self._model
        here = model_for_this_host()
        return here if here.model.range_from == "fit" else None

    def idle_watts(self, cpus: int) -> float | None:
        """What the host would draw asleep; None where no model knows."""
        model = self._pricing()
        return None if model is None else estimate(model, cpus, 1.0, 0.0, []).watts

    def wakeup_joules(self) -> float | None:
        """What a calibrated model says a wake-up costs beside the C0 time that follows it; None where none does."""
        model = self._pricing()
        return model.model.wakeup.joules if model is not None and model.model.wakeup is not None else None

    def split(
        self,
        energy: Sequence[EnergyReading],
        window_s: float,
        cpus: int,
        c0_percent: float | None,
        consumers: Sequence[Consumer],
        *,
        wakeups_count: float = 0.0,
        steal_percent: float | None = None,
    ) -> EnergySplit | None:
        """The host's energy over a window, split onto `consumers`; None where there is no figure to split."""
        whole = total(energy)
        if whole.joules is None or whole.kind is None or whole.source is None or c0_percent is None:
            return None
        return split_energy(
            whole.joules,
            window_s,
            idle_watts=self.idle_watts(cpus),
            c0_s=c0_percent / 100 * cpus * window_s,
            consumers=consumers,
            kind=whole.kind,
            source=whole.source,
            wakeups_count=wakeups_count,
            wakeup_joules=self.wakeup_joules(),
            smt=files.try_text(paths.sysfs() / _SMT) == "1",
            steal_s=(steal_percent or 0.0) / 100 * cpus * window_s,
        )

    def complete(self, window: Window) -> Window:
        """The window with the estimate added where no meter gave a figure, and with the meters' notes."""
        if self._model is not None and window.window_s:
            reading, _ = estimate_window(window, self._model)
            return msgspec.structs.replace(window, energy=[*window.energy, reading])
        notes = [note for note in self._set.notes() if note not in window.notes]
        return msgspec.structs.replace(window, notes=[*window.notes, *notes]) if notes else window
