# SPDX-License-Identifier: Apache-2.0
"""Options and arguments as fields of structs.

A command has one struct of options. Each field is an option, an argument, or a group: another struct with a heading in
the help. The factory of its default is its declaration. `read_options` fills the struct from the texts of the command
line.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from typer.core import TyperArgument, TyperOption

from powerprof.model.text import join_words, parse_time
from powerprof.system.errors import MissingArgumentError, UsageError
from powerprof.system.next_steps import command_line

R = TypeVar("R")

OWN_HEADING, EXPERT_HEADING = "Options", "Expert"
# Key of a context: the words end in those of another command.
AFTER_DASHES = "powerprof.after_dashes"


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """An option or an argument of the command line.

    Attributes:
        flag: the option with its dashes; empty for an argument.
        metavar: the value in the help.
        convert: makes the value of its text. Raises ValueError with the reason, or a PowerprofError.
        low, high: limits of a number.
        unit: the unit of the default and the limits.
        heading: its heading in the help; empty for that of its group.
        needs: options of which one must be typed too.
        excludes: options that must not be typed too.
        example: a usual value, for the hint if a required argument is missing.
    """

    flag: str = ""
    metavar: str = ""
    help: str = ""
    convert: Callable[[str], object] = str
    low: float | None = None
    high: float | None = None
    unit: str = ""
    heading: str = ""
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    example: str = ""
    default: object = None
    is_flag: bool = False
    is_repeatable: bool = False
    is_required: bool = False

    def __call__(self) -> object:
        """Return the default."""
        return self.default

    @property
    def limits(self) -> str:
        """The limits as in `0.5 to 3600 s`, `from 1` or `to 10`; empty without any."""
        low, high = (None if limit is None else _grouped(limit) for limit in (self.low, self.high))
        unit = f" {self.unit}" if self.unit else ""
        if low is not None and high is not None:
            return f"{low} to {high}{unit}"
        return f"from {low}{unit}" if low is not None else f"to {high}{unit}" if high is not None else ""

    @property
    def shown_default(self) -> str:
        """The default value with its unit; empty without one."""
        if self.default is None or self.default is False or self.default == ():
            return ""
        return f"{self.default:g} {self.unit}" if self.unit else str(self.default)

    @property
    def help_row(self) -> tuple[str, str]:
        """The row of the help: the words to type, and the text with default and limits."""
        default = f"default: {self.shown_default}" if self.shown_default else ""
        required = "required" if self.is_required else ""
        extra = "; ".join(part for part in (default, self.limits, required) if part)
        return f"{self.flag} {self.metavar}".strip(), f"{self.help}  [{extra}]" if extra else self.help

    @property
    def remedy(self) -> str:
        """The way to type it: `--clients N takes 0 to 60,000; default 16`, or its purpose if it has no limits."""
        limits = f" takes {self.limits}" if self.limits else f": {self.help.rstrip('.')}"
        default = f"; default {self.shown_default}" if self.shown_default else ""
        return f"{self.flag} {self.metavar}".strip() + limits + default

    def as_typer(self, name: str) -> TyperOption | TyperArgument:
        """Return the parameter for Typer's parser, which reads texts only."""
        if not self.flag:
            return TyperArgument(
                param_decls=[name],
                nargs=-1 if self.is_repeatable else 1,
                required=False,
                metavar=self.metavar,
                autocompletion=self._complete,
            )
        if self.is_flag:
            return TyperOption(param_decls=[self.flag, name], is_flag=True, default=False, help=self.help)
        return TyperOption(
            param_decls=[self.flag, name],
            metavar=self.metavar,
            multiple=self.is_repeatable,
            help=self.help,
            autocompletion=self._complete,
        )

    def _complete(self, context: Any, _: list[str], incomplete: str) -> list[str]:
        """Return the values for the shell. The words after -- belong to another command."""
        from powerprof.cli.completion import Typed, list_values

        if AFTER_DASHES in context.meta:
            return []
        program = context.parent.params if context.parent is not None else {}
        runs_dir = program.get("runs_dir") or os.environ.get("POWERPROF_RUNS_DIR")
        typed = Typed(command=str(context.info_name), values=context.params, runs_dir=runs_dir or None)
        return list_values(self.flag, self.metavar, typed, incomplete)

    def value_of(self, typed: Any, command: str) -> Any:
        """Return the value of the typed text or texts; the default if there is none. Raises UsageError."""
        if self.is_flag:
            return bool(typed)
        if typed is None or typed == ():
            if self.is_required:
                kind = f"option '{self.flag}'" if self.flag else f"argument '{self.metavar}'"
                hint = command_line("{} --help", command)
                if self.metavar == "RUN":
                    hint = f"to list the saved runs: {command_line('runs')}"
                raise MissingArgumentError(f"missing {kind}", self.example, hint)
            return self.default
        if self.is_repeatable:
            return [self._converted(text, command) for text in typed]
        return self._converted(typed, command)

    def _converted(self, text: str, command: str) -> object:
        try:
            return self.convert(text)
        except ValueError as error:
            word = self.flag or self.metavar
            raise UsageError(f"{word} {text.strip()}: {error}", self.remedy) from None


class ParserError(UsageError):
    """A word of the command line that the parser does not know.

    Attributes:
        kind: `command`, `option` or `argument`.
        words: the words.
        command: the command; empty for the program.
    """

    def __init__(self, message: str, kind: str, words: Sequence[str], command: str = "") -> None:
        super().__init__(message, help_command(command))
        self.kind, self.words, self.command = kind, tuple(words), command


def help_command(name: str) -> str:
    """Return the command that prints the help of a command, or of the program."""
    return command_line("{} --help", name) if name else command_line("--help")


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """A way to use a command in which some options have no effect.

    Attributes:
        words: options or arguments; the mode is in use if one of them is given.
        circumstance: completes "--x has no effect ..."; empty for "with WORDS".
        is_without: the mode is in use if none of them is given.
        refuses: options without an effect.
        allows: all options with an effect; None if `refuses` names the others.
    """

    words: tuple[str, ...]
    circumstance: str = ""
    is_without: bool = False
    refuses: tuple[str, ...] = ()
    allows: tuple[str, ...] | None = None

    def refuses_option(self, word: str) -> bool:
        """Return whether an option has no effect in this mode."""
        if self.allows is not None:
            return word not in self.allows and word not in self.words
        return word in self.refuses

    @property
    def shown(self) -> str:
        """The circumstance in words."""
        return self.circumstance or f"{'without' if self.is_without else 'with'} {_shown(self.words)}"


def check_effects(
    parameters: Iterable[Parameter], modes: Iterable[Mode], typed: Iterable[str], given: Collection[str]
) -> None:
    """Raise UsageError if a typed option has no effect: a user who types an option expects an effect.

    Args:
        parameters: The options of the command.
        modes: Its modes.
        typed: The typed options.
        given: The typed options, the arguments and their values, and -- before a command.
    """
    declared = {parameter.flag: parameter for parameter in parameters}
    in_use = [mode for mode in modes if bool(set(mode.words) & set(given)) != mode.is_without]
    refused: dict[tuple[str, str], list[str]] = {}
    for word in typed:
        needs, excluded = declared[word].needs, [each for each in declared[word].excludes if each in given]
        mode = next((mode for mode in in_use if mode.refuses_option(word)), None)
        if mode is not None:
            refused.setdefault((mode.shown, ""), []).append(word)
        elif excluded:
            refused.setdefault((f"with {excluded[0]}", ""), []).append(word)
        elif needs and not set(needs) & set(given):
            refused.setdefault((f"without {_shown(needs)}", f"add {_shown(needs[:1])}, or "), []).append(word)
    for (circumstance, addition), flags in refused.items():
        raise no_effect(flags, circumstance, addition)


def no_effect(flags: Sequence[str], circumstance: str, addition: str = "") -> UsageError:
    """Return the error for options without an effect; `addition` is a remedy besides leaving them out."""
    verb, pronoun = ("has", "it") if len(flags) == 1 else ("have", "them")
    return UsageError(f"{join_words(flags)} {verb} no effect {circumstance}", f"{addition}leave {pronoun} out")


def _shown(words: Sequence[str]) -> str:
    return join_words(["a command after --" if word == "--" else word for word in words], "or")


class ProgramValue(msgspec.Struct, frozen=True):
    """A field with the value of an option of the program, such as `powerprof --quiet`."""

    name: str
    default: object = None

    def __call__(self) -> object:
        """Return the value without the option."""
        return self.default


def program_value(name: str, default: object = None) -> Any:
    """Return the field of an option that is typed before the command."""
    return msgspec.field(default_factory=ProgramValue(name, default))


def _grouped(limit: float) -> str:
    return f"{limit:,.0f}" if limit >= 10_000 and limit == int(limit) else f"{limit:g}"


def option(
    words: str,
    metavar: str,
    help: str,
    *,
    convert: Callable[[str], object] = str,
    default: object = None,
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    is_repeatable: bool = False,
    is_required: bool = False,
    **declared: Any,
) -> Any:
    """Return the field of an option with a value: a text, or the result of `convert`.

    `declared` are its heading, needs and excludes, in all factories.
    """
    parameter = Parameter(
        flag=words,
        metavar=metavar,
        help=help,
        convert=convert,
        default=default,
        low=low,
        high=high,
        unit=unit,
        is_repeatable=is_repeatable,
        is_required=is_required,
        **declared,
    )
    return msgspec.field(default_factory=parameter)


def argument(
    metavar: str,
    help: str,
    *,
    convert: Callable[[str], object] = str,
    default: object = None,
    is_repeatable: bool = False,
    is_required: bool = False,
    example: str = "",
) -> Any:
    """Return the field of an argument."""
    more = {"default": default, "is_repeatable": is_repeatable, "is_required": is_required, "example": example}
    return option("", metavar, help, convert=convert, **more)  # type: ignore[arg-type]


def flag(words: str, help: str, **declared: Any) -> Any:
    """Return the field of an option without a value; False by default."""
    return msgspec.field(default_factory=Parameter(flag=words, help=help, is_flag=True, default=False, **declared))


def whole_number(
    words: str,
    metavar: str,
    help: str,
    *,
    default: int | None = None,
    low: int,
    high: int,
    needed_by: str = "",
    **declared: Any,
) -> Any:
    """Return the field of an option whose value is an integer within the limits. `needed_by` explains the lower one."""

    def convert(text: str) -> float:
        value = _parsed(int, text, "not a whole number")
        if needed_by and value < low:
            raise ValueError(f"{needed_by} needs at least {low}")
        return _within(value, low, high)

    return option(words, metavar, help, convert=convert, default=default, low=low, high=high, **declared)


def number(
    words: str,
    metavar: str,
    help: str,
    *,
    default: float | None = None,
    low: float | None = None,
    high: float | None = None,
    **declared: Any,
) -> Any:
    """Return the field of an option whose value is a finite number within the limits."""

    def convert(text: str) -> float:
        return _within(finite_number(text), low, high)

    return option(words, metavar, help, convert=convert, default=default, low=low, high=high, **declared)


def time_span(
    words: str,
    help: str,
    *,
    default: float | None = None,
    low: float | None = None,
    high: float | None = None,
    unit: str = "s",
    **declared: Any,
) -> Any:
    """Return the field of an option whose value is a time such as `500ms`, in `unit`; so are default and limits."""

    def convert(text: str) -> float:
        return _within(parse_time(text, unit) / parse_time(f"1{unit}"), low, high, unit)

    return option(words, "TIME", help, convert=convert, default=default, low=low, high=high, unit=unit, **declared)


def group(record: type[R]) -> Any:
    """Return the field of a group of options; `record.HEADING` is its heading in the help."""
    return msgspec.field(default_factory=record)


def finite_number(text: str) -> float:
    """Return the text as a float. Raises ValueError."""
    value: float = _parsed(float, text, "not a number")
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


def _parsed(kind: Callable[[str], Any], text: str, reason: str) -> Any:
    # Python reads the digits of every script, and 1_0 as 10: more often a mistake than intended.
    if not text.isascii() or "_" in text:
        raise ValueError(reason)
    try:
        return kind(text)
    except ValueError:
        raise ValueError(reason) from None


def _within(value: float, low: float | None, high: float | None, unit: str = "") -> float:
    unit = f" {unit}" if unit else ""
    if low is not None and value < low:
        raise ValueError(f"must be at least {_grouped(low)}{unit}")
    if high is not None and value > high:
        raise ValueError(f"must be at most {_grouped(high)}{unit}")
    return value


def readable_file(text: str) -> Path:
    """Return the path of a file that can be read. Raises DataError."""
    from powerprof.system.outside_files import check_outside

    path = Path(text)
    check_outside(path)
    return path


def existing_folder(text: str) -> Path:
    """Return the path of a folder. Raises ValueError."""
    if not os.path.isdir(text):  # noqa: PTH112 - Path's method raises on names that are too long
        raise ValueError("not a directory" if os.path.lexists(text) else "no such directory")
    return Path(text)


def walk_parameters(record: type[Any]) -> Iterator[tuple[str, str, Parameter]]:
    """Yield (heading, field name, parameter) of a struct of options, with those of its groups."""
    for name, declared in _declarations(record):
        if isinstance(declared, Parameter):
            yield declared.heading or getattr(record, "HEADING", OWN_HEADING), name, declared
        elif not isinstance(declared, ProgramValue):
            yield from walk_parameters(declared)


def read_options(
    record: type[R], texts: Mapping[str, Any], command: str, program: Mapping[str, object] | None = None, **more: object
) -> R:
    """Return the struct with the values of the typed texts. Raises UsageError.

    Args:
        record: The struct of the command.
        texts: The typed text or texts by field.
        command: The name of the command, for hints.
        program: The options of the program by field.
        more: The other fields.
    """
    values = dict(more)
    for name, declared in _declarations(record):
        if isinstance(declared, Parameter):
            values[name] = declared.value_of(texts[name], command)
        elif isinstance(declared, ProgramValue):
            values[name] = (program or {}).get(declared.name, declared.default)
        else:
            values[name] = read_options(declared, texts, command, program)
    return record(**values)


def _declarations(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name of each field of a struct with its declaration, or with the struct of the group."""
    for name, default in zip(record.__struct_fields__, record.__struct_defaults__, strict=True):
        declared = getattr(default, "factory", None)
        if isinstance(declared, Parameter | ProgramValue) or hasattr(declared, "__struct_fields__"):
            yield name, declared
