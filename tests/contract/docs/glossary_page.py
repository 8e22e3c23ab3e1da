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
    head = (
        "# Glossary\n\nTerms of the reports. [Concepts](../concepts.md) has longer explanations.\n\n"
        "| term | meaning |\n|---|---|"
    )
    return "\n".join([head, *rows]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
