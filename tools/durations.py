# SPDX-License-Identifier: Apache-2.0
"""Write the seconds of each test file in the last run into tests/durations.json: `python -m tools.durations`.

A new checkout begins with the longest files by these seconds, until it has its own.
"""

from __future__ import annotations

import json
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LAST_RUN = REPOSITORY / ".pytest_cache/v/durations/files"
KEPT = REPOSITORY / "tests/durations.json"
# Shorter files fill any gap; their seconds would change in every commit.
LEAST_S = 5.0


def main() -> None:
    """Keep the files that still exist and take `LEAST_S` and more, the longest first."""
    seconds = json.loads(LAST_RUN.read_text())
    kept = {file: round(taken) for file, taken in seconds.items() if taken >= LEAST_S and (REPOSITORY / file).is_file()}
    KEPT.write_text(json.dumps(dict(sorted(kept.items(), key=lambda item: -item[1])), indent=1) + "\n")


if __name__ == "__main__":
    main()
