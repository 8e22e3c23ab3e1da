# SPDX-License-Identifier: Apache-2.0
"""10,000 silent clients by the command line: every figure is there, and everything is gone afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from tests.programs.balance import check_balance
from tests.system.idle.ending import Idle


def test_ten_thousand_clients(root_bpf: None, idle: Callable[[Sequence[str]], Idle]) -> None:
    running = idle(["--clients", "10000", "--duration", "4", "--repeat", "2", "--json", "-"])
    assert running.end() == 0, running.err
    run = json.loads(running.out)
    assert run["options"]["clients_count"] == 10_000
    clients = next(phase for phase in run["phases"] if phase["name"] == "clients")
    assert len(clients["windows"]) == 2
    balance = clients["conservation"]
    assert balance["classified_count"] >= 0.98 * balance["idle_exits_count"]
    check_balance(balance, exits=2 * clients["cpus"])
    assert not [note for note in run["notes"] if "closed by the server" in note]
