# SPDX-License-Identifier: Apache-2.0
"""Every page held against axe-core's rules (WCAG A and AA, best practices), narrow and wide, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.system.report.conftest import Open
from tests.unit.report.live_pages import LIVE_PAGES
from tests.unit.report.sample_pages import PAGES

# Contrast is judged more strictly by test_in_a_browser.py, and took four fifths of the time here.
_RUN = "() => axe.run(document, {resultTypes: ['violations'], rules: {'color-contrast': {enabled: false}}})"


def _violations(page: Any) -> list[str]:
    if not page.evaluate("'axe' in window"):
        # By the debugger: the page's own policy lets no script in but its own.
        page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate(_RUN)["violations"]
    return [f"{one['id']} ({one['impact']}): {node['html'][:200]}" for one in found for node in one["nodes"][:3]]


@pytest.mark.parametrize("kind", [*PAGES, *LIVE_PAGES])
def test_page_has_no_accessibility_violation(kind: str, show: Callable[..., Page]) -> None:
    assert _violations(show(400, "light")) == []
    if kind in ("idle", "comparison"):  # The other pages have the same parts.
        assert _violations(show(1600, "dark")) == []


def test_axe_finds_a_picture_without_a_label(open_page: Open, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><html><title>x</title><main><h1>x</h1><img src='data:,'></main></html>")
    found = _violations(open_page(path))
    assert "image-alt" in " ".join(found)
