// Ground truth in Go: one locked thread blocks in a read of a timerfd, which no goroutine scheduler takes over.
//
//	sleepers-go DURATION_S [timerfd=RATE_HZ]
//
// Chain: main.timerfdThread -> main.timerfdLevel1 -> main.waitTimerfd -> syscall. There is no .eh_frame in a Go
// program: its unwind table is .debug_frame, compressed.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

type itimerspec struct{ interval, value syscall.Timespec }

//go:noinline
func waitTimerfd(fd int, buffer []byte) int {
	n, _ := syscall.Read(fd, buffer)
	return n + 1
}

//go:noinline
func timerfdLevel1(fd int, buffer []byte) int { return waitTimerfd(fd, buffer) + 1 }

//go:noinline
func timerfdThread(rate float64, tid chan int) {
	runtime.LockOSThread()
	fd, _, _ := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, 1, 0, 0)
	period := syscall.NsecToTimespec(int64(1e9/rate + 0.5))
	setting := itimerspec{period, period}
	syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(&setting)), 0, 0, 0)
	tid <- syscall.Gettid()
	buffer := make([]byte, 8)
	for {
		timerfdLevel1(int(fd), buffer)
	}
}

func main() {
	duration, rate := 0.0, 47.0
	if len(os.Args) > 1 {
		duration, _ = strconv.ParseFloat(os.Args[1], 64)
	}
	for _, argument := range os.Args[1:] {
		if strings.HasPrefix(argument, "timerfd=") {
			rate, _ = strconv.ParseFloat(argument[len("timerfd="):], 64)
		}
	}
	if duration <= 0 {
		fmt.Fprintln(os.Stderr, "usage: sleepers-go DURATION_S [timerfd=RATE_HZ]")
		os.Exit(2)
	}
	tid := make(chan int, 1)
	go timerfdThread(rate, tid)
	fmt.Printf("{\"pid\": %d, \"threads\": {\"timerfd\": {\"tid\": %d, \"rate_hz\": %g}}}\n", os.Getpid(), <-tid, rate)
	time.Sleep(time.Duration(duration * 1e9))
}
