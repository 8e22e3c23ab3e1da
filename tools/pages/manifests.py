# SPDX-License-Identifier: Apache-2.0
"""Writes packaging/container/daemonset.yaml, the chart for a cluster without Helm: `python -m tools.pages.manifests`.

Needs `helm`, or Go 1.21 or later, which builds it from the Go module proxy into build/helm.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.conftest import REPOSITORY

CHART = REPOSITORY / "packaging/chart"
FILE = REPOSITORY / "packaging/container/daemonset.yaml"
COMMAND = "python -m tools.pages.manifests"
_HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
_HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# powerprof on each node of a Kubernetes cluster, as an exporter for Prometheus: kubectl apply --filename daemonset.yaml
#
# docs/how-to/containers.md explains each permission and how to make the secret powerprof-web. Written by
# `python -m tools.pages.manifests` from packaging/chart.
"""


def helm() -> Path:
    """Return the program. Raises subprocess.CalledProcessError if Go cannot build it."""
    if found := shutil.which("helm"):
        return Path(found)
    built = REPOSITORY / "build/helm"
    if not (built / "helm").exists():
        environment = {**os.environ, "GOBIN": str(built), "GOFLAGS": "-buildvcs=false"}
        subprocess.run(["go", "install", "-ldflags=-s -w", _HELM], env=environment, check=True)
    return built / "helm"


def template(*words: str) -> str:
    """Return the objects of the chart with `helm template` and these words. Raises CalledProcessError."""
    # A helm that `go install` built has an old version of Kubernetes as its default.
    cluster = ["--namespace", "powerprof", "--kube-version", "1.33.0"]
    command = [helm(), "template", "powerprof", CHART, *cluster, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def render() -> str:
    """Return the file as it has to be."""
    lines = template("--set", "namespace.create=true").splitlines()
    return _HEAD + "\n".join(line for line in lines if not line.startswith("# Source:")) + "\n"


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
