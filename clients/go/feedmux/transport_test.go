package feedmux

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestATokenThatGRPCWouldNotSendIsNotTriedAgain(t *testing.T) {
	sender := &transport{apiKey: strings.Repeat("x", 20_000)}
	if _, err := sender.context(context.Background()); !errors.Is(err, ErrQuotaExceeded) {
		t.Fatalf("not ErrQuotaExceeded: %v", err)
	}
}
