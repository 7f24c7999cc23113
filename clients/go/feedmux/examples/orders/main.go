// Command orders prints the changes of shop.orders and resumes where the last run stopped.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/feedmux/feedmux/clients/go/feedmux"
)

// Change is what this program reads of an event.
type Change struct {
	Operation string   `bson:"operationType"`
	Key       bson.Raw `bson:"documentKey"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := follow(ctx); err != nil {
		log.Fatal(err)
	}
}

func follow(ctx context.Context) (err error) {
	client, err := feedmux.NewClient(cmp.Or(os.Getenv("FEEDMUX_ENDPOINT"), "localhost:7117"), &feedmux.Options{
		APIKey: os.Getenv("FEEDMUX_API_KEY"),
	})
	if err != nil {
		return err
	}
	defer client.Close()

	// The server stores the position under this name. Creating the subscription again changes nothing.
	orders := client.Subscription("orders-in-go")
	feed := feedmux.Feed{Database: "shop", Collection: "orders"}
	if _, err := orders.Create(ctx, feedmux.SubscriptionSpec{Feed: feed}); err != nil {
		return err
	}
	session, err := orders.Open(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()

	// An event is acked when the function has returned nil for it: it does not come again.
	err = session.Consume(ctx, func(_ context.Context, event feedmux.Event) error {
		var change Change
		if err := event.Decode(&change); err != nil {
			return err
		}
		fmt.Println(change.Operation, change.Key)
		return nil
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
