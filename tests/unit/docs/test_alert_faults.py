# SPDX-License-Identifier: Apache-2.0
"""Every shipped alert is raised by a real fault in a test, or its annotation states that it is not."""

from __future__ import annotations

import yaml

from tests.conftest import REPOSITORY
from tests.system.live.alert_faults import RAISED


def test_every_alert_has_a_fault_or_an_annotation() -> None:
    groups = yaml.safe_load((REPOSITORY / "monitoring/alerts.yml").read_text(encoding="utf-8"))["groups"]
    alerts = {rule["alert"]: "tested" in rule["annotations"] for group in groups for rule in group["rules"]}
    untested = {alert for alert, is_annotated in alerts.items() if is_annotated}
    assert set(alerts) == set(RAISED) | untested
    assert not set(RAISED) & untested
    for place in RAISED.values():
        path, _, name = place.partition("::")
        assert f"def {name}(" in (REPOSITORY / path).read_text(encoding="utf-8"), place
