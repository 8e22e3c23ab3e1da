# SPDX-License-Identifier: Apache-2.0
"""What a kernel's BPF can do is tried, and a refusal names the kernel and the feature."""

from __future__ import annotations

import os

import pytest

from powerprof.system.errors import CapabilityError
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.features import Feature

NO_HELPER = Feature("bpf_never_heard_of", "helper", 9999, "99.1", "nothing")
NO_MAP = Feature("map of the future", "map", 9999, "99.1", "nothing")


def tried(feature: Feature) -> bool:
    found = features.has_feature(feature)
    if found is None:
        pytest.skip("this process may not load BPF programs (CAP_BPF)")
    return found


def test_what_no_kernel_has_is_not_there() -> None:
    assert not tried(NO_HELPER)
    assert not tried(NO_MAP)


def test_what_every_kernel_has_is_there() -> None:
    assert tried(Feature("bpf_ktime_get_ns", "helper", 5, "4.1", "time"))


def test_a_helper_is_tried_in_the_kind_of_program_that_it_is_for() -> None:
    # bpf_override_return (Linux 4.16) is for kprobes, and what it is not for says so before it looks at arguments.
    assert not tried(Feature("bpf_override_return", "helper", 58, "4.16", "kprobes"))
    assert tried(features.ATTACH_COOKIE) == tried(features.TASK_REGISTERS)  # both are of 5.15


def test_a_refusal_names_the_kernel_the_feature_and_the_remedy() -> None:
    tried(NO_MAP)
    with pytest.raises(CapabilityError) as caught:
        features.require(NO_MAP)
    assert os.uname().release in caught.value.message
    assert "map of the future, which nothing needs" in caught.value.message
    assert caught.value.hint == "Linux 99.1 or newer"
    with pytest.raises(CapabilityError, match="map of the future, which profile needs"):
        features.require(NO_MAP, "profile")
