# SPDX-License-Identifier: Apache-2.0
"""The owner of the rule for uprobes: only where no process can hold the kernel.

To place or remove a uprobe, the kernel takes the memory map's lock of every process that maps the file, whatever
process is probed, and all forks of the host wait meanwhile (`register_for_each_vma` and `dup_mmap_sem` in
kernel/events/uprobes.c). A process can keep its own lock for as long as it wants, for example by reading
/proc/self/mem from a page of its own FUSE file. So the processes are looked at directly before each change:

* Placing: another person's process that maps the file makes it unfit, whatever its lock is now.
* Placing and removing: all locks must be free at two looks, the second one microseconds before the change.

The kernel's own tree of a file's mappings is read (`address_space.i_mmap`), because /proc/PID/maps needs the lock
before Linux 6.17 and shows an overlay's number instead of the file's since Linux 6.8.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from powerprof.system.caller import caller, is_system_account
from powerprof.system.errors import CapabilityError, PowerprofError, reason_of
from powerprof.system.foreign_text import printable
from powerprof.system.next_steps import command_line
from powerprof.system.processes import account_name
from powerprof.system.reader_process import account_ids, link_of
from powerprof.tracing.bpf.kernel_memory import KernelMemory, MovedError

# Threads of a busy process hold the lock for microseconds, so that some of these looks find it free.
_PAUSE_S = 0.005
PATIENCE_S = 1.0
_MOST_MAPPINGS = 20_000
_MAY_EXECUTE, _MAY_SHARE = 0x40, 0x80  # VM_MAYEXEC, VM_MAYSHARE (include/linux/mm.h)
# Free readers' counter of a PREEMPT_RT lock (READER_BIAS, include/linux/rwbase_rt.h).
_REALTIME_FREE = 0x80000000
# Types and pointers of maple trees (include/linux/maple_tree.h).
_MAPLE_KINDS = {1: "maple_range_64", 2: "maple_range_64", 3: "maple_arange_64"}
_MAPLE_LEAF, _MAPLE_MASK = 1, 0xFF
_MAPLE_BYTES, _MOST_DEPTH = 256, 64


class UnfitFileError(PowerprofError):
    """A file that is not probed, because a process that maps it could stop all forks of this host."""

    def __init__(self, name: str, reason: str, remedy: str = "end that process") -> None:
        samples = command_line("profile", same_target=True)
        super().__init__(f"{name} is not probed: {reason}", f"{remedy}, or use samples: {samples}")


class Mapper(msgspec.Struct, frozen=True):
    """A memory map with private mappings of a file. `pid` 0 and no `uids`: its process has just ended."""

    address: int
    pid: int
    uids: frozenset[int]
    is_locked: bool


class MappedFile:
    """A file to probe, as the kernel sees it. `memory` must be open as long as this is used."""

    def __init__(self, memory: KernelMemory, address: int, name: str = "a file") -> None:
        """Use the tree of mappings (`address_space`) at this address. Raise CapabilityError."""
        self._tree, self.address, self._name = _Tree(memory), address, name

    @classmethod
    def find(cls, memory: KernelMemory, file_fd: int) -> MappedFile:
        """Return an open file. Raise CapabilityError, PowerprofError."""
        name = printable((link_of(f"/proc/self/fd/{file_fd}") or "a file").rpartition("/")[2])
        try:
            return cls(memory, _Tree(memory).find(file_fd), name)
        except OSError as error:
            raise PowerprofError(
                f"{name} is not probed: it cannot be opened ({reason_of(error)})", "try again"
            ) from error
        except MovedError as error:
            raise UnfitFileError(name, "the kernel's list of its mappings cannot be read", "try again") from error

    def look(self) -> list[Mapper]:
        """Return the memory maps with private mappings of this file, except our own. Raise UnfitFileError."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return list(self._tree.mappers(self.address))
            except MovedError:
                if time.monotonic() >= end_s:
                    break
                time.sleep(_PAUSE_S)
            except _TooManyError:
                raise self._explain_unfit(f"it is mapped more than {_MOST_MAPPINGS:,} times") from None
        raise self._explain_unfit("the processes that map it change all the time")

    def require_fit(self, pids: Collection[int], prelude: Callable[[], None] = lambda: None) -> None:
        """Return if a probe may be placed for the processes `pids` now; raise UnfitFileError otherwise.

        Accounts that may map the file are those of these processes, system accounts, ourselves and our caller.
        `prelude`: see `uprobe_links.py`.
        """
        allowed = {os.geteuid(), caller().uid, *(uid for pid in pids for uid in account_ids(pid))}
        _wait([self], prelude, allowed)

    def find_locked(self, allowed: Collection[int] | None) -> tuple[bool, UnfitFileError | None]:
        """Return whether another process maps the file, and the error for a locked one.

        Raise UnfitFileError if an account maps it that is not in `allowed`; None: all are.
        """
        mappers = self.look()
        if allowed is not None:
            self._refuse_strangers(mappers, allowed)
        locked = next((mapper for mapper in mappers if mapper.is_locked), None)
        reason = None if locked is None else f"{_describe(locked)} maps it and keeps its memory map locked"
        return bool(mappers), None if reason is None else self._explain_unfit(reason)

    def _refuse_strangers(self, mappers: Sequence[Mapper], allowed: Collection[int]) -> None:
        for mapper in mappers:
            if any(uid not in allowed and not is_system_account(uid) for uid in mapper.uids):
                raise self._explain_unfit(
                    f"{_describe(mapper)} maps it, and could stop all forks of this host meanwhile"
                )

    def _explain_unfit(self, reason: str) -> UnfitFileError:
        return UnfitFileError(self._name, reason)


def wait_until_free(files: Sequence[MappedFile], prelude: Callable[[], None]) -> bool:
    """Return whether all locks became free within the patience: probes of these files may be removed now."""
    try:
        _wait(files, prelude, None)
    except UnfitFileError:
        return False
    return True


def _wait(files: Sequence[MappedFile], prelude: Callable[[], None], allowed: Collection[int] | None) -> None:
    """Return when two looks, before and after a prelude, find no lock. Raise UnfitFileError after the patience."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        looks = [file.find_locked(allowed) for file in files]
        if not any(is_mapped for is_mapped, _ in looks):
            return
        if not any(error for _, error in looks):
            prelude()
            looks = [file.find_locked(allowed) for file in files]
        error = next((error for _, error in looks if error is not None), None)
        if error is None:
            return
        if time.monotonic() >= end_s:
            raise error
        time.sleep(_PAUSE_S)


class _TooManyError(Exception):
    """More mappings than can be looked at."""


def _describe(mapper: Mapper) -> str:
    if not mapper.pid:
        return "a process that is ending"
    return f"process {mapper.pid} of account {account_name(max(mapper.uids))}"


class _Tree:
    """The tree of a file's mappings, and the fields that lead to it."""

    def __init__(self, memory: KernelMemory) -> None:
        self._memory, at = memory, memory.offset
        if not memory.has("mm_struct", "owner"):
            raise CapabilityError(
                "this kernel does not show which process maps a file", "boot a kernel with CONFIG_MEMCG=y (Debian's is)"
            )
        self._node, self._mm, self._file = (at("vm_area_struct", name) for name in ("shared.rb", "vm_mm", "vm_file"))
        self._flags = at("vm_area_struct", "vm_flags")
        self._left, self._right = (at("rb_node", name) for name in ("rb_left", "rb_right"))
        self._vma_bytes = 8 + max(self._node + max(self._left, self._right), self._mm, self._file, self._flags)
        self._root = at("address_space", "i_mmap.rb_root.rb_node")
        self._mapping = at("file", "f_mapping")
        self._owner, self._users, self._lock = (at("mm_struct", name) for name in ("owner", "mm_users", "mmap_lock"))
        self._tgid, self._cred, self._mm_of_task = (at("task_struct", name) for name in ("tgid", "real_cred", "mm"))
        self._uids = at("cred", "uid")
        # The numbers of user and group are stored in turn: real, saved, effective, of file accesses.
        self._uids_bytes = at("cred", "fsuid") + 4 - self._uids
        self._is_realtime = not memory.has("rw_semaphore", "count")
        self._lock += at("rw_semaphore", "rwbase.readers" if self._is_realtime else "count")

    def find(self, file_fd: int) -> int:
        """Return the address of the address_space of an open file. Raise MovedError, PowerprofError.

        The file is mapped for a moment: its mapping leads to the inode that the kernel probes, of an overlay too.
        """
        # A new description sees an overlay's file as it is now.
        file = os.open(f"/proc/self/fd/{file_fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            with _map_file(file) as address:
                mm = self._memory.word(self._memory.current_task() + self._mm_of_task)
                vma = self._find_vma(mm, address)
                return self._memory.word(self._memory.word(vma + self._file) + self._mapping)
        finally:
            os.close(file)

    def _find_vma(self, mm: int, address: int) -> int:
        """Return the vm_area_struct of an address. Raise MovedError."""
        if self._memory.has("mm_struct", "mm_rb"):
            return self._find_in_rb_tree(mm, address)  # before Linux 6.1
        at, word = self._memory.offset, self._memory.word
        entry = word(mm + at("mm_struct", "mm_mt") + at("maple_tree", "ma_root"))
        for _ in range(_MOST_DEPTH):
            kind = entry >> 3 & 15
            if kind not in _MAPLE_KINDS:
                break
            pivots, slots = (at(_MAPLE_KINDS[kind], name) for name in ("pivot", "slot"))
            node = self._memory.read(entry & ~_MAPLE_MASK, _MAPLE_BYTES)
            limits = struct.unpack_from(f"={(slots - pivots) // 8}Q", node, pivots)
            # The first pivot that is not below the address; a 0 after the first one is the end of the node.
            place = next((n for n, limit in enumerate(limits) if address <= limit or (n and not limit)), len(limits))
            (entry,) = struct.unpack_from("=Q", node, slots + 8 * place)
            if kind == _MAPLE_LEAF:
                return int(entry)
        raise MovedError

    def _find_in_rb_tree(self, mm: int, address: int) -> int:
        at, word = self._memory.offset, self._memory.word
        node = word(mm + at("mm_struct", "mm_rb.rb_node"))
        for _ in range(_MOST_DEPTH):
            if not node:
                break
            vma = node - at("vm_area_struct", "vm_rb")
            if address >= word(vma + at("vm_area_struct", "vm_end")):
                node = word(node + self._right)
            elif address < word(vma + at("vm_area_struct", "vm_start")):
                node = word(node + self._left)
            else:
                return vma
        raise MovedError

    def mappers(self, mapping: int) -> Iterator[Mapper]:
        """Yield each memory map once. Raise MovedError, _TooManyError."""
        own = self._memory.word(self._memory.current_task() + self._mm_of_task)
        nodes, seen = [self._memory.word(mapping + self._root)], {own}
        count = 0
        while nodes:
            node = nodes.pop()
            if not node:
                continue
            count += 1
            if count > _MOST_MAPPINGS:
                raise _TooManyError
            vma = self._memory.read(node - self._node, self._vma_bytes)
            mm, flags, left, right = (
                int.from_bytes(vma[place : place + 8], "little")
                for place in (self._mm, self._flags, self._node + self._left, self._node + self._right)
            )
            nodes += (left, right)
            # The mappings that can have a breakpoint, as valid_vma() of the kernel chooses them.
            if mm not in seen and flags & (_MAY_EXECUTE | _MAY_SHARE) == _MAY_EXECUTE:
                seen.add(mm)
                file = int.from_bytes(vma[self._file : self._file + 8], "little")
                if self._memory.word(file + self._mapping) != mapping:
                    raise MovedError  # the mapping was removed, and its memory is another one's now
                if (mapper := self._describe(mm)) is not None:
                    yield mapper

    def _describe(self, mm: int) -> Mapper | None:
        """Return the process of a memory map; None if it has no users left, so that the kernel skips it."""
        if not int.from_bytes(self._memory.read(mm + self._users, 4), "little"):
            return None
        owner = self._memory.word(mm + self._owner)
        if not owner:
            return Mapper(mm, 0, frozenset(), True)
        numbers = self._memory.read(self._memory.word(owner + self._cred) + self._uids, self._uids_bytes)
        uids = struct.unpack(f"={self._uids_bytes // 4}I", numbers)[::2]
        pid = int.from_bytes(self._memory.read(owner + self._tgid, 4), "little")
        return Mapper(mm, pid, frozenset(uids), self._is_locked(mm))

    def _is_locked(self, mm: int) -> bool:
        if self._is_realtime:
            return int.from_bytes(self._memory.read(mm + self._lock, 4), "little") != _REALTIME_FREE
        return self._memory.word(mm + self._lock) != 0


@contextmanager
def _map_file(file: int) -> Iterator[int]:
    """Map the first page of a file and yield its address. No page is read. Raise PowerprofError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    address = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_PRIVATE, file, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise PowerprofError(f"cannot map the file to probe ({os.strerror(ctypes.get_errno()).lower()})", "free memory")
    try:
        yield int(address)
    finally:
        libc.munmap(address, mmap.PAGESIZE)
