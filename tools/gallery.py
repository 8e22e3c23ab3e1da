# SPDX-License-Identifier: Apache-2.0
"""`make gallery`: measure again, as root in six minutes, the pages and screenshots of docs/gallery and the
transcripts of docs/read-a-report.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pymysql
from playwright.sync_api import sync_playwright

from powerprof.database.private_server import PrivateServer
from powerprof.system.program_search import need
from tests.conftest import REPOSITORY
from tests.programs import transcripts
from tools.terminal_picture import capture_screen, draw_screen

GALLERY = REPOSITORY / "docs/gallery"
_SHOTS = {"idle": (1100, 900), "compare": (1100, 900)}
_POLL_S = 0.02
_PAUSES_S, _WATCHED_S = (0.05, 0.2, 0.5), 40
_MONITORING = "monitoring"
# Short names are words of the pages too.
_NAME = re.compile(r"(?!python|maria|powerprof|sysbench|chrom).{7,}")
_STRANGER = "another program"
_RECORD = re.compile(r'<script type="application/json" id="record">(.*?)</script>', re.DOTALL)


def main(names: list[str]) -> None:
    """Make the pages that are named, or all; then the screenshots. `again`: all are drawn again from their own records,
    as reports are now, and nothing is measured.
    """
    GALLERY.mkdir(exist_ok=True)
    if names == ["again"]:
        for name in _PAGES:
            _draw_again(GALLERY / f"{name}.html")
        _photograph()
        return
    strangers = _strangers()
    with tempfile.TemporaryDirectory(prefix="powerprof-gallery-") as kept:
        for name, make in _PAGES.items():
            if not names or name in names:
                print(f"gallery: {name}", file=sys.stderr)
                make(Path(kept))
                _leave_out(strangers, GALLERY / f"{name}.html")
        if not names or "watch" in names:
            _watch(strangers)
        if not names or "readme" in names:
            transcripts.write(Path(kept), _account, PrivateServer)
            _leave_out(strangers, transcripts.PAGE)
    _photograph()


def _draw_again(page: Path) -> None:
    """From the record that the page carries: only what lies beside a record (a timeline) is then not on it."""
    found = _RECORD.search(page.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{page} carries no record")
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as record:
        record.write(found[1])
        record.flush()
        argv = [sys.executable, "-m", "powerprof", "report", record.name, "-o", page]
        subprocess.run(argv, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL, timeout=120)
    _leave_out([], page)


def _strangers() -> list[str]:
    """Names of programs and threads that run here already: they are nobody's business. The kernel's are everywhere."""
    names = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "cmdline").read_bytes():
                names |= {(task / "comm").read_text(errors="replace").strip() for task in (entry / "task").iterdir()}
    return sorted(filter(_NAME.fullmatch, names), key=len, reverse=True)


def _leave_out(names: list[str], page: Path) -> None:
    # A reader has the program on the path.
    text = page.read_text(encoding="utf-8").replace(f"{sys.executable} -m powerprof", "powerprof")
    for name in names:
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", _STRANGER, text)
    page.write_text(text, encoding="utf-8")


def _powerprof(page: str, folder: Path, *words: str) -> None:
    argv = [sys.executable, "-m", "powerprof", "--runs-dir", folder / "runs", *words, "-o", GALLERY / f"{page}.html"]
    subprocess.run(argv, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL, timeout=600)


def _idle(folder: Path) -> None:
    _powerprof("idle", folder, "idle", "--clients", "16", "--quick")


def _compare(folder: Path) -> None:
    _powerprof("compare", folder, "compare", "index", "no-index", "--pairs", "6", "--duration", "1", "--attribute", "4")


def _sweep(folder: Path) -> None:
    words = ("--clients", "1,2,4,8,16", "--duration", "2", "--repeat", "3")
    _powerprof("sweep", folder, "sweep", "oltp-read-only", *words)


def _attribute(folder: Path) -> None:
    with PrivateServer() as server:
        words = ("--pid", str(server.pid), "--defaults-file", str(_account(server, folder)), "--duration", "4")
        _powerprof("attribute", folder, "attribute", *words)


def _watch(strangers: list[str]) -> None:
    """Draw the screen of `watch` for a server with a polling client."""
    stop = threading.Event()
    with PrivateServer(settings={"thread_pool_stall_limit": 100}) as server:
        clients = [threading.Thread(target=_poll, args=(server, stop, pause_s)) for pause_s in _PAUSES_S]
        for client in clients:
            client.start()
        try:
            words = ["-m", "powerprof", "watch", "--pid", str(server.pid), "--interval", "2"]
            lines = capture_screen([sys.executable, *words], 100, 22, _WATCHED_S)
        finally:
            stop.set()
            for client in clients:
                client.join()
    for name in [*strangers, *_strangers()]:
        lines = [line.replace(name, _STRANGER) for line in lines]
    path = GALLERY / "watch.svg"
    path.write_text(draw_screen(lines, 100, "sudo powerprof watch --pid mysqld --interval 2"), encoding="utf-8")


def _poll(server: PrivateServer, stop: threading.Event, pause_s: float) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        while not stop.wait(pause_s):
            cursor.execute("SELECT COUNT(*) FROM information_schema.TABLES")
            cursor.fetchall()


def _diagnose(folder: Path) -> None:
    """A server whose monitoring asks fifty times a second."""
    stop = threading.Event()
    with PrivateServer() as server:
        monitoring = threading.Thread(target=_ask, args=(server, stop))
        monitoring.start()
        try:
            words = ("--pid", str(server.pid), "--defaults-file", str(_account(server, folder)))
            _powerprof("diagnose", folder, "diagnose", *words)
        finally:
            stop.set()
            monitoring.join()


def _ask(server: PrivateServer, stop: threading.Event) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {_MONITORING}@localhost")
    with pymysql.connect(unix_socket=str(server.socket), user=_MONITORING) as connection, connection.cursor() as cursor:
        while not stop.wait(_POLL_S):
            cursor.execute("SHOW GLOBAL STATUS")
            cursor.fetchall()


def _account(server: PrivateServer, folder: Path) -> Path:
    path = folder / "account.cnf"
    path.touch(mode=0o600)
    login = server.login
    path.write_text(f'[client]\nuser={login.user}\npassword="{login.password}"\nsocket={login.socket}\n')
    return path


def _photograph() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=need("chromium", "chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, (width, height) in _SHOTS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
            page.goto((GALLERY / f"{name}.html").as_uri())
            page.screenshot(path=GALLERY / f"{name}.png")
        browser.close()


_PAGES = {"idle": _idle, "compare": _compare, "attribute": _attribute, "diagnose": _diagnose, "sweep": _sweep}

if __name__ == "__main__":
    main(sys.argv[1:])
