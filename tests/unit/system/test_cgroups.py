# SPDX-License-Identifier: Apache-2.0
"""The names of control groups, from the paths of systemd and container runtimes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from powerprof.system import cgroups
from powerprof.system.cgroups import UnitLabels, label_unit

ID = "3f2a9c1b7d42" + "0" * 51 + "7"
POD = "0a1b2c3d-1111-2222-3333-444455556666"
NAMED = {ID: "web"}
USER = "/user.slice/user-1001.slice/user@1001.service"


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/", cgroups.NO_UNIT),
        ("/system.slice/mariadb.service", "mariadb.service"),
        ("/system.slice/system-postgresql.slice/postgresql@15-main.service", "postgresql@15-main.service"),
        ("/init.scope", "init.scope"),
        ("/user.slice/user-1000.slice/session-3.scope", "user 1000: session-3.scope"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope", "user 1000: app-x.scope"),
        ("/user.slice/user-1000.slice/user@1000.service", "user@1000.service"),
        ("/machine.slice/machine-qemu\\x2d1\\x2dvm.scope", "machine vm (qemu)"),
        (f"/system.slice/docker-{ID}.scope", "container web (docker)"),
        (f"/docker/{ID}", "container web (docker)"),
        (f"/machine.slice/libpod-conmon-{ID}.scope", "container web (podman)"),
        (f"/system.slice/docker-{ID[:-1]}8.scope", "container 3f2a9c1b7d42 (docker)"),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice", f"pod {POD}"),
        ("/lxc/shop", "lxc shop"),
        ("/app.slice", "app.slice"),
        ("/batch/nightly", "batch/nightly"),
        ("/evil\x1b[31m.service", "evil?[31m.service"),
        # An owner can make any group below its own: such a name ends in the outermost owner.
        (f"{USER}/docker-{ID}.scope", "user 1001: container 3f2a9c1b7d42 (docker)"),
        (f"{USER}/user.slice/libpod-{ID}.scope/container", "user 1001: container 3f2a9c1b7d42 (podman)"),
        (f"{USER}/kubepods/burstable/pod{POD}/{ID}", f"user 1001: pod {POD}: 3f2a9c1b7d42"),
        (f"{USER}/kubepods-pod{POD.replace('-', '_')}.slice", "user@1001.service"),
        (f"{USER}/app.slice/mariadb.service", "user 1001: mariadb.service"),
        (f"{USER}/user-0.slice/user@0.service", "user 1001: user-0.slice"),
        (f"{USER}/{'x' * 200}.service", f"user 1001: {'x' * 120}"),
        (f"{USER}/pod shop: api\x1b.service", "user 1001: pod shop: api?.service"),
        (f"{USER}/lxc.payload.shop", "user 1001: lxc shop"),
        (f"/user.slice/user-1001.slice/{ID}", "user 1001: container 3f2a9c1b7d42"),
        (f"/user/alice/0/docker-{ID}.scope", "user alice: container 3f2a9c1b7d42 (docker)"),
        (f"/system.slice/alice.service/docker-{ID}.scope", "alice.service: container 3f2a9c1b7d42 (docker)"),
        ("/system.slice/alice.service/mariadb.service", "alice.service"),
        (f"/system.slice/docker-{ID}.scope/user.slice/user-0.slice/session-1.scope", "container web (docker)"),
        ("/../../x.service", "x.service"),
    ],
)
def test_path_has_the_usual_name_of_its_unit(path: str, unit: str) -> None:
    assert cgroups.unit_of(path, NAMED) == unit


OTHER = "8d1f60c2aa3b" + "0" * 52
SLICE = POD.replace("-", "_")
TASK = "158d1c8083dd49d6b527399fd6414f5c"
ALLOCATION = "f7ae0a8e-c4b9-11ee-9d1b-0242ac120002"

# (path, unit): the forms of each runtime. NAMED has a name for ID and none for OTHER.
FORMS = [
    # Kubernetes (pkg/kubelet/cm/cgroup_manager_linux.go), with systemd and without, in three classes of quality.
    (f"/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{OTHER}.scope", f"pod {POD}: 8d1f60c2aa3b"),
    (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/crio-{ID}.scope", "pod web"),
    (f"/kubepods/pod{POD}/{ID}", "pod web"),
    (f"/kubepods/besteffort/pod{POD}/crio-{OTHER}", f"pod {POD}: 8d1f60c2aa3b"),
    (f"/kubepods/besteffort/pod{TASK}/{ID}", "pod web"),
    (f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/docker-{ID}.scope", "pod web"),
    (f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope/container", "pod web"),
    (f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-conmon-{OTHER}.scope", f"pod {POD}: 8d1f60c2aa3b"),
    # runc without systemd makes a folder of the systemd form (docs/systemd.md): containerd 3.x, Docker.
    (
        f"/system.slice/containerd.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{OTHER}",
        f"pod {POD}: 8d1f60c2aa3b",
    ),
    (f"/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}", "pod web"),
    (f"/system.slice/docker.service/system.slice:docker:{ID}", "container web (docker)"),
    (f"/system.slice/crio.service/:crio:{OTHER}", "container 8d1f60c2aa3b (cri-o)"),
    # k3s, RKE2 and MicroK8s keep containers below their service.
    (f"/system.slice/k3s.service/kubepods/burstable/pod{POD}/{ID}", "pod web"),
    (f"/system.slice/snap.microk8s.daemon-containerd.service/kubepods/pod{POD}/{ID}", "pod web"),
    ("/system.slice/containerd.service", "containerd.service"),
    # kind, k3d and Docker in Docker: the innermost container counts.
    (
        f"/docker/{ID}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{OTHER}.scope",
        f"container web: pod {POD}: 8d1f60c2aa3b",
    ),
    (f"/system.slice/docker-{ID}.scope/docker/{OTHER}", "container web: container 8d1f60c2aa3b (docker)"),
    (f"/kubepods/burstable/pod{POD}/{ID}/docker/{OTHER}", "pod web: container 8d1f60c2aa3b (docker)"),
    (f"/docker/{OTHER}/system.slice/mariadb.service", "container 8d1f60c2aa3b (docker)"),
    (f"/lxc.payload.shop/system.slice/docker-{ID}.scope", "lxc shop: container 3f2a9c1b7d42 (docker)"),
    # Podman: pods, systemd's services, cgroupfs (libpod/container_internal_linux.go).
    (f"/machine.slice/machine-libpod_pod_{OTHER}.slice/libpod-{ID}.scope/container", "container web (podman)"),
    (f"/libpod_parent/libpod-{ID}", "container web (podman)"),
    (f"/system.slice/shop.service/libpod-payload-{ID}", "shop.service: container 3f2a9c1b7d42 (podman)"),
    # nerdctl and ctr.
    (f"/system.slice/nerdctl-{ID}.scope", "container web"),
    (f"/default/{ID}", "container web"),
    # systemd-nspawn(1), systemd-machined, libvirt (src/util/vircgroup.c).
    ("/machine.slice/systemd-nspawn@db1.service/payload/system.slice/mariadb.service", "machine db1"),
    ("/machine.slice/systemd-nspawn@db\\x2d1.service/supervisor", "machine db-1"),
    ("/machine.slice/machine-db1.scope/payload/init.scope", "machine db1"),
    ("/machine.slice/machine-lxc\\x2d12345\\x2ddb.scope/system.slice/mariadb.service", "machine db (lxc)"),
    ("/machine/lxc-12345-db.libvirt-lxc/system.slice/mariadb.service", "machine db (lxc)"),
    ("/machine/qemu-1-vm.libvirt-qemu/vcpu0", "machine vm (qemu)"),
    (
        "/machine.slice/systemd-nspawn@a.service/payload/machine.slice/systemd-nspawn@b.service/payload/init.scope",
        "machine a: machine b",
    ),
    # LXC, LXD, Incus, Proxmox.
    ("/lxc/101/ns/system.slice/mariadb.service", "lxc 101"),
    ("/lxc.payload/shop/init.scope", "lxc shop"),
    ("/lxc.monitor.shop", "lxc shop"),
    ("/lxc.payload.outer/lxc.payload.inner/system.slice/x.service", "lxc outer: lxc inner"),
    # Amazon ECS: agent (ecs-agent/cgroup), with systemd, Fargate.
    (f"/ecs/{TASK}/{ID}", f"ecs task {TASK}: web"),
    (f"/ecs/cluster/{TASK}/{OTHER}", f"ecs task {TASK}: 8d1f60c2aa3b"),
    (f"/ecs/{POD}/{OTHER}", f"ecs task {POD}: 8d1f60c2aa3b"),
    (f"/ecstasks.slice/ecstasks-{TASK}.slice/docker-{ID}.scope", f"ecs task {TASK}: web"),
    (f"/ecs.slice/ecs-{TASK}.slice/docker-{OTHER}.scope", f"ecs task {TASK}: 8d1f60c2aa3b"),
    (f"/ecs/{TASK}/{TASK}-1234567890", f"ecs task {TASK}: 1234567890"),
    # Nomad (client/lib/cgroupslib).
    (f"/nomad.slice/share.slice/{ALLOCATION}.redis.scope", "nomad redis (f7ae0a8e)"),
    (f"/nomad/share/{ALLOCATION}.redis", "nomad redis (f7ae0a8e)"),
    (f"/nomad.slice/docker-{ID}.scope", "container web (docker)"),
    # No container: a name with colons, a scope of systemd-run.
    ("/system.slice/a:b:c.service", "a:b:c.service"),
    ("/system.slice/run-r1f.scope", "run-r1f.scope"),
]


@pytest.mark.parametrize(("path", "unit"), FORMS)
def test_each_runtime_has_its_forms(path: str, unit: str) -> None:
    assert cgroups.unit_of(path, NAMED) == unit


@pytest.mark.parametrize("owner", ["/user.slice/user-7.slice/session-3.scope", USER, "/system.slice/app.service"])
@pytest.mark.parametrize(("path", "unit"), FORMS)
def test_no_owner_can_make_a_name_of_another_one(owner: str, path: str, unit: str) -> None:
    """A container or machine below a user or service has no name of root's runtimes, and its name ends in the owner."""
    name = cgroups.unit_of(f"{owner}{path}", NAMED)
    assert name != unit and "web" not in name
    assert name == "app.service" or name.startswith(("app.service: ", "user 7: ", "user 1001: "))
    assert not cgroups.is_made_by_root(f"{owner}{path}")


def test_container_names_come_from_the_runtimes(tmp_path: Path) -> None:
    logs, docker = tmp_path / "var/log/containers", tmp_path / "var/lib/docker/containers" / ID
    podman = tmp_path / "var/lib/containers/storage/overlay-containers"
    for folder in (logs, docker, podman):
        folder.mkdir(parents=True)
    other, third = ID[:-1] + "8", ID[:-1] + "9"
    (logs / f"web-5d8_shop_nginx-{other}.log").symlink_to("/nowhere")
    (docker / "config.v2.json").write_text(json.dumps({"Name": "/web"}))
    (podman / "containers.json").write_text(json.dumps([{"id": third, "names": ["db"]}, {"id": 7}, "x"]))
    assert cgroups.container_names(tmp_path) == {other: "shop/web-5d8: nginx", ID: "web", third: "db"}
    (docker / "config.v2.json").write_text("{")
    (podman / "containers.json").unlink()
    os.mkfifo(podman / "containers.json")
    assert cgroups.container_names(tmp_path) == {other: "shop/web-5d8: nginx"}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/system.slice/x.service\n", "/system.slice/x.service"),
        ("9:name=systemd:/system.slice/x.service\n4:memory:/other\n0::/\n", "/system.slice/x.service"),
        ("9:name=systemd:/system.slice/x.service\n0::/unified.service\n", "/unified.service"),
        ("4:memory:/other\n9:name=systemd:/system.slice/x.service\n", "/system.slice/x.service"),
        ("4:memory:/docker/abc\n0::/\n", "/docker/abc"),
        ("0::/gone.service (deleted)\n", "/gone.service"),
        ("0::/a:b\n", "/a:b"),
        ("", "/"),
    ],
)
def test_unified_and_systemd_hierarchies_come_first(
    text: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(text)
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    assert cgroups.group_of(7) == path
    assert cgroups.group_of(8) is None


def test_running_process_has_a_unit_and_an_ended_one_has_none() -> None:
    units = cgroups.Units()
    assert isinstance(units.of(os.getpid()), str)
    assert units.of(2**22 + 1) is None
    assert units.of_group(2**40) is None


def test_names_are_read_once_for_a_thousand_new_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    scans = []

    def slow() -> dict[str, str]:
        scans.append(1)
        time.sleep(0.2)
        return {}

    monkeypatch.setattr("powerprof.system.cgroups.container_names", slow)
    units = cgroups.Units()
    paths = [f"/user.slice/{number:064x}" for number in range(1000)]
    # Groups without a container need no names.
    assert [units._name_of(f"/user.slice/a{number}.scope") for number in range(2)] == ["a0.scope", "a1.scope"]
    assert scans == []
    assert all(units._name_of(path).startswith("container ") for path in paths)
    assert len(scans) == 1
    # Root's runtimes have no containers below a user's groups.
    units._next_names_s = 0.0
    units._name_of(f"{USER}/docker-{ID}.scope")
    assert len(scans) == 1
    # A group without a name gets one at the next scan.
    monkeypatch.setattr("powerprof.system.cgroups.container_names", lambda: {path[-64:]: "web" for path in paths})
    units._next_names_s = 0.0
    assert units._name_of(paths[5]) == "container web"


@pytest.mark.parametrize(
    ("path", "service"),
    [
        ("/system.slice/mariadb.service", "mariadb.service"),
        ("/system.slice/system-postgresql.slice/postgresql@15-main.service", "postgresql@15-main.service"),
        ("/user.slice/user-1001.slice/user@1001.service/app.slice/mariadb.service", None),
        ("/system.slice/mariadb.service/inner.service", None),
        ("/init.scope", None),
        ("/system.slice", None),
        ("/", None),
    ],
)
def test_only_a_service_of_the_system_has_drop_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, service: str | None
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(f"0::{path}\n")
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    assert cgroups.service_of(7) == service
    assert cgroups.service_of(8) is None


@pytest.fixture
def shared_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a hierarchy in which two accounts made groups, and a limit of 4 groups in each subtree."""
    for path in ("a/deep/deeper", "z/late", "m/alice/1/11", "m/alice/2", "m/alice/3", "m/alice/4", "m/bob/5"):
        (tmp_path / path).mkdir(parents=True)
    owners = {"alice": 1001, "bob": 1002}
    real = Path.stat

    def stat(path: Path) -> os.stat_result:
        fields = list(real(path))
        fields[4] = next((uid for name, uid in owners.items() if name in path.parts), 0)
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(cgroups, "_MAX_SUBTREE_GROUPS", 4)
    return tmp_path


def test_groups_of_root_come_first_and_others_in_turn(shared_groups: Path) -> None:
    found = [path for path, _ in cgroups.groups_below(shared_groups)]
    roots = ["/", "/a", "/a/deep", "/a/deep/deeper", "/m", "/z", "/z/late"]
    assert sorted(found[:7]) == roots
    others = found[7:]
    assert {*others[:2]} == {"/m/alice", "/m/bob"}
    assert "/m/bob/5" in others[2:4], "a subtree does not wait for another one"
    assert len([path for path in others if path.startswith("/m/alice")]) == 4
    numbers = dict(cgroups.groups_below(shared_groups))
    assert numbers["/z/late"] == (shared_groups / "z/late").stat().st_ino


def test_all_groups_have_a_limit(shared_groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_MAX_GROUPS", 5)
    assert 0 < len(list(cgroups.groups_below(shared_groups))) <= 5


def test_groups_of_others_end_with_the_time_of_a_scan(shared_groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_MAX_SCAN_S", -1.0)
    assert len(list(cgroups.groups_below(shared_groups))) == 7


def test_a_scan_is_followed_by_twenty_times_its_duration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]

    def scan(_: Path) -> list[tuple[str, int]]:
        now_s[0] += 1.5
        return [("/system.slice/x.service", 7)]

    monkeypatch.setattr(cgroups, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(cgroups, "groups_below", scan)
    monkeypatch.setattr(cgroups, "_find_unified", lambda: tmp_path)
    monkeypatch.setattr(cgroups, "_find_path", lambda _: None)
    units = cgroups.Units()
    assert units.of_group(7) == "x.service"
    assert units._next_scan_s == 101.5 + 30.0
    assert units.of_group(8) is None and now_s[0] == 101.5
    now_s[0] = 131.5
    assert units.of_group(8) is None and now_s[0] == 133.0


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("mariadb.service", UnitLabels("mariadb.service")),
        ("container web (docker)", UnitLabels(container="web")),
        ("container 3f2a9c1b7d42", UnitLabels(container="3f2a9c1b7d42")),
        ("pod shop/web-5d8: nginx", UnitLabels(namespace="shop", pod="web-5d8", container="nginx")),
        # Without the kubelet's names the pod is unknown.
        (f"pod {POD}: 8d1f60c2aa3b", UnitLabels(f"pod {POD}: 8d1f60c2aa3b")),
        # An account chooses the names below its own group.
        ("user 1001: container web", UnitLabels("user 1001: container web")),
        ("pod web: container 8d1f60c2aa3b (docker)", UnitLabels("pod web: container 8d1f60c2aa3b (docker)")),
        # A cut name would join with another container.
        (f"pod shop/{'w' * 104}: nginx", UnitLabels(f"pod shop/{'w' * 104}: nginx")),
    ],
)
def test_a_unit_has_labels_of_its_kind(name: str, labels: UnitLabels) -> None:
    assert label_unit(name) == labels
