"""The command line: parse, call one function, render."""

from __future__ import annotations


def main() -> None:
    """Entry point."""
