/*
 * wakeups-linux.d: count the wakings of the threads of one process, by waker and call path.
 *
 * Question:   which thread, in which function, keeps waking this process's threads?
 * Cost:       a few us per wake-up of the process.
 * Privileges: root.
 * Runs on:    Linux with dtrace 2.x (Oracle's, on BPF): the raw tracepoint sched_waking, no fbt probe. ustack() follows
 *             frame pointers, so a stack ends at a libc without them.
 * Executed:   Debian's dtrace 2.0.7 on Linux 6.18 (x86-64), by tests/system/tracing/test_dtrace_linux.py: wakings by a thread of
 *             the process and by timers counted against the kernel's count of waits.
 *
 * ustack() is called only if the process wakes itself. For other wakers, such as the idle task of another CPU, it fails
 * and makes DTrace attach to that process, which crashed version 2.0.1.
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
