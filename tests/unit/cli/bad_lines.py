# SPDX-License-Identifier: Apache-2.0
"""Wrong command lines, drawn from right ones by a seed, and a judge of what is printed for each."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module

from powerprof.cli.app import _accepts
from powerprof.cli.commands import COMMANDS, module_name
from powerprof.cli.parameters import Parameter, walk_parameters
from powerprof.system.next_steps import find_commands
from tests.programs.in_process import Ended

RIGHT = """
attribute --system --duration 2.5 --top 7
attribute --pid 1 --only --duration 2.5 --label before
deep-idle --pid 1 --without t1 --duration 3m
profile --pid 1 --only --duration 1.25 --frequency 250 --by stack --lines
profile --system --event page-faults
functions 'a*' --pid 1 --duration 1.25 --max-functions 7 --backend bpf
offcpu --pid 1 --duration 1.25 --top 9
syscalls --pid 1 --duration 1.25 --no-save
queries --duration 2.5 --method samples --top 3
queries --by user --duration 3
diagnose --duration 2.5 --no-save
run index --duration 1.5 --repeat 7 --seed 41 --residency-source procfs
run city:index --quick --queries 321
run --duration 3 --repeat 4 --allow-failure -- gzip -p
compare index no-index --duration 1.5 --pairs 7 --turn 0.25 --control --on-cpu
compare index no-index --quick --design work
compare --pairs 4 -- gzip -1 -- gzip -9
sweep city:index --set rate=100,200.5 --duration 1.5 --repeat 7 --seed 41
sweep city:index --until p95=5ms --quick
study power-efficiency --quick --seed 41 --no-save
cure --pid 1 --thread cleaner --slack 7ms --yes
cure --pid 1 --thread cleaner --slack 7ms --keep
watch --system --interval 2.5 --no-ask --count 3
export --pid 1 --interval 2.5 --listen 127.0.0.1:9999 --top 7 --per-cpu yes
doctor --pid 1 --duration 2.5
energy --duration 2.5 --meter none
energy --calibrate --step 1.5 --repeats 3
residency --duration 2.5 --residency-source cpuidle
idle --clients 7 --duration 2.5 --repeat 3 --no-causes
idle --quick --clients 0 --meter none
servers fetch mariadb-11.4 --yes
workloads city
""".strip().splitlines()

# Command lines of habit: of other tools, and of people who have read no page. The remedy contains the second text.
HABITS: list[tuple[str, str]] = [
    ("run sleep 1", "run -- sleep 1"),
    ("run --duration 3 sleep 1", "run --duration 3 -- sleep 1"),
    ("sleep 1", "run -- sleep 1"),
    ("compare gzip -1 x -- gzip -9 x", "compare -- gzip -1 x -- gzip -9 x"),
    ("attribute mysqld", "attribute --pid mysqld"),
    ("attribute mysqld --duration 5", "attribute --duration 5 --pid mysqld"),
    ("profile postgres --lines --by stack", "profile --lines --by stack --pid postgres"),
    ("diagnose mariadbd", "diagnose --pid mariadbd"),
    ("attribute -p 1 sleep 5", "attribute --pid 1 --duration 5"),
    ("offcpu 1 --top 3", "offcpu --top 3 --pid 1"),
    ("top", "powerprof watch"),
    ("htop --interval 3", "powerprof watch --interval 3"),
    ("powertop", "powerprof watch"),
    ("turbostat --interval 5", "powerprof residency"),
    ("perf stat sleep 1", "run -- sleep 1"),
    ("perf record -p 1", "powerprof profile --pid 1"),
    ("record -F 99 -p 1", "powerprof profile"),
    ("strace -p 1", "powerprof syscalls --pid 1"),
    ("bench index", "powerprof run index"),
    ("diff index no-index", "powerprof compare index no-index"),
    ("check", "powerprof doctor"),
    ("city:index --duration 3", "powerprof run city:index --duration 3"),
    ("index no-index --quick", "powerprof compare index no-index --quick"),
    ("compare idnex no-index", "compare index no-index"),
    ("compare index no-idnex --quick", "compare index no-index --quick"),
    ("run city --repeat 3", "run city:index --repeat 3"),
    ("run citty:index", "run city:index"),
    ("study powerefficiency", "study power-efficiency"),
    ("residency 10", "residency --duration 10"),
    ("energy 10s", "energy --duration 10s"),
    ("watch 5", "watch --interval 5"),
    ("idle 16", "idle --clients 16"),
    ("idle --duration 5 minutes", "idle --duration 5minutes"),
    ("cure --thread x --slack 50 ms", "cure --thread x --slack 50ms"),
    ("deep-idle --slack page_cleaner 50ms", "--slack page_cleaner=50ms"),
    ("deep-idle --as skylake-sever", "--as skylake-server"),
    ("cure --host cpu-governer=performance", "--host cpu-governor=performance"),
    ("cure --finding polling_wiat", "--finding polling_wait"),
    ("energy --calibrate mymodel.toml", "--calibrate --output mymodel.toml"),
    ("compare -- gzip -1 F gzip -9 F", "compare -- gzip -1 F -- gzip -9 F"),
    ("compare gzip cat", "compare -- gzip -- cat"),
    ("run 'gzip -9 file'", "run -- gzip -9 file"),
    ("report --json idle-0001", "powerprof runs"),
    ("runs prune 20", "runs prune --keep 20"),
    ("workloads city:index", "workloads city"),
    ("workloads no-index", "workloads city"),
    ("servers install mysql-9.7", "servers fetch mysql-9.7"),
    ("idle mysqld", "--socket PATH"),
    ("idle --pid mysqld", "--socket PATH"),
    ("queries 'SELECT 1'", "leave it out"),
    ("queries --columns cpu p95", "queries --columns cpu,p95"),
    ("attribute --pid mysqld mariadbd", "--pid mysqld,mariadbd"),
    ("profile mysqld 10", "profile --pid mysqld --duration 10"),
    ("attribute mysqld 5s", "attribute --pid mysqld --duration 5s"),
    ("-v", "powerprof --version"),
    ("run index --label release candidate", "--label 'release candidate'"),
    ("idle -t 5", "idle --duration 5"),
    ("watch -n 5", "watch --count 5"),
    ("watch -d 5 --system", "watch --interval 5 --system"),
    ("profile -F 99 -p 1", "profile --frequency 99 --pid 1"),
    ("profile -p1", "profile --pid 1"),
    ("attribute -a", "attribute --system"),
    ("export --port 9100", "export --listen 9100"),
    ("watch --json --system", "watch --json-lines --system"),
    ("--duration 5 idle --clients 3", "idle --duration 5 --clients 3"),
    ("idle --quiet --clients 3", "--quiet idle --clients 3"),
    ("idle --runs-dir . --clients 3", "--runs-dir . idle --clients 3"),
    ("runs rm idle-0001", "runs prune"),
    ("servers fetch mariadb-11.44", "servers fetch mariadb-11.4"),
    ("functions --pid 1", "functions --pid 1 'handle_*'"),
    ("run", "run index"),
    ("compare index", "compare index no-index"),
    ("compare --quick", "compare --quick index no-index"),
    ("sweep --clients 1,2", "sweep --clients 1,2 city:index"),
    ("energy --meter rappl,perf_power", "--meter rapl,perf_power"),
    ("atribute --pid 1 --top 3", "attribute --pid 1 --top 3"),
    ("workload city", "workloads city"),
    ("report", "powerprof"),
    ("profile --output cpu.html", "profile -o cpu.html"),
    ("compare index no-index --repeats 5", "compare index no-index --pairs 5"),
    ("cure --undo", "cure --release"),
    ("energy --source rapl", "energy --meter rapl"),
    ("energy rapl", "energy --meter rapl"),
    ("idle ipmi --clients 3", "idle --clients 3 --meter ipmi"),
    ("runs --last 5", "powerprof runs"),
    ("workloads show city", "workloads city"),
    ("study run power-efficiency --quick", "study power-efficiency --quick"),
    ("report show idle-0001", "report idle-0001"),
    ("run city:", "run city:index"),
    ("run :index --quick", "run index --quick"),
    ("compare before.json after.json", "powerprof runs"),
    ("sweep city:index --set rate=100..500", "--set rate=100,200,400"),
]


@dataclass(frozen=True)
class BadLine:
    """A wrong command line.

    Attributes:
        words: the command line.
        named: texts of which the error names one.
        kept: words that a proposed command line has.
        proposed: a text of the remedy.
        codes: the documented exit codes.
    """

    words: tuple[str, ...]
    named: tuple[str, ...]
    kept: tuple[str, ...] = ()
    proposed: str = ""
    codes: tuple[int, ...] = (2,)

    @property
    def line(self) -> str:
        """The command line."""
        return shlex.join(self.words)


Draw = Callable[[random.Random, list[str]], BadLine | None]


def _parameters(command: str) -> list[Parameter]:
    return [each for _, _, each in walk_parameters(import_module(module_name(command)).Options)]


def _own_end(words: Sequence[str]) -> int:
    return words.index("--") if "--" in words else len(words)


def _typed(words: Sequence[str]) -> list[tuple[int, Parameter]]:
    """Return the places of the typed options with their declarations."""
    declared = {each.flag: each for each in _parameters(words[0]) if each.flag}
    return [(at, declared[word]) for at, word in enumerate(words[: _own_end(words)]) if word in declared]


def _misspell(draw: random.Random, word: str) -> str:
    start = len(word) - len(word.lstrip("-"))
    at = draw.randrange(start, len(word) - 1)
    return draw.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at] + word[at:],
        ]
    )


def _without(words: Sequence[str], at: int, count: int = 1) -> tuple[str, ...]:
    own = [*words[:at], *words[at + count : _own_end(words)]]
    return tuple(own)


def misspelled_option(draw: random.Random, words: list[str]) -> BadLine | None:
    options = [(at, each) for at, each in _typed(words) if len(each.flag) > len("--set")]
    if not options:
        return None
    at, parameter = draw.choice(options)
    wrong = _misspell(draw, parameter.flag)
    if wrong == parameter.flag or any(wrong == each.flag for each in _parameters(words[0])):
        return None
    changed = [*words[:at], wrong, *words[at + 1 :]]
    return BadLine(tuple(changed), (wrong,), tuple(words), parameter.flag)


def misspelled_command(draw: random.Random, words: list[str]) -> BadLine | None:
    wrong = _misspell(draw, words[0])
    if wrong == words[0] or len(wrong) < len("rum"):
        return None
    return BadLine((wrong, *words[1:]), (wrong,), tuple(words[1:]), words[0])


_CHOICES = {"--event": "page-faults", "--residency-source": "procfs", "--method": "samples", "--by": "user"}


def misspelled_value(draw: random.Random, words: list[str]) -> BadLine | None:
    names = ("city:index", "index", "no-index", "power-efficiency", "page-faults", "procfs", "samples", "city", "user")
    places = [at for at in range(1, _own_end(words)) if words[at] in names]
    if not places:
        return None
    at = draw.choice(places)
    wrong = _misspell(draw, words[at])
    if (
        wrong == words[at]
        or wrong.find(":") not in (-1, 4)
        or wrong.count(":") != words[at].count(":")
        or wrong[-1] in ":-"
    ):
        return None
    changed = (*words[:at], wrong, *words[at + 1 :])
    return BadLine(changed, tuple(wrong.split(":")), tuple(words), words[at])


def missing_value(draw: random.Random, words: list[str]) -> BadLine | None:
    options = [(at, each) for at, each in _typed(words) if not each.is_flag]
    if not options or "--" in words:
        return None
    at, parameter = draw.choice(options)
    rest = [*words[:at], *words[at + 2 :]]
    return BadLine((*rest, parameter.flag), (parameter.flag,), (), parameter.flag)


def _bad_value(values: Callable[[Parameter], Sequence[str]]) -> Draw:
    def build(draw: random.Random, words: list[str]) -> BadLine | None:
        options = [(at, each) for at, each in _typed(words) if not each.is_flag and values(each)]
        if not options:
            return None
        at, parameter = draw.choice(options)
        value = draw.choice(list(values(parameter)))
        changed = (*words[: at + 1], value, *words[at + 2 :])
        return BadLine(changed, (f"{parameter.flag} {value}".strip(), f"{parameter.flag} has"))

    return build


def _is_number(parameter: Parameter) -> bool:
    return parameter.low is not None or parameter.high is not None


wrong_unit = _bad_value(lambda each: ("5kg", "5 bananas", "3W", "10%") if each.unit else ())
not_a_number = _bad_value(lambda each: ("many", "1e", "0x10", "٣", "1,5", "-") if _is_number(each) else ())
negative = _bad_value(lambda each: ("-1", "-5s", "-0.1") if _is_number(each) else ())
huge = _bad_value(lambda each: ("99999999999999", "1e30", "9" * 60) if _is_number(each) else ())
empty = _bad_value(lambda each: ("", " "))


def twice(draw: random.Random, words: list[str]) -> BadLine | None:
    options = [(at, each) for at, each in _typed(words) if not each.is_flag and not each.is_repeatable]
    if not options:
        return None
    at, parameter = draw.choice(options)
    changed = (*words[:at], *words[at : at + 2], *words[at:])
    return BadLine(changed, (parameter.flag,))


def of_another_command(draw: random.Random, words: list[str]) -> BadLine | None:
    own = {each.flag for each in _parameters(words[0])}
    other = draw.choice(list(COMMANDS))
    foreign = [each for each in _parameters(other) if each.flag and each.flag not in own]
    if not foreign:
        return None
    parameter = draw.choice(foreign)
    typed = [parameter.flag] if parameter.is_flag else [parameter.flag, parameter.example or "5"]
    end = _own_end(words)
    return BadLine((*words[:end], *typed, *words[end:]), (parameter.flag,), tuple(words))


def excluded(draw: random.Random, words: list[str]) -> BadLine | None:
    typed = {each.flag for _, each in _typed(words)}
    pairs = [
        (flag, each)
        for each in _parameters(words[0])
        for flag in each.excludes
        if flag in typed and each.flag not in typed and each.is_flag
    ]
    flags = {each.flag: each for each in _parameters(words[0]) if each.is_flag and each.flag not in typed}
    for mode in import_module(module_name(words[0])).Options.MODES:
        for refused in () if mode.is_without else mode.refuses:
            pairs += [(refused, flags[word]) for word in mode.words if word in flags and refused in typed]
            pairs += [(word, flags[refused]) for word in mode.words if word in typed and refused in flags]
    if not pairs:
        return None
    flag, parameter = draw.choice(pairs)
    end = _own_end(words)
    return BadLine((*words[:end], parameter.flag, *words[end:]), (parameter.flag, flag))


def extra_word(draw: random.Random, words: list[str]) -> BadLine | None:
    if "--" in words or words[0] in ("run", "sweep", "queries"):
        return None
    word = draw.choice(["now", "please", "127.0.0.1", "2026", "half/way"])
    return BadLine((*words, word), (word,), tuple(words[:-1]))


def unknown_process(draw: random.Random, words: list[str]) -> BadLine | None:
    places = [at for at, each in _typed(words) if each.flag == "--pid"]
    if not places:
        return None
    word = draw.choice(["999999999", "4194303", "nosuchd", "0", "-3", "1;ls", "../1"])
    at = places[0]
    return BadLine((*words[: at + 1], word, *words[at + 2 :]), (word, "--pid"))


def missing_file(draw: random.Random, words: list[str]) -> BadLine | None:
    options = [each for each in _parameters(words[0]) if each.flag and each.metavar in ("FILE", "FILE…", "DIR")]
    if not options or "--" in words:
        return None
    parameter = draw.choice(options)
    word = draw.choice(["/nonexistent/x.json", "/tmp", "/proc/1/nosuch/x.html", "/dev/null/x.csv"])
    if parameter.flag in {each.flag for _, each in _typed(words)} or (word, parameter.metavar) == ("/tmp", "DIR"):
        return None
    return BadLine((*words, parameter.flag, word), (word, parameter.flag), codes=(1, 2))


KINDS: dict[str, Draw] = {
    function.__name__ if function.__name__ != "build" else name: function
    for name, function in {
        "misspelled_option": misspelled_option,
        "misspelled_command": misspelled_command,
        "misspelled_value": misspelled_value,
        "missing_value": missing_value,
        "wrong_unit": wrong_unit,
        "not_a_number": not_a_number,
        "negative": negative,
        "huge": huge,
        "empty": empty,
        "twice": twice,
        "of_another_command": of_another_command,
        "excluded": excluded,
        "extra_word": extra_word,
        "unknown_process": unknown_process,
        "missing_file": missing_file,
    }.items()
}


def draw_lines(kind: str, seed: int, count: int) -> Iterator[BadLine]:
    """Yield `count` different wrong command lines of a kind."""
    draw, drawn = random.Random(f"{kind} {seed}"), set()
    for _ in range(100 * count):
        words = shlex.split(draw.choice(RIGHT))
        bad = KINDS[kind](draw, words)
        if bad is not None and bad.words not in drawn:
            drawn.add(bad.words)
            yield bad
        if len(drawn) == count:
            return


def habits() -> Iterator[BadLine]:
    """Yield the command lines of habit."""
    for line, proposed in HABITS:
        words = shlex.split(line)
        yield BadLine(tuple(words), ("",), (), proposed)


def judge(bad: BadLine, ended: Ended) -> list[str]:
    """Return the faults of an answer."""
    if ended.began or ended.broke:
        return [f"began {ended.began}, broke {ended.broke}"]
    lines = ended.err.splitlines()
    errors, hints = ([line for line in lines if line.startswith(f"{kind}: ")] for kind in ("error", "hint"))
    faults = [] if ended.code in bad.codes else [f"exit code {ended.code}"]
    if ended.out or len(errors) != 1 or len(hints) > 1 or len(lines) != len(errors) + len(hints):
        return [*faults, "not one line of error and one of hint"]
    if not hints and ended.code == 2:
        return [*faults, "no remedy"]
    if not any(name in errors[0] for name in bad.named):
        faults.append(f"names none of {bad.named}")
    remedy = hints[0] if hints else ""
    proposals = [shlex.split(remedy[start:end]) for start, end in find_commands(remedy)]
    proposals = [words[words.index("powerprof") + 1 :] for words in proposals]
    faults += [f"refused itself: {shlex.join(words)}" for words in proposals if not _accepts(words)]
    if bad.proposed not in remedy:
        faults.append(f"does not propose {bad.proposed}")
    lost = sorted({*bad.kept} - {word for words in proposals for word in words}) if proposals else []
    if lost:
        faults.append(f"loses {lost}")
    if re.search(r"\s\.{3}|\bNone\b|Traceback", ended.err):
        faults.append("an unfinished text")
    return faults
