"""The energy of a measured window: what the meters say, and where no meter counts, the estimate."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import msgspec

from powerprof.energy.meters import MeterSet, open_meters
from powerprof.energy.model import ChosenModel, estimate, model_for_this_host
from powerprof.records import Window


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

    def complete(self, window: Window) -> Window:
        """The window with the estimate added where no meter gave a figure, and with the meters' notes."""
        if self._model is not None and window.window_s:
            reading = estimate(self._model, window.cpus, window.window_s, window.c0_percent, window.states)
            return msgspec.structs.replace(window, energy=[*window.energy, reading])
        notes = [note for note in self._set.notes() if note not in window.notes]
        return msgspec.structs.replace(window, notes=[*window.notes, *notes]) if notes else window
