# SPDX-License-Identifier: Apache-2.0
"""The description and the URLs in the metadata of the sdist and the wheel.

The address of the project is in packaging/project-url and nowhere else. With it, the links of the README lead to its
pages; without it, the package has no URLs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def make_absolute(text: str, url: str, version: str) -> str:
    """Return Markdown with absolute links to the files of a release: pictures as they are, other files as pages."""

    def replace(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({url}/{kind}/v{version}/{link[3]})"

    return _LINK.sub(replace, text)


class ProjectMetadata(MetadataHookInterface):
    """The hook that hatchling calls for `dynamic` fields."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields."""
        root = Path(self.root)
        url = (root / "packaging/project-url").read_text(encoding="utf-8").strip()
        text = (root / "README.md").read_text(encoding="utf-8")
        if url:
            text = make_absolute(text, url, metadata["version"])
            pages = {"Documentation": "docs/README.md", "Changes": "CHANGELOG.md", "Security": "SECURITY.md"}
            tree = f"{url}/blob/v{metadata['version']}"
            metadata["urls"] = {"Homepage": url, "Issues": f"{url}/issues"}
            metadata["urls"] |= {name: f"{tree}/{page}" for name, page in pages.items()}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
