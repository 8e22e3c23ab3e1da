# SPDX-License-Identifier: Apache-2.0
"""Sum sleeps, waits for a CPU and wakings of threads in the kernel, and read the sums at the end of a window."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from powerprof.measure.window import PassedWindow, run_window
from powerprof.system.errors import CapabilityError
from powerprof.system.own_processes import own_pids
from powerprof.system.reader_process import shared
from powerprof.system.tasks import clean
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.maps import SummingProgram
from powerprof.tracing.bpf.shared_numbers import NAME_BYTES, NUMBERS, WHYS, Abi, CallKind, OffCpuReason
from powerprof.tracing.bpf.types import Btf, build_argument_definitions, build_struct_definitions, read_kernel_btf
from powerprof.tracing.captures import CallSum, FileSum, OffCpuTrace, SyscallTrace, ThreadSums, WakingSum
from powerprof.tracing.followed import FollowedProcesses

_PREEMPTED = OffCpuReason.PREEMPTED
_STATES = tuple(why for why in OffCpuReason if why is not _PREEMPTED)
_THREADS, _WAKERS = 16384, 65536
_OPTIONAL_TRACEPOINTS = ("local_timer_entry", "irq_work_entry", "call_function_single_entry")
_THREAD = np.dtype(
    [
        *((name, "<u8") for name in ("out_ns", "woken_ns", "waker")),
        ("counts", "<u8", WHYS),
        ("off_ns", "<u8", WHYS),
        *((name, "<u8") for name in ("sleep_max_ns", "waits", "wait_ns", "wait_max_ns", "why")),
        ("comm", "S16"),
        ("waker_comm", "S16"),
    ]
)
_WAKER_KEY = np.dtype([("sleeper", "<u8"), ("waker", "<u8")])
_WAKER = np.dtype([("count", "<u8"), ("comm", "S16")])


def build_offcpu_definitions(btf: Btf, *, every_process: bool) -> dict[str, int | str]:
    """Return the definitions of offcpu.bpf.c for this kernel."""
    state = "__state" if btf.has_field("task_struct", "__state") else "state"  # renamed by 2f064a59a11f
    fields = {name: ("task_struct", name) for name in ("pid", "tgid", "comm")} | {"state": ("task_struct", state)}
    return {
        "EVERY_PROCESS": int(every_process),
        "THREADS": _THREADS,
        "WAKERS": _WAKERS,
        "DIRECT": int(features.can_read_directly(btf)),
        **build_struct_definitions(btf, {f"task_struct_{name}": where for name, where in fields.items()}),
        **build_argument_definitions(btf, "sched_switch", ("preempt", "prev", "next"), "prev_state"),
        **features.build_interrupt_definitions(btf),
        **{f"HAVE_{name}": 1 for name in _OPTIONAL_TRACEPOINTS if btf.has_tracepoint(name)},
    }


class OffCpuTracer(SummingProgram):
    """The loaded program that sums sleeps. A context manager that removes it."""

    def __init__(self, pids: Sequence[int] | None, find_members: Callable[[], Sequence[int]] | None = None) -> None:
        """Load the program for these processes, or for every process if `pids` is None. New threads count.

        `find_members`: the present processes of a target that others may join.

        Raises CapabilityError if this host or user may not.
        """
        btf = read_kernel_btf()
        definitions = build_offcpu_definitions(btf, every_process=pids is None)
        super().__init__(
            "offcpu.bpf.c",
            definitions,
            btf,
            None if pids is None else FollowedProcesses(pids, find_members),
            ("threads", "wakers"),
        )

    def measure(self, duration_s: float, *, settle: bool = False) -> OffCpuTrace:
        """Measure for `duration_s`. An interrupt ends the window early and sets `interrupted`.

        `settle`: give up root's privileges once nothing is left to open.
        """
        return self.collect(run_window(duration_s, self, settle=settle))

    def collect(self, passed: PassedWindow) -> OffCpuTrace:
        """Return the sums of the window."""
        began_s = time.process_time()
        threads, wakings = self._threads(), self._wakings()
        bpf_s = self.bpf_s()
        lost, unseen = self.counters()
        return OffCpuTrace(
            pids=self.pids(),
            window_s=passed.window_s,
            threads=threads,
            wakings=wakings,
            lost_count=lost,
            unseen_count=unseen,
            notes=[*passed.notes, *self.notes()],
            tool_cpu_s=passed.tool_cpu_s + time.process_time() - began_s,
            bpf_s=bpf_s,
            interrupted=passed.interrupted is not None,
        )

    def _threads(self) -> list[ThreadSums]:
        own = own_pids()
        keys, values = self.rows("threads")
        sums = []
        for who, row in zip(np.frombuffer(keys, "<u8"), np.frombuffer(values, _THREAD), strict=True):
            states = {why.name.lower(): (int(row["counts"][why]), int(row["off_ns"][why])) for why in _STATES}
            thread = ThreadSums(
                pid=int(who) >> 32,
                tid=int(who) & 0xFFFFFFFF,
                comm=clean(bytes(row["comm"])),
                states={name: state for name, state in states.items() if state[0]},
                sleep_max_ns=int(row["sleep_max_ns"]),
                waits_count=int(row["waits"]),
                wait_ns=int(row["wait_ns"]),
                wait_max_ns=int(row["wait_max_ns"]),
                preempted_count=int(row["counts"][_PREEMPTED]),
                preempted_ns=int(row["off_ns"][_PREEMPTED]),
            )
            if thread.pid not in own:
                sums.append(thread)
        return sums

    def _wakings(self) -> list[WakingSum]:
        own = own_pids()
        keys, values = self.rows("wakers")
        pairs = zip(np.frombuffer(keys, _WAKER_KEY), np.frombuffer(values, _WAKER), strict=True)
        return [
            WakingSum(
                tid=int(key["sleeper"]) & 0xFFFFFFFF,
                waker_pid=int(key["waker"]) >> 32,
                waker_tid=int(key["waker"]) & 0xFFFFFFFF,
                waker_comm=clean(bytes(row["comm"])) if key["waker"] else "interrupt",
                count=int(row["count"]),
            )
            for key, row in pairs
            if int(key["sleeper"]) >> 32 not in own
        ]


# Count system calls by thread and kind, and reads and writes by file, in the kernel (probes/bpf/syscalls.bpf.c).

# Numbers of system calls by machine: include/uapi of the kernel. They never change. @N: the next number is N.

_X86_64 = """
read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
ioctl pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise shmget shmat shmctl
dup dup2 pause nanosleep getitimer alarm setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg
recvmsg shutdown bind listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork execve exit
wait4 kill uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl flock fsync fdatasync truncate
ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink symlink readlink chmod fchmod chown
fchown lchown umask gettimeofday getrlimit getrusage sysinfo times ptrace getuid syslog getgid setuid setgid geteuid
getegid setpgid getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid getresgid
getpgid setfsuid setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend
sigaltstack utime mknod uselib personality ustat statfs fstatfs sysfs getpriority setpriority sched_setparam
sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max sched_get_priority_min
sched_rr_get_interval mlock munlock mlockall munlockall vhangup modify_ldt pivot_root _sysctl prctl arch_prctl
adjtimex setrlimit chroot sync acct settimeofday mount umount2 swapon swapoff reboot sethostname setdomainname iopl
ioperm create_module init_module delete_module get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg
afs_syscall tuxcall security gettid readahead setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr
llistxattr flistxattr removexattr lremovexattr fremovexattr tkill time futex sched_setaffinity sched_getaffinity
set_thread_area io_setup io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie epoll_create
epoll_ctl_old epoll_wait_old remap_file_pages getdents64 set_tid_address restart_syscall semtimedop fadvise64
timer_create timer_settime timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres
clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy mq_open
mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid add_key request_key keyctl
ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat
futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll unshare
set_robust_list get_robust_list splice tee sync_file_range vmsplice move_pages utimensat epoll_pwait signalfd
timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1 dup3 pipe2
inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init fanotify_mark prlimit64
name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu process_vm_readv process_vm_writev
kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create kexec_file_load bpf execveat
userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx
io_pgetevents rseq
"""
# 32-bit calls (int 0x80, i386 programs), and the calls of x32 with other numbers than those of 64 bits.
_I386 = """
restart_syscall exit fork read write open close waitpid creat link unlink execve chdir time mknod chmod lchown break
oldstat lseek getpid mount umount setuid getuid stime ptrace alarm oldfstat pause utime stty gtty access nice ftime
sync kill rename mkdir rmdir dup pipe times prof brk setgid getgid signal geteuid getegid acct umount2 lock ioctl
fcntl mpx setpgid ulimit oldolduname umask chroot ustat dup2 getppid getpgrp setsid sigaction sgetmask ssetmask
setreuid setregid sigsuspend sigpending sethostname setrlimit getrlimit getrusage gettimeofday settimeofday
getgroups setgroups select symlink oldlstat readlink uselib swapon reboot readdir mmap munmap truncate ftruncate
fchmod fchown getpriority setpriority profil statfs fstatfs ioperm socketcall syslog setitimer getitimer stat lstat
fstat olduname iopl vhangup idle vm86old wait4 swapoff sysinfo ipc fsync sigreturn clone setdomainname uname
modify_ldt adjtimex mprotect sigprocmask create_module init_module delete_module get_kernel_syms quotactl getpgid
fchdir bdflush sysfs personality afs_syscall setfsuid setfsgid _llseek getdents _newselect flock msync readv writev
getsid fdatasync _sysctl mlock munlock mlockall munlockall sched_setparam sched_getparam sched_setscheduler
sched_getscheduler sched_yield sched_get_priority_max sched_get_priority_min sched_rr_get_interval nanosleep mremap
setresuid getresuid vm86 query_module poll nfsservctl setresgid getresgid prctl rt_sigreturn rt_sigaction
rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend pread64 pwrite64 chown getcwd capget
capset sigaltstack sendfile getpmsg putpmsg vfork ugetrlimit mmap2 truncate64 ftruncate64 stat64 lstat64 fstat64
lchown32 getuid32 getgid32 geteuid32 getegid32 setreuid32 setregid32 getgroups32 setgroups32 fchown32 setresuid32
getresuid32 setresgid32 getresgid32 chown32 setuid32 setgid32 setfsuid32 setfsgid32 pivot_root mincore madvise
getdents64 fcntl64 @224 gettid readahead setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr
llistxattr flistxattr removexattr lremovexattr fremovexattr tkill sendfile64 futex sched_setaffinity
sched_getaffinity set_thread_area get_thread_area io_setup io_destroy io_getevents io_submit io_cancel fadvise64
@252 exit_group lookup_dcookie epoll_create epoll_ctl epoll_wait remap_file_pages set_tid_address timer_create
timer_settime timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres clock_nanosleep
statfs64 fstatfs64 tgkill utimes fadvise64_64 vserver mbind get_mempolicy set_mempolicy mq_open mq_unlink
mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid @286 add_key request_key keyctl ioprio_set
ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat futimesat
fstatat64 unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll unshare set_robust_list
get_robust_list splice sync_file_range tee vmsplice move_pages getcpu epoll_pwait utimensat signalfd timerfd_create
eventfd fallocate timerfd_settime timerfd_gettime signalfd4 eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv
pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init fanotify_mark prlimit64 name_to_handle_at
open_by_handle_at clock_adjtime syncfs sendmmsg setns process_vm_readv process_vm_writev kcmp finit_module
sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create bpf execveat socket socketpair bind connect
listen accept4 getsockopt setsockopt getsockname getpeername sendto sendmsg recvfrom recvmsg shutdown userfaultfd
membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx arch_prctl io_pgetevents
rseq @393 semget semctl shmget shmctl shmat shmdt msgget msgsnd msgrcv msgctl clock_gettime64 clock_settime64
clock_adjtime64 clock_getres_time64 clock_nanosleep_time64 timer_gettime64 timer_settime64 timerfd_gettime64
timerfd_settime64 utimensat_time64 pselect6_time64 ppoll_time64 @416 io_pgetevents_time64 recvmmsg_time64
mq_timedsend_time64 mq_timedreceive_time64 semtimedop_time64 rt_sigtimedwait_time64 futex_time64
sched_rr_get_interval_time64
"""
_X32 = """
@512 rt_sigaction rt_sigreturn ioctl readv writev recvfrom sendmsg recvmsg execve ptrace rt_sigpending
rt_sigtimedwait rt_sigqueueinfo sigaltstack timer_create mq_notify kexec_load waitid set_robust_list get_robust_list
vmsplice move_pages preadv pwritev rt_tgsigqueueinfo recvmmsg sendmmsg process_vm_readv process_vm_writev setsockopt
getsockopt io_setup io_submit execveat preadv2 pwritev2
"""
_AARCH64 = """
io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr
listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie eventfd2 epoll_create1
epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch inotify_rm_watch ioctl ioprio_set ioprio_get
flock mknodat mkdirat unlinkat symlinkat linkat renameat umount2 mount pivot_root nfsservctl statfs fstatfs truncate
ftruncate fallocate faccessat chdir fchdir chroot fchmod fchmodat fchownat fchown openat close vhangup pipe2
quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv pwritev sendfile pselect6 ppoll signalfd4
vmsplice splice tee readlinkat fstatat fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime
timerfd_gettime utimensat acct capget capset personality exit exit_group waitid set_tid_address unshare futex
set_robust_list get_robust_list nanosleep getitimer setitimer kexec_load init_module delete_module timer_create
timer_gettime timer_getoverrun timer_settime timer_delete clock_settime clock_gettime clock_getres clock_nanosleep
syslog ptrace sched_setparam sched_setscheduler sched_getscheduler sched_getparam sched_setaffinity
sched_getaffinity sched_yield sched_get_priority_max sched_get_priority_min sched_rr_get_interval restart_syscall
kill tkill tgkill sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait
rt_sigqueueinfo rt_sigreturn setpriority getpriority reboot setregid setgid setreuid setuid setresuid getresuid
setresgid getresgid setfsuid setfsgid times setpgid getpgid getsid setsid getgroups setgroups uname sethostname
setdomainname getrlimit setrlimit getrusage umask prctl getcpu gettimeofday settimeofday adjtimex getpid getppid
getuid geteuid getgid getegid gettid sysinfo mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
msgget msgctl msgrcv msgsnd semget semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair bind listen
accept connect getsockname getpeername sendto recvfrom setsockopt getsockopt shutdown sendmsg recvmsg readahead brk
munmap mremap add_key request_key keyctl clone execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock
mlockall munlockall mincore madvise remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages move_pages
rt_tgsigqueueinfo perf_event_open accept4 recvmmsg @260 wait4 prlimit64 fanotify_init fanotify_mark
name_to_handle_at open_by_handle_at clock_adjtime syncfs setns sendmmsg process_vm_readv process_vm_writev kcmp
finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create bpf execveat userfaultfd
membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq
kexec_file_load @403 clock_gettime64 clock_settime64 clock_adjtime64 clock_getres_time64 clock_nanosleep_time64
timer_gettime64 timer_settime64 timerfd_gettime64 timerfd_settime64 utimensat_time64 pselect6_time64 ppoll_time64
@416 io_pgetevents_time64 recvmmsg_time64 mq_timedsend_time64 mq_timedreceive_time64 semtimedop_time64
rt_sigtimedwait_time64 futex_time64 sched_rr_get_interval_time64
"""
# Since Linux 5.1 the numbers are the same on every machine.
_EVERY = """
@424 pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount
fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr
quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret process_mrelease
futex_waitv set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue
statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat
removexattrat
"""
_TABLES: Mapping[tuple[str, int], tuple[str, ...]] = {
    ("x86_64", Abi.NATIVE): (_X86_64,),
    ("x86_64", Abi.COMPAT): (_I386,),
    ("x86_64", Abi.X32): (_X86_64, _X32),
    ("aarch64", Abi.NATIVE): (_AARCH64,),
}
_ABI_NAMES: Mapping[tuple[str, int], str] = {
    ("x86_64", Abi.COMPAT): "ia32",
    ("x86_64", Abi.X32): "x32",
    ("aarch64", Abi.COMPAT): "arm",
}
_FUTEX = {
    0: "WAIT",
    1: "WAKE",
    3: "REQUEUE",
    4: "CMP_REQUEUE",
    5: "WAKE_OP",
    6: "LOCK_PI",
    7: "UNLOCK_PI",
    8: "TRYLOCK_PI",
    9: "WAIT_BITSET",
    10: "WAKE_BITSET",
    11: "WAIT_REQUEUE_PI",
    13: "LOCK_PI2",
}
FUTEX_WAITS = frozenset(("WAIT", "WAIT_BITSET", "LOCK_PI", "WAIT_REQUEUE_PI", "LOCK_PI2"))
"""The operations in which a thread sleeps until a lock is free or a condition is signalled."""


@cache
def syscall_names(machine: str | None = None, abi: int = Abi.NATIVE) -> Mapping[int, str]:
    """Return the names of system calls by number in an ABI of this machine or `machine`; the common ones if unknown."""
    names: dict[int, str] = {}
    for text in (*_TABLES.get((machine or os.uname().machine, abi), ()), _EVERY):
        number = 0
        for word in text.split():
            if word.startswith("@"):
                number = int(word[1:])
                continue
            names[number] = word
            number += 1
    return names


def name_futex_operation(number: int) -> str:
    """Return the name of an operation of futex(2)."""
    return _FUTEX.get(number, f"operation {number}")


_KIND_OF = {
    **dict.fromkeys(("read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg"), CallKind.READ),
    **dict.fromkeys(("write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg"), CallKind.WRITE),
    **dict.fromkeys(("fsync", "fdatasync", "sync_file_range"), CallKind.SYNC),
    **dict.fromkeys(("futex", "futex_time64"), CallKind.FUTEX),
    **dict.fromkeys(("sendfile", "sendfile64"), CallKind.SEND),
    **dict.fromkeys(("splice", "copy_file_range"), CallKind.SPLICE),
    "tee": CallKind.TEE,
    "vmsplice": CallKind.PIPE,
    "io_submit": CallKind.SUBMIT,
}
# Calls whose bytes are in no sum: they return a number of messages, or carry several operations.
_BYTES_UNKNOWN = frozenset(("recvmmsg", "recvmmsg_time64", "sendmmsg", "socketcall"))
_CALLS, _FILES = 65536, 65536
_CALL_KEY = np.dtype([("who", "<u8"), ("number", "<u4"), ("operation", "<u4"), ("abi", "<u8")])
_CALL = np.dtype([(name, "<u8") for name in ("calls", "errors", "ns", "longest_ns")])
_FILE_KEY = np.dtype([(name, "<u8") for name in ("who", "inode", "device")])
_USE_NAMES = ("reads", "read_bytes", "writes", "write_bytes", "syncs", "sync_ns", "mode")
_FILE_USE = np.dtype(
    [*((name, "<u8") for name in _USE_NAMES), ("name", f"S{NAME_BYTES}"), ("folder", f"S{NAME_BYTES}"), ("comm", "S16")]
)
_OPEN_CALL = np.dtype(
    [
        *((name, "<u8") for name in ("began_ns", "file", "into")),
        *((name, "<u4") for name in ("number", "operation", "kind", "abi")),
    ]
)
_FIELDS = {
    "task_struct_files": ("task_struct", "files"),
    "files_struct_fdt": ("files_struct", "fdt"),
    "fdtable_fd": ("fdtable", "fd"),
    "fdtable_max_fds": ("fdtable", "max_fds"),
    "file_f_inode": ("file", "f_inode"),
    "file_f_mode": ("file", "f_mode"),
    "inode_i_ino": ("inode", "i_ino"),
    "inode_i_sb": ("inode", "i_sb"),
    "inode_i_mode": ("inode", "i_mode"),
    "super_block_s_dev": ("super_block", "s_dev"),
    "file_dentry": ("file", "f_path.dentry"),
    "dentry_name": ("dentry", "d_name.name"),
    "dentry_d_parent": ("dentry", "d_parent"),
}
URING = {
    "io_kiocb_opcode": ("io_kiocb", "opcode"),
    "io_kiocb_cqe_fd": ("io_kiocb", "cqe.fd"),
    "io_rw_addr": ("io_rw", "addr"),
    "io_rw_len": ("io_rw", "len"),
}


def _call_definitions(btf: Btf, machine: str) -> dict[str, int | str]:
    """Return the places of a call's first three arguments in pt_regs, and the mark of a thread in a 32-bit call.

    The marks are TS_COMPAT (arch/x86/include/asm/thread_info.h) and TIF_32BIT (arch/arm64/include/asm/thread_info.h).
    """
    if machine == "x86_64":
        native, compat = (
            [btf.field_offset("pt_regs", name) for name in names] for names in (("di", "si", "dx"), ("bx", "cx", "dx"))
        )
        mark, mask = "thread_info.status", 1 << 1
    elif machine == "aarch64":
        first = btf.field_offset("pt_regs", "regs")
        native = compat = [first, first + 8, first + 16]
        mark, mask = "thread_info.flags", 1 << 22
    else:
        raise CapabilityError(f"system calls are not counted on {machine}", "x86-64 and arm64 are known")
    return {
        **{f"ARGUMENT_{number}": offset for number, offset in enumerate(native)},
        **{f"OFFSET_compat_argument_{number}": offset for number, offset in enumerate(compat)},
        "OFFSET_task_struct_compat": btf.field_offset("task_struct", mark),
        "COMPAT_MASK": mask,
    }


def can_count_uring(btf: Btf) -> bool:
    """Return whether requests of io_uring can be counted: since Linux 6.3 the tracepoint passes the request."""
    return btf.has_tracepoint("io_uring_submit_req") and all(btf.has_field(*where) for where in URING.values())


def build_syscall_definitions(btf: Btf, *, every_process: bool, machine: str | None = None) -> dict[str, int | str]:
    """Return the definitions of syscalls.bpf.c for this kernel, on this machine or `machine`."""
    return {
        "EVERY_PROCESS": int(every_process),
        "DIRECT": 0,
        "CALLS": _CALLS,
        "FILES": _FILES,
        **_call_definitions(btf, machine or os.uname().machine),
        "OFFSET_task_struct_pid": btf.field_offset("task_struct", "pid"),
        "OFFSET_task_struct_tgid": btf.field_offset("task_struct", "tgid"),
        **build_struct_definitions(btf, _FIELDS),
        **({"HAVE_URING": 1, **build_struct_definitions(btf, URING)} if can_count_uring(btf) else {}),
    }


class SyscallTracer(SummingProgram):
    """The loaded program that counts system calls. A context manager that removes it."""

    def __init__(self, pids: Sequence[int] | None, find_members: Callable[[], Sequence[int]] | None = None) -> None:
        """Load the program for these processes, or for every process if `pids` is None. New threads count.

        `find_members`: the present processes of a target that others may join.

        Raises CapabilityError if this host or user may not.
        """
        self._paths: dict[tuple[int, int], str] = {}
        btf = read_kernel_btf()
        self._can_count_uring = can_count_uring(btf)
        kinds = {
            abi * NUMBERS + number: _KIND_OF[name].to_bytes(4, "little")
            for abi in Abi
            for number, name in syscall_names(abi=abi).items()
            if name in _KIND_OF and number < NUMBERS
        }
        definitions = build_syscall_definitions(btf, every_process=pids is None)
        tables = ("calls", "files", "open_calls")
        super().__init__(
            "syscalls.bpf.c",
            definitions,
            btf,
            None if pids is None else FollowedProcesses(pids, find_members),
            tables,
            {"kinds": kinds},
        )

    def open(self) -> None:
        super().open()
        self._paths = self._open_files()

    def end(self) -> None:
        super().end()
        self._paths |= self._open_files()

    def measure(self, duration_s: float, *, settle: bool = False) -> SyscallTrace:
        """Measure for `duration_s`. An interrupt ends the window early and sets `interrupted`.

        `settle`: give up root's privileges once nothing is left to open.
        """
        return self.collect(run_window(duration_s, self, settle=settle))

    def collect(self, passed: PassedWindow) -> SyscallTrace:
        """Return the counts of the window."""
        began_s = time.process_time()
        calls, files, waiting = self._calls(), self._files(), self._waiting()
        bpf_s = self.bpf_s()
        lost, parts = self.counters()
        names = {call.name for call in calls}
        notes = []
        if "io_uring_enter" in names and not self._can_count_uring:
            notes.append("requests of io_uring are not counted on this kernel")
        if unknown := sorted(names & _BYTES_UNKNOWN):
            notes.append(f"bytes of {', '.join(unknown)} are in no sum: the kernel does not return them for each file")
        return SyscallTrace(
            pids=self.pids(),
            window_s=passed.window_s,
            calls=calls,
            files=files,
            waiting=waiting,
            lost_count=lost,
            parts_count=parts,
            notes=[*passed.notes, *notes, *self.notes()],
            tool_cpu_s=passed.tool_cpu_s + time.process_time() - began_s,
            bpf_s=bpf_s,
            interrupted=passed.interrupted is not None,
        )

    def _calls(self) -> list[CallSum]:
        own = own_pids()
        keys, values = self.rows("calls")
        sums: dict[tuple[int, str, str], CallSum] = {}
        for key, row in zip(np.frombuffer(keys, _CALL_KEY), np.frombuffer(values, _CALL), strict=True):
            who, (name, operation) = int(key["who"]), _name_call(key)
            if who >> 32 in own:
                continue
            # A thread may make the same call by two ABIs.
            known = sums.get((who, name, operation))
            count, errors, ns, longest_ns = (int(row[field]) for field in _CALL.names or ())
            sums[who, name, operation] = CallSum(
                pid=who >> 32,
                tid=who & 0xFFFFFFFF,
                name=name,
                operation=operation,
                count=count + (known.count if known else 0),
                errors_count=errors + (known.errors_count if known else 0),
                ns=ns + (known.ns if known else 0),
                longest_ns=max(longest_ns, known.longest_ns if known else 0),
            )
        return list(sums.values())

    def _waiting(self) -> dict[str, int]:
        own = own_pids()
        keys, values = self.rows("open_calls")
        counts: Counter[str] = Counter()
        for who, row in zip(np.frombuffer(keys, "<u8"), np.frombuffer(values, _OPEN_CALL), strict=True):
            if int(who) >> 32 not in own:
                counts[" ".join(filter(None, _name_call(row)))] += 1
        return dict(counts.most_common())

    def _files(self) -> list[FileSum]:
        own = own_pids()
        keys, values = self.rows("files")
        sums = []
        for key, row in zip(np.frombuffer(keys, _FILE_KEY), np.frombuffer(values, _FILE_USE), strict=True):
            pid = int(key["who"]) >> 32
            if pid in own:
                continue
            device = int(key["device"])
            place = (os.makedev(device >> 20, device & 0xFFFFF), int(key["inode"]))
            within = f"{clean(bytes(row['folder']))}/{clean(bytes(row['name']))}"
            sums.append(
                FileSum(
                    pid=pid,
                    tid=int(key["who"]) & 0xFFFFFFFF,
                    comm=clean(bytes(row["comm"])),
                    path=self._paths.get(place, within.removeprefix("/")),
                    mode=int(row["mode"]),
                    reads_count=int(row["reads"]),
                    read_bytes=int(row["read_bytes"]),
                    writes_count=int(row["writes"]),
                    write_bytes=int(row["write_bytes"]),
                    syncs_count=int(row["syncs"]),
                    sync_ns=int(row["sync_ns"]),
                )
            )
        return sums

    def _open_files(self) -> dict[tuple[int, int], str]:
        """Return the paths of the files that the target's processes have open now, by (device, inode)."""
        found: dict[tuple[int, int], str] = {}
        for pid in self.pids():
            found |= shared().open_files(pid)
        return found


def _name_call(row: Any) -> tuple[str, str]:
    """Return the name of the call in a row of a table, and the operation of futex."""
    number, operation, abi = (int(row[field]) for field in ("number", "operation", "abi"))
    machine = os.uname().machine
    name = syscall_names(machine, abi).get(number, f"{_ABI_NAMES.get((machine, abi), 'call')} {number}")
    return name, name_futex_operation(operation) if name in ("futex", "futex_time64") else ""
