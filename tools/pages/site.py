# SPDX-License-Identifier: Apache-2.0
"""Build the pages as a site with search, without a network: `python -m tools.pages.site [FOLDER]`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import REPOSITORY

INDEX = REPOSITORY / "docs/README.md"
_PROJECT_PAGES = {
    "CHANGELOG.md": "Changes",
    "CONTRIBUTING.md": "Contributing",
    "CODE_OF_CONDUCT.md": "Code of conduct",
    "SECURITY.md": "Security",
}
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| \[([^\]]+)\]\(([^)]+\.md)\) \|", re.MULTILINE)


def navigation() -> list[dict[str, Any]]:
    """Return the menu: the sections and titles of the index."""
    parts = _SECTION.split(INDEX.read_text(encoding="utf-8"))[1:]
    menu: list[dict[str, Any]] = [{"Contents": "docs/README.md"}]
    for section, text in zip(parts[::2], parts[1::2], strict=True):
        rows = [(title, (INDEX.parent / target).resolve()) for title, target in _ROW.findall(text)]
        if rows:
            menu.append({section: [{title: str(page.relative_to(REPOSITORY))} for title, page in rows]})
    menu.append({"Project": [{title: name} for name, title in _PROJECT_PAGES.items()]})
    return menu


def build(folder: Path) -> Path:
    """Write the site to `folder`/site and return it. Raises CalledProcessError if a link is broken."""
    source = folder / "pages"
    shutil.rmtree(source, ignore_errors=True)
    for name in ("README.md", "THIRD_PARTY.md", *_PROJECT_PAGES):
        _copy(REPOSITORY / name, source)
    _copy(REPOSITORY / "LICENSE", source)
    for name in ("docs", "probes", "monitoring"):
        for path in (REPOSITORY / name).rglob("*"):
            if path.is_file():
                _copy(path, source)
    settings = {
        "site_name": "powerprof",
        "docs_dir": str(source),
        "site_dir": str(folder / "site"),
        "use_directory_urls": False,  # pages open from a disk
        # The theme's fonts and scripts are in the site; only its colouring of code would come from the network.
        "theme": {"name": "mkdocs", "highlightjs": False, "nav_style": "light"},
        "plugins": ["search"],
        "markdown_extensions": ["tables", "fenced_code", {"toc": {"permalink": True}}],
        "nav": navigation(),
        "validation": {"nav": {"omitted_files": "ignore"}, "links": {"anchors": "warn"}},
    }
    file = folder / "mkdocs.yml"
    file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", file], check=True)
    return folder / "site"


def _copy(path: Path, source: Path) -> None:
    target = source / path.relative_to(REPOSITORY)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else REPOSITORY / "build")) / "index.html")
