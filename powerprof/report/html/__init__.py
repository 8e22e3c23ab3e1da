"""Reports as one self-contained HTML file that opens from file://, prints, and needs no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from powerprof.report.html.extras import Extras

if TYPE_CHECKING:
    import msgspec

    from powerprof.report.flamegraph import Flame

__all__ = ["Extras", "render_flame", "render_html"]


def render_html(record: msgspec.Struct, *, extras: Extras | None = None) -> str:
    """The page of a comparison, an attribution, a run or a sweep. Raises UsageError for a record without one."""
    from powerprof.attribution.records import Attribution
    from powerprof.errors import UsageError
    from powerprof.experiment.records import Comparison
    from powerprof.records import Run
    from powerprof.report.html import attribution, comparison, run

    beside = extras or Extras()
    if isinstance(record, Comparison):
        return comparison.render(record, beside)
    if isinstance(record, Attribution):
        return attribution.render(record, beside)
    if isinstance(record, Run):
        return run.render(record, beside)
    from powerprof.experiment.sweep import Sweep
    from powerprof.report.html import sweep

    if isinstance(record, Sweep):
        return sweep.render(record, beside)
    raise UsageError(f"there is no HTML report for a {type(record).__name__.lower()}", "use --json FILE")


def render_flame(graph: Flame, title: str, modules: dict[str, str] | None = None) -> str:
    """A page with one flame graph and nothing else."""
    from powerprof.report.html.flames import flame_view
    from powerprof.report.html.page import page

    return page("flame.html.j2", None, None, title=title, view=flame_view(graph, title, modules))
