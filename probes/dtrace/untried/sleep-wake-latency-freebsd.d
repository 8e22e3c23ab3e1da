/*
 * sleep-wake-latency-freebsd.d: how long the threads of one process sleep, and how long they wait to run once woken.
 *
 * Question:   are sleeps short and many, and do woken threads get a CPU at once?
 * Cost:       a few µs per sleep of the process.
 * Privileges: root.
 * Runs on:    FreeBSD.
 * Executed:   never: UNTRIED by its authors, who have no such host; written from the DTrace guides. What it shares with
 *             the Linux variant was run there with dtrace 2.0.7; the parser is tested on text of that form.
 */
#pragma D option quiet
#pragma D option aggsize=8m

dtrace:::BEGIN
{
	printf("begin\t%d\n", timestamp);
}

sched:::sleep
/pid == @PID@/
{
	slept[tid] = timestamp;
}

sched:::wakeup
/args[1]->p_pid == @PID@ && slept[args[0]->td_tid]/
{
	this->sleep = timestamp - slept[args[0]->td_tid];
	@sleeps[args[0]->td_tid] = count();
	@sleep_sum[args[0]->td_tid] = sum(this->sleep);
	@sleep_max[args[0]->td_tid] = max(this->sleep);
	slept[args[0]->td_tid] = 0;
	woken[args[0]->td_tid] = timestamp;
}

sched:::on-cpu
/pid == @PID@ && woken[tid]/
{
	this->wait = timestamp - woken[tid];
	@waits[tid] = count();
	@wait_sum[tid] = sum(this->wait);
	@wait_max[tid] = max(this->wait);
	woken[tid] = 0;
}

dtrace:::END
{
	printa("sleep\t%d\t%@d\t%@d\t%@d\n", @sleeps, @sleep_sum, @sleep_max);
	printa("latency\t%d\t%@d\t%@d\t%@d\n", @waits, @wait_sum, @wait_max);
	printf("end\t%d\n", timestamp);
}
