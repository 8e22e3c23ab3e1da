/*
 * wakeups-linux.d: who wakes the threads of one process, and from which call path.
 *
 * Question:   which thread, in which function, keeps waking this process's threads?
 * Cost:       a few us per wake-up of the process.
 * Privileges: root.
 * Runs on:    Linux with dtrace 2.x (Oracle's, on BPF): the raw tracepoint sched_waking, no fbt probe. ustack() follows
 *             frame pointers: stacks through a libc without them are cut there.
 * Executed:   Debian's dtrace 2.0.7 on Linux 6.18 (x86-64), by tests/system/tracing/test_dtrace_linux.py: wakings by a thread of
 *             the process and by timers counted against the kernel's count of waits.
 *
 * ustack() is asked for where the process wakes itself only: of any other waker (the idle task on another CPU above
 * all) it fails, and makes DTrace attach to that process, which crashed 2.0.1.
 */
#pragma D option quiet
#pragma D option aggsize=8m

dtrace:::BEGIN
{
	printf("begin\t%d\n", timestamp);
}

rawtp:::sched_waking
/((struct task_struct *)arg0)->tgid == @PID@ && pid == @PID@/
{
	@own[((struct task_struct *)arg0)->pid, pid, execname, tid, ustack(@FRAMES@)] = count();
}

rawtp:::sched_waking
/((struct task_struct *)arg0)->tgid == @PID@ && pid != @PID@/
{
	@others[((struct task_struct *)arg0)->pid, pid, execname, tid] = count();
}

dtrace:::END
{
	printa("wakeup\t%d\t%d\t%s\t%d\t%@d\nend of stack\n", @others);
	printa("wakeup\t%d\t%d\t%s\t%d\t%@d\n%k\nend of stack\n", @own);
	printf("end\t%d\n", timestamp);
}
