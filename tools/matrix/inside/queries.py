# SPDX-License-Identifier: Apache-2.0
"""The step `queries`: the statements of a private MariaDB by probes and by samples, against a client's own counts.

The client executes two texts that are equal in their first 1,023 bytes: they are two rows only if the kernel accepted
the programs that read long texts. Before each pair it executes a short statement with the number of the present half
second in its text. So calls can be compared exactly wherever the window begins and ends, except in its first and last
half second.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tools.matrix.inside.steps import StepError, Steps

Job = Mapping[str, Any]
_NUMBERS = ", ".join(str(number) for number in range(280))
_TEXT = f"SELECT 7 IN ({_NUMBERS}) AS listed, BENCHMARK({{}}, SHA2('x', 256)) AS {{}}"
_LENGTHS_S = {"heavy": 0.045, "light": 0.015}
_PURE_PERCENT = 100 * _LENGTHS_S["heavy"] / sum(_LENGTHS_S.values())
_TRIED_ROUNDS = 2000
_SLOT_S = 0.5
# A share of 200 samples is known to ±6 points.
_ALLOWED_POINTS = 8.0


class Client:
    """One client in a loop, which counts its statements and measures their time."""

    def __init__(self, cursor: Any) -> None:
        self.calls: Counter[str] = Counter()
        self.spent_s = dict.fromkeys(_LENGTHS_S, 0.0)
        self._cursor = cursor
        rate = _TRIED_ROUNDS / self._time(f"SELECT BENCHMARK({_TRIED_ROUNDS}, SHA2('x', 256))")
        self._texts = {name: _TEXT.format(round(rate * length_s), name) for name, length_s in _LENGTHS_S.items()}

    def _time(self, text: str) -> float:
        begin_s = time.monotonic()
        self._cursor.execute(text)
        return time.monotonic() - begin_s

    def execute(self) -> None:
        """Execute the statement of the present half second, and both long ones."""
        slot = f"slot_{int(time.monotonic() / _SLOT_S)}"
        self._time(f"SELECT 1 AS {slot}")
        self.calls[slot] += 1
        for name, text in self._texts.items():
            self.spent_s[name] += self._time(text)

    def heavy_percent(self) -> float:
        """Return the part of the heavy statement in the time of both. The client's own time is part of each."""
        return _heavy_percent(self.spent_s)


def _heavy_percent(spent_s: Mapping[str, float]) -> float:
    return 100 * spent_s["heavy"] / max(1e-9, sum(spent_s.values()))


@contextmanager
def _executing(server: Any) -> Iterator[Client]:
    over = threading.Event()
    with server.connect() as connection, connection.cursor() as cursor:
        client = Client(cursor)

        def work() -> None:
            while not over.is_set():
                client.execute()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield client
        finally:
            over.set()
            thread.join()


def compare(statements: list[dict[str, Any]], client: Client, *, counts: bool) -> list[str]:
    """Return what is wrong with a report's statements. `counts`: calls were counted."""
    rows = {name: [one for one in statements if one["text"].endswith(f" AS {name}")] for name in _LENGTHS_S}
    if any(len(found) != 1 for found in rows.values()):
        return [f"not one row for each long text: {[one['text'] for one in statements]}"[:500]]
    share = _heavy_percent({name: found[0]["c0_s"] for name, found in rows.items()})
    wrong = []
    # The server's time contains less of what is the same for both texts than the client's does.
    if not client.heavy_percent() - _ALLOWED_POINTS <= share <= _PURE_PERCENT + _ALLOWED_POINTS:
        wrong.append(f"the heavy text is {share:.1f} % of both, by the client {client.heavy_percent():.1f} %")
    if not counts:
        return wrong
    found = {one["text"].rpartition(" ")[2]: one["calls_count"] for one in statements if " AS slot_" in one["text"]}
    # The first and the last are not wholly in the window.
    slots = sorted(found, key=lambda slot: int(slot.removeprefix("slot_")))[1:-1]
    if len(slots) < 2:
        wrong.append(f"fewer than two whole half seconds: {found}")
    wrong += [f"{slot} {found[slot]} of {client.calls[slot]}" for slot in slots if found[slot] != client.calls[slot]]
    return wrong


def queries(steps: Steps, job: Job) -> dict[str, Any]:
    """Check that each statement is counted exactly by probes, and that both methods find the shares of CPU time."""
    from powerprof.database.private_server import PrivateServer

    facts: dict[str, Any] = {}
    wrong = []
    methods = ("probes", "samples") if os.uname().machine == "x86_64" else ("samples",)
    with PrivateServer(timeout_s=300.0) as server, _executing(server) as client:
        for method in methods:
            words = ("--pid", str(server.pid), "--method", method, "--duration", "2.5", "--meter", "none")
            words += ("--max-cost", "none") if method == "probes" else ()
            record = steps.powerprof(
                "queries", *words, "--top", "100", "--json", "-", "--no-save", limit_s=60
            ).document()
            found = compare(record["statements"], client, counts=method == "probes")
            facts[method] = {
                one["text"].rpartition(" ")[2]: {"calls": one["calls_count"], "c0_s": round(one["c0_s"], 3)}
                for one in record["statements"]
            }
            wrong += [f"{method}: {what}" for what in found]
    facts["client_percent"] = round(client.heavy_percent(), 1)
    if wrong:
        raise StepError("; ".join(wrong), facts)
    return facts


STEPS = {"queries": queries}
