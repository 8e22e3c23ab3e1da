# SPDX-License-Identifier: Apache-2.0
"""One headless browser a session, and the pages that it opens from files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def _listen(page: Page, path: Path, trouble: list[str]) -> Callable[[], None]:
    """Note messages on the console, errors and requests of a page; the function that is returned ends it."""
    may_load = (path.as_uri(), "data:", "blob:")
    hears: dict[str, Callable[[Any], object]] = {
        "console": lambda message: trouble.append(f"console: {message.text}"),
        "pageerror": lambda error: trouble.append(f"error: {error}"),
        "dialog": lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        "request": lambda request: (
            None if request.url.startswith(may_load) else trouble.append(f"request: {request.url}")
        ),
    }
    for event, heard in hears.items():
        page.on(event, heard)  # type: ignore[call-overload]
    return lambda: [page.remove_listener(event, heard) for event, heard in hears.items()] and None


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a file; a message on the console, an error or a request fails the test that opened it."""
    contexts, trouble = [], []

    def opened(path: Path, width: int = 1200, scheme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        _listen(page, path, trouble)
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert trouble == []


@pytest.fixture(scope="module")
def kept(browser: Browser) -> Iterator[dict[str, Page]]:
    """The page that the last test was shown, by its kind: to open one costs a second of CPU time."""
    opened: dict[str, Page] = {}
    yield opened
    for page in opened.values():
        page.context.close()


@pytest.fixture
def show(browser: Browser, pages: dict[str, Path], kept: dict[str, Page], kind: str) -> Iterator[Callable[..., Page]]:
    """`show(width, scheme)`: the page of this kind as a screen of this width shows it. A test leaves it as it was."""
    if kind not in kept:
        for page in kept.values():
            page.context.close()
        kept.clear()
        kept[kind] = browser.new_context().new_page()
    page, trouble, is_new = kept[kind], list[str](), kept[kind].url == "about:blank"
    stop_listening = _listen(page, pages[kind], trouble)
    if is_new:
        page.goto(pages[kind].as_uri())
    assert page.url == pages[kind].as_uri()

    def at(width: int = 1200, scheme: str = "light", media: str = "screen") -> Page:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(media=media, color_scheme=scheme)  # type: ignore[arg-type]
        return page

    yield at
    stop_listening()
    assert trouble == []
