# SPDX-License-Identifier: Apache-2.0
"""Words of other tools, such as perf, strace and turbostat, and the commands and options here that they mean."""

from __future__ import annotations

# Names of other tools and usual words → commands.
COMMANDS_MEANT = {
    **dict.fromkeys(("top", "htop", "powertop", "monitor", "live"), "watch"),
    **dict.fromkeys(("record", "flamegraph", "sample", "cpu", "py-spy"), "profile"),
    **dict.fromkeys(("turbostat", "idle-states", "cstates"), "residency"),
    **dict.fromkeys(("trace", "wakeups", "why"), "attribute"),
    **dict.fromkeys(("strace", "syscall"), "syscalls"),
    **dict.fromkeys(("power", "rapl", "watts", "measure", "meter"), "energy"),
    **dict.fromkeys(("bench", "benchmark", "stat", "exec", "time"), "run"),
    **dict.fromkeys(("diff", "vs", "hyperfine"), "compare"),
    **dict.fromkeys(("check", "status", "info", "symbols"), "doctor"),
    **dict.fromkeys(("ps", "list", "ls", "history"), "runs"),
    **dict.fromkeys(("show", "open", "html", "script", "annotate"), "report"),
    **dict.fromkeys(("fix", "tune", "set"), "cure"),
    **dict.fromkeys(("find", "advise", "explain-server"), "diagnose"),
    **dict.fromkeys(("exporter", "serve", "prometheus", "metrics"), "export"),
    **dict.fromkeys(("statements", "query", "sql", "slow"), "queries"),
    **dict.fromkeys(("install", "fetch", "download"), "servers"),
    **dict.fromkeys(("probe", "ftrace", "funccount", "count"), "functions"),
    **dict.fromkeys(("sched", "waits", "offcputime"), "offcpu"),
    **dict.fromkeys(("reproduce", "repeat"), "study"),
    "version": "--version",
    "completion": "--install-completion",
}
# Options of other tools → options here; the first one that the command has.
OPTIONS_MEANT = {
    **dict.fromkeys(("-d", "-t", "--time", "--seconds", "--timeout", "--length", "--window", "--sleep"), "--duration"),
    **dict.fromkeys(("-i", "-I", "-s", "--delay", "--every", "--period", "--refresh"), "--interval"),
    **dict.fromkeys(("-n", "-r", "--iterations", "--num", "--runs", "--times", "--rounds", "--repeats"), "--repeat"),
    **dict.fromkeys(("-F", "--freq", "--hz"), "--frequency"),
    **dict.fromkeys(("-a", "--all-cpus", "--system-wide", "--host"), "--system"),
    **dict.fromkeys(("-c", "--connections", "--threads", "-C"), "--clients"),
    **dict.fromkeys(("-G", "--cgroups", "--unit"), "--cgroup"),
    **dict.fromkeys(("-e",), "--event"),
    **dict.fromkeys(("-p", "--process", "--name", "--comm"), "--pid"),
    **dict.fromkeys(("-S", "--host-socket"), "--socket"),
    **dict.fromkeys(("-l", "--port", "--address", "--bind", "--web.listen-address"), "--listen"),
    **dict.fromkeys(("-y", "--assume-yes", "--force"), "--yes"),
    **dict.fromkeys(("-f", "--input", "--file"), "--from"),
    **dict.fromkeys(("-j",), "--json"),
    **dict.fromkeys(("--out", "--output", "--html", "--csv", "--md"), "-o"),
    **dict.fromkeys(("-g", "--call-graph", "--stack"), "--by"),
    **dict.fromkeys(("--source", "--sensor"), "--meter"),
    **dict.fromkeys(("--undo", "--restore", "--revert", "--rollback"), "--release"),
    **dict.fromkeys(("--limit", "--rows", "--max"), "--top"),
}
# Options with the same purpose, for a command without the usual one.
SIMILAR_PURPOSE = {
    "--repeat": ("--pairs", "--count", "--top"),
    "--interval": ("--duration",),
    "--duration": ("--interval",),
}
# Spellings of a flag's value, if the synonym has one.
MEANT_VALUES = {"--by": ["stack"]}


# Words before the name of a command.
PREFIXES = ("perf", "sudo", "powerprof")
# Words of other tools between a command and its argument.
FILLERS = ("show", "info", "describe", "get", "view", "open", "run")
# Actions of other tools, after a command.
ACTIONS_MEANT = {
    **{("runs", word): "prune" for word in ("rm", "delete", "remove", "clean", "clear")},
    **{("servers", word): "fetch" for word in ("install", "download", "get", "add")},
    **{("servers", word): "remove" for word in ("rm", "delete", "uninstall")},
    **{("servers", word): "list" for word in ("ls", "show")},
}
