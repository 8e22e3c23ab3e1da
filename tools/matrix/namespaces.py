# SPDX-License-Identifier: Apache-2.0
"""One distribution on this host's kernel: its root in a mount namespace, written to in memory only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powerprof.system.program_search import need
from tools.matrix.cells import Cell
from tools.matrix.roots import Root
from tools.matrix.running import RESULTS

# All mounts belong to a namespace that ends with the last process in it. `exec` all the way: --kill-child has the
# kernel kill that one process when unshare dies, and its own children die with it in the same manner.
_ENTER = """set -e
tree=$1 project=$2 place=$3
mount -t tmpfs tmpfs "$place/memory"
mkdir "$place/memory/upper" "$place/memory/work" "$place/memory/root"
root=$place/memory/root
mount -t overlay -o "lowerdir=$tree,upperdir=$place/memory/upper,workdir=$place/memory/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
for name in tmp run; do mount -t tmpfs tmpfs "$root/$name"; done
mkdir -p "$root/tmp/home" "$root/run/lock"
cp -a "$project/." "$root/srv/powerprof"
cp "$place/job.json" "$root/srv/powerprof/job.json"
touch "$root/tmp/results"
mount --bind "$place/results" "$root/tmp/results"
exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp/home LANG=C.UTF-8 \
    sh -c 'cd /srv/powerprof; exec python3 -m tools.matrix.inside job.json /tmp/results'
"""


def command(cell: Cell, root: Root, project: Path, job: str, place: Path) -> Sequence[str | Path]:
    """The argument list that makes the namespaces and runs the steps in them."""
    (place / "memory").mkdir()
    (place / RESULTS).touch()
    (place / "job.json").write_text(job)
    (place / "enter.sh").write_text(_ENTER)
    unshare = [need("unshare", "util-linux"), "--mount", "--fork", "--kill-child", "--propagation", "private"]
    apart = ["--pid", "--uts", "--ipc", "--cgroup"] if cell.container else []
    return [*unshare, *apart, "sh", place / "enter.sh", root.tree, project, place]
