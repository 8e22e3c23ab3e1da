/*
 * function-profile-linux.d: calls, self time and inclusive time of matching functions of one process.
 *
 * Question:   how often is each function called, and how much CPU time does it use itself?
 * Cost:       one trap per entry and per return; a function called 100,000 times a second slows the process down
 *             visibly. Never part of an energy measurement. DTrace's own time is within the figures.
 * Privileges: root.
 * Runs on:    Linux with dtrace 2.x (Oracle's, on BPF) and raw tracepoints; needs no fbt probe and no kprobe.
 * Executed:   nowhere yet by the authors: written from the DTrace guides. The parser is tested on text of the
 *             documented form.
 *
 * Recursion, nesting and threads are right: each thread has a stack of start times, and the time of a call is taken
 * off its caller's. A return that does not belong to the innermost call (longjmp, an exception) empties that
 * thread's stack: the calls on it are counted, their time is not, and `mismatch` says how often.
 *
 * CPU time is wall time without the time that the thread was switched out, by the raw tracepoint sched_switch, whose
 * arguments are (preempt, previous, next, …): vtimestamp is not relied on, nor the sched probes that rest on fbt.
 */
#pragma D option quiet
#pragma D option aggsize=8m
#pragma D option dynvarsize=16m

pid@PID@:@MODULE@:@FUNCTIONS@:entry
{
	@calls[probemod, probefunc] = count();
	self->depth++;
	self->function[self->depth] = probefunc;
	self->wall[self->depth] = timestamp;
	self->cpu[self->depth] = timestamp - off[tid];
	self->child_wall[self->depth] = 0;
	self->child_cpu[self->depth] = 0;
}

pid@PID@:@MODULE@:@FUNCTIONS@:return
/self->depth && self->function[self->depth] != probefunc/
{
	@mismatch["returns that do not belong to the innermost call"] = count();
	self->depth = 0;
}

pid@PID@:@MODULE@:@FUNCTIONS@:return
/self->depth && self->function[self->depth] == probefunc/
{
	this->wall = timestamp - self->wall[self->depth];
	this->cpu = timestamp - off[tid] - self->cpu[self->depth];
	@returns[probemod, probefunc] = count();
	@self_wall[probemod, probefunc] = sum(this->wall - self->child_wall[self->depth]);
	@self_cpu[probemod, probefunc] = sum(this->cpu - self->child_cpu[self->depth]);
	self->function[self->depth] = 0;
	self->wall[self->depth] = 0;
	self->cpu[self->depth] = 0;
	self->child_wall[self->depth] = 0;
	self->child_cpu[self->depth] = 0;
	self->depth--;
	self->child_wall[self->depth] += this->wall;
	self->child_cpu[self->depth] += this->cpu;
}

rawtp:::sched_switch
/pid == @PID@/
{
	out[tid] = timestamp;
}

rawtp:::sched_switch
/out[((struct task_struct *)arg2)->pid]/
{
	this->next = ((struct task_struct *)arg2)->pid;
	off[this->next] += timestamp - out[this->next];
	out[this->next] = 0;
}

profile:::tick-@SECONDS@s
{
	exit(0);
}

dtrace:::END
{
	printa("calls\t%s\t%s\t%@d\n", @calls);
	printa("returns\t%s\t%s\t%@d\n", @returns);
	printa("self_wall_ns\t%s\t%s\t%@d\n", @self_wall);
	printa("self_cpu_ns\t%s\t%s\t%@d\n", @self_cpu);
	printa("mismatch\t%s\t%@d\n", @mismatch);
	printf("end\n");
}
