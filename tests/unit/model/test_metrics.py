# SPDX-License-Identifier: Apache-2.0
"""Every metric is defined once: with a unit, a label, a noun and its phrases, none of which is a field name."""

from __future__ import annotations

import ast
import re

import pytest

from powerprof.experiment.claims import POWER, SPEED
from powerprof.model.metrics import METRICS, OWNED_METRICS, find_metric, unit_of
from powerprof.report.labels import define_metric
from powerprof.workloads.catalogue import find_workload, list_folders
from powerprof.workloads.studies import find_study, list_studies
from tests.unit.layers import sources

UNITS = {"1", "1/s", "%", "ms", "s", "J", "J·s", "W", "B", "B/s", "rows", "MHz", "ms/s"}
NAMES = [*METRICS, *(f"{name}:a_b:c" for name in OWNED_METRICS)]


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_has_a_unit_and_words(name: str) -> None:
    metric = find_metric(name)
    assert metric is not None and metric.name == name and metric.unit == unit_of(name) and metric.unit in UNITS
    assert metric.noun.startswith("the ") and metric.label and metric.short
    sentences = (metric.noun, metric.label, metric.word_times("3"), metric.word_percent("9.5", "more"))
    for sentence in sentences:
        plain = sentence.replace("a_b c", "eth0").replace("a_b:c", "eth0")
        assert not re.search(r"[_{}]|  ", plain)
        assert ("eth0" in plain) == (":" in name)
    assert " 3 times" in f" {sentences[2]}" and "9.5 % more" in sentences[3]
    assert metric.verb in ("is", "are") and metric.per in ("query", "execution", "second", "window")


def test_labels_are_distinct() -> None:
    labels = [metric.label for metric in METRICS.values()]
    assert len(set(labels)) == len(labels)
    nouns = [metric.noun for metric in METRICS.values()]
    assert len(set(nouns)) == len(nouns)


def test_no_module_gives_a_metric_another_unit() -> None:
    """A unit that is written where a figure is built would be a second definition."""
    written = [
        f"{name}:{node.lineno}"
        for name, source in sources.modules().items()
        for node in sources.walk(source)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Figures", "RunMetric")
        for keyword in node.keywords
        if keyword.arg == "unit" and isinstance(keyword.value, ast.Constant)
    ]
    assert written == []


def test_every_metric_of_a_workload_and_a_study_is_defined() -> None:
    asked = {find_workload(folder.name).definition.primary_metric for folder in list_folders()}
    asked |= {finding.metric for name in list_studies() for finding in find_study(name).findings}
    assert {name for name in (*asked, *SPEED, *POWER) if find_metric(name) is None} == set()


def test_an_unknown_metric_of_a_saved_record_has_words() -> None:
    assert find_metric("nothing_hz") is None and find_metric("nothing_hz:a") is None
    assert (define_metric("nothing_hz").noun, define_metric("nothing_hz").unit) == ("the nothing", "/s")
    assert define_metric("{x}_y").word_times("3") == "has 3 times the {x} y of"


@pytest.mark.parametrize(
    ("name", "verb"),
    [("wakeups_per_query", "are"), ("queries_hz", "are"), ("c0_ms_per_query_server", "is"), ("latency_p95_ms", "is")],
)
def test_the_verb_agrees_with_the_noun(name: str, verb: str) -> None:
    assert METRICS[name].verb == verb


def test_a_metric_of_an_empty_owner_is_unknown() -> None:
    assert find_metric("watts:rapl") is not None and find_metric("watts:") is None


@pytest.mark.parametrize("name", [name for name in METRICS if "_p95" in name or "_p99" in name])
def test_a_percentile_is_in_the_words_of_its_metric(name: str) -> None:
    metric, percentile = find_metric(name), name.split("_")[1]
    assert metric is not None and all(percentile in words for words in (metric.label, metric.short, metric.noun))
