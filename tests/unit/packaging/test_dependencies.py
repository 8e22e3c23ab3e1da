# SPDX-License-Identifier: Apache-2.0
"""What powerprof imports is installed as it is wanted (`pip check`, of what is ours), under licences that are known."""

from __future__ import annotations

import re
from email.message import Message
from importlib.metadata import Distribution
from types import SimpleNamespace
from typing import cast

import pytest

from tools.pages import licences_page


def _key(name: str) -> str:
    return name.lower().replace("_", "-")


def test_each_requirement_is_met() -> None:
    installed = list(licences_page.closure())
    versions = {_key(found.name): found.version for found, _ in installed}
    wanted = [(found.name, one, versions[_key(one.name)]) for found, all_of in installed for one in all_of]
    assert len(wanted) > 20
    wrong = [
        f"{by} wants {one}, there is {version}"
        for by, one, version in wanted
        if not one.specifier.contains(version, prereleases=True)
    ]
    assert not wrong


def test_the_page_lists_each_library_with_its_licence() -> None:
    """A newer Python may want fewer of them."""
    listed = dict(re.findall(r"^\| (\S+) \| (.+) \|$", licences_page.PAGE.read_text(), re.MULTILINE))
    assert licences_page.rows().items() <= listed.items(), licences_page.COMMAND
    for said in licences_page.rows().values():
        assert set(said.split(" and ")) <= licences_page.ALLOWED


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"License": "LGPL-2.1-or-later"}, "LGPL-2.1"),
        (
            {"Classifier": "License :: OSI Approved :: GNU Lesser General Public License v2 or later (LGPLv2+)"},
            "LGPL-2.1",
        ),
        ({"Classifier": "License :: OSI Approved :: GNU General Public License v3 (GPLv3)"}, "GPL"),
        ({"License-Expression": "GPL-2.0-only"}, "GPL"),
        ({"License-Expression": "BSD-3-Clause AND (MIT OR ISC)"}, "BSD and MIT and ISC"),
        ({"License-Expression": "MIT AND Beerware"}, None),
        ({"License": "Beerware"}, None),
        ({}, None),
    ],
)
def test_a_licence_is_read_from_what_a_package_says(fields: dict[str, str], said: str | None) -> None:
    about = Message()
    for name, value in fields.items():
        about[name] = value
    found = cast(Distribution, SimpleNamespace(name="x", metadata=about))
    if said is None:
        with pytest.raises(ValueError, match="a licence that is not known"):
            licences_page.licence(found)
    else:
        assert licences_page.licence(found) == said
        assert set(said.split(" and ")) <= licences_page.ALLOWED or said == "GPL"
