/*
 * wakeups-linux.d: who wakes the threads of one process, and from which call path.
 *
 * Question:   which thread, in which function, keeps waking this process's threads?
 * Cost:       a few µs per wake-up of the process.
 * Privileges: root.
 * Runs on:    Linux with dtrace 2.x (Oracle's, on BPF): the raw tracepoint sched_waking, no fbt probe. ustack() follows
 *             frame pointers: stacks through a libc without them are cut there.
 * Executed:   nowhere yet by the authors: written from the DTrace guides. The parser is tested on text of the
 *             documented form.
 */
#pragma D option quiet
#pragma D option aggsize=8m

rawtp:::sched_waking
/((struct task_struct *)arg0)->tgid == @PID@/
{
	@wakeups[((struct task_struct *)arg0)->pid, pid, execname, tid, ustack(@FRAMES@)] = count();
}

profile:::tick-@SECONDS@s
{
	exit(0);
}

dtrace:::END
{
	printa("wakeup\t%d\t%d\t%s\t%d\t%@d\n%k\nend of stack\n", @wakeups);
	printf("end\n");
}
