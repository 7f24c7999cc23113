package feedmux_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/feedmux/feedmux/clients/go/feedmux"
)

// A feed whose position the program keeps itself, here in a file, together with what it does.
func ExampleInlineFeed_Open() {
	follow := func(ctx context.Context, client *feedmux.Client) (err error) {
		start := feedmux.Latest()
		if stored, err := os.ReadFile("position"); err == nil {
			start = feedmux.AtPosition(stored)
		}
		inserts := bson.D{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}}
		feed := feedmux.Feed{Database: "shop", Collection: "orders", Pipeline: []bson.D{inserts}}
		session, err := client.Feed(feed).Open(ctx, start, nil)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, session.Close()) }()
		for batch, err := range session.Batches(ctx) {
			if err != nil {
				return err
			}
			fmt.Println(batch.Len(), "orders")
			if err := os.WriteFile("position", batch.FeedPosition().Position, 0o600); err != nil {
				return err
			}
		}
		return nil
	}
	_ = follow
}

// What to do about errors is decided by their kind.
func ExampleError() {
	explain := func(err error) string {
		switch {
		case errors.Is(err, feedmux.ErrSubscriptionBusy):
			return "another program reads it; SessionOptions.Takeover replaces that one"
		case errors.Is(err, feedmux.ErrHistoryLost):
			return "too late: Subscription.Seek goes on from Earliest()"
		}
		if failed, ok := errors.AsType[*feedmux.Error](err); ok {
			return fmt.Sprint(failed.Reason, failed.Metadata)
		}
		return err.Error()
	}
	_ = explain
}
