# SPDX-License-Identifier: Apache-2.0
"""The site of the documentation: every page is in its menu and its search, and it loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import yaml

from tests.conftest import REPOSITORY
from tools.pages.pages import name_of, pages
from tools.pages.site import build, navigation


def test_every_page_is_in_the_menu_once() -> None:
    listed = [page for section in navigation()[:-1] for page in _pages_of(section)]
    read = {name_of(page) for page in pages()} - {"monitoring/README.md"}
    assert sorted(listed) == sorted(read | {"THIRD_PARTY.md"})


def _pages_of(section: dict[str, str | list[dict[str, str]]]) -> list[str]:
    (content,) = section.values()
    return [content] if isinstance(content, str) else [page for entry in content for page in entry.values()]


def test_the_site_is_complete_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    site = build(tmp_path)
    found = {
        entry["location"].partition("#")[0]
        for entry in json.loads((site / "search/search_index.json").read_text())["docs"]
    }
    assert {"index.html", "docs/index.html", "docs/tutorial.html", "docs/reference/commands.html"} <= found
    loaded = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"(https?:|//)|<link\b[^>]*\bhref=\"(https?:|//)")
    assert [str(page) for page in site.rglob("*.html") if loaded.search(page.read_text(encoding="utf-8"))] == []


def test_the_citation_names_this_version_and_its_licence() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert citation["authors"] == project["authors"]


def test_issue_forms_ask_for_what_an_answer_needs() -> None:
    forms = sorted((REPOSITORY / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert [form.stem for form in forms] == ["config", "failure", "idea", "meter", "wrong-figure"]
    for form in forms[1:]:
        content = yaml.safe_load(form.read_text(encoding="utf-8"))
        assert content["name"] and content["description"]
        asked = [entry["id"] for entry in content["body"]]
        assert len(set(asked)) == len(asked)
        assert any(entry.get("validations", {}).get("required") for entry in content["body"])
