/*
 * wakeups-freebsd.d: who wakes the threads of one process, and from which call path.
 *
 * Question:   which thread, in which function, keeps waking this process's threads?
 * Cost:       a few µs per wake-up of the process.
 * Privileges: root.
 * Runs on:    FreeBSD. Its sched probes pass struct thread and struct proc untranslated.
 * Executed:   nowhere yet by the authors: written from the DTrace guides. The parser is tested on text of the
 *             documented form.
 */
#pragma D option quiet
#pragma D option aggsize=8m

sched:::wakeup
/args[1]->p_pid == @PID@/
{
	@wakeups[args[0]->td_tid, pid, execname, tid, ustack(@FRAMES@)] = count();
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
