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


@pytest.fixture(scope="session")
def screen(browser: Browser) -> Page:
    """The page that `open_page` shows its files in: a new context takes three times the CPU time of a file."""
    return browser.new_context().new_page()


def _adjust(page: Page, width: int, scheme: str, media: str = "screen") -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(media=media, color_scheme=scheme)  # type: ignore[arg-type]


@pytest.fixture
def open_page(screen: Page) -> Iterator[Open]:
    """Opens a file; a message on the console, an error or a request fails the test that opened it."""
    heard, trouble = [], []

    def opened(path: Path, width: int = 1200, scheme: str = "light") -> Page:
        screen.goto("about:blank")
        _adjust(screen, width, scheme)
        heard.append(_listen(screen, path, trouble))
        screen.goto(path.as_uri())
        return screen

    yield opened
    for stop_listening in heard:
        stop_listening()
    assert trouble == []


@pytest.fixture(scope="session")
def kept(browser: Browser) -> Page:
    """The page that the last test was shown."""
    return browser.new_context().new_page()


@pytest.fixture
def show(pages: dict[str, Path], kept: Page, kind: str) -> Iterator[Callable[..., Page]]:
    """`show(width, scheme)`: the page of this kind as a screen of this width shows it. A test leaves it as it was."""
    address, trouble = pages[kind].as_uri(), list[str]()
    stop_listening = _listen(kept, pages[kind], trouble)
    if kept.url.partition("#")[0] != address:
        kept.goto(address)
    assert kept.url == address

    def at(width: int = 1200, scheme: str = "light", media: str = "screen") -> Page:
        _adjust(kept, width, scheme, media)
        return kept

    yield at
    stop_listening()
    assert trouble == []
