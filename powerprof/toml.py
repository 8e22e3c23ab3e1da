# SPDX-License-Identifier: Apache-2.0
"""TOML with one line of error that names the line of the file."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from powerprof.errors import DataError
from powerprof.untrusted import reading


def parse(text: str, path: object) -> dict[str, Any]:
    """The tables of a document. Raises DataError with the line and the reason in tomllib's words."""
    with reading(path):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            reason = re.sub(r" \(at .*\)$", "", str(error))
            line = re.search(r"\(at line (\d+)", str(error))
            # What is missing at the end has no line in tomllib's words: it is the last one.
            number = int(line[1]) if line else max(text.count("\n") + (not text.endswith("\n")), 1)
            raise DataError(path, f"not TOML: {reason[:1].lower()}{reason[1:]}", number) from None
