package feedmux

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

type vectors struct {
	Transitions []struct {
		State, Event, Next, Action string
	}
	Decisions []struct {
		Status        codes.Code
		Reason, Cause string
		RetryInfo     bool `json:"retry_info"`
		NewToken      bool `json:"new_token"`
		Violation     bool
		Step          string
	}
	Events []struct{ Step, Event string }
}

var stepNames = map[step]string{giveUp: "RAISE", reopen: "REOPEN", reopenAtStored: "REOPEN_AT_STORED"}

// readVectors skips the test outside of the repository.
func readVectors(t *testing.T) (read vectors) {
	text, err := os.ReadFile("../../../tests/conformance/clients/vectors/connection.json")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the vectors of the table of states are in the repository only:", err)
	}
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func TestTheTableOfStatesIsThatOfAllClients(t *testing.T) {
	read := readVectors(t)
	legal := 0
	for _, each := range read.Transitions {
		found := transitions[situation{state(each.State), event(each.Event)}]
		if found != (transition{state(each.Next), action(each.Action)}) {
			t.Errorf("%v: %v", each, found)
		}
		if each.Next != "" {
			legal++
		}
	}
	same(t, len(transitions), legal)
}

func TestTheReactionsToErrorsAreThoseOfAllClients(t *testing.T) {
	read := readVectors(t)
	same(t, len(read.Decisions) > 0, true)
	for _, each := range read.Decisions {
		retryAfter := time.Duration(-1)
		if each.RetryInfo {
			retryAfter = time.Second
		}
		failed := protocolError("a gap")
		if !each.Violation {
			metadata := map[string]string{"cause": each.Cause}
			failed = errorFromStatus(failure(each.Status, each.Reason, metadata, retryAfter))
		}
		if decided := stepNames[nextStep(failed, each.NewToken)]; decided != each.Step {
			t.Errorf("%v: %v", each, decided)
		}
	}
	for _, each := range read.Events {
		for known, name := range stepNames {
			if name == each.Step {
				same(t, string(endings[known]), each.Event)
			}
		}
	}
}

func TestAnIllegalTransitionPanics(t *testing.T) {
	defer func() { same(t, recover() != nil, true) }()
	stateOpen.after(eventBackoffOver)
}
