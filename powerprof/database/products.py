# SPDX-License-Identifier: Apache-2.0
"""The kinds of private servers: one module each, with the functions of `Product`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from powerprof.database import mysql, postgresql
from powerprof.database.base import Login, Sql
from powerprof.database.builds import ServerBuild, Steps
from powerprof.database.settings import Setting
from powerprof.model.identities import Family
from powerprof.system.server_names import is_postgres_program

FAMILIES: tuple[Family, ...] = ("mysql", "postgresql")
"""The products by dialect; `mysql` is MariaDB or MySQL."""


class Product(Protocol):
    """The members that `mysql` and `postgresql` have, for servers in a directory of powerprof."""

    @property
    def TITLE(self) -> str: ...
    @property
    def HAS_TCP(self) -> bool: ...
    @property
    def END_SIGNAL(self) -> signal.Signals: ...
    @property
    def TEMPORARY_FILES(self) -> tuple[str, ...]: ...
    def find_build(self, binary: Path | None = None) -> ServerBuild: ...
    def format_settings(self, settings: Mapping[str, Setting]) -> list[str]: ...
    def build_initialise_steps(self, build: ServerBuild, datadir: Path) -> Steps: ...
    def build_login(self, directory: Path) -> Login: ...
    def build_files(self, build: ServerBuild, account: Login) -> Mapping[str, str]: ...
    def build_command_line(
        self, build: ServerBuild, settings: Mapping[str, Setting], connections: int, directory: Path
    ) -> list[str]: ...
    def build_network_options(self, port: int | None, address: str) -> list[str]: ...
    def list_processes(self, pid: int) -> Sequence[int]: ...
    def read_thread_names(self, connect: Callable[[], Sql], pid: int) -> dict[int, str]: ...


def product_of_family(family: str) -> Product:
    """Return the module of a family."""
    return postgresql if family == "postgresql" else mysql


def product_of(build: ServerBuild) -> Product:
    """Return the module of a program."""
    return product_of_family(build.family)


def find_program(family: str, binary: Path | None) -> ServerBuild:
    """Return the program to start: `binary` with its product by name, else a program of the family."""
    is_postgres = binary is not None and is_postgres_program(binary.name)
    return product_of_family("postgresql" if is_postgres else family).find_build(binary)
