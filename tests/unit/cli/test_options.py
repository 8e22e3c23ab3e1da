# SPDX-License-Identifier: Apache-2.0
"""Declared options: one without an effect is refused before anything is measured, and each is in the guide."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib import import_module

import pytest

from powerprof.cli.commands import COMMANDS, module_name
from powerprof.cli.parameters import Parameter, _shown, walk_parameters
from tests.programs.in_process import Run, the_commands, up_to_the_first_window
from tools.pages.options import option_places, unguided_places

__all__ = ["the_commands", "up_to_the_first_window"]

# Targets of the number of options; a new option replaces another one.
# Each command that traces has a place for --max-cost.
MOST_PLACES, MOST_OPTIONS = 350, 97


def _options(command: str) -> dict[str, Parameter]:
    options = import_module(module_name(command)).Options
    return {each.flag: each for _, _, each in walk_parameters(options) if each.flag}


def _words(option: Parameter) -> list[str]:
    return [option.flag] if option.is_flag else [option.flag, "1"]


def _lines(command: str) -> Iterator[tuple[list[str], str]]:
    """Yield the words of command lines with an option without an effect, and the refusal."""
    options, modes = _options(command), import_module(module_name(command)).Options.MODES
    for flag, option in options.items():
        words = _words(option)
        if option.needs and not any(mode.is_without and mode.refuses_option(flag) for mode in modes):
            yield [command, *words], f"{flag} has no effect without {_shown(option.needs)}"
        for other in option.excludes:
            if other in options and other.startswith("-"):
                yield [command, *_words(options[other]), *words], f"{flag} has no effect with {other}"
        for mode in modes:
            chosen = next((word for word in mode.words if word in options), None)
            if mode.is_without:
                if mode.refuses_option(flag):
                    yield [command, *words], f"{flag} has no effect {mode.shown}"
            elif chosen is not None and flag != chosen and mode.refuses_option(flag):
                yield [command, *_words(options[chosen]), *words], f"{flag} has no effect {mode.shown}"


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_without_effect_is_refused_before_anything_is_measured(
    command: str, up_to_the_first_window: Run
) -> None:
    wrong, named, lines = [], 0, list(_lines(command))
    for words, refusal in lines:
        ended = up_to_the_first_window(words)
        first = ended.err.partition("\n")[0]
        # The option beside it may have no effect either, and is then named first.
        named += refusal in first
        if ended.code != 2 or ended.began is not None or " no effect " not in first:
            wrong.append((shlex.join(words), refusal, ended))
    assert wrong == []
    assert named >= 0.6 * len(lines)


def test_many_options_are_tried() -> None:
    assert sum(1 for command in COMMANDS for _ in _lines(command)) > 150


@pytest.mark.parametrize("command", COMMANDS)
def test_needs_and_excludes_name_options_of_the_command(command: str) -> None:
    options = _options(command)
    for option in options.values():
        named = {word for word in (*option.needs, *option.excludes) if word.startswith("--") and word != "--"}
        unknown = named - options.keys()
        # Shared options exclude options that not every command has.
        assert not unknown or len(unknown) < len(named) or not option.needs, option.flag


def test_every_option_is_in_the_guide_or_for_experts() -> None:
    assert unguided_places() == []


def test_options_are_few() -> None:
    places = option_places()
    assert len(places) <= MOST_PLACES
    assert len({flag for _, flag, _ in places}) <= MOST_OPTIONS
