// Command bench reads a durable subscription to an event of a number, decoding and acking each one, and prints what
// that took. bench/clients.py starts it; see there.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"syscall"
	"time"

	"github.com/feedmux/feedmux/clients/go/feedmux"
)

func main() {
	endpoint := flag.String("endpoint", "localhost:7117", "the server")
	subscription := flag.String("subscription", "", "name of a durable subscription")
	count := flag.Int("count", 0, "how many events to read")
	decode := flag.String("decode", "document", "document: all of each event, as bson.D; raw: nothing but its bytes")
	flag.Parse()
	read, err := run(*endpoint, *subscription, *count, *decode == "document")
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(read)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// reading is what was read, from the start to the last event.
type reading struct {
	ElapsedS float64 `json:"elapsed_s"`
	CPUS     float64 `json:"cpu_s"`
	Count    int     `json:"count"`
	LastID   int64   `json:"last_id"`
}

func run(endpoint, subscription string, count int, decode bool) (*reading, error) {
	ctx := context.Background()
	client, err := feedmux.NewClient(endpoint, nil)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if _, err := client.Subscription(subscription).Get(ctx); err != nil {
		return nil, err
	}
	fmt.Println("ready")
	input := bufio.NewReader(os.Stdin)
	if _, err := input.ReadString('\n'); err != nil {
		return nil, err
	}
	go func() {
		_, _ = io.Copy(io.Discard, input)
		os.Exit(0) // The result is out, or nobody waits for it.
	}()

	began, cpu := time.Now(), cpuSeconds()
	session, err := client.Subscription(subscription).Open(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	read := &reading{}
	var last feedmux.Event
	for event, err := range session.Events(ctx) {
		if err != nil {
			return nil, err
		}
		if decode {
			if _, err := event.Document(); err != nil {
				return nil, err
			}
		}
		session.Ack(event)
		last = event
		if read.Count++; read.Count == count {
			break
		}
	}
	read.ElapsedS, read.CPUS = time.Since(began).Seconds(), cpuSeconds()-cpu
	read.LastID = last.Raw().Lookup("documentKey", "_id").AsInt64()
	return read, nil
}

// cpuSeconds is user and system time of this process.
func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}
