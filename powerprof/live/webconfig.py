# SPDX-License-Identifier: Apache-2.0
"""Who may read the metrics, by the file that Prometheus' own exporters take (`--web.config.file`): TLS and basic auth.

https://prometheus.io/docs/prometheus/latest/configuration/https/ — `tls_server_config` and `basic_auth_users`. What
that page knows and this does not is refused by name: a protection that is asked for and absent is worse than none.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from powerprof import files
from powerprof.errors import DataError

_MOST_BYTES = 64 << 10
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_BCRYPT = re.compile(r"\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}")
# Compared with where no such user is known, so that the time does not tell who is.
_NOBODY = "$2b$10$" + "." * 21 + "O" + "." * 31


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tls_server_config`."""

    cert_file: str
    key_file: str
    client_auth_type: str = "NoClientCert"
    client_ca_file: str = ""
    min_version: str = "TLS12"


class WebConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file's two parts."""

    tls_server_config: Tls | None = None
    basic_auth_users: dict[str, str] = {}


def load(path: Path) -> WebConfig:
    """Read the file; the names of files in it are relative to it. Raises DataError."""
    import yaml

    text = files.read_outside_text(path)
    if len(text) > _MOST_BYTES:
        raise DataError(path, f"more than {_MOST_BYTES} bytes")
    try:
        config = msgspec.convert(yaml.safe_load(text) or {}, WebConfig)
    except yaml.YAMLError as error:
        raise DataError(path, f"no YAML ({' '.join(str(error).split())[:160]})") from None
    except (msgspec.ValidationError, RecursionError) as error:
        raise DataError(path, str(error)) from None
    for user, hashed in config.basic_auth_users.items():
        if not _BCRYPT.fullmatch(hashed):
            raise DataError(path, f"the password of {user} is no bcrypt hash", hint="htpasswd -nBC 10 '' prints one")
    tls = config.tls_server_config
    if tls is None:
        return config
    if tls.min_version not in _VERSIONS:
        raise DataError(path, f"min_version {tls.min_version} is none of {', '.join(_VERSIONS)}")
    if tls.client_auth_type not in ("NoClientCert", "RequireAndVerifyClientCert"):
        raise DataError(path, f"client_auth_type {tls.client_auth_type}: NoClientCert or RequireAndVerifyClientCert")
    if tls.client_auth_type != "NoClientCert" and not tls.client_ca_file:
        raise DataError(path, "client_auth_type asks for certificates, and no client_ca_file says whose")
    where = path.parent
    names = {
        name: str(where / value)
        for name in ("cert_file", "key_file", "client_ca_file")
        if (value := getattr(tls, name))
    }
    return msgspec.structs.replace(config, tls_server_config=msgspec.structs.replace(tls, **names))


def tls_context(tls: Tls) -> ssl.SSLContext:
    """What the server speaks. Raises DataError where a certificate or key is no use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
        if tls.client_auth_type != "NoClientCert":
            context.load_verify_locations(tls.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise DataError(tls.cert_file, f"no certificate with its key ({str(error)[:160]})") from None
    return context


class Doorkeeper:
    """Tells who may in by `Authorization: Basic`. bcrypt is slow by design: who was let in once is remembered."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = dict(users)
        self._salt = os.urandom(16)
        self._let_in: set[bytes] = set()

    def admits(self, header: str | None) -> bool:
        """Whether this header's name and password are those of a user; True where there are none."""
        if not self._users:
            return True
        credentials = _credentials(header)
        if credentials is None:
            return False
        user, password = credentials
        mark = hmac.digest(self._salt, f"{user}\0{password}".encode(), hashlib.sha256)
        if mark in self._let_in:
            return True
        if not _matches(password, self._users.get(user, _NOBODY)) or user not in self._users:
            return False
        self._let_in.add(mark)
        return True


def _credentials(header: str | None) -> tuple[str, str] | None:
    kind, _, value = (header or "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None


def _matches(password: str, hashed: str) -> bool:
    import bcrypt

    secret: Any = password.encode()[:72]  # all that bcrypt reads
    try:
        return bool(bcrypt.checkpw(secret, hashed.encode()))
    except ValueError:
        return False
