/*
 * sleep-wake-latency-linux.d: how long the threads of one process sleep, and how long they wait for a CPU after a waking.
 *
 * Question:   are sleeps short and frequent, and do woken threads get a CPU immediately?
 * Cost:       one test per context switch of the system, a few us per sleep of the process.
 * Privileges: root.
 * Runs on:    Linux with dtrace 2.x (Oracle's, on BPF): raw tracepoints only. A sleep is counted at its waking, so a
 *             preempted thread does not count. A thread that is woken before its switch-out has not slept.
 * Executed:   Debian's dtrace 2.0.7 on Linux 6.18 (x86-64), by tests/system/tracing/test_dtrace_linux.py: sleeps counted against
 *             the kernel's count of waits, their mean against the program's clock.
 *
 * Variables are reset to 1, not to 0: before 2.0.4 a 0 deleted the element, and a later element could alias a live one.
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
