# SPDX-License-Identifier: Apache-2.0
"""Profiles as OpenTelemetry's collectors take them: the message ProfilesData, which is also the body of a request.

Field numbers are those of opentelemetry/proto/profiles/v1development/profiles.proto with stacks in the dictionary, as
PyPI's opentelemetry-proto has it from 1.40 on; it is in development there and may change. Names of attributes are those
of the semantic conventions where they have one, else they begin with `powerprof.`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from powerprof import __version__
from powerprof.report.exports.protobuf import Strings, block, fixed64, number, packed, text, varint
from powerprof.report.stacks.samples import Frames

Attributes = Mapping[str, str | int]
_KERNEL = "_[k]"


@dataclass(frozen=True)
class OtlpProfile:
    """What a value is, its unit, and samples: frames outermost first, whose they are, the value."""

    kind: str
    unit: str
    samples: Sequence[tuple[Frames, Attributes, int]]


class _MessageTable:
    """Messages by index; the first one is empty, which means none."""

    def __init__(self) -> None:
        self.indexes = {b"": 0}

    def __getitem__(self, message: bytes) -> int:
        return self.indexes.setdefault(message, len(self.indexes))

    def written(self, field: int) -> bytes:
        return b"".join(block(field, message) for message in self.indexes)


class _Dictionary:
    """What samples refer to, each thing once."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        self.strings = Strings()
        self._mappings, self._locations, self._functions = _MessageTable(), _MessageTable(), _MessageTable()
        self._attributes, self._stacks = _MessageTable(), _MessageTable()

    def attribute(self, key: str, value: str | int) -> int:
        return self._attributes[number(1, self.strings[key]) + block(2, _any(value))]

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
                self._mappings.written(1),
                self._locations.written(2),
                self._functions.written(3),
                _MessageTable().written(4),  # links to traces: none
                b"".join(text(5, name) for name in self.strings.indexes),
                self._attributes.written(6),
                self._stacks.written(7),
            )
        )


def _any(value: str | int) -> bytes:
    # One of several: a 0 is written too.
    return varint(3 << 3) + varint(value) if isinstance(value, int) else text(1, value)


def encode_otlp(
    profiles: Iterable[OtlpProfile],
    resource: Attributes,
    modules: Mapping[str, str],
    *,
    time_ns: int | None,
    duration_ns: int,
) -> bytes:
    """The message. `resource` says what was profiled and where, `modules` the file of a frame.

    Samples of the same stack and attributes are one, those without a value are left out; the window began at `time_ns`
    (Unix time).
    """
    dictionary = _Dictionary(modules)
    written = b"".join(block(2, _profile(dictionary, profile, time_ns, duration_ns)) for profile in profiles)
    scope = block(1, text(1, "powerprof") + text(2, __version__))
    about = b"".join(block(1, text(1, key) + block(2, _any(value))) for key, value in resource.items())
    return block(1, block(1, about) + block(2, scope + written)) + block(2, dictionary.written())


def _profile(dictionary: _Dictionary, profile: OtlpProfile, time_ns: int | None, duration_ns: int) -> bytes:
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
    # An id of its content: the same run sent twice is known to be the same.
    encoded = repr((profile, time_ns)).encode("utf-8", "replace")
    return b"".join(body) + block(7, blake2b(encoded, digest_size=16).digest())
