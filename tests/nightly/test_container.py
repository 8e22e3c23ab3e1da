# SPDX-License-Identifier: Apache-2.0
"""The image, built and run by podman with no more rights than the Kubernetes manifest gives."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "packaging/container"
_BASE, _IMAGE, _PROBED = "localhost/powerprof-test-base", "localhost/powerprof-test", "powerprof-test-probed"
_PORT = 19479
_LABELS = {"VERSION": "1.2.3", "REVISION": "0123abc", "SOURCE": "https://example.org/powerprof"}
# What a host's pip needs to reach PyPI is its administrator's business.
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_SECCOMP = Path("/usr/share/containers/seccomp.json")
_CALLS = {"bpf", "perf_event_open", "kcmp"}
# A health probe as a runtime starts it: a new program four times a second.
_PROBE = "while :; do sleep 0.25; done"


def podman(*words: str | Path, check: bool = True, timeout_s: float = 1800) -> subprocess.CompletedProcess[str]:
    """crun knows no hosts that have both versions of control groups."""
    hybrid = Path("/sys/fs/cgroup/unified").is_dir()
    command = ["podman", *(["--runtime", "runc"] if hybrid else []), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert not check or done.returncode == 0, done.stderr[-3000:]
    return done


def pod() -> dict[str, Any]:
    objects = yaml.safe_load_all((FOLDER / "daemonset.yaml").read_text())
    spec: dict[str, Any] = next(one for one in objects if one["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """On a Debian 13 of mmdebstrap's: no registry is asked."""
    if os.geteuid() != 0 or shutil.which("podman") is None:
        pytest.skip("no capability: root, podman (sudo make soak)")
    place = tmp_path_factory.mktemp("image")
    tree = place / "debian.tar"
    made = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "trixie", str(tree)]
    subprocess.run(made, check=True, timeout=1200)
    (place / "pip.conf").write_text("[global]\ncert = /host-ca.pem\n")
    (place / "dist").mkdir()
    subprocess.run([REPOSITORY / "packaging/dist", place / "dist"], check=True, timeout=600)
    try:
        podman("import", "--quiet", tree, _BASE)
        volumes = [f"--volume={_CERTIFICATES}:/host-ca.pem:ro", f"--volume={place}/pip.conf:/etc/pip.conf:ro"]
        labels = [f"--build-arg={name}={value}" for name, value in _LABELS.items()]
        words = ["--network=host", *volumes, f"--build-arg=BASE={_BASE}", *labels, "--tag", _IMAGE]
        podman("build", *words, "--file", FOLDER / "Containerfile", place / "dist")
        yield _IMAGE
    finally:
        podman("rm", "--force", "--time=0", _PROBED, check=False)
        podman("rmi", "--force", _IMAGE, _BASE, check=False)


@pytest.fixture(scope="module")
def limits() -> list[str]:
    """podman's own are above what this host may give."""
    files, processes = (resource.getrlimit(one)[1] for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    return [f"--ulimit=nofile=1024:{min(files, 1024)}", f"--ulimit=nproc={min(processes, 4096)}"]


@pytest.fixture(scope="module")
def rights(limits: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the manifest gives, less what this host has not itself. Profiles of podman before 4.4 let bpf(2) to
    CAP_SYS_ADMIN only: those calls are let to all, as newer ones let them to CAP_BPF and CAP_PERFMON."""
    held = int(re.findall(r"^CapBnd:\s+(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)[0], 16)
    numbers = {"SYS_PTRACE": 19, "SYS_RESOURCE": 24, "PERFMON": 38, "BPF": 39}
    wanted = pod()["containers"][0]["securityContext"]["capabilities"]["add"]
    capabilities = [name for name in wanted if held >> numbers[name] & 1]
    profile = json.loads(_SECCOMP.read_text())
    for group in profile["syscalls"]:
        group["names"] = [name for name in group["names"] if name not in _CALLS]
    profile["syscalls"] = [group for group in profile["syscalls"] if group["names"]]
    profile["syscalls"].append({"names": sorted(_CALLS), "action": "SCMP_ACT_ALLOW", "args": []})
    file = tmp_path_factory.mktemp("seccomp") / "profile.json"
    file.write_text(json.dumps(profile))
    return [
        *limits, "--rm", "--pid=host", "--cgroupns=host", "--network=host", "--read-only", "--tmpfs=/tmp",
        "--tmpfs=/var/cache/powerprof:mode=0700", "--cap-drop=all", f"--cap-add={','.join(capabilities)}",
        "--security-opt=no-new-privileges", f"--security-opt=seccomp={file}",
        "--volume=/sys/fs/cgroup:/sys/fs/cgroup:ro", "--volume=/run/containers:/run/containers:ro",
        "--volume=/var/lib/containers/storage:/var/lib/containers/storage:ro",
    ]  # fmt: skip


def test_it_holds_nothing_that_compiles(image: str, limits: list[str]) -> None:
    looked = podman("run", "--rm", *limits, "--entrypoint=find", image, "/", "-xdev", "-type", "f")
    files = {Path(line).name for line in looked.stdout.splitlines()}
    assert not files & {"gcc", "cc", "clang", "libbcc.so.0", "pip", "pip3"}
    (about,) = json.loads(podman("image", "inspect", image).stdout)
    assert about["Size"] < 400 << 20
    assert not [name for name in files if name.startswith(("libcurl", "libldap", "libssh", "libkrb5"))]
    for name, value in _LABELS.items():
        assert about["Labels"][f"org.opencontainers.image.{name.lower()}"] == value


def test_it_names_the_container_whose_health_probe_wakes_the_node(
    image: str, rights: list[str], limits: list[str]
) -> None:
    podman("run", "--detach", "--name", _PROBED, *limits, "--entrypoint=sh", image, "-c", _PROBE)
    options = ["--duration", "4", "--no-save", "--json", "-", "--meter", "none"]
    count = 0
    # Where others keep the CPUs busy it ends no idle period: it is given some windows.
    for _ in range(6):
        done = podman("run", *rights, image, "--quiet", "attribute", "--system", "--by", "unit", *options)
        record = json.loads(done.stdout)
        ours = [row for row in record["wakeups"] if _PROBED in (row["thread"]["unit"] or "")]
        assert {row["thread"]["unit"] for row in ours} <= {f"container {_PROBED} (podman)"}
        count = sum(row["count"] for row in ours)
        # The end of each sleep wakes it, and with it its shell, which starts the next.
        assert count <= 3 * 4 * record["window_s"] + 4
        assert record["conservation"]["lost_count"] == 0
        if count >= 8:
            break
    assert count >= 8


def test_the_exporter_serves_units_and_leaves_nothing(image: str, rights: list[str], limits: list[str]) -> None:
    served = ["--no-ask", "--interval", "1", "--listen", f"127.0.0.1:{_PORT}"]
    name = "powerprof-test-exporter"
    command = podman("run", "--detach", "--name", name, *rights, image, "--quiet", "export", *served)
    assert command.stdout
    text = ""
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                text = urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/metrics", timeout=5).read().decode()
            if f'unit="container {_PROBED} (podman)"' in text:
                break
            time.sleep(0.2)
    finally:
        podman("stop", "--time=10", name)
    assert f'powerprof_unit_wakeups_total{{unit="container {_PROBED} (podman)"}}' in text, text[-2000:]


def test_without_its_rights_it_is_refused_in_one_line(image: str, limits: list[str]) -> None:
    words = ["attribute", "--system", "--duration", "1", "--no-save"]
    done = podman("run", "--rm", "--pid=host", *limits, "--cap-drop=all", image, *words, check=False)
    assert done.returncode == 3
    assert "not permitted" in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 3, done.stderr


def test_the_sdist_has_the_image_and_the_chart(tmp_path: Path) -> None:
    subprocess.run([REPOSITORY / "packaging/dist", tmp_path], check=True, timeout=600)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {"packaging/container/Containerfile", "packaging/container/daemonset.yaml", "packaging/chart/Chart.yaml"}
    assert expected <= names
