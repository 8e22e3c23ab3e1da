# SPDX-License-Identifier: Apache-2.0
"""What becomes of a record: saved first, then shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from powerprof.cli.options import Saving
from powerprof.cli.output import deliver
from powerprof.model.runs import RunStore
from powerprof.report.kinds import load_saved
from powerprof.system.errors import Interrupted, PowerprofError

_SAVED = Path(__file__).parents[2] / "fixtures/saved-0.1.0"


def _interrupted(_record: msgspec.Struct, _width: int) -> list[str]:
    raise Interrupted("interrupted")


def test_interrupt_during_the_report_names_the_saved_run(tmp_path: Path) -> None:
    record: Any = load_saved(str(_SAVED / "idle-0001"))
    saving = Saving(runs_dir=tmp_path)
    with pytest.raises(Interrupted) as caught:
        deliver(record, "idle", saving, lines=_interrupted)
    assert caught.value.hint == "the measured part is saved as idle-0001"
    assert RunStore(tmp_path).find("idle-0001").is_file()


def test_killed_server_is_a_failure_not_an_interrupt(tmp_path: Path) -> None:
    record: Any = load_saved(str(_SAVED / "run-0001"))
    broken = msgspec.structs.replace(record, interrupted=True, failure="the server was killed")
    with pytest.raises(PowerprofError) as caught:
        deliver(broken, "run", Saving(runs_dir=tmp_path, quiet=True))
    assert (caught.value.message, caught.value.exit_code) == ("the server was killed", 1)
    assert caught.value.hint == "the measured part is saved as run-0001"
