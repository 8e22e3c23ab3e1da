# SPDX-License-Identifier: Apache-2.0
"""Programs of another account with symbol tables that take much memory: `attribute --system` stays within its bound."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from powerprof.system import programs
from tests.conftest import Cli
from tests.nightly.whole_command import largest_kb
from tests.programs.ground_truth import build
from tests.unit.stacks.elves import wide_go_table

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("root_bpf")]
_NOBODY = 65534


def test_hostile_go_tables_take_less_than_200_mb(powerprof_cli: Cli) -> None:
    # The folders of pytest are closed to other accounts.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, ExitStack() as stack:
        room = Path(folder)
        room.chmod(0o755)
        sleepers = build("sleepers-stripped", room)
        (room / "table").write_bytes(wide_go_table(3_900_000))
        running = []
        for number in range(5):
            program = room / f"gopher{number}"
            added = f".gopclntab={room / 'table'}"
            programs.run(["/usr/bin/objcopy", "--add-section", added, str(sleepers), str(program)])
            os.chown(program, _NOBODY, _NOBODY)
            process = subprocess.Popen(
                [program, "600"], user=_NOBODY, group=_NOBODY, extra_groups=[], stdout=subprocess.DEVNULL
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            running.append(process.pid)
        out = room / "attribution.json"
        command = powerprof_cli.start(
            ["attribute", "--max-cost", "none", "--system", "--duration", "2.5", "--no-save", "--json", str(out)]
        )
        stack.callback(command.kill)
        most_kib = 0
        while command.poll() is None:
            most_kib = max(most_kib, largest_kb(command.pid))
            time.sleep(0.05)
        assert command.returncode == 0
        record = json.loads(out.read_text())
    assert 0 < most_kib < 200 << 10
    counted = re.search(r"files of (\d+) processes were left out.*", "\n".join(record["notes"]))
    assert counted is not None, record["notes"]
    note = counted[0]
    # On a busy host not all of them are woken; programs of other tests can be among the five that are named.
    rows = [*record["wakeups"], *record["wakings_without_exit"]]
    woken = {row["thread"]["pid"] for row in rows} & set(running)
    assert woken
    assert int(counted[1]) >= len(woken)
    assert int(counted[1]) > 5 or all(str(pid) in note for pid in woken), note
