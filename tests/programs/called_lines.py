# SPDX-License-Identifier: Apache-2.0
"""Run powerprof and write the lines of the functions that it called, by file, as JSON.

`python -m tests.programs.called_lines RESULT ARGUMENT…`
"""

from __future__ import annotations

import json
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[2] / "powerprof"
_NEW_LOCALS = 0x2  # CO_NEWLOCALS: the code of a function, not that of a module or a class


def main() -> None:
    """Run the command in this process; children are not counted."""
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.add(frame.f_code)

    result, sys.argv = Path(sys.argv[1]), ["powerprof", *sys.argv[2:]]
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        from powerprof.cli import main as run

        run()
    finally:
        sys.setprofile(None)
        lines: dict[str, int] = defaultdict(int)
        for code in called:
            path = Path(code.co_filename)
            if code.co_flags & _NEW_LOCALS and path.is_relative_to(_PACKAGE):
                lines[str(path.relative_to(_PACKAGE))] += len({line for *_, line in code.co_lines() if line})
        result.write_text(json.dumps(lines))


if __name__ == "__main__":
    main()
