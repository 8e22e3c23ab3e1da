/*
 * wakeups.d: who wakes the threads of one process, and from which call path.
 *
 * Question:   which thread, in which function, keeps waking this process's threads?
 * Cost:       a few µs per wake-up of the process.
 * Privileges: root, or dtrace_kernel (illumos).
 * Runs on:    illumos, Solaris. A waking by an interrupt shows the interrupted thread.
 * Executed:   never: UNTRIED by its authors, who have no such host; written from the DTrace guides. What it shares with
 *             the Linux variant was run there with dtrace 2.0.7; the parser is tested on text of that form.
 */
#pragma D option quiet
#pragma D option aggsize=8m

dtrace:::BEGIN
{
	printf("begin\t%d\n", timestamp);
}

sched:::wakeup
/args[1]->pr_pid == @PID@/
{
	@wakeups[args[0]->pr_lwpid, pid, execname, tid, ustack(@FRAMES@)] = count();
}

dtrace:::END
{
	printa("wakeup\t%d\t%d\t%s\t%d\t%@d\n%k\nend of stack\n", @wakeups);
	printf("end\t%d\n", timestamp);
}
