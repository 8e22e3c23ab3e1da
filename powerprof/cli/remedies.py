# SPDX-License-Identifier: Apache-2.0
"""Remedies for wrong command lines: the command line that the user probably meant, with all other options.

Only a command line that the parser accepts is proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, product

from powerprof.cli.commands import COMMANDS, module_name
from powerprof.cli.parameters import Parameter, ParserError, walk_parameters
from powerprof.cli.synonyms import (
    ACTIONS_MEANT,
    COMMANDS_MEANT,
    FILLERS,
    MEANT_VALUES,
    OPTIONS_MEANT,
    PREFIXES,
    SIMILAR_PURPOSE,
)
from powerprof.model.text import join_words, parse_time
from powerprof.system.errors import (
    MissingArgumentError,
    PowerprofError,
    SeveralCommandsError,
    SeveralNamesError,
    UnknownNameError,
    UsageError,
)
from powerprof.system.next_steps import command_line
from powerprof.system.similar_names import find_similar

# Options of the program that have a value.
WITH_VALUE = ("--runs-dir",)
# Options of the program that users may type after the command.
BEFORE_COMMAND = ("--quiet", "--runs-dir", "--debug")


_LEAVE_OUT = "leave "
# More are not listed.
_MOST_OWNERS = 4
_MOST_GUESSED = 3
# A remedy in words, and the command line.
Proposal = tuple[str, list[str]]


def find_remedy(error: UsageError, arguments: Sequence[str], accepts: Callable[[Sequence[str]], bool]) -> str | None:
    """Return the remedy of a wrong command line.

    Args:
        error: The error.
        arguments: The words of the command line.
        accepts: Whether the parser accepts a command line.
    """
    for words, proposed in _list_proposals(error, arguments):
        if proposed != list(arguments) and accepts(proposed):
            remedy = f"{words}{command_line('{}', proposed)}"
            is_guess = isinstance(error, ParserError) and words.startswith(_LEAVE_OUT)
            return f"{remedy}; all options: {error.hint}" if is_guess else remedy
    return error.hint


def _list_proposals(error: UsageError, arguments: Sequence[str]) -> Iterator[Proposal]:
    """Yield the command lines that the user may have meant, the most probable one first."""
    if isinstance(error, UnknownNameError):
        similar = find_similar(error.word, error.names)
        for name in similar:
            yield f"did you mean {join_words(similar, 'or')}? ", replace_name(arguments, error.word, name)
        meant = ACTIONS_MEANT.get((arguments[find_command(arguments)], error.word)) if arguments else None
        if meant:
            yield f"did you mean {meant}? ", replace_name(arguments, error.word, meant)
        yield from _after_dashes(arguments)
    elif isinstance(error, SeveralNamesError):
        for name in error.choices:
            yield f"{join_words(error.choices, 'or')}: ", replace_name(arguments, error.word, name)
    elif isinstance(error, MissingArgumentError):
        yield "such as: ", [*arguments, *error.example.split()]
    elif isinstance(error, SeveralCommandsError):
        yield from _after_dashes(arguments)
    elif isinstance(error, ParserError):
        listed = {"command": _for_command, "option": _for_option, "argument": _for_argument}[error.kind]
        yield from listed(error, list(arguments))


def replace_name(arguments: Sequence[str], word: str, name: str) -> list[str]:
    """Return the command line with another name: of a whole word, or between commas, colons and equal signs."""
    import re

    part = re.compile(rf"(^|[,:=]){re.escape(word)}(?=$|[,:=@#])")
    replaced = list(arguments)
    # Whole words first: a value can also be a part of another word.
    for at in sorted(range(len(replaced)), key=lambda at: (replaced[at] != word, at)):
        changed = part.sub(lambda match: f"{match[1]}{name}", replaced[at], count=1)
        if changed != replaced[at]:
            replaced[at] = changed
            break
    return replaced


def find_command(arguments: Sequence[str]) -> int:
    """Return the place of the first word that is no option of the program."""
    return next(
        (
            at
            for at, (before, word) in enumerate(pairwise(["", *arguments]))
            if word[:1] != "-" and before not in WITH_VALUE
        ),
        len(arguments),
    )


def _for_command(error: ParserError, arguments: list[str]) -> Iterator[Proposal]:
    """Yield remedies for an unknown first word."""
    at = find_command(arguments)
    before, word, after = arguments[:at], error.words[0], arguments[at + 1 :]
    if word in PREFIXES and after:
        word, after = after[0], after[1:]
    names = [word] if word in COMMANDS else find_similar(word, COMMANDS)
    synonym = COMMANDS_MEANT.get(word.lower())
    if synonym:
        names = [synonym]
    elif word not in COMMANDS and _is_program(word):
        yield "to measure a command: ", [*before, "run", "--", word, *after]
    for name in names:
        question = f"did you mean {join_words(names, 'or')}? "
        yield question, [*before, name, *after]
        # perf stat COMMAND
        if after and COMMANDS.get(name, COMMANDS["idle"]).runs_words:
            yield question, [*before, name, "--", *after]
    for name in names:
        yield f"did you mean {join_words(names, 'or')}? ", [*before, name, "--help"]
    if _is_condition(word):
        yield from (("to measure conditions: ", [*before, name, word, *after]) for name in ("run", "compare"))


def _for_option(error: ParserError, arguments: list[str]) -> Iterator[Proposal]:
    """Yield remedies for an unknown option."""
    typed = error.words[0]
    at = next((at for at, word in enumerate(arguments) if word.partition("=")[0] == typed), None)
    if at is None:  # -p1 is parsed as -p 1
        at = next((at for at, word in enumerate(arguments) if word.startswith(typed)), len(arguments))
    before, after = arguments[:at], arguments[at + 1 :]
    equals = arguments[at].partition("=")[1:] if at < len(arguments) and "=" in arguments[at] else ("", "")
    if not error.command:
        place = find_command(arguments)
        for end in (at + 1, at + 2):
            name = next((word for word in arguments[end:] if word in COMMANDS), None)
            if name is not None:
                rest = [*before, *arguments[end:]]
                position = rest.index(name) + 1
                yield ("type it after the command: ", [*rest[:position], *arguments[at:end], *rest[position:]])
        names = ["--quiet", "--runs-dir", "--version", "--debug", "--help"]
        similar = ["--version"] if typed == "-v" else find_similar(typed, names)
        for name in similar:
            yield f"did you mean {join_words(similar, 'or')}? ", [*before, name, *after]
        yield "leave it out: ", [*before, *arguments[min(at + 1, place) :]]
        return
    if typed in BEFORE_COMMAND:
        value = after[:1] if typed in WITH_VALUE and not equals[0] else []
        rest = [*before, *after[len(value) :]]
        yield "type it before the command: ", ["".join((typed, *equals)), *value, *rest]
    flags = _options_of(error.command)
    meant = OPTIONS_MEANT.get(typed, "")
    synonyms = [name for name in (meant, *SIMILAR_PURPOSE.get(meant, ())) if name in flags][:1]
    similar = synonyms or (find_similar(typed, flags) if typed[:2] == "--" else [])
    question = f"did you mean {join_words(similar, 'or')}? "
    for name in similar:
        yield question, [*before, "".join((name, *equals)), *after]
        yield question, [*before, name, *MEANT_VALUES.get(name, []), *after]
    # -p1 and -F99, as in perf.
    short = OPTIONS_MEANT.get(typed[:2])
    if short in flags and at < len(arguments) and len(arguments[at]) > len("-p") and typed[:2] != "--":
        yield f"did you mean {short}? ", [*before, short, arguments[at][2:].removeprefix("="), *after]
    yield from _after_dashes(arguments)
    if _is_meant_server(error, flags):
        return
    owners = _commands_with(typed)
    has_value = not equals[0] and any(not parameter.is_flag for parameter in owners.values())
    of = f"{typed} is an option of {join_words(list(owners)) if len(owners) <= _MOST_OWNERS else 'other commands'}; "
    # A number is the value of the unknown option, and no argument.
    is_number = not equals[0] and bool(after) and after[0][:1].isdigit()
    for rest in (after[has_value or is_number :], after, after[1:]):
        yield f"{of if owners else ''}{_LEAVE_OUT}it out: ", [*before, *rest]


def _commands_with(option: str) -> dict[str, Parameter]:
    """Return the commands that have an option."""
    return {name: declared[option] for name in COMMANDS if option in (declared := _options_of(name))}


def _options_of(command: str) -> dict[str, Parameter]:
    from importlib import import_module

    declared = walk_parameters(import_module(module_name(command)).Options)
    return {parameter.flag: parameter for _, _, parameter in declared if parameter.flag}


def _for_argument(error: ParserError, arguments: list[str]) -> Iterator[Proposal]:
    """Yield remedies for arguments too many."""
    flags = _options_of(error.command)
    first, several = error.words[0], len(error.words) > 1
    places: list[int] = []
    for word in reversed(error.words):  # the same words can be arguments before
        before = arguments[: places[-1] if places else len(arguments)]
        places.append(len(before) - 1 - before[::-1].index(word) if word in before else len(before))
    at = places[-1]
    without = [word for place, word in enumerate(arguments) if place not in places]
    option = flags.get(arguments[at - 2]) if 2 <= at < len(arguments) else None
    if option is not None:
        for words, value in _join_value(option, arguments[at - 1], first):
            yield words, [*arguments[: at - 1], value, *arguments[at + 1 :]]
    if first == "sleep" and several:  # as in perf
        yield "did you mean --duration? ", [*without, "--duration", error.words[1]]
    yield from _after_dashes(arguments)
    guesses = [[name for name in _guess_options(word, arguments) if name in flags] for word in error.words]
    for names in product(*guesses) if len(guesses) < _MOST_GUESSED else ():
        if len({*names, *arguments}) == len(names) + len({*arguments}):
            typed = [part for pair in zip(names, error.words, strict=True) for part in pair]
            yield f"did you mean {join_words(names)}? ", [*without, *typed]
    action = ACTIONS_MEANT.get((error.command, arguments[at - 1] if at else ""))
    if action:
        yield f"did you mean {action}? ", [*arguments[: at - 1], action]
    filler = arguments[at - 1] if at else ""
    if filler in FILLERS:
        yield f"{_LEAVE_OUT}{filler} out: ", [*arguments[: at - 1], *arguments[at:]]
    if not _is_meant_server(error, flags):
        yield f"{_LEAVE_OUT}{'them' if several else 'it'} out: ", without


def _join_value(option: Parameter, value: str, rest: str) -> Iterator[tuple[str, str]]:
    """Yield the value of an option with the word behind it: `50 ms`, `THREAD 50ms`, `cpu p95`, `release candidate`."""
    if "TIME" in option.metavar and value[:1].isdigit() and _is_time(f"{value}{rest}"):
        yield f"did you mean {value}{rest}? ", f"{value}{rest}"
    if "=" in option.metavar and "=" not in value:
        yield "did you mean =? ", f"{value}={rest}"
    if option.metavar in ("NAMES", "LIST") or (option.is_repeatable and option.flag == "--pid"):
        yield "separate values by commas: ", f"{value},{rest}"
    if option.flag in ("-o", "--label"):
        yield "quote a value with blanks: ", f"{value} {rest}"


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except ValueError:
        return False
    return True


def _is_meant_server(error: ParserError, flags: Collection[str]) -> bool:
    """Return whether a word means a server, which this command takes by its address. Then set the hint."""
    is_server = error.words[0] in ("--pid", "-p") or (error.kind == "argument" and _is_server_name(error.words[0]))
    if "--socket" not in flags or "--pid" in flags or not is_server:
        return False
    error.hint = f"{error.command} takes your server by --socket PATH, --server URL or --defaults-file FILE"
    return True


def _is_server_name(word: str) -> bool:
    from powerprof.system.server_names import is_server_program, list_meant_programs

    return any(map(is_server_program, (word, *list_meant_programs(word))))


def _guess_options(word: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yield the options whose value a lone word can be."""
    from powerprof.energy.request import AUTO

    is_number, is_path = word[:1].isdigit(), "." in word or "/" in word
    has_target = bool({"--pid", "--system", "--cgroup"} & set(arguments))
    if not has_target and _names_process(word):
        yield "--pid"
    if is_number:
        yield from ("--keep",) if "prune" in arguments else ()
        yield from ("--clients", "--duration", "--interval") if word.isdigit() else ("--duration", "--interval")
    if word in AUTO:
        yield "--meter"
    if is_path:
        yield from ("--output",) if "--calibrate" in arguments else ("--from", "-o")


def _names_process(word: str) -> bool:
    """Return whether a word is the name of a server or a process, or the id of a program."""
    from powerprof.system.files import try_text
    from powerprof.system.paths import procfs
    from powerprof.system.processes import list_pids
    from powerprof.system.tasks import look_up

    if word.isdigit():
        return (procfs() / word).is_dir() and not look_up(int(word)).is_kernel
    if "/" in word or " " in word:
        return False
    return _is_server_name(word) or any(try_text(procfs() / str(pid) / "comm") == word[:15] for pid in list_pids())


def _after_dashes(arguments: Sequence[str]) -> Iterator[Proposal]:
    """Yield the command line with -- before a program, for the commands that run one."""
    at = find_command(arguments)
    name = arguments[at] if at < len(arguments) else ""
    if name not in COMMANDS or not COMMANDS[name].runs_words:
        return
    own = arguments[at + 1 :]
    start = next((place for place, word in enumerate(own) if word == "--" or _starts_command(word)), len(own))
    if own[start : start + 1] == ["--"] or start == len(own):
        command = own[start + 1 :]
        if name != "compare" or "--" in command or not own[start:]:
            return
    else:
        command = own[start:]
    if len(command) == 1 and " " in command[0]:
        import shlex

        with suppress(ValueError):
            command = shlex.split(command[0])
    if name == "compare" and "--" not in command:
        second = next((place for place, word in enumerate(command) if place and _is_program(word)), 0)
        if not second:
            return
        command = [*command[:second], "--", *command[second:]]
    yield "a command is typed after --: ", [*arguments[: at + 1], *own[:start], "--", *command]


def _starts_command(word: str) -> bool:
    return word[:1] != "-" and _is_program(word.split(" ", maxsplit=1)[0])


def _is_program(word: str) -> bool:
    from powerprof.system.program_search import find_program

    return bool(word) and "/" not in word and find_program(word)[0] is not None


def _is_condition(word: str) -> bool:
    from powerprof.workloads.catalogue import find_one

    try:
        find_one(word)
    except PowerprofError:
        return False
    return True
