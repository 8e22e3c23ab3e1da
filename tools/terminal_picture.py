# SPDX-License-Identifier: Apache-2.0
"""A picture of a program's screen: tmux runs it, and its text becomes an SVG without requests to other hosts."""

from __future__ import annotations

import io
import re
import subprocess
import time
from collections.abc import Sequence

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from powerprof.system.program_search import need

_FONTS = re.compile(r"\s*@font-face \{\{.*?\}\}", re.DOTALL)


def capture_screen(command: Sequence[str], columns: int, rows: int, after_s: float) -> list[str]:
    """Return the lines of a program's screen after some seconds, with their escape sequences; `q` ends it."""
    tmux = [need("tmux", "tmux"), "-L", "powerprof-picture"]
    size = ["-x", str(columns), "-y", str(rows)]
    subprocess.run([*tmux, "new-session", "-d", *size, "--", *command], check=True, timeout=20)
    try:
        time.sleep(after_s)
        shown = subprocess.run(
            [*tmux, "capture-pane", "-e", "-p"], check=True, timeout=20, capture_output=True, encoding="utf-8"
        )
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, timeout=20)
    return shown.stdout.splitlines()


def draw_screen(lines: Sequence[str], columns: int, title: str) -> str:
    """Return an SVG of the lines; empty lines in a row become one."""
    console = Console(record=True, width=columns, file=io.StringIO(), color_system="truecolor")
    for before, line in zip(["", *lines], lines, strict=False):
        if line.strip() or before.strip():
            console.print(Text.from_ansi(line), no_wrap=True, crop=True)
    svg = console.export_svg(title=title, code_format=_FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="watch")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
