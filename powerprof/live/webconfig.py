# SPDX-License-Identifier: Apache-2.0
"""Access to the metrics: TLS and basic authentication, by the file of Prometheus' exporters (`--web.config.file`).

https://prometheus.io/docs/prometheus/latest/configuration/https/ describes `tls_server_config` and `basic_auth_users`.
Other fields of that page are refused by name: ignoring a requested protection is worse than having none.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import re
import ssl
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path

import msgspec

from powerprof.system import outside_files
from powerprof.system.acting import as_caller
from powerprof.system.caller import is_delegated
from powerprof.system.errors import DataError

_MAX_BYTES = 64 << 10
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_BCRYPT = re.compile(r"\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}")
_BCRYPT_MAX_BYTES = 72
# A hash of a given cost that no password matches.
_UNMATCHED = "$2b${}$" + "." * 21 + "O" + "." * 31
# Waiting checks of one peer and of all peers.
_MAX_CHECKS_OF_PEER, _MAX_CHECKS = 4, 32
# The pause after a check, as a multiple of its time.
_PAUSE_RATIO = 12
# Remembered wrong passwords.
_MAX_REFUSED = 1000
# A quoted word. Only names of fields are printed, not other words of the file.
_QUOTED = re.compile(r"`([^`]*)`")
_FIELD = re.compile(r"(\$\.)?[a-z_.]{1,40}")


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part `tls_server_config`."""

    cert_file: str
    key_file: str
    client_auth_type: str = "NoClientCert"
    client_ca_file: str = ""
    min_version: str = "TLS12"


class WebConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two parts of the file."""

    tls_server_config: Tls | None = None
    basic_auth_users: dict[str, str] = {}


def _name_field(quoted: re.Match[str]) -> str:
    return quoted[0] if _FIELD.fullmatch(quoted[1]) else "(another name)"


def load_web_config(path: Path) -> WebConfig:
    """Read the file, with its relative paths resolved. Raise DataError."""
    import yaml

    # Use the rights of the caller of sudo. Errors could otherwise show parts of files that the caller may not read.
    with as_caller():
        text = outside_files.read_outside_text(path)
    if len(text) > _MAX_BYTES:
        raise DataError(path, f"more than {_MAX_BYTES} bytes")
    try:
        options = yaml.safe_load(text) or {}
        if not isinstance(options, dict):
            raise DataError(path, "no options of a web configuration in it")
        config = msgspec.convert(options, WebConfig)
    except msgspec.ValidationError as error:
        raise DataError(path, _QUOTED.sub(_name_field, str(error))) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise DataError(path, "no YAML", mark.line + 1 if mark is not None else None) from None
    for number, hashed in enumerate(config.basic_auth_users.values(), 1):
        if not _BCRYPT.fullmatch(hashed):
            raise DataError(path, f"password {number} is not a bcrypt hash", hint="htpasswd -nBC 10 '' prints one")
    tls = config.tls_server_config
    if tls is None:
        return config
    if tls.min_version not in _VERSIONS:
        raise DataError(path, f"min_version is not one of {', '.join(_VERSIONS)}")
    if tls.client_auth_type not in ("NoClientCert", "RequireAndVerifyClientCert"):
        raise DataError(path, "client_auth_type is neither NoClientCert nor RequireAndVerifyClientCert")
    if tls.client_auth_type != "NoClientCert" and not tls.client_ca_file:
        raise DataError(path, "client_auth_type requires certificates, but client_ca_file is missing")
    folder = path.parent
    names = {
        name: str(folder / value)
        for name in ("cert_file", "key_file", "client_ca_file")
        if (value := getattr(tls, name))
    }
    return msgspec.structs.replace(config, tls_server_config=msgspec.structs.replace(tls, **names))


def make_tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS settings of the server. Raise DataError for an unusable certificate or key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    try:
        with as_caller():
            context.load_cert_chain(tls.cert_file, tls.key_file)
            if tls.client_auth_type != "NoClientCert":
                context.load_verify_locations(tls.client_ca_file)
                context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise DataError(tls.cert_file, f"no certificate with its key ({str(error)[:160]})") from None
    return context


class TlsContext:
    """The TLS settings of the server, made again when the certificate is renewed."""

    def __init__(self, tls: Tls) -> None:
        """Read the certificate and the key. Raise DataError for unusable ones."""
        self._tls = tls
        self._version = self._read_version()
        self._context = make_tls_context(tls)

    def current(self) -> ssl.SSLContext:
        """Return the settings with the present certificate, or with the last usable one.

        Under sudo the files are those of another account, and the service has given up the right to act as that
        account: the first certificate stays.
        """
        if not is_delegated() and (version := self._read_version()) != self._version:
            self._version = version
            with suppress(DataError):
                self._context = make_tls_context(self._tls)
        return self._context

    def _read_version(self) -> tuple[tuple[int, int] | None, ...]:
        """Return inode and time of each file. A volume of Kubernetes replaces the folder behind a symbolic link."""
        return tuple(
            _read_inode_and_time(Path(name))
            for name in (self._tls.cert_file, self._tls.key_file, self._tls.client_ca_file)
            if name
        )


def _read_inode_and_time(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns


class Admission(Enum):
    """The answer to a request for access. LATER means that too many passwords are being checked."""

    ADMITTED = auto()
    REFUSED = auto()
    LATER = auto()


class Authenticator:
    """A checker of `Authorization: Basic` headers that bounds the work for wrong passwords.

    bcrypt is slow by design. One check runs at a time, followed by a pause, and its result is kept by a keyed hash. A
    check takes the same work for every name, known or unknown.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = dict(users)
        self._costs = sorted({hashed[4:6] for hashed in users.values()})
        self._key = os.urandom(32)
        self._admitted: set[bytes] = set()
        self._refused: dict[bytes, None] = {}
        self._turn = asyncio.Lock()
        self._next_s = 0.0
        self._pending: Counter[str] = Counter()
        self._checks: set[asyncio.Task[Admission]] = set()

    async def admit(self, header: str | None, peer: str) -> Admission:
        """Check the header of a request. Everyone is admitted if there are no users."""
        if not self._users:
            return Admission.ADMITTED
        credentials = _parse_credentials(header)
        if credentials is None:
            return Admission.REFUSED
        user, password = credentials
        message = f"{len(user)}:{user}:".encode() + password
        digest = hmac.digest(self._key, message, hashlib.sha256)
        if result := self._find_earlier_result(digest):
            return result
        if self._pending[peer] >= _MAX_CHECKS_OF_PEER or self._pending.total() >= _MAX_CHECKS:
            return Admission.LATER
        # A check continues after its connection ends. Otherwise the next one would run at the same time.
        self._pending[peer] += 1
        check = asyncio.create_task(self._check_in_turn(digest, user, password, peer))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)
        return await asyncio.shield(check)

    def _find_earlier_result(self, digest: bytes) -> Admission | None:
        if digest in self._admitted:
            return Admission.ADMITTED
        return Admission.REFUSED if digest in self._refused else None

    async def _check_in_turn(self, digest: bytes, user: str, password: bytes, peer: str) -> Admission:
        try:
            async with self._turn:
                if result := self._find_earlier_result(digest):
                    return result
                await asyncio.sleep(max(0.0, self._next_s - time.monotonic()))
                began_s = time.monotonic()
                is_right = await asyncio.to_thread(self._matches, user, password)
                self._next_s = time.monotonic() + _PAUSE_RATIO * (time.monotonic() - began_s)
        finally:
            self._pending[peer] -= 1
            if not self._pending[peer]:
                del self._pending[peer]
        if is_right:
            self._admitted.add(digest)
            return Admission.ADMITTED
        if len(self._refused) >= _MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[digest] = None
        return Admission.REFUSED

    def _matches(self, user: str, password: bytes) -> bool:
        """Run bcrypt once for each cost among the hashes of all users."""
        hashed = self._users.get(user, "")
        results = [
            _check_password(password, hashed if hashed[4:6] == cost else _UNMATCHED.format(cost))
            for cost in self._costs
        ]
        return bool(hashed) and any(results)


def _parse_credentials(header: str | None) -> tuple[str, bytes] | None:
    """Return the name, and the bytes of the password that bcrypt reads; None for an invalid header."""
    kind, _, value = (header or "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        return None
    return (user, password.encode()[:_BCRYPT_MAX_BYTES]) if colon else None


def _check_password(password: bytes, hashed: str) -> bool:
    import bcrypt

    try:
        return bool(bcrypt.checkpw(password, hashed.encode()))
    except ValueError:
        return False
