# SPDX-License-Identifier: Apache-2.0
"""One headless browser a session, and the pages that it opens from files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.unit.report.live_pages import LIVE_PAGES, live_html_of
from tests.unit.report.sample_pages import PAGES, html_of

BROWSERS = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
Open = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The Chromium that the host has."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no capability: chromium (apt install chromium)")
    with sync_playwright() as playwright:
        # The tests run as root, where Chromium has no sandbox, and in containers with a small /dev/shm.
        started = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind of report as a file."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for kind in PAGES:
        found[kind] = folder / f"{kind}.html"
        found[kind].write_text(html_of(kind), encoding="utf-8")
    for kind in LIVE_PAGES:
        found[kind] = folder / f"{kind}.html"
        found[kind].write_text(live_html_of(kind), encoding="utf-8")
    return found


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a file; a message on the console, an error or a request fails the test that opened it."""
    contexts, trouble = [], []

    def opened(path: Path, width: int = 1200, scheme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: trouble.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: (
                None
                if request.url == path.as_uri() or request.url.startswith(("data:", "blob:"))
                else trouble.append(f"request: {request.url}")
            ),
        )
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert trouble == []
