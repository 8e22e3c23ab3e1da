/*
 * function-profile-linux.d: calls and self time of selected functions of one process.
 *
 * Question:   how often is each function called, and how much CPU time does it use without its callees?
 * Cost:       two traps per entry and per return (40 to 80 us per call in a guest). 100,000 calls per second slow the
 *             process down noticeably. Never part of an energy measurement. The figures include DTrace's own time.
 * Privileges: root.
 * Runs on:    Linux with dtrace 2.x (Oracle's, on BPF) and raw tracepoints, x86-64; needs no fbt probe and no kprobe.
 * Executed:   Debian's dtrace 2.0.7 on Linux 6.18 (x86-64), by tests/system/tracing/test_dtrace_linux.py: calls exact over four
 *             threads with recursion, tail calls and longjmp, and with 10,000 exceptions. dtrace 2.0.1: an earlier form.
 *
 * powerprof inserts the probes: the entry of each function, and the instructions that leave it (ret, tail jumps) by
 * their offsets. There are no return probes: a C++ exception that passes one (a uretprobe on Linux) ends the process.
 *
 * The stack pointer identifies a call: at the entry and at the ret it points to the return address. `top` is the
 * innermost open call of a thread, `parent` its caller, so recursion and threads are handled. The next entry removes
 * calls that longjmp or an exception left: up to four, or all open calls if there are more. Their time is not counted.
 *
 * CPU time is wall time minus the time switched out, by the raw tracepoint sched_switch(preempt, previous, next, ...).
 * vtimestamp and the sched probes are unreliable, because they depend on fbt. Variables are reset to 1, not to 0:
 * before 2.0.4 a 0 deleted the element, and a later element could alias a live one.
 */
#pragma D option quiet
#pragma D option aggsize=8m
#pragma D option dynvarsize=16m

uint64_t off[int];
uint64_t out[int];
self string name[uint64_t];
self uint64_t wall[uint64_t];
self uint64_t cpu[uint64_t];
self uint64_t child_wall[uint64_t];
self uint64_t child_cpu[uint64_t];
self uint64_t parent[uint64_t];
self uint64_t top;

dtrace:::BEGIN
{
	printf("begin\t%d\n", timestamp);
}

@ENTRIES@
{
	@calls[probemod, probefunc] = count();
	this->sp = uregs[R_RSP];
	self->top = self->top > 1 && self->top <= this->sp ? self->parent[self->top] : self->top;
	self->top = self->top > 1 && self->top <= this->sp ? self->parent[self->top] : self->top;
	self->top = self->top > 1 && self->top <= this->sp ? self->parent[self->top] : self->top;
	self->top = self->top > 1 && self->top <= this->sp ? self->parent[self->top] : self->top;
	self->top = self->top > this->sp ? self->top : 1;
	self->parent[this->sp] = self->top;
	self->top = this->sp;
	self->name[this->sp] = probefunc;
	self->child_wall[this->sp] = 1;
	self->child_cpu[this->sp] = 1;
	self->wall[this->sp] = timestamp;
	self->cpu[this->sp] = timestamp - off[tid];
}

@EXITS@
/self->wall[uregs[R_RSP]] > 1 && self->name[uregs[R_RSP]] == probefunc/
{
	this->sp = uregs[R_RSP];
	this->wall = timestamp - self->wall[this->sp];
	this->cpu = timestamp - off[tid] - self->cpu[this->sp];
	@returns[probemod, probefunc] = count();
	@self_wall[probemod, probefunc] = sum(this->wall - self->child_wall[this->sp]);
	@self_cpu[probemod, probefunc] = sum(this->cpu - self->child_cpu[this->sp]);
	self->wall[this->sp] = 1;
	self->top = self->parent[this->sp];
	self->child_wall[self->top] += this->wall;
	self->child_cpu[self->top] += this->cpu;
}

rawtp:::sched_switch
/pid == @PID@/
{
	out[tid] = timestamp;
}

rawtp:::sched_switch
/out[((struct task_struct *)arg2)->pid] > 1/
{
	this->next = ((struct task_struct *)arg2)->pid;
	off[this->next] += timestamp - out[this->next];
	out[this->next] = 1;
}

dtrace:::END
{
	printa("calls\t%s\t%s\t%@d\n", @calls);
	printa("returns\t%s\t%s\t%@d\n", @returns);
	printa("self_wall_ns\t%s\t%s\t%@d\n", @self_wall);
	printa("self_cpu_ns\t%s\t%s\t%@d\n", @self_cpu);
	printf("end\t%d\n", timestamp);
}
