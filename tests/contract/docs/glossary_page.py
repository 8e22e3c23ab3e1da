# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/glossary.md from the terms of the reports: `python -m tests.contract.docs.glossary_page`."""

from __future__ import annotations

from powerprof.report.labels import TERMS
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs/reference/glossary.md"
COMMAND = "python -m tests.contract.docs.glossary_page"


def render() -> str:
    """The page as it has to be."""
    rows = [f"| {term} | {meaning} |" for term, meaning in TERMS.items()]
    head = "# Glossary\n\nThe terms of the reports; a page explains them in place.\n\n| term | |\n|---|---|"
    return "\n".join([head, *rows]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
