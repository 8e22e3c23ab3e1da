# SPDX-License-Identifier: Apache-2.0
"""The pages of `powerprof export`: metrics and profiles, who may read them, and their HTTP replies."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Callable, Collection, Sequence
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qs

import msgspec

from powerprof.live.intervals import LiveInterval
from powerprof.live.webconfig import Admission, Authenticator

# A refusal is delayed by this time.
_REFUSAL_DELAY_S = 0.5
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?", re.ASCII)
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:@]+))(?::[0-9]*)?")
Answer = Callable[[str], tuple[bytes, str]]
_PROFILES = "/debug/pprof/"
# Health probes of a kubelet or a load balancer have no password, and the page has no figures.
_HEALTH = "/-/healthy"
# The type is that of Go's own profiles: Alloy refuses others.
_PROFILE_TYPE = "application/octet-stream"
_MISDIRECTED = (
    "{host} is not a name of this host: read the metrics by an address or localhost, with TLS or a password, or let a "
    "proxy send such a Host, or connect it to --listen unix:PATH\n"
)


class Profiles(Protocol):
    """The profiles of the last intervals.

    `names` are those of the profiles. `add` gets each interval. `render` is called in the thread of the server. It
    returns the last seconds as a pprof file, or None before the first interval has ended.
    """

    @property
    def names(self) -> Collection[str]: ...

    def add(self, interval: LiveInterval) -> None: ...

    def render(self, name: str, seconds: float) -> bytes | None: ...


class Request(msgspec.Struct, frozen=True):
    """The head of a request. `headers` has lower-case names, each with its values."""

    method: str
    path: str
    query: str
    headers: dict[str, list[str]]

    @classmethod
    def parse(cls, head: bytes) -> Request:
        """Return the request. The method is empty if it is not HTTP/1."""
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, version = first.split(" ") if first.count(" ") == 2 else ("", "", "")
        headers: dict[str, list[str]] = {}
        for line in filter(None, lines):
            name, _, value = line.partition(":")
            headers.setdefault(name.strip().lower(), []).append(value.strip())
        path, _, query = target.partition("?")
        return cls(method if version.startswith("HTTP/1.") else "", path, query, headers)

    def header(self, name: str) -> str | None:
        """Return the first value of a header."""
        return next(iter(self.headers.get(name, ())), None)


class Pages:
    """The pages and their access control."""

    def __init__(
        self,
        answer: Answer,
        profiles: Profiles | None,
        authenticator: Authenticator,
        has_stopped: Callable[[], bool],
        *,
        check_host: bool,
    ) -> None:
        self._answer, self._profiles, self._authenticator = answer, profiles, authenticator
        self._has_stopped = has_stopped
        self._checks_host = check_host
        # Path → name.
        self._names = {f"{_PROFILES}{name}": name for name in profiles.names} if profiles is not None else {}

    async def refuse(self, request: Request, peer: str) -> bytes | None:
        """Return the reply to a refused request, or None for an accepted one."""
        if not request.method:
            return _format_reply(HTTPStatus.BAD_REQUEST, b"Bad Request\n")
        hosts = request.headers.get("host", []) if self._checks_host else []
        if foreign := [host for host in hosts if not names_this_host(host)]:
            text = _MISDIRECTED.format(host=ascii(foreign[0][:100]))
            return _format_reply(HTTPStatus.MISDIRECTED_REQUEST, text.encode())
        admission = Admission.ADMITTED
        if request.path != _HEALTH:
            admission = await self._authenticator.admit(request.header("authorization"), peer)
        if admission is not Admission.ADMITTED:
            await asyncio.sleep(_REFUSAL_DELAY_S)
        if admission is Admission.LATER:
            return _format_reply(HTTPStatus.TOO_MANY_REQUESTS, b"Too Many Requests\n", headers=["Retry-After: 5"])
        if admission is Admission.REFUSED:
            realm = 'WWW-Authenticate: Basic realm="powerprof"'
            return _format_reply(HTTPStatus.UNAUTHORIZED, b"Unauthorized\n", headers=[realm])
        if request.method not in ("GET", "HEAD"):
            return _format_reply(HTTPStatus.METHOD_NOT_ALLOWED, b"Method Not Allowed\n", headers=["Allow: GET, HEAD"])
        return None

    def answer(self, request: Request) -> bytes:
        """Return the page with its head."""
        if request.method == "HEAD" and request.path == "/metrics":
            # A HEAD request does not read the figures. New series count from their first reading.
            return _format_reply(HTTPStatus.OK, b"")
        if request.path == "/metrics":
            return _format_reply(HTTPStatus.OK, *self._answer(request.header("accept") or ""))
        if self._profiles is not None and request.path in self._names:
            return self._answer_profile(self._profiles, request)
        if request.path in ("/", _PROFILES):
            return _format_reply(HTTPStatus.OK, _list_pages(["/metrics", *self._names]), "text/html; charset=utf-8")
        if request.path == _HEALTH and self._has_stopped():
            return _format_reply(HTTPStatus.SERVICE_UNAVAILABLE, b"powerprof finishes no intervals\n")
        if request.path == _HEALTH:
            return _format_reply(HTTPStatus.OK, b"powerprof is healthy\n")
        return _format_reply(HTTPStatus.NOT_FOUND, b"Not Found\n")

    def _answer_profile(self, profiles: Profiles, request: Request) -> bytes:
        """Return the profile of the last seconds, which is ready: the reader does not wait for them to pass."""
        if request.method == "HEAD":
            return _format_reply(HTTPStatus.OK, b"", _PROFILE_TYPE)
        words = parse_qs(request.query).get("seconds", ["0"])[0]
        if not _SECONDS.fullmatch(words):
            return _format_reply(HTTPStatus.BAD_REQUEST, b"seconds is not a number of seconds\n")
        data = profiles.render(self._names[request.path], float(words))
        if data is None:
            text = b"the first interval has not ended yet\n"
            return _format_reply(HTTPStatus.SERVICE_UNAVAILABLE, text, headers=["Retry-After: 15"])
        return _format_reply(HTTPStatus.OK, data, _PROFILE_TYPE)


def _list_pages(pages: Sequence[str]) -> bytes:
    """Return the page with the links."""
    links = "".join(f"<li><a href={path}>{path}</a>" for path in pages)
    return f"<!doctype html><title>powerprof</title><h1>powerprof</h1><ul>{links}</ul>\n".encode()


def _format_reply(status: HTTPStatus, body: bytes, kind: str = "text/plain", headers: Sequence[str] = ()) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Server: powerprof",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def names_this_host(host: str) -> bool:
    """Return whether a Host header has an address, localhost or the name of this host.

    A page in a browser can map its own name to 127.0.0.1 and read local servers by that name (DNS rebinding).
    """
    parts = _HOST.fullmatch(host)
    if parts is None:
        return False
    name = parts[1] or parts[2]
    own = socket.gethostname().lower()
    if name.lower().removesuffix(".") in ("localhost", own, own.partition(".")[0]):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
