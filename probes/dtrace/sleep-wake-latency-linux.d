/*
 * sleep-wake-latency-linux.d: how long the threads of one process sleep, and how long they wait to run once woken.
 *
 * Question:   are sleeps short and many, and do woken threads get a CPU at once?
 * Cost:       a test per context switch of the system, a few us per sleep of the process.
 * Privileges: root.
 * Runs on:    Linux with dtrace 2.x (Oracle's, on BPF): raw tracepoints only. A preempted thread counts as asleep only
 *             when it is woken, which it never is; one that is woken before it is off its CPU has not slept.
 * Executed:   Debian's dtrace 2.0.7 on Linux 6.18 (x86-64), by tests/system/tracing/test_dtrace_linux.py: sleeps counted against
 *             the kernel's count of waits, their mean against the program's clock.
 *
 * Nothing is set to 0: before 2.0.4 that deleted an element, and a later one could alias a live one. 1 means none.
 */
#pragma D option quiet
#pragma D option aggsize=8m

uint64_t slept[int];
uint64_t woken[int];

dtrace:::BEGIN
{
	printf("begin\t%d\n", timestamp);
}

rawtp:::sched_switch
/pid == @PID@/
{
	slept[tid] = timestamp;
}

rawtp:::sched_waking
/((struct task_struct *)arg0)->tgid == @PID@ && slept[((struct task_struct *)arg0)->pid] > 1/
{
	this->tid = ((struct task_struct *)arg0)->pid;
	this->sleep = timestamp - slept[this->tid];
	@sleeps[this->tid] = count();
	@sleep_sum[this->tid] = sum(this->sleep);
	@sleep_max[this->tid] = max(this->sleep);
	slept[this->tid] = 1;
	woken[this->tid] = timestamp;
}

rawtp:::sched_switch
/woken[((struct task_struct *)arg2)->pid] > 1/
{
	this->tid = ((struct task_struct *)arg2)->pid;
	this->wait = timestamp - woken[this->tid];
	@waits[this->tid] = count();
	@wait_sum[this->tid] = sum(this->wait);
	@wait_max[this->tid] = max(this->wait);
	woken[this->tid] = 1;
}

dtrace:::END
{
	printa("sleep\t%d\t%@d\t%@d\t%@d\n", @sleeps, @sleep_sum, @sleep_max);
	printa("latency\t%d\t%@d\t%@d\t%@d\n", @waits, @wait_sum, @wait_max);
	printf("end\t%d\n", timestamp);
}
