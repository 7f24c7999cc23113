// Command conformance is this client's runner for tests/conformance/clients, whose README says what it receives and
// what it reports.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"sync"
)

func main() {
	r := &runner{records: map[string]*sessionRecord{}}
	var writing sync.Mutex
	output := json.NewEncoder(os.Stdout)
	output.SetEscapeHTML(false)
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			go func() {
				said := r.reply(line)
				writing.Lock()
				defer writing.Unlock()
				if err := output.Encode(said); err != nil {
					log.Fatal(err)
				}
			}()
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}

// reply is one line of output: ok or error.
type reply struct {
	ID    int64   `json:"id"`
	OK    any     `json:"ok,omitempty"`
	Error *failed `json:"error,omitempty"`
}

type nothing struct{}

func (r *runner) reply(line []byte) reply {
	var command struct {
		ID int64  `json:"id"`
		Do string `json:"do"`
	}
	if err := json.Unmarshal(line, &command); err != nil {
		return reply{Error: describe(err)}
	}
	ok, err := r.do(command.Do, line)
	if err != nil {
		return reply{ID: command.ID, Error: describe(err)}
	}
	return reply{ID: command.ID, OK: ok}
}

func (r *runner) do(name string, line []byte) (any, error) {
	switch name {
	case "hello":
		return hello()
	case "new":
		return with(line, r.new)
	case "open":
		return with(line, r.open)
	case "create":
		return with(line, r.create)
	case "seek":
		return with(line, r.seek)
	case "resolve":
		return with(line, r.resolve)
	case "take":
		return with(line, r.take)
	case "ack":
		return with(line, r.ack)
	case "state":
		return with(line, r.state)
	case "close":
		return with(line, r.close)
	case "close_client":
		return with(line, r.closeClient)
	case "cancel":
		return with(line, r.cancel)
	case "reset":
		return with(line, r.reset)
	}
	return nil, errors.New("no command " + name)
}

// with decodes a command's fields.
func with[Fields any](line []byte, act func(Fields) (any, error)) (any, error) {
	var command Fields
	if err := json.Unmarshal(line, &command); err != nil {
		return nil, err
	}
	return act(command)
}
