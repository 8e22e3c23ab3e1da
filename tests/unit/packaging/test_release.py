# SPDX-License-Identifier: Apache-2.0
"""What is shipped besides the wheel: versions, workflows, the compose file, and absolute links in the description."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from powerprof import __version__
from tests.conftest import REPOSITORY


def load(path: str) -> Any:
    return yaml.safe_load((REPOSITORY / path).read_text())


def test_each_recipe_has_this_version() -> None:
    spec = (REPOSITORY / "packaging/rpm/powerprof.spec").read_text()
    recipe = (REPOSITORY / "packaging/arch/PKGBUILD").read_text()
    assert f"\nVersion:        {__version__}\n" in spec
    assert f"\npkgver={__version__}\n" in recipe
    assert load("packaging/compose/compose.yaml")["services"]["powerprof"]["image"] == f"powerprof:{__version__}"


def test_the_compose_file_has_the_rights_of_the_manifest() -> None:
    services = load("packaging/compose/compose.yaml")["services"]
    objects = yaml.safe_load_all((REPOSITORY / "packaging/container/daemonset.yaml").read_text())
    pod = next(one for one in objects if one["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    rights = pod["containers"][0]["securityContext"]["capabilities"]
    assert (services["powerprof"]["cap_drop"], services["powerprof"]["cap_add"]) == (rights["drop"], rights["add"])
    for service in services.values():
        assert "privileged" not in service and "ports" not in service
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges"]
    loopback = [services["prometheus"]["command"][-1], services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"]]
    assert loopback == ["--web.listen-address=127.0.0.1:9090", "127.0.0.1"]


def test_the_files_of_the_compose_file_exist() -> None:
    folder = REPOSITORY / "packaging/compose"
    places = [
        volume.partition(":")[0] for service in load("packaging/compose/compose.yaml")["services"].values()
        for volume in service["volumes"]
    ]  # fmt: skip
    own = [folder / place for place in places if place.startswith(".")]
    assert len(own) == 4 and all(place.exists() for place in own)


@pytest.mark.parametrize("path", sorted((REPOSITORY / ".github").glob("workflows/*.yml")), ids=lambda path: path.name)
def test_a_workflow_has_few_rights_and_no_foreign_text_in_a_script(path: Path) -> None:
    flow = yaml.safe_load(path.read_text())
    assert flow["permissions"] == {"contents": "read"}
    for job in flow["jobs"].values():
        for step in job["steps"]:
            assert not re.search(r"\$\{\{(?! *matrix\.)", step.get("run", "")), step


def test_the_action_passes_its_inputs_by_the_environment() -> None:
    action = load(".github/actions/compare/action.yml")
    scripts = [step["run"] for step in action["runs"]["steps"]]
    assert not [script for script in scripts if "${{" in script]
    assert "--fail-if-worse" in scripts[-1]
    assert set(action["inputs"]) == {"a", "b", "options", "report"}


def metadata_hook() -> Any:
    spec = importlib.util.spec_from_file_location("metadata_hook", REPOSITORY / "packaging/metadata.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_and_pictures_are_absolute_if_the_project_has_an_address() -> None:
    text = "![screen](docs/a.svg) [page](docs/b.md#part) [web](https://example.org/x) [here](#part)"
    assert metadata_hook().make_absolute(text, "https://example.org/p", "1.2") == (
        "![screen](https://example.org/p/raw/v1.2/docs/a.svg) [page](https://example.org/p/blob/v1.2/docs/b.md#part) "
        "[web](https://example.org/x) [here](#part)"
    )


@pytest.mark.parametrize("url", ["", "https://example.org/p\n"])
def test_the_metadata_have_the_address_of_the_project(url: str, tmp_path: Path) -> None:
    (tmp_path / "packaging").mkdir()
    (tmp_path / "packaging/project-url").write_text(url)
    (tmp_path / "README.md").write_text("[page](docs/b.md)\n")
    fields: dict[str, Any] = {"version": "1.2"}
    metadata_hook().ProjectMetadata(str(tmp_path), {}).update(fields)
    assert fields["readme"]["content-type"] == "text/markdown"
    assert ("https://example.org/p/blob/v1.2/docs/b.md" in fields["readme"]["text"]) == bool(url)
    assert fields.get("urls", {}).get("Homepage") == (url.strip() or None)
