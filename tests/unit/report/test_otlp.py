# SPDX-License-Identifier: Apache-2.0
"""Tests for OTLP: rows, resource, attributes and tables of the message, and hostile names."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Profile, ProfilesData, ProfilesDictionary

from powerprof.report.exports import export
from powerprof.system.errors import UsageError
from tests.unit.report.sample_records import HOSTILE, attribution, comparison, on_cpu


def _read(record: msgspec.Struct) -> ProfilesData:
    data: ProfilesData = ProfilesData.FromString(export(record, "otlp"))
    return data


def _profiles(data: ProfilesData) -> dict[str, Profile]:
    words = data.dictionary.string_table
    (about,) = data.resource_profiles
    (scope,) = about.scope_profiles
    return {words[profile.sample_type.type_strindex]: profile for profile in scope.profiles}


def _attributes(dictionary: ProfilesDictionary, indices: Any) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    for index in indices:
        one = dictionary.attribute_table[index]
        value = one.value
        found[dictionary.string_table[one.key_strindex]] = getattr(value, str(value.WhichOneof("value")))
    assert len(found) == len(indices)
    return found


def _frames(dictionary: ProfilesDictionary, stack: int) -> list[str]:
    """Innermost first."""
    words = dictionary.string_table
    places = [dictionary.location_table[index] for index in dictionary.stack_table[stack].location_indices]
    return [words[dictionary.function_table[line.function_index].name_strindex] for p in places for line in p.lines]


def test_each_row_is_a_sample_with_its_thread_and_stack() -> None:
    record = attribution()
    data = _read(record)
    exits = _profiles(data)["idle_exits"]
    found = {
        (
            _attributes(data.dictionary, sample.attribute_indices)["thread.name"],
            *_frames(data.dictionary, sample.stack_index),
        ): list(sample.values)
        for sample in exits.samples
    }
    assert found == {(row.thread.label, *(frame.label for frame in row.stack)): [row.count] for row in record.wakeups}
    first = _attributes(data.dictionary, exits.samples[0].attribute_indices)
    row = record.wakeups[0]
    assert first["process.pid"] == record.target.pid and first["process.executable.name"] == "mariadbd"
    assert (first["powerprof.mechanism"], first["powerprof.origin"]) == (row.mechanism, row.origin)


def test_c0_time_is_a_second_profile_of_the_same_window() -> None:
    record = attribution()
    profiles = _profiles(_read(record))
    assert list(profiles) == ["idle_exits", "c0"]
    total = sum(value for sample in profiles["c0"].samples for value in sample.values)
    assert total == pytest.approx(sum(row.c0_ms for row in record.wakeups) * 1e6, abs=len(record.wakeups))
    for profile in profiles.values():
        assert profile.time_unix_nano == int(datetime.fromisoformat(record.started_at).timestamp() * 1e9)
        assert profile.duration_nano == 10_000_000_000 and len(profile.profile_id) == 16
    assert len({profile.profile_id for profile in profiles.values()}) == 2
    assert export(record, "otlp") == export(record, "otlp")


def test_the_resource_is_the_server_and_its_host() -> None:
    (about,) = _read(attribution()).resource_profiles
    assert {one.key: one.value.string_value for one in about.resource.attributes} == {
        "service.name": "mariadbd",
        "host.name": "db1",
    }


def test_exits_are_split_by_idle_state_if_all_states_are_known() -> None:
    record = attribution()
    row = replace(
        record.wakeups[0],
        count=25,
        states={"C1": 20, "C6": 5},
        thread=replace(record.wakeups[0].thread, unit="db.service"),
    )
    other = replace(record.wakeups[1], count=10, states={"C1": 9})
    data = _read(replace(record, wakeups=[row, other]))
    said = [
        (about.get("powerprof.idle_state"), about.get("powerprof.unit"), sample.values[0])
        for sample in _profiles(data)["idle_exits"].samples
        for about in [_attributes(data.dictionary, sample.attribute_indices)]
    ]
    assert said == [("C1", "db.service", 20), ("C6", "db.service", 5), (None, None, 10)]


def test_kernel_functions_have_a_frame_type() -> None:
    record = on_cpu()
    data = _read(record)
    samples = _profiles(data)["samples_of_C0"].samples
    assert sum(sample.values[0] for sample in samples) == sum(row.count for row in record.stacks)
    kernel = {frame.label for row in record.stacks for frame in row.stack if frame.kernel}
    words, said = data.dictionary.string_table, set()
    for place in data.dictionary.location_table:
        if _attributes(data.dictionary, place.attribute_indices).get("profile.frame.type") == "kernel":
            said.add(words[data.dictionary.function_table[place.lines[0].function_index].name_strindex])
    assert said == kernel != set()


def test_tables_begin_empty_and_have_no_duplicates() -> None:
    dictionary = _read(attribution()).dictionary
    for name in ("mapping", "location", "function", "link", "attribute", "stack"):
        table = getattr(dictionary, f"{name}_table")
        assert not table[0].ListFields()
        assert max(Counter(one.SerializeToString(deterministic=True) for one in table).values()) == 1
    assert dictionary.string_table[0] == "" and len(set(dictionary.string_table)) == len(dictionary.string_table)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_arrive_unchanged(name: str) -> None:
    record = attribution()
    row = record.wakeups[0]
    frames = [replace(row.stack[0], function=name), *row.stack[1:]]
    data = _read(replace(record, wakeups=[replace(row, stack=frames)]))
    sample = _profiles(data)["idle_exits"].samples[0]
    expected = name.encode("utf-8", "replace").decode()
    assert _frames(data.dictionary, sample.stack_index)[0] == expected


def test_comparison_has_no_otlp_profile() -> None:
    data = export(attribution(), "otlp")
    assert ExportProfilesServiceRequest.FromString(data).SerializeToString(
        deterministic=True
    ) == ProfilesData.FromString(data).SerializeToString(deterministic=True)
    with pytest.raises(UsageError, match=r"has no \.otlp file"):
        export(comparison(), "otlp")
