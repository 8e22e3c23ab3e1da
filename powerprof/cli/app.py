# SPDX-License-Identifier: Apache-2.0
"""The table of subcommands and the one place that turns errors into exit codes."""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import cast

import typer

from powerprof import __version__, paths
from powerprof.cli.groups import spread
from powerprof.cli.help import LIMITS, GroupedHelp, as_typed, narrow
from powerprof.cli.output import leave_terminal, say
from powerprof.errors import HungUp, Interrupted, PowerprofError, UsageError
from powerprof.text import listed
from powerprof.untrusted import printable

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
    "saturate",
    "study",
    "residency",
    "energy",
    "calibrate",
    "symbols",
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
            from powerprof.database.clients.readers import sweep_left_accounts
            from powerprof.reversible.journal import put_back_left_behind

            for text in [*put_back_left_behind(), *sweep_left_accounts()]:
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


# What answers now what an option of a command answered.
_MOVED = {
    "attribute": {
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
        return UsageError(f"{name} has no {option}", f"powerprof {instead}")
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
    meant = f"did you mean {listed(sorted(alike), 'or')}? " if alike and len(option) > len("--") else ""
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
