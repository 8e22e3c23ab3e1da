# SPDX-License-Identifier: Apache-2.0
"""Access to the metrics: loopback, a socket, TLS, passwords, and hostile readers."""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import ssl
import struct
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import bcrypt
import pytest

from powerprof.live.exporter import MetricsServer, check_exposure, parse_address
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
        ("evil.example\r\nHost: 127.0.0.1", 421),
    ],
)
def test_a_foreign_host_name_is_refused(host: str, status: int) -> None:
    """DNS rebinding maps the host name of the page to 127.0.0.1."""

    def answered(config: WebConfig | None = None) -> bytes:
        with MetricsServer(LOOPBACK, answer, config) as server:
            return answer_to(server, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())

    assert answered() == f"HTTP/1.1 {status}".encode()
    # If passwords are set, the page has none.
    assert answered(WebConfig(basic_auth_users={"prometheus": hashed(b"secret")})) == b"HTTP/1.1 401"


@pytest.mark.parametrize("request_head", [b"GET\r\n\r\n", b"GET / SPDY/3\r\n\r\n", b"\x00\xff\r\n\r\n"])
def test_a_request_that_is_not_http_is_refused(request_head: bytes) -> None:
    with MetricsServer(LOOPBACK, answer) as server:
        assert answer_to(server, request_head) == b"HTTP/1.1 400"


def config_file(folder: Path, text: str) -> Path:
    path = folder / "web.yml"
    path.write_text(text)
    return path


def hashed(password: bytes) -> str:
    return bcrypt.hashpw(password, bcrypt.gensalt(4)).decode()


def test_passwords(tmp_path: Path) -> None:
    config = load_web_config(config_file(tmp_path, f"basic_auth_users:\n  prometheus: {hashed(b'secret')}\n"))

    def header(text: bytes) -> str:
        return "Basic " + base64.b64encode(text).decode()

    with MetricsServer(LOOPBACK, answer, config) as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        for _ in range(2):
            assert get(url, Authorization=header(b"prometheus:secret"))[0] == 200
        for wrong in (b"prometheus:wrong", b"nobody:secret", b"prometheus", b"\xff\xfe"):
            assert get(url, Authorization=header(wrong)) == (401, b"Unauthorized\n")
        assert get(url)[0] == 401
    # Another test may have left a running loop in this thread.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, Authenticator({}).admit(None, "")).result() is Admission.ADMITTED


def test_tls(tmp_path: Path) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
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
        "root:x:0:0:root: {",
        "2024-99-99",
        "!!int root",
        "root:*: [1",
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
