# SPDX-License-Identifier: Apache-2.0
"""The table of subcommands and the one place that turns errors into exit codes."""

from __future__ import annotations

import difflib
import errno
import inspect
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from powerprof import __version__
from powerprof.cli.output import leave_terminal, say
from powerprof.model.text import join_words
from powerprof.system import paths
from powerprof.system.errors import DataError, HungUp, Interrupted, PowerprofError, UsageError
from powerprof.system.files import printable

# Groups of options: a dataclass in a command's signature stands for one option a field.
#
# Typer knows no dataclasses, but it reads a command's options from its signature. So a command is declared with whole
# groups, and Typer is given a function with the groups' fields in their places, which puts the groups together again.
# A field may be a group itself.


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer wants it: every group replaced by its fields, in their order, with their defaults."""
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    kinds = {name: hints[name] for name in parameters}
    spread_out = list(_options(kinds, {name: parameter.default for name, parameter in parameters.items()}))

    def call(**given: Any) -> None:
        command(**_gathered(kinds, given))

    # A signature refuses two options of one name: a command with two groups that share one is found at once.
    call.__signature__ = inspect.Signature(spread_out)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in spread_out}
    return call


def _options(kinds: dict[str, Any], defaults: dict[str, Any]) -> Iterator[inspect.Parameter]:
    for name, kind in kinds.items():
        if is_dataclass(kind):
            own = {f.name: inspect.Parameter.empty if f.default is MISSING else f.default for f in fields(kind)}
            yield from (_under(heading_of(kind), option) for option in _options(_kinds(kind), own))
        else:
            # Typer gives a command its context where it asks for one; that has no default.
            default = inspect.Parameter.empty if kind is typer.Context else defaults.get(name)
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def heading_of(group: Any) -> str:
    """What a group's options stand under in the help: the first sentence of its docstring."""
    return re.split(r"[.:;]", inspect.getdoc(group) or "")[0]


def _under(heading: str, option: inspect.Parameter) -> inspect.Parameter:
    """The option with that heading, unless a group within the group gave it one."""
    if get_origin(option.annotation) is not Annotated:
        return option
    kind, *extras = get_args(option.annotation)
    headed = [copy(extra) if isinstance(extra, OptionInfo) else extra for extra in extras]
    for extra in headed:
        if isinstance(extra, OptionInfo):
            extra.rich_help_panel = extra.rich_help_panel or heading
    return option.replace(annotation=Annotated[(kind, *headed)])


def _kinds(group: Any) -> dict[str, Any]:
    hints = get_type_hints(group, include_extras=True)
    return {field.name: hints[field.name] for field in fields(group)}


def _gathered(kinds: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    gathered = {}
    for name, kind in kinds.items():
        group: Any = kind if is_dataclass(kind) else None
        gathered[name] = group(**_gathered(_kinds(group), given)) if group else given[name]
    return gathered


# A command line of each subcommand that works as it stands, and how long it usually takes.


@dataclass(frozen=True)
class Example:
    """`line` is without `powerprof` (and with sudo where it says more as root); `takes` is with the defaults."""

    line: str
    takes: str
    as_root: bool = False

    @property
    def typed(self) -> str:
        """What is typed."""
        return f"{'sudo ' if self.as_root else ''}powerprof {self.line}"


EXAMPLES = {
    "idle": Example("idle --clients 16", "two minutes and a half, less than one with --quick", as_root=True),
    "attribute": Example("attribute --pid mysqld", "15 seconds", as_root=True),
    "profile": Example("profile --pid mysqld", "the window and some seconds", as_root=True),
    "functions": Example("functions 'handle_*' --pid mysqld", "the window and some seconds", as_root=True),
    "offcpu": Example("offcpu --pid mysqld", "the window and some seconds", as_root=True),
    "syscalls": Example("syscalls --pid mysqld", "the window and some seconds", as_root=True),
    "queries": Example("queries --pid mysqld --duration 30", "the window and some seconds", as_root=True),
    "run": Example("run -- gzip -k -c dump.sql", "a minute and a half; a command half a minute or 11 times its own"),
    "compare": Example("compare index no-index", "four minutes, less than one with --quick"),
    "sweep": Example("sweep city:index --clients 1,2,4,8", "half a minute a point"),
    "study": Example(
        "study power-efficiency --html page.html", "half an hour, with --quick five minutes", as_root=True
    ),
    "residency": Example("residency --duration 10", "as long as its window"),
    "energy": Example("energy --duration 10", "as long as its window", as_root=True),
    "diagnose": Example("diagnose --pid mysqld", "15 seconds", as_root=True),
    "cure": Example("cure --pid mysqld --thread page_cleaner --slack 50ms", "a minute", as_root=True),
    "slack": Example("slack --pid mysqld --thread page_cleaner 50ms", "no time", as_root=True),
    "watch": Example("watch", "until q", as_root=True),
    "export": Example("export --interval 15", "until it is stopped", as_root=True),
    "doctor": Example("doctor", "ten seconds", as_root=True),
    "workloads": Example("workloads city", "no time"),
    "servers": Example("servers", "no time; a download some minutes"),
    "runs": Example("runs", "no time"),
    "report": Example("report compare-0001 --html page.html", "a second"),
}


# Help by groups: what is asked, where it runs, what is written, and an example with the time that it takes.

# What has no group of its own.
_OWN = "Options"
# How click writes the range of a number.
LIMITS = r"(?P<low>[\d.e+-]+)<=x<=(?P<high>[\d.e+-]+)|x>=(?P<least>[\d.e+-]+)|x<=(?P<most>[\d.e+-]+)"


def _grouped(number: str) -> str:
    return f"{int(number):,}" if number.isdigit() and len(number) > 4 else number


def limits(text: str) -> str:
    """`1<=x<=1000` as `1 to 1000`."""

    def in_words(match: re.Match[str]) -> str:
        if match["low"] is not None:
            return f"{_grouped(match['low'])} to {_grouped(match['high'])}"
        return f"from {_grouped(match['least'])}" if match["least"] is not None else f"to {_grouped(match['most'])}"

    return re.sub(LIMITS, in_words, text)


def narrow() -> int | None:
    """The width of a terminal that is narrower than the 50 columns that help is never wrapped below; else None."""
    columns = shutil.get_terminal_size((80, 24)).columns
    return max(30, columns - 2) if columns < 52 else None


# Numbers as people write them; inf and nan are refused with the others that are not finite.
_PLAIN = re.compile(r"\s*[\x21-\x5e\x60-\x7e]+\s*", re.ASCII)
# Where a command's context keeps the options that were typed: option → its values.
_GIVEN = "powerprof.given"


def as_typed(text: str, ctx: Any) -> str:
    """`--step 0.0: must be …` as it was typed, `--step 0: must be …`: a number was read before it was refused."""
    option = text.partition(" ")[0]
    values = ctx.meta.get(_GIVEN, {}).get(option) if ctx else None
    return re.sub(r"^(\S+) \S+: must", rf"{option} {values[-1].strip()}: must", text) if values else text


@contextmanager
def _named(ctx: typer.Context) -> Iterator[None]:
    """A damaged file's error begins with the option that named it, and has a hint."""
    try:
        yield
    except DataError as error:
        for option, values in ctx.meta.get(_GIVEN, {}).items():
            if any(Path(value) == Path(error.path) for value in values) and not error.message.startswith(option):
                error.message = f"{option} {error.message}"
                break
        error.hint = error.hint or f"what it takes: {ctx.command_path} --help"
        raise


class GroupedHelp(TyperCommand):
    """A subcommand whose options are listed in their groups."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Refuse an empty value: `--json "$FILE"` without such a variable would mean this folder; what is no text,
        which no report and no saved run could name; a second value, of which one would be ignored. Raises UsageError.
        """
        for raw in args:
            if "\0" in raw or any("\ud800" <= char <= "\udfff" for char in raw):
                raise UsageError(f"{raw} is not UTF-8", "rename it, or give it another name by a link")
        options = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "option"]
        takes = {name: option for option in options if not getattr(option, "is_flag", False) for name in option.opts}
        own = {name for option in options for name in option.opts}
        given: dict[str, list[str]] = {}
        for word, after in pairwise([*args, None]):
            if word is None or word == "--":
                break
            option, equals, value = word.partition("=")
            typed = value if equals else after
            if word == "":
                raise UsageError("an argument is empty", "give it a value, or leave it out")
            if option not in takes:
                continue
            if typed is None:
                raise UsageError(f"{option} has no value", f"{ctx.command_path} --help")
            if not equals and typed in own:
                raise UsageError(f"{option} has no value: {typed} is the next option", f"give {option} its value first")
            if not typed.strip():
                raise UsageError(f"{option} has an empty value", "give it one, or leave it out")
            # Python takes the digits of every script for numbers, and 1_0 for 10: a mistake more often than that.
            if takes[option].type.name.startswith(("int", "float")) and not _PLAIN.fullmatch(typed):
                raise UsageError(f"{option} {typed}: not a number", f"{ctx.command_path} --help")
            if option in given and not getattr(takes[option], "multiple", False):
                raise UsageError(f"{option} {typed}: {option} was given before", "give it once")
            given.setdefault(option, []).append(typed)
        ctx.meta[_GIVEN] = given
        with _named(ctx):
            left = super().parse_args(ctx, args)
        for parameter in options:
            number = ctx.params.get(parameter.name or "")
            if isinstance(number, float) and not math.isfinite(number):
                raise UsageError(f"{parameter.opts[0]} {number}: not a finite number", "give it a number")
        return left

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """As the command runs; a file that is wrong is named with the option that named it."""
        with _named(ctx):
            return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """`[A]`, not `[[A]]`."""
        return [re.sub(r"^\[(\[.*\])\]$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """The options under the headings of their groups, the command's own first."""
        sections: dict[str, list[tuple[str, str]]] = {_OWN: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            heading = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or _OWN
            # Some versions of Typer add the type to the name of an argument, and brackets around those that it has.
            sections.setdefault(heading, []).append((re.sub(r" <\w+>$", "", record[0]), limits(record[1])))
        for heading in ("Arguments", *(name for name in sections if name != "Arguments")):
            if sections.get(heading):
                with formatter.section(heading):
                    formatter.write_dl(sections[heading])

    def format_epilog(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """The example, and how long it usually takes."""
        example = EXAMPLES.get(self.name or "")
        if example is not None:
            with formatter.section("Example"):
                formatter.write_text(example.typed)
                formatter.write_text(f"takes {example.takes}")


_COMMANDS = (
    "idle",
    "attribute",
    "profile",
    "functions",
    "offcpu",
    "syscalls",
    "queries",
    "run",
    "compare",
    "sweep",
    "study",
    "residency",
    "energy",
    "diagnose",
    "cure",
    "slack",
    "watch",
    "export",
    "doctor",
    "workloads",
    "servers",
    "runs",
    "report",
)

# Those that take a command of the caller's after --.
RUN_COMMANDS = ("run", "compare")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"powerprof {__version__}")
        raise typer.Exit


def _docstring_of(name: str) -> str:
    """The help of a subcommand, read from its file: to import all of them takes longer than the rest of --help."""
    text = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    found = re.search(r'^"""(.*?)"""', text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def _only_listed() -> None:
    """Stands for a subcommand where nothing but the list of them is asked for."""


def _put_back_left_behind() -> None:
    """Restore settings and drop accounts that a killed powerprof left; usually the folder does not exist."""
    with suppress(OSError):
        # A recorded host's processes say nothing about those of this one.
        if paths.is_this_host() and any(_has_files(place) for place in paths.changed_dirs()):
            from powerprof.database.clients.readers import drop_left_accounts
            from powerprof.reversible.journal import put_back_left_behind

            for text in [*put_back_left_behind(), *drop_left_accounts()]:
                say(f"note: {text}", error=True)


def _has_files(place: Path) -> bool:
    try:
        return bool(os.listdir(place))
    except OSError:
        return False


def build_app(names: Sequence[str] = _COMMANDS, *, listed: bool = False) -> typer.Typer:
    """The Typer application with these subcommands: all, or the one that was typed, to import no other.

    `listed`: for the list of subcommands alone; none of them can be run.
    """
    app = typer.Typer(
        name="powerprof",
        context_settings={"help_option_names": ["-h", "--help"], "terminal_width": narrow()},
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Power-efficiency profiling for database servers on Linux.",
    )

    @app.callback()
    def options(
        version: bool = typer.Option(
            False, "--version", "-V", callback=_version, is_eager=True, help="Print the version and exit."
        ),
        debug: bool = typer.Option(False, "--debug", help="Show a traceback with an error."),
    ) -> None:
        if debug:
            os.environ["POWERPROF_DEBUG"] = "1"
        paths.check_roots()
        _put_back_left_behind()

    for name in names:
        if listed:
            text, command = _docstring_of(name), _only_listed
        else:
            module = import_module(f"powerprof.cli.{name}")
            text, command = module.__doc__ or "", spread(module.command)
        # The first sentence is the line in the list of commands: click would go on after a question mark.
        first = re.match(r"[^.?]*[.?]", text)
        app.command(name, cls=GroupedHelp, help=text, short_help=first[0] if first else None)(command)
    return app


# Longer than any path that people type; a word of 5,000 characters hides the sentence that it stands in.
_LONG_WORD = re.compile(r"(\S{100})\S{80,}(\S{40})")


def _say(error: PowerprofError | Interrupted) -> None:
    with suppress(OSError):  # the terminal may be gone
        for kind, text in (("error", error.message), ("hint", error.hint)):
            if text:
                say(_LONG_WORD.sub(r"\1…\2", printable(f"{kind}: {text}")), error=True)


def _reader_gone() -> int:
    """The reader (head, less) has left: nothing is wrong, and the interpreter must not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


# Some versions of Typer carry their own click, others import it: its base class of usage errors is reached by
# the one that Typer exports.
_CommandLineError = cast(type[typer.BadParameter], typer.BadParameter.__base__)


def _bound(match: re.Match[str]) -> str:
    """`-1 is not in the range 0<=x<=100` as `-1: must be at least 0`."""
    least, most = match["low"] or match["least"], match["high"] or match["most"]
    below = least is not None and float(match["value"]) < float(least)
    return f"{match['value']}: must be at least {least}" if below else f"{match['value']}: must be at most {most}"


# What Typer says of a value, and the plain words for it.
_COMPLAINTS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"^Invalid value for '(--[\w-]+)': ", r"\1 "),
    (r"'(.*)' is not a valid int.*", r"\1: not a whole number"),
    (r"'(.*)' is not a valid float.*", r"\1: not a number"),
    (r"'(.*)' is not one of (.*)", r"\1: not one of \2"),
    (r"Got unexpected extra arguments? ?(?:\(s\) )?\((.*)\)", r"unexpected argument: \1"),
    (rf"(?P<value>\S+) is not in the range (?:{LIMITS})", _bound),
)


_NO_SUCH = "No such option"
# difflib's measure: --duraton is --duration (0.95), --html is not --help (0.67).
_ALIKE = 0.75


# Replacements of removed commands, and of removed options by command. An entry has no effect while the old spelling
# exists.
_MOVED_COMMANDS = {
    "saturate": "sweep CONDITION [OTHER] --until p95=5ms",
    "symbols": "doctor --pid ID|NAME",
    "calibrate": "energy --calibrate",
}
_STACK_FILES = {"--speedscope": "{command} --folded FILE or --pprof FILE, which speedscope opens"}
_MOVED = {
    "runs": {"--parquet": "report RUN --csv FILE"},
    **dict.fromkeys(("profile", "report"), _STACK_FILES),
    "attribute": {
        **_STACK_FILES,
        **dict.fromkeys(("--on-cpu", "--event", "--frequency"), "profile"),
        **dict.fromkeys(("--functions", "--max-functions", "--allow-unwinding-risk", "--backend"), "functions GLOB"),
        **dict.fromkeys(("--wakers", "--sleeps"), "offcpu"),
    },
    "queries": {"--enable-consumers": "queries --method samples"},
}


def _usage_error(error: typer.BadParameter, named: Sequence[str] = ()) -> UsageError:
    """Typer's complaint, which comes with usage and in several lines, as one line and a hint."""
    option = getattr(error, "option_name", None)
    name = (error.ctx.info_name if error.ctx else None) or ""
    if instead := _MOVED.get(name, {}).get(str(option)):
        return UsageError(f"{name} has no {option}", f"powerprof {instead.format(command=name)}")
    command = error.ctx.command_path if error.ctx else " ".join(["powerprof", *named])
    message = " ".join(error.format_message().split()).rstrip(".")
    if message.startswith(_NO_SUCH) and option:
        return UsageError(f"{_NO_SUCH[:1].lower()}{_NO_SUCH[1:]}: {option}", _alike(str(option), error, command))
    for pattern, words in _COMPLAINTS:
        message = re.sub(pattern, words, message)
    return UsageError(as_typed(message[:1].lower() + message[1:], error.ctx), f"{command} --help")


def _alike(option: str, error: typer.BadParameter, command: str) -> str:
    """The hint for an option that there is not: those of nearly the same name, and the help."""
    own = [name for parameter in error.ctx.command.params for name in parameter.opts] if error.ctx else []
    alike = {*difflib.get_close_matches(option, own, cutoff=_ALIKE), *(n for n in own if n.startswith(option))}
    meant = f"did you mean {join_words(sorted(alike), 'or')}? " if alike and len(option) > len("--") else ""
    return f"{meant}{command} --help"


def _typed_command(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """What is for us, and the words after -- of a subcommand that runs what was typed."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name not in RUN_COMMANDS or "--" not in arguments:
        return list(arguments), ()
    at = list(arguments).index("--")
    typed = tuple(arguments[at + 1 :])
    if not typed:
        raise UsageError("there is no command after --", f"powerprof {name} -- COMMAND…")
    return list(arguments[:at]), typed


def run_app(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code of the contract."""
    if arguments[:1] == ["help"]:
        # As git and others have it: `powerprof help idle`, and `powerprof help` by itself.
        arguments = [*arguments[1:], "--help"]
    try:
        words, typed = _typed_command(arguments)
        # What stands before the command takes no value (--debug). A shell that completes passes the words itself.
        named = [word for word in words if not word.startswith("-")][:1]
        if named and named[0] in _COMMANDS:
            app = build_app(named)
        elif named and named[0] in _MOVED_COMMANDS:
            raise UsageError(f"no such command: {named[0]}", f"powerprof {_MOVED_COMMANDS[named[0]]}")
        else:
            app = build_app(listed="_POWERPROF_COMPLETE" not in os.environ)
        code = app(args=words, prog_name="powerprof", standalone_mode=False, obj=typed)
        return code if isinstance(code, int) else 0
    except _CommandLineError as error:
        if not arguments:
            error.show()  # the help
        else:
            _say(_usage_error(error, [word for word in arguments[:1] if word in _COMMANDS]))
        return UsageError.exit_code
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            return _reader_gone()  # Typer answers it with an exit of its own
        return end.code if isinstance(end.code, int) else 1
    except (PowerprofError, Interrupted) as error:
        if os.environ.get("POWERPROF_DEBUG"):
            raise
        if isinstance(error, HungUp):
            leave_terminal()
        _say(error)
        return error.exit_code
    except BrokenPipeError:
        return _reader_gone()
    except MemoryError:
        _say(PowerprofError("out of memory", "use a shorter --duration"))
        return 1
    except OSError as error:
        if os.environ.get("POWERPROF_DEBUG"):
            raise
        if error.filename is None and error.errno == errno.ENOSPC:  # what Typer printed: the help
            _say(PowerprofError("cannot write (no space left on device)", "redirect it to another place"))
            return 1
        what = f" {error.filename}" if error.filename else ""
        _say(
            PowerprofError(
                f"the system refused{what} ({(error.strerror or str(error)).lower()})", "powerprof --debug shows where"
            )
        )
        return 1
