// Ground truth in Go: a goroutine that sleeps on a timer, and one that answers it.
//
//	goroutines DURATION_S [timer=RATE_HZ]
//
// Whenever one of them has run, none is left: the thread waits in the scheduler, for whichever goroutine is next.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

//go:noinline
func sleeper(period time.Duration, ask chan int, answer chan int) {
	for n := 0; ; n++ {
		time.Sleep(period)
		ask <- n
		<-answer
	}
}

//go:noinline
func answerer(ask chan int, answer chan int) {
	for n := range ask {
		answer <- n
	}
}

func main() {
	duration, rate := 0.0, 37.0
	if len(os.Args) > 1 {
		duration, _ = strconv.ParseFloat(os.Args[1], 64)
	}
	for _, argument := range os.Args[1:] {
		if strings.HasPrefix(argument, "timer=") {
			rate, _ = strconv.ParseFloat(argument[len("timer="):], 64)
		}
	}
	if duration <= 0 {
		fmt.Fprintln(os.Stderr, "usage: goroutines DURATION_S [timer=RATE_HZ]")
		os.Exit(2)
	}
	ask, answer := make(chan int), make(chan int)
	go answerer(ask, answer)
	go sleeper(time.Duration(1e9/rate), ask, answer)
	fmt.Printf("{\"pid\": %d, \"rate_hz\": %g}\n", os.Getpid(), rate)
	time.Sleep(time.Duration(duration * 1e9))
}
