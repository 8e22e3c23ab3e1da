# SPDX-License-Identifier: Apache-2.0
"""The parser of the command line, and the one place that turns errors into exit codes."""

from __future__ import annotations

import errno
import os
import re
import resource
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import groupby, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

from powerprof import __version__
from powerprof.cli.commands import COMMANDS, file_stem, module_name
from powerprof.cli.parameters import (
    AFTER_DASHES,
    EXPERT_HEADING,
    OWN_HEADING,
    ParserError,
    check_effects,
    help_command,
    read_options,
    walk_parameters,
)
from powerprof.cli.remedies import BEFORE_COMMAND, find_command, find_remedy
from powerprof.cli.terminal import leave_terminal, print_sentence, print_text, terminal_width
from powerprof.model.text import approximate_time
from powerprof.system import open_files, paths
from powerprof.system.errors import (
    DataError,
    Declined,
    HungUp,
    Interrupted,
    PowerprofError,
    SeveralServersError,
    SeveralThreadsError,
    UsageError,
)
from powerprof.system.foreign_text import printable
from powerprof.system.next_steps import command_line, find_commands, this_command_line


class Invocation(msgspec.Struct, frozen=True):
    """The words of a command line outside of the command's own options.

    Attributes:
        program: options before the command, by field.
        command_words: words after --.
    """

    program: Mapping[str, object] = {}
    command_words: tuple[str, ...] = ()


# Key of a context for the typed values: option → texts.
_TYPED = "powerprof.typed"
_MOST_SERVERS = 8
# The address space of the libraries.
_LEAST_MIB = 640
# "run as root", perhaps with another remedy.
_RUN_AS_ROOT = re.compile(r"run as root( or as its user)?(?:, or:? (.*))?")
# A terminal of 80 columns shows it in four lines.
_LONGEST_LINE, _LINE_END = 250, 80
# Longer than typed paths. A word of 5,000 characters would hide the rest of the sentence.
_LONG_WORD = re.compile(r"(\S{100})\S{80,}(\S{40})")
# Base class of the parser's errors. Some versions of Typer contain Click, others import it.
_ParserError = cast(type[typer.BadParameter], typer.BadParameter.__base__)


@contextmanager
def _option_named(context: typer.Context) -> Iterator[None]:
    """Begin the error of a damaged file with the option that names the file, and add a hint."""
    try:
        yield
    except DataError as error:
        for option, values in context.meta.get(_TYPED, {}).items():
            if any(Path(value) == Path(error.path) for value in values) and not error.message.startswith(option):
                error.message = f"{option} {error.message}"
                break
        error.hint = error.hint or help_command(context.info_name or "")
        raise


class ModuleCommand(TyperCommand):
    """A command: the `Options` and the `command` function of a module, with the docstring as help."""

    allow_extra_args = True

    def __init__(self, name: str, module: ModuleType) -> None:
        self._module = module
        self.parameters = list(walk_parameters(module.Options))
        super().__init__(
            name=name,
            help=module.__doc__,
            short_help=_first_sentence(module.__doc__ or ""),
            params=[parameter.as_typer(field) for _, field, parameter in self.parameters],
            rich_markup_mode=None,
        )

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the arguments after checks of their texts. Raises UsageError. A shell completes wrong ones too."""
        if ctx.resilient_parsing:
            if "--" in args:
                ctx.meta[AFTER_DASHES] = True
            return list(super().parse_args(ctx, args))
        ctx.meta[_TYPED] = self._checked_values(ctx, args)
        try:
            super().parse_args(ctx, args)
        except _ParserError as error:
            error.ctx = error.ctx or ctx  # some errors of the parser lack it
            raise
        if ctx.args:
            raise ParserError(f"unexpected argument: {' '.join(ctx.args)}", "argument", ctx.args, str(ctx.info_name))
        return []

    def _checked_values(self, ctx: typer.Context, args: list[str]) -> dict[str, list[str]]:
        """Return the typed values by option.

        Raises:
            UsageError: a text is not UTF-8; a value is missing, empty (`--json "$FILE"` without such a variable would
                name this folder), or given twice.
        """
        with_value = {parameter.flag: parameter for _, _, parameter in self.parameters if not parameter.is_flag}
        for before, text in pairwise(["", *args]):
            if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
                option = f"{before} " if before and before in with_value else ""
                raise UsageError(f"{option}{text} is not UTF-8", "type it in UTF-8; rename such a file, or link to it")
        options = {name for parameter in self.get_params(ctx) for name in parameter.opts if name.startswith("-")}
        values: dict[str, list[str]] = {}
        for word, following in pairwise([*args, None]):
            if word is None or word == "--":
                break
            if word == "":
                raise UsageError("an argument is empty", "give it a value, or leave it out")
            option, equals, text = word.partition("=")
            value = text if equals else following
            if not option or option not in with_value:
                continue
            if value is None:
                raise UsageError(f"{option} has no value", with_value[option].remedy)
            if not equals and value in options:
                raise UsageError(f"{option} has no value: {value} is the next option", f"give {option} its value first")
            if not value.strip():
                raise UsageError(f"{option} has an empty value", "give it one, or leave it out")
            if option in values and not with_value[option].is_repeatable:
                raise UsageError(f"{option} {value}: {option} was given twice", "give it once")
            values.setdefault(option, []).append(value)
        return values

    def invoke(self, ctx: typer.Context) -> None:  # type: ignore[override]
        """Read the options and run the command."""
        with _option_named(ctx):
            self._module.command(self.read(ctx))

    def read(self, ctx: typer.Context) -> Any:
        """Return the options of a parsed command line. Raises UsageError, DataError."""
        typed = {
            field: parameter.flag
            for _, field, parameter in self.parameters
            if parameter.flag and ctx.params[field] not in (None, False, ())
        }
        invocation = ctx.obj or Invocation()
        self._check_effects(ctx.params, typed.values(), invocation.command_words)
        options = read_options(
            self._module.Options,
            ctx.params,
            str(ctx.info_name),
            invocation.program,
            typed=typed,
            command_words=invocation.command_words,
        )
        options.check()
        return options

    def _check_effects(self, values: Mapping[str, Any], typed: Collection[str], command_words: Sequence[str]) -> None:
        """Raise UsageError if an option has no effect without, or with, another word of the command line."""
        given = {*typed, *(["--"] if command_words else [])}
        for _, field, parameter in self.parameters:
            if not parameter.flag and values[field]:
                value = values[field]
                given |= {parameter.metavar, *([value] if isinstance(value, str) else value)}
        options = [parameter for _, _, parameter in self.parameters if parameter.flag]
        check_effects(options, self._module.Options.MODES, typed, given)

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the words after the command's name in the line "Usage"."""
        return ["[OPTIONS]", *(parameter.metavar for _, _, parameter in self.parameters if not parameter.flag)]

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write arguments and options under the headings of their groups, the command's own options first."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], OWN_HEADING: []}
        for heading, _, parameter in self.parameters:
            sections.setdefault(heading if parameter.flag else "Arguments", []).append(parameter.help_row)
        help_option = self.get_help_option(ctx)
        sections[OWN_HEADING].append((help_option and help_option.get_help_record(ctx)) or ("", ""))
        if EXPERT_HEADING in sections:
            sections[EXPERT_HEADING] = sections.pop(EXPERT_HEADING)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows, col_max=min(30, formatter.width // 2))

    def format_epilog(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write an example and its duration."""
        with formatter.section("Example"):
            formatter.write_text(command_line(COMMANDS[str(self.name)].example))
            formatter.write_text(f"Duration: {self.example_duration()}")

    def example_duration(self) -> str:
        """Return the duration of the example, by the plan that the command prints at its start."""
        entry = COMMANDS[str(self.name)]
        if entry.takes:
            return entry.takes
        if not hasattr(self._module, "estimate_s"):
            return f"{self._parse(entry.example).duration:g} s plus a few seconds"
        text = approximate_time(self._module.estimate_s(self._parse(entry.example)))
        if any(parameter.flag == "--quick" for _, _, parameter in self.parameters):
            quick_s = self._module.estimate_s(self._parse(f"{entry.example} --quick"))
            text += f", with --quick {approximate_time(quick_s)}"
        return text

    def _parse(self, line: str) -> Any:
        """Return the options of a command line."""
        own_words, command_words = _split_words(shlex.split(line))
        context = self.make_context(str(self.name), own_words[1:])
        return read_options(self._module.Options, context.params, str(self.name), command_words=command_words)


class CommandGroup(TyperGroup):
    """All commands. The module of a command is imported on its first use."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names of all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """Return the command of that name; None if there is none."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.add_command(ModuleCommand(cmd_name, import_module(module_name(cmd_name))))
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """Return (name, command, other arguments). Raise UsageError if there is no such command."""
        name = args[0]
        if name in COMMANDS or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise ParserError(f"no such command {name!r}", "command", [name])

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the commands in panels. Their texts are read from the files: importing all modules takes longer."""
        width = max(map(len, COMMANDS))
        for panel, names in groupby(COMMANDS, lambda name: COMMANDS[name].panel):
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(width), _first_sentence(_docstring_of(name))) for name in names])


def _docstring_of(name: str) -> str:
    text = (Path(__file__).parent / f"{file_stem(name)}.py").read_text(encoding="utf-8")
    match = re.search(r'^"""(.*?)"""', text, re.MULTILINE | re.DOTALL)
    return match[1] if match else ""


def _first_sentence(text: str) -> str:
    match = re.match(r"[^.?]*[.?]", text)
    return match[0] if match else text


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"powerprof {__version__}")
        raise typer.Exit


def _put_back_left_behind() -> None:
    """Restore settings and drop accounts that a killed powerprof left; usually the folder does not exist."""
    with suppress(OSError):
        # The processes of a recorded host are unrelated to those of this one.
        if paths.is_this_host() and any(_has_files(place) for place in paths.changed_dirs()):
            from powerprof.database.readers import drop_left_accounts
            from powerprof.reversible.journal import restore_orphaned_settings

            for text in [*restore_orphaned_settings(), *drop_left_accounts()]:
                print_text(f"note: {text}", error=True)


def _has_files(place: Path) -> bool:
    try:
        return bool(os.listdir(place))
    except OSError:
        return False


def build_root() -> CommandGroup:
    """Return the parser of the whole command line."""
    columns = shutil.get_terminal_size((80, 24)).columns
    # The formatter never wraps below 50 columns unless it is given a width.
    settings = {"help_option_names": ["-h", "--help"], "terminal_width": max(30, columns - 2) if columns < 52 else None}
    app = typer.Typer(
        name="powerprof",
        cls=CommandGroup,
        context_settings=settings,
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Power-efficiency profiling for database servers on Linux.",
    )

    @app.callback()
    def set_up(
        context: typer.Context,
        quiet: bool = typer.Option(False, "--quiet", help="Do not print the report and the progress."),
        runs_dir: str = typer.Option(
            "", "--runs-dir", metavar="DIR", help="Directory of saved runs (default: the state directory)."
        ),
        version: bool = typer.Option(
            False, "--version", "-V", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
        debug: bool = typer.Option(False, "--debug", help="Show a traceback with an error."),
    ) -> None:
        if debug:
            os.environ["POWERPROF_DEBUG"] = "1"
        folder = runs_dir or os.environ.get("POWERPROF_RUNS_DIR")
        values = {
            "quiet": quiet or bool(os.environ.get("POWERPROF_QUIET")),
            "runs_dir": Path(folder) if folder else None,
        }
        context.obj = Invocation(values, context.obj or ())
        paths.check_places()
        _check_limits()
        _put_back_left_behind()

    return cast(CommandGroup, typer.main.get_command(app))


def _print_error(error: PowerprofError | Interrupted, arguments: Sequence[str] = ()) -> None:
    with suppress(OSError):  # the terminal may be gone
        if isinstance(error, Declined):
            print_text(error.message, error=True)
            return
        remedy = error.hint
        if isinstance(error, UsageError):
            with suppress(OSError):  # of modules and names that it looks up
                remedy = find_remedy(error, arguments, _accepts)
        for kind, text in (("error", error.message), ("hint", _limit_hint(error) or _root_hint(remedy))):
            if text:
                print_sentence(_shortened(printable(f"{kind}: {text}")))
            if kind == "error" and isinstance(error, SeveralThreadsError):
                for line in error.lines:
                    print_text(printable(line), error=True)
            if kind == "error" and isinstance(error, SeveralServersError):
                for line in _server_lines(error, arguments):
                    print_text(line, error=True)


def _shortened(line: str) -> str:
    """Return a line of at most `_LONGEST_LINE` characters, without the middle of long words or of the line."""
    line = _LONG_WORD.sub(r"\1…\2", line)
    if len(line) <= _LONGEST_LINE or find_commands(line):
        return line
    head, tail = line[: _LONGEST_LINE - _LINE_END], line[-_LINE_END + 3 :]
    return f"{head.rpartition(' ')[0]} … {tail.partition(' ')[2]}"


def _root_hint(hint: str | None) -> str | None:
    """Return a hint to run as root with the command to paste; for root, the other remedies of the hint."""
    match = _RUN_AS_ROOT.fullmatch(hint or "")
    if match is None:
        return hint
    other = match[2]
    if os.geteuid() == 0:
        return other or "root may not either: run outside of the container, or change the policy that protects it"
    command = this_command_line(as_root=True)
    return (
        f"{f'{other}; or ' if other else ''}run as root{match[1] or ''}: {command}"
        if len(command) < _LONGEST_LINE
        else hint
    )


def _check_limits() -> None:
    """Raise PowerprofError if the shell allows too few files or too little memory: libraries would fail later."""
    open_files.prepare()
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    if allowed != resource.RLIM_INFINITY and allowed < _LEAST_MIB << 20:
        raise PowerprofError(
            f"this shell allows {allowed:,} bytes of memory; powerprof needs {_LEAST_MIB} MiB",
            "raise the limit: ulimit -v unlimited",
        )


def _limit_hint(error: BaseException) -> str | None:
    """Return the remedy if a limit of the shell caused the error (setrlimit(2))."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    numbers = {cause.errno for cause in causes if isinstance(cause, OSError)}
    said = str(error).lower()
    memory = resource.getrlimit(resource.RLIMIT_AS)[0]
    if numbers & {errno.EMFILE} or "too many open files" in said:
        return open_files.describe_remedy()
    if errno.EFBIG in numbers and (size := resource.getrlimit(resource.RLIMIT_FSIZE)[0]) != resource.RLIM_INFINITY:
        return f"this shell allows files of {size:,} bytes; raise the limit: ulimit -f unlimited"
    is_short = errno.ENOMEM in numbers or any(isinstance(cause, (MemoryError, ImportError)) for cause in causes)
    if memory != resource.RLIM_INFINITY and (is_short or "allocate memory" in said or "memory" in said):
        return f"this shell allows {memory >> 20:,} MiB of memory; raise the limit: ulimit -v unlimited"
    return None


def _server_lines(error: SeveralServersError, arguments: Sequence[str]) -> Iterator[str]:
    """Yield each possible server, and below it the typed command line for this server."""
    from powerprof.database.servers_here import describe_servers

    listed = error.roots[:_MOST_SERVERS]
    for root, phrases in zip(listed, describe_servers(listed), strict=True):
        yield from wrap_phrases(phrases, terminal_width())
        yield f"    {command_line('{}', _choose_server(arguments, error.word, str(root)))}"
    if len(error.roots) > len(listed):
        yield f"  and {len(error.roots) - len(listed)} more"


def _choose_server(arguments: Sequence[str], word: str, pid: str) -> list[str]:
    """Return the command line with the process id in place of the name, or with --pid if no target was typed."""
    if not word:
        return [*arguments, "--pid", pid]
    chosen = list(arguments)
    for place, (before, argument) in enumerate(pairwise(["", *arguments])):
        option, equals, value = argument.partition("=") if argument.startswith("--pid=") else ("", "", argument)
        if equals or before == "--pid":
            parts = [pid if part.strip() == word else part for part in value.split(",")]
            chosen[place] = f"{option}{equals}{','.join(parts)}"
    return chosen


def wrap_phrases(phrases: Iterable[str], width: int) -> list[str]:
    """Return indented lines of whole phrases. Only a phrase that is longer than a line exceeds the width."""
    lines = [""]
    for phrase in phrases:
        gap = "  " if lines[-1] else "    " if len(lines) > 1 else "  "
        if lines[-1] and len(lines[-1]) + len(gap) + len(phrase) > width:
            lines.append(f"    {phrase}")
        else:
            lines[-1] += f"{gap}{phrase}"
    return lines


def _end_without_reader() -> int:
    """Return the exit code 0 after the reader (head, less) has left, and redirect what the interpreter would flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _usage_error(error: typer.BadParameter) -> UsageError:
    """Return the parser's error as one line with a hint."""
    context = error.ctx
    name = (context and context.parent and context.info_name) or ""
    if hasattr(error, "possibilities"):  # an unknown option
        option = str(getattr(error, "option_name", ""))
        reason = f"{option} is an option before the command" if name and option in BEFORE_COMMAND else ""
        return ParserError(reason or f"no such option: {option}", "option", [option], name)
    message = " ".join(error.format_message().split()).rstrip(".")
    return UsageError(message[:1].lower() + message[1:], help_command(name))


def _accepts(arguments: Sequence[str]) -> bool:
    """Return whether the parser accepts a command line, and each option has a possible value and an effect."""
    try:
        own_words, command_words = _split_words(arguments)
        at = find_command(own_words)
        if {"--help", "--version", "--install-completion"} & set(own_words):
            return True
        command = build_root().get_command(cast(Any, None), own_words[at]) if at < len(own_words) else None
        if command is None:
            return False
        command.read(command.make_context(own_words[at], own_words[at + 1 :], obj=Invocation({}, command_words)))
    except (_ParserError, PowerprofError):
        return False
    return True


def _split_words(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return powerprof's own arguments, and the words after -- if the command runs them. Raises UsageError."""
    at = find_command(arguments)
    name = arguments[at] if at < len(arguments) else ""
    if name not in COMMANDS or not COMMANDS[name].runs_words or "--" not in arguments:
        return list(arguments), ()
    at = list(arguments).index("--")
    if not arguments[at + 1 :]:
        raise UsageError("the command after -- is missing", command_line("{} -- COMMAND…", name))
    return list(arguments[:at]), tuple(arguments[at + 1 :])


def _with_long_options(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with --pid for -p, as in perf and strace; the words after -- belong to another command."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    return ["--pid" if word == "-p" and at < end else word for at, word in enumerate(arguments)]


def run_app(arguments: Sequence[str]) -> int:
    """Run one command line and return the exit code."""
    arguments = _with_long_options(arguments)
    if arguments[:1] == ["help"]:  # `powerprof help` and `powerprof help idle`, as in git
        arguments = [*arguments[1:], "--help"]
    try:
        own_words, command_words = _split_words(arguments)
        code = build_root().main(args=own_words, prog_name="powerprof", standalone_mode=False, obj=command_words)
        return code if isinstance(code, int) else 0
    except _ParserError as error:
        if not arguments:
            error.show()  # the help
        else:
            _print_error(_usage_error(error), arguments)
        return UsageError.exit_code
    except SystemExit as end:
        # Typer turns BrokenPipeError into an exit.
        if isinstance(end.__context__, BrokenPipeError):
            return _end_without_reader()
        return end.code if isinstance(end.code, int) else 1
    except (PowerprofError, Interrupted) as error:
        if os.environ.get("POWERPROF_DEBUG"):
            raise
        if isinstance(error, HungUp):
            leave_terminal()
        _print_error(error, arguments)
        return error.exit_code
    except BrokenPipeError:
        return _end_without_reader()
    except (MemoryError, ImportError, RuntimeError) as error:
        # A library that cannot be mapped and a thread that cannot start are what is left of a small address space.
        if not isinstance(error, MemoryError) and resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
            raise
        out_of_memory = PowerprofError("out of memory", "end other programs, or choose fewer processes")
        out_of_memory.__cause__ = error
        _print_error(out_of_memory)
        return 1
    except OSError as error:
        if os.environ.get("POWERPROF_DEBUG"):
            raise
        if error.filename is None and error.errno == errno.ENOSPC:  # in Typer's output of the help
            _print_error(PowerprofError("cannot write (no space left on device)", "redirect it to another file"))
            return 1
        name = f" {error.filename}" if error.filename else ""
        reason = (error.strerror or str(error)).lower()
        refusal = PowerprofError(
            f"the system refused{name} ({reason})", f"for a traceback: {this_command_line('--debug')}"
        )
        refusal.__cause__ = error
        _print_error(refusal)
        return 1
