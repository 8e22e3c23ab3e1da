# SPDX-License-Identifier: Apache-2.0
"""Profiles in OTLP: the message ProfilesData, which is also the body of a request to a collector.

Field numbers are those of opentelemetry/proto/profiles/v1development/profiles.proto with stacks in the dictionary
(opentelemetry-proto 1.40 and later on PyPI). That format is in development and may change. Attributes have the names
of the semantic conventions if there is one; other names begin with `powerprof.`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec

from powerprof import __version__
from powerprof.report.protobuf import DistinctValues, block, fixed64, number, packed, text, varint
from powerprof.report.stacks import Frames

Attributes = Mapping[str, str | int]
_KERNEL = "_[k]"


class OtlpProfile(msgspec.Struct, frozen=True):
    """The name and the unit of a value, and samples: frames outermost first, attributes of the owner, value."""

    kind: str
    unit: str
    samples: Sequence[tuple[Frames, Attributes, int]]


def _write_messages(field: int, messages: Iterable[bytes]) -> bytes:
    return b"".join(block(field, message) for message in messages)


class _Dictionary:
    """The tables that samples refer to."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        self.strings = DistinctValues("")
        self._mappings, self._locations, self._functions = (DistinctValues(b"") for _ in range(3))
        self._attributes, self._stacks = DistinctValues(b""), DistinctValues(b"")

    def attribute(self, key: str, value: str | int) -> int:
        return self._attributes[number(1, self.strings[key]) + block(2, _encode_value(value))]

    def stack(self, frames: Frames) -> int:
        return self._stacks[packed(1, [self._location(name) for name in reversed(frames)])]

    def _location(self, label: str) -> int:
        module = self._modules.get(label)
        mapping = self._mappings[number(4, self.strings[module])] if module else 0
        name = label.removesuffix(_KERNEL)
        function = self._functions[number(1, self.strings[name])]
        of_kernel = [self.attribute("profile.frame.type", "kernel")] if label.endswith(_KERNEL) else []
        return self._locations[number(1, mapping) + block(3, number(1, function)) + packed(4, of_kernel)]

    def written(self) -> bytes:
        return b"".join(
            (
                _write_messages(1, self._mappings.indexes),
                _write_messages(2, self._locations.indexes),
                _write_messages(3, self._functions.indexes),
                _write_messages(4, [b""]),  # no links to traces
                b"".join(text(5, name) for name in self.strings.indexes),
                _write_messages(6, self._attributes.indexes),
                _write_messages(7, self._stacks.indexes),
            )
        )


def _encode_value(value: str | int) -> bytes:
    # A member of a oneof: 0 is written too.
    return varint(3 << 3) + varint(value) if isinstance(value, int) else text(1, value)


def encode_otlp(
    profiles: Iterable[OtlpProfile],
    resource: Attributes,
    modules: Mapping[str, str],
    *,
    time_ns: int | None,
    duration_ns: int,
) -> bytes:
    """Return the message ProfilesData.

    Samples with the same stack and attributes are added; samples without a value are left out.

    Args:
        profiles: The profiles of one window.
        resource: Attributes of the profiled program and host.
        modules: The file of each frame.
        time_ns: The start of the window, in Unix time.
        duration_ns: The length of the window.
    """
    dictionary = _Dictionary(modules)
    written = b"".join(block(2, _encode_profile(dictionary, profile, time_ns, duration_ns)) for profile in profiles)
    scope = block(1, text(1, "powerprof") + text(2, __version__))
    about = b"".join(block(1, text(1, key) + block(2, _encode_value(value))) for key, value in resource.items())
    return block(1, block(1, about) + block(2, scope + written)) + block(2, dictionary.written())


def _encode_profile(dictionary: _Dictionary, profile: OtlpProfile, time_ns: int | None, duration_ns: int) -> bytes:
    sums: dict[tuple[int, tuple[int, ...]], int] = {}
    for frames, attributes, value in profile.samples:
        if value > 0:
            whose = tuple(dictionary.attribute(key, content) for key, content in attributes.items())
            identity = (dictionary.stack(frames), whose)
            sums[identity] = sums.get(identity, 0) + value
    strings = dictionary.strings
    body = [block(1, number(1, strings[profile.kind]) + number(2, strings[profile.unit]))]
    body += [
        block(2, number(1, stack) + packed(2, whose) + packed(4, [value])) for (stack, whose), value in sums.items()
    ]
    body += fixed64(3, time_ns or 0), number(4, duration_ns)
    # The id is a digest of the content, so that a receiver recognises a run that is sent twice.
    encoded = repr((profile, time_ns)).encode("utf-8", "replace")
    return b"".join(body) + block(7, blake2b(encoded, digest_size=16).digest())
