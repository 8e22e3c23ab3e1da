# SPDX-License-Identifier: Apache-2.0
"""The server of metrics: pages, access, and bounded work for connections."""

from __future__ import annotations

import asyncio
import base64
import http.client
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import bcrypt
import psutil
import pytest

from powerprof.live import webconfig
from powerprof.live.intervals import LiveInterval
from powerprof.live.metrics_server import MetricsServer, check_exposure, parse_address
from powerprof.live.webconfig import Admission, Authenticator, WebConfig, load_web_config
from powerprof.system.errors import DataError, PowerprofError, UsageError

LOOPBACK = ("127.0.0.1", 0)


def answer(accept: str) -> tuple[bytes, str]:
    return f"accepts {accept}\n".encode(), "text/plain; version=0.0.4"


def get(url: str, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_metrics_on_loopback_and_nothing_else() -> None:
    with MetricsServer(LOOPBACK, answer) as server:
        base = f"http://127.0.0.1:{server.port}"
        assert get(f"{base}/metrics?x=1", Accept="text/x") == (200, b"accepts text/x\n")
        assert get(f"{base}/-/healthy")[0] == 200
        assert get(f"{base}/../etc/passwd")[0] == 404
    with pytest.raises(urllib.error.URLError):
        get(f"{base}/metrics")


def test_a_port_in_use_is_an_error() -> None:
    with (
        MetricsServer(LOOPBACK, answer) as server,
        pytest.raises(PowerprofError, match=r"cannot listen on 127\.0\.0\.1"),
    ):
        MetricsServer(("127.0.0.1", server.port or 0), answer)


def connect(port: int, count: int, request: bytes) -> list[socket.socket]:
    """Open connections and send a request on each."""
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for connection in connections:
        connection.sendall(request)
    return connections


def test_unfinished_pages_do_not_delay_others() -> None:
    page = b"x" * (8 << 20)
    with MetricsServer(LOOPBACK, lambda accept: (page, "text/plain")) as server, ExitStack() as stack:
        for one in connect(server.port or 0, 7, b"GET /metrics HTTP/1.1\r\n\r\n"):
            stack.enter_context(one)
            assert one.recv(100)
        left = connect(server.port or 0, 1, b"GET /metrics HTTP/1.1\r\n\r\n")[0]
        left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        left.close()
        with ThreadPoolExecutor(10) as readers:
            got = list(readers.map(lambda _: get(f"http://127.0.0.1:{server.port}/metrics"), range(10)))
        assert [(code, len(body)) for code, body in got] == [(200, len(page))] * 10


def test_a_head_request_does_not_read_the_figures() -> None:
    pages: list[str] = []

    def once(accept: str) -> tuple[bytes, str]:
        pages.append(accept)
        return answer(accept)

    with MetricsServer(LOOPBACK, once) as server:
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics", method="HEAD")
        with urllib.request.urlopen(request, timeout=20) as reply:
            assert (reply.status, pages) == (200, [])
        assert get(f"http://127.0.0.1:{server.port}/metrics")[0] == 200
        assert len(pages) == 1
        with socket.create_connection(("127.0.0.1", server.port or 0), timeout=20) as client:
            client.sendall(b"HEAD / HTTP/1.1\r\n\r\n")
            assert b"".join(iter(lambda: client.recv(4096), b"")).endswith(b"\r\n\r\n")


class _Profiles:
    """Profiles that name their request."""

    names = ("wakeups", "c0")

    def __init__(self) -> None:
        self.has_interval = True

    def add(self, interval: LiveInterval) -> None:
        raise AssertionError

    def render(self, name: str, seconds: float) -> bytes | None:
        return f"{name} of {seconds:g} s".encode() if self.has_interval else None


# The requests of Parca, Grafana Alloy and go tool pprof, as their sources build them. Alloy checks the content type.
_SCRAPES = [
    (b"GET /debug/pprof/wakeups?seconds=15 HTTP/1.1\r\nHost: 127.0.0.1:9477\r\nUser-Agent: Go-http-client/1.1\r\n"
     b"Accept-Encoding: gzip\r\n\r\n", b"wakeups of 15 s"),
    (b"GET /debug/pprof/c0?seconds=14 HTTP/1.1\r\nHost: 127.0.0.1:9477\r\nUser-Agent: Alloy/v1.11.0\r\n"
     b"Accept-Encoding: gzip\r\n\r\n", b"c0 of 14 s"),
    (b"GET /debug/pprof/wakeups HTTP/1.1\r\nHost: localhost:9477\r\nUser-Agent: Go-http-client/1.1\r\n"
     b"Accept-Encoding: gzip\r\n\r\n", b"wakeups of 0 s"),
]  # fmt: skip


@pytest.mark.parametrize(("request_head", "body"), _SCRAPES)
def test_scrapers_get_a_ready_profile(request_head: bytes, body: bytes) -> None:
    with (
        MetricsServer(LOOPBACK, answer, profiles=_Profiles()) as server,
        socket.create_connection(("127.0.0.1", server.port or 0), timeout=20) as client,
    ):
        client.sendall(request_head)
        head, _, got = b"".join(iter(lambda: client.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"\r\nContent-Type: application/octet-stream\r\n" in head
    assert got == body


def test_profiles_have_the_statuses_that_scrapers_know() -> None:
    profiles = _Profiles()
    with MetricsServer(LOOPBACK, answer, profiles=profiles) as server:
        base = f"http://127.0.0.1:{server.port}"
        for wrong in ("-1", "x", "1e9", "nan", "inf", "9" * 40):
            assert get(f"{base}/debug/pprof/wakeups?seconds={wrong}")[0] == 400
        for missing in ("heap", "wakeups/", "../metrics", "wakeups%00"):
            assert get(f"{base}/debug/pprof/{missing}")[0] == 404
        for page in ("/", "/debug/pprof/"):
            assert b"<a href=/debug/pprof/c0>" in get(f"{base}{page}")[1]
        request = urllib.request.Request(f"{base}/debug/pprof/c0", method="HEAD")
        profiles.has_interval = False
        with urllib.request.urlopen(request, timeout=20) as reply:
            assert (reply.status, reply.read()) == (200, b"")
        assert get(f"{base}/debug/pprof/c0") == (503, b"the first interval has not ended yet\n")
    with MetricsServer(LOOPBACK, answer) as server:
        base = f"http://127.0.0.1:{server.port}"
        assert get(f"{base}/debug/pprof/wakeups")[0] == 404
        assert b"pprof" not in get(base)[1]


def test_a_socket_file_has_its_mode_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    for _ in range(2):
        with MetricsServer(path, answer), socket.socket(socket.AF_UNIX) as client:
            assert path.stat().st_mode & 0o777 == 0o660
            client.settimeout(20)
            client.connect(str(path))
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert b"accepts" in b"".join(iter(lambda: client.recv(4096), b""))
        assert not path.exists()
    path.write_text("precious")
    with pytest.raises(PowerprofError, match="another kind"):
        MetricsServer(path, answer)
    assert path.read_text() == "precious"


def answer_to(server: MetricsServer, request: bytes) -> bytes:
    """Return the HTTP version and the status."""
    with socket.create_connection(("127.0.0.1", server.port or 0), timeout=20) as client:
        client.sendall(request)
        return client.recv(12)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9477", 200),
        ("[::1]:9477", 200),
        ("LOCALHOST.", 200),
        (socket.gethostname(), 200),
        ("evil.example:9477", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:9477", 421),
        ("[::1].evil.example", 421),
        ("localhost:1@evil.example", 421),
        ("evil.example\r\nHost: 127.0.0.1", 421),
    ],
)
def test_a_foreign_host_name_is_refused(host: str, status: int, no_delay: None) -> None:
    """DNS rebinding maps the host name of the page to 127.0.0.1. If passwords are set, the page has none."""
    for config, expected in ((None, status), (WebConfig(basic_auth_users={"prometheus": hashed(b"secret")}), 401)):
        with MetricsServer(LOOPBACK, answer, config) as server:
            reply = answer_to(server, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert reply == f"HTTP/1.1 {expected}".encode()


@pytest.mark.parametrize("request_head", [b"GET\r\n\r\n", b"GET / SPDY/3\r\n\r\n", b"\x00\xff\r\n\r\n"])
def test_a_request_that_is_not_http_is_refused(request_head: bytes) -> None:
    with MetricsServer(LOOPBACK, answer) as server:
        assert answer_to(server, request_head) == b"HTTP/1.1 400"


def config_file(folder: Path, text: str) -> Path:
    path = folder / "web.yml"
    path.write_text(text)
    return path


def hashed(password: bytes, rounds: int = 4) -> str:
    return bcrypt.hashpw(password, bcrypt.gensalt(rounds)).decode()


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse passwords at once."""
    monkeypatch.setattr("powerprof.live.pages._REFUSAL_DELAY_S", 0.0)


def test_passwords(tmp_path: Path, no_delay: None) -> None:
    config = load_web_config(config_file(tmp_path, f"basic_auth_users:\n  prometheus: {hashed(b'secret')}\n"))

    def header(text: bytes) -> str:
        return "Basic " + base64.b64encode(text).decode()

    with MetricsServer(LOOPBACK, answer, config, _Profiles()) as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        for _ in range(2):
            assert get(url, Authorization=header(b"prometheus:secret"))[0] == 200
        for wrong in (b"prometheus:wrong", b"nobody:secret", b"prometheus", b"\xff\xfe"):
            assert get(url, Authorization=header(wrong)) == (401, b"Unauthorized\n")
        assert get(url)[0] == 401
        profile = f"http://127.0.0.1:{server.port}/debug/pprof/wakeups"
        assert get(profile) == (401, b"Unauthorized\n")
        assert get(profile, Authorization=header(b"prometheus:secret"))[0] == 200
    # Another test may have left a running loop in this thread.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, Authenticator({}).admit(None, "")).result() is Admission.ADMITTED


def make_certificate(folder: Path) -> None:
    """Write cert.pem and key.pem."""
    folder.mkdir(exist_ok=True)
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )


def test_the_health_page_needs_no_password_and_fails_without_intervals(no_delay: None) -> None:
    config = WebConfig(basic_auth_users={"prometheus": hashed(b"secret")})
    stopped = [False, True, False]
    with MetricsServer(LOOPBACK, answer, config, has_stopped=lambda: stopped.pop(0)) as server:
        url = f"http://127.0.0.1:{server.port}/-/healthy"
        assert [get(url) for _ in range(3)] == [
            (200, b"powerprof is healthy\n"),
            (503, b"powerprof finishes no intervals\n"),
            (200, b"powerprof is healthy\n"),
        ]
        assert get(f"http://127.0.0.1:{server.port}/metrics")[0] == 401


def test_a_renewed_certificate_is_served_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    """As in a volume of Kubernetes: the files are links through a link to a folder, which is replaced."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        make_certificate(folder)
    link = tmp_path / "data"
    link.symlink_to(first)
    lines = "tls_server_config:\n  cert_file: data/cert.pem\n  key_file: data/key.pem\n"
    with MetricsServer(LOOPBACK, answer, load_web_config(config_file(tmp_path, lines))) as server:

        def serves(folder: Path) -> bool:
            context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
            try:
                return get(f"https://127.0.0.1:{server.port}/metrics", context)[0] == 200
            except urllib.error.URLError:
                return False

        assert (serves(first), serves(second)) == (True, False)
        (tmp_path / "new").symlink_to(second)
        (tmp_path / "new").rename(link)
        assert (serves(first), serves(second)) == (False, True)
        whole = (second / "cert.pem").read_text()
        (second / "cert.pem").rename(second / "kept.pem")
        (second / "cert.pem").write_text(whole[:200])
        reply = get(
            f"https://127.0.0.1:{server.port}/metrics", ssl.create_default_context(cafile=str(second / "kept.pem"))
        )
        assert reply[0] == 200


def test_tls(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    config = load_web_config(config_file(tmp_path, "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"))
    trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with MetricsServer(LOOPBACK, answer, config) as server:
        assert get(f"https://127.0.0.1:{server.port}/metrics", trusting)[0] == 200
        with pytest.raises(OSError):
            get(f"http://127.0.0.1:{server.port}/metrics")
        assert get(f"https://127.0.0.1:{server.port}/metrics", trusting)[0] == 200


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("basic_auth_users: {me: secret}", "not a bcrypt hash"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: SSL3}", "min_version"),
        (
            "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}",
            "client_ca_file",
        ),
        ("rate_limit: 3", "rate_limit"),
        ("- [", "no YAML"),
        ("basic_auth_users: 7", "basic_auth_users"),
        ("root:x:0:0", "no options of a web configuration"),
        ("tls_server_config: {Secret: 1}", r"unknown field \(another name\) - at `\$.tls_server_config`$"),
    ],
)
def test_an_unsupported_protection_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        load_web_config(config_file(tmp_path, text))


@pytest.mark.parametrize(
    "line",
    [
        "root:*:20228:0:99999:7:::",
        "2024-99-99",
        "!!int root",
        "root:x:0:0",
        "{root:x, 1: 2}",
        "basic_auth_users: {secret-user: root}",
        "tls_server_config: {cert_file: a, key_file: b, min_version: root:x}",
        "tls_server_config: {root:x : 1}",
    ],
)
def test_an_error_does_not_print_the_file(tmp_path: Path, line: str) -> None:
    with pytest.raises(DataError) as error:
        load_web_config(config_file(tmp_path, f"{line}\n"))
    assert not {"root", "secret"} & set(re.findall(r"root|secret", error.value.message.removeprefix(str(tmp_path))))


def test_the_file_is_read_with_the_rights_of_the_caller(
    root: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config_file(tmp_path, "basic_auth_users: {}")
    path.chmod(0o600)
    monkeypatch.setenv("SUDO_UID", "65534")
    with pytest.raises(DataError, match="permission denied"):
        load_web_config(path)


def test_a_missing_certificate_is_an_error(tmp_path: Path) -> None:
    config = load_web_config(config_file(tmp_path, "tls_server_config: {cert_file: a, key_file: b}"))
    with pytest.raises(DataError, match="no certificate with its key"):
        MetricsServer(LOOPBACK, answer, config)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9477", ("127.0.0.1", 9477)),
        ("[::1]:80", ("::1", 80)),
        (":9477", ("0.0.0.0", 9477)),
        ("unix:/run/x.sock", Path("/run/x.sock")),
    ],
)
def test_addresses(text: str, address: object) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["9477", "host:1", "127.0.0.1:x", "127.0.0.1:70000", "unix:relative"])
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


def test_a_network_address_needs_a_protection() -> None:
    with pytest.raises(UsageError, match="reachable from other hosts"):
        check_exposure(("0.0.0.0", 9477), WebConfig(), insecure=False)
    check_exposure(("0.0.0.0", 9477), WebConfig(), insecure=True)
    check_exposure(("0.0.0.0", 9477), WebConfig(basic_auth_users={"a": "b"}), insecure=False)
    check_exposure(("::1", 9477), WebConfig(), insecure=False)


_SERVE = """
import sys, time
from pathlib import Path
from powerprof.live.metrics_server import MetricsServer
from powerprof.live.webconfig import WebConfig, load_web_config
config = load_web_config(Path(sys.argv[1])) if len(sys.argv) > 1 else WebConfig()
with MetricsServer(("127.0.0.1", 0), lambda accept: (b"x" * 50_000, "text/plain"), config) as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


@contextmanager
def served(*words: str) -> Iterator[tuple[int, psutil.Process]]:
    """Run a server in a separate process; yield its port and process."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield int(process.stdout.readline()), psutil.Process(process.pid)
        finally:
            process.stdin.close()
            process.wait(20)


def scrape(port: int, timeout_s: float = 20, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", "/metrics", headers=headers)
        reply = connection.getresponse()
        reply.read()
        return reply.status
    finally:
        connection.close()


def basic(password: str, user: str = "prometheus") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@contextmanager
def attackers(count: int, attack: Callable[[int], None]) -> Iterator[None]:
    """Repeat an attack in `count` threads."""
    end = threading.Event()

    def repeat(number: int) -> None:
        while not end.is_set():
            with suppress(OSError, http.client.HTTPException):
                attack(number)

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(count)]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nX-Slow: "], ids=["idle", "slow"])
def test_three_hundred_connections_do_not_delay_a_scrape(sent: bytes) -> None:
    with served() as (port, process), ExitStack() as stack:
        connections = [stack.enter_context(socket.socket()) for _ in range(300)]
        for _ in range(3):
            for number, connection in enumerate(connections):
                # Send a byte. Connect first, and again if the server has ended the connection.
                try:
                    connection.send(b"." if sent else b"")
                    if connection.recv(1) == b"":
                        raise ConnectionResetError
                except BlockingIOError:
                    pass
                except OSError:
                    connections[number] = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
                    connections[number].sendall(sent)
                    connections[number].setblocking(False)
            # Prometheus waits 10 s.
            assert scrape(port, timeout_s=10) == 200
        assert process.num_threads() < 8
        assert process.num_fds() < 200


def test_wrong_passwords_are_cheap_and_do_not_delay_a_scrape(tmp_path: Path) -> None:
    config = tmp_path / "web.yml"
    config.write_text(f"basic_auth_users: {{prometheus: {hashed(b'right', 6)}}}")
    with served(str(config)) as (port, process):
        assert scrape(port, Authorization=basic("right")) == 200
        statuses: Counter[int] = Counter()

        def attack(number: int) -> None:
            statuses[scrape(port, Authorization=basic(os.urandom(8).hex(), f"user{number % 7}"))] += 1

        with attackers(12, attack):
            before, began_s = process.cpu_times(), time.monotonic()
            while time.monotonic() < began_s + 2:
                assert scrape(port, Authorization=basic("right")) == 200
                time.sleep(0.25)
            after, took_s = process.cpu_times(), time.monotonic() - began_s
        cpu_s = after.user + after.system - before.user - before.system
        assert cpu_s < 0.3 * took_s, (cpu_s, took_s, statuses)
        assert set(statuses) == {401, 429}


def test_a_peer_loses_its_own_connections() -> None:
    """An older connection of another address is answered during a flood."""
    with MetricsServer(("::", 0), lambda accept: (b"x\n", "text/plain"), WebConfig()) as server, ExitStack() as stack:
        assert server.port is not None
        early = stack.enter_context(socket.create_connection((_own_address(), server.port), timeout=20))
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
        assert scrape(server.port) == 200
        early.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert early.recv(12) == b"HTTP/1.1 200"


def _own_address() -> str:
    """Return an address of this host that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


def test_passwords_are_checked_one_at_a_time_with_equal_work(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = {"a": hashed(b"right"), "b": hashed(b"x", 6)}
    check, costs = webconfig._check_password, list[str]()
    lock = threading.Lock()

    def counted(password: bytes, hashed: str) -> bool:
        assert lock.acquire(blocking=False), "two checks at a time"
        costs.append(hashed[4:6])
        is_right = check(password, hashed)
        lock.release()
        return is_right

    monkeypatch.setattr(webconfig, "_check_password", counted)

    async def admit() -> None:
        authenticator = Authenticator(hashes)
        for name in ("a", "b", "unknown"):
            costs.clear()
            assert await authenticator.admit(basic("wrong", name), "") is Admission.REFUSED
            assert costs == ["04", "06"]
        # bcrypt reads 72 bytes, so longer passwords are not checked again.
        long = "y" * 72
        for end, times in (("", 2), ("1", 0), ("2", 0)):
            costs.clear()
            assert await authenticator.admit(basic(long + end, "a"), "") is Admission.REFUSED
            assert len(costs) == times
        # Four checks of one peer may wait. The check of a closed connection keeps its place.
        several = [asyncio.ensure_future(authenticator.admit(basic(f"{number}", "a"), "peer")) for number in range(6)]
        await asyncio.sleep(0)
        several[0].cancel()
        other = await authenticator.admit(basic("right", "a"), "other")
        results = await asyncio.gather(*several[1:])
        assert (other, Counter(results)) == (Admission.ADMITTED, Counter({Admission.REFUSED: 3, Admission.LATER: 2}))
        assert not authenticator._pending

    # Another test may have left a running loop in this thread.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, admit()).result()
