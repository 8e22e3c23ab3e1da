# SPDX-License-Identifier: Apache-2.0
"""Reports as one self-contained HTML file that opens from file://, prints, and needs no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from powerprof.report.html.page import Extras

if TYPE_CHECKING:
    import msgspec

    from powerprof.report.stacks import Flame

__all__ = ["Extras", "render_flame", "render_html"]


def render_html(record: msgspec.Struct, *, extras: Extras | None = None) -> str:
    """The page of a comparison, an attribution, a run or a sweep. Raises UsageError for a record without one."""
    from powerprof.report.documents import form

    page: str = form(record, "html", "HTML report")(record, extras or Extras())
    return page


def render_flame(graph: Flame, title: str, modules: dict[str, str] | None = None) -> str:
    """A page with one flame graph and nothing else."""
    from powerprof.report.html.flames import flame_view
    from powerprof.report.html.page import page

    return page("flame.html.j2", None, None, title=title, view=flame_view(graph, title, modules))
