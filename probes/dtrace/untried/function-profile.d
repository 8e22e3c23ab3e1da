/*
 * function-profile.d: calls, self time and inclusive time of matching functions of one process.
 *
 * Question:   how often is each function called, and how much CPU time does it use itself?
 * Cost:       one trap per entry and per return; a function called 100,000 times a second slows the process down
 *             visibly. Never part of an energy measurement. vtimestamp leaves DTrace's own time out.
 * Privileges: root, or dtrace_user and dtrace_proc (illumos); macOS: System Integrity Protection off for the target.
 * Runs on:    illumos, Solaris, FreeBSD, macOS. Linux dtrace 2.x has a variant of its own.
 * Executed:   never: UNTRIED by its authors, who have no such host; written from the DTrace guides. What it shares with
 *             the Linux variant was run there with dtrace 2.0.7; the parser is tested on text of that form.
 *
 * Recursion, nesting and threads are right: each thread has a stack of start times, and the time of a call is taken
 * off its caller's. A return that does not belong to the innermost call (longjmp, an exception) empties that
 * thread's stack: the calls on it are counted, their time is not, and `mismatch` says how often.
 */
#pragma D option quiet
#pragma D option aggsize=8m
#pragma D option dynvarsize=16m

dtrace:::BEGIN
{
	printf("begin\t%d\n", timestamp);
}

pid@PID@:@MODULE@:@FUNCTIONS@:entry
{
	@calls[probemod, probefunc] = count();
	self->depth++;
	self->function[self->depth] = probefunc;
	self->wall[self->depth] = timestamp;
	self->cpu[self->depth] = vtimestamp;
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
	this->cpu = vtimestamp - self->cpu[self->depth];
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

dtrace:::END
{
	printa("calls\t%s\t%s\t%@d\n", @calls);
	printa("returns\t%s\t%s\t%@d\n", @returns);
	printa("self_wall_ns\t%s\t%s\t%@d\n", @self_wall);
	printa("self_cpu_ns\t%s\t%s\t%@d\n", @self_cpu);
	printa("mismatch\t%s\t%@d\n", @mismatch);
	printf("end\t%d\n", timestamp);
}
