/*
 * sleep-wake-latency-linux.d: how long the threads of one process sleep, and how long they wait to run once woken.
 *
 * Question:   are sleeps short and many, and do woken threads get a CPU at once?
 * Cost:       a few µs per sleep of the process; on Linux a test per context switch of the system.
 * Privileges: root.
 * Runs on:    Linux with dtrace 2.x (Oracle's, on BPF): raw tracepoints only. A preempted thread counts as asleep only
 *             when it is woken, which it never is.
 * Executed:   nowhere yet by the authors: written from the DTrace guides. The parser is tested on text of the
 *             documented form.
 */
#pragma D option quiet
#pragma D option aggsize=8m

rawtp:::sched_switch
/pid == @PID@/
{
	slept[tid] = timestamp;
}

rawtp:::sched_waking
/((struct task_struct *)arg0)->tgid == @PID@ && slept[((struct task_struct *)arg0)->pid]/
{
	this->sleep = timestamp - slept[((struct task_struct *)arg0)->pid];
	@sleeps[((struct task_struct *)arg0)->pid] = count();
	@sleep_sum[((struct task_struct *)arg0)->pid] = sum(this->sleep);
	@sleep_max[((struct task_struct *)arg0)->pid] = max(this->sleep);
	slept[((struct task_struct *)arg0)->pid] = 0;
	woken[((struct task_struct *)arg0)->pid] = timestamp;
}

rawtp:::sched_switch
/woken[((struct task_struct *)arg2)->pid]/
{
	this->wait = timestamp - woken[((struct task_struct *)arg2)->pid];
	@waits[((struct task_struct *)arg2)->pid] = count();
	@wait_sum[((struct task_struct *)arg2)->pid] = sum(this->wait);
	@wait_max[((struct task_struct *)arg2)->pid] = max(this->wait);
	woken[((struct task_struct *)arg2)->pid] = 0;
}

profile:::tick-@SECONDS@s
{
	exit(0);
}

dtrace:::END
{
	printa("sleep\t%d\t%@d\t%@d\t%@d\n", @sleeps, @sleep_sum, @sleep_max);
	printa("latency\t%d\t%@d\t%@d\t%@d\n", @waits, @wait_sum, @wait_max);
	printf("end\n");
}
