package feedmux

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// OnInvalidate is what happens when a feed ends with an invalidate event.
type OnInvalidate int

const (
	// InvalidateStop: the event is delivered, then the session ends with ErrFeedInvalidated. The default.
	InvalidateStop = OnInvalidate(feedmuxpb.OnInvalidate_ON_INVALIDATE_STOP)
	// InvalidateContinue: the event is delivered, and the feed goes on behind it.
	InvalidateContinue = OnInvalidate(feedmuxpb.OnInvalidate_ON_INVALIDATE_CONTINUE)
)

// OnHistoryLost is what happens when the stored position has left the oplog.
type OnHistoryLost int

const (
	// HistoryLostFail: the session ends with ErrHistoryLost. The default.
	HistoryLostFail = OnHistoryLost(feedmuxpb.OnHistoryLost_ON_HISTORY_LOST_FAIL)
	// HistoryLostEarliest: a Gap notice, then the feed goes on from the oldest event there is.
	HistoryLostEarliest = OnHistoryLost(feedmuxpb.OnHistoryLost_ON_HISTORY_LOST_EARLIEST)
)

// Subscription is a durable subscription, by name: a feed whose place the server keeps.
type Subscription struct {
	client *Client
	name   string
}

// SubscriptionInfo is a subscription as the server has it.
type SubscriptionInfo struct {
	Name          string
	Feed          Feed
	OnInvalidate  OnInvalidate
	OnHistoryLost OnHistoryLost
	// Position is stored: everything at or before it is processed. ClusterTime is its time.
	Position    []byte
	ClusterTime bson.Timestamp
	CreateTime  time.Time
	// UpdateTime is when the definition or, by a seek, the position was last changed.
	UpdateTime time.Time
	// ETag changes with the definition.
	ETag string
	// Active says whether a session is open, Owner by which instance, Epoch which one.
	Active bool
	Owner  string
	Epoch  int64
}

// SubscriptionSpec is what to create. Zero policies are the defaults; the zero Start is now.
type SubscriptionSpec struct {
	Feed          Feed
	Start         Start
	OnInvalidate  OnInvalidate
	OnHistoryLost OnHistoryLost
}

// SubscriptionChange is what to change; zero fields stay as they are.
type SubscriptionChange struct {
	Feed          *Feed
	OnInvalidate  OnInvalidate
	OnHistoryLost OnHistoryLost
	// ETag, where set, guards against another's change in between.
	ETag string
}

// DeleteOptions say how to delete.
type DeleteOptions struct {
	// ETag, where set, must be the stored one.
	ETag string
	// AllowMissing succeeds when there is nothing to delete.
	AllowMissing bool
}

// Open opens a session. The context bounds the opening; the session lives until it is closed. Options may be nil. Among
// the errors are ErrSubscriptionNotFound, ErrSubscriptionBusy (see SessionOptions.Takeover) and ErrHistoryLost.
func (s *Subscription) Open(ctx context.Context, options *SessionOptions) (*Session, error) {
	return open(ctx, s.client, opening{subscription: s.name, instanceID: rand.Text()}, options)
}

// Name is the subscription's name.
func (s *Subscription) Name() string { return s.name }

// Create creates the subscription and stores its first position. The same content again changes nothing; other content
// gives ErrSubscriptionExists.
func (s *Subscription) Create(ctx context.Context, spec SubscriptionSpec) (*SubscriptionInfo, error) {
	feed, err := spec.Feed.message(s.client.source)
	if err != nil {
		return nil, err
	}
	return infoOf(call(ctx, s.client, s.client.control.CreateSubscription, &feedmuxpb.CreateSubscriptionRequest{
		Subscription: &feedmuxpb.Subscription{
			Name:          s.name,
			Feed:          feed,
			OnInvalidate:  feedmuxpb.OnInvalidate(spec.OnInvalidate),
			OnHistoryLost: feedmuxpb.OnHistoryLost(spec.OnHistoryLost),
		},
		Start: spec.Start.message,
	}))
}

// Get gives the subscription, or ErrSubscriptionNotFound.
func (s *Subscription) Get(ctx context.Context) (*SubscriptionInfo, error) {
	request := &feedmuxpb.GetSubscriptionRequest{Name: s.name}
	return infoOf(call(ctx, s.client, s.client.control.GetSubscription, request))
}

// Update changes feed or policies; the position stays. An open session goes on under the new definition.
func (s *Subscription) Update(ctx context.Context, change SubscriptionChange) (*SubscriptionInfo, error) {
	message := &feedmuxpb.Subscription{
		Name:          s.name,
		OnInvalidate:  feedmuxpb.OnInvalidate(change.OnInvalidate),
		OnHistoryLost: feedmuxpb.OnHistoryLost(change.OnHistoryLost),
		Etag:          change.ETag,
	}
	var paths []string
	if change.Feed != nil {
		feed, err := change.Feed.message(s.client.source)
		if err != nil {
			return nil, err
		}
		message.Feed = feed
		paths = append(paths, "feed")
	}
	if change.OnInvalidate != 0 {
		paths = append(paths, "on_invalidate")
	}
	if change.OnHistoryLost != 0 {
		paths = append(paths, "on_history_lost")
	}
	if len(paths) == 0 {
		return nil, errors.New("feedmux: nothing to update")
	}
	return infoOf(call(ctx, s.client, s.client.control.UpdateSubscription, &feedmuxpb.UpdateSubscriptionRequest{
		Subscription: message, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
	}))
}

// Seek moves the stored position, also backwards. An open session goes on from there.
func (s *Subscription) Seek(ctx context.Context, to Start) (*SubscriptionInfo, error) {
	if to.message == nil {
		to = Latest()
	}
	request := &feedmuxpb.SeekSubscriptionRequest{Name: s.name, To: to.message}
	return infoOf(call(ctx, s.client, s.client.control.SeekSubscription, request))
}

// Delete deletes the subscription. Options may be nil.
func (s *Subscription) Delete(ctx context.Context, options *DeleteOptions) error {
	if options == nil {
		options = &DeleteOptions{}
	}
	_, err := call(ctx, s.client, s.client.control.DeleteSubscription, &feedmuxpb.DeleteSubscriptionRequest{
		Name: s.name, Etag: options.ETag, AllowMissing: options.AllowMissing,
	})
	return err
}

// Subscriptions iterates over all of the tenant's subscriptions, by name, and asks for a page when it is needed.
func (c *Client) Subscriptions(ctx context.Context) iter.Seq2[*SubscriptionInfo, error] {
	return func(yield func(*SubscriptionInfo, error) bool) {
		request := &feedmuxpb.ListSubscriptionsRequest{}
		for {
			page, err := call(ctx, c, c.control.ListSubscriptions, request)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, each := range page.GetSubscriptions() {
				if !yield(infoOf(each, nil)) {
					return
				}
			}
			if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
				return
			}
		}
	}
}

// infoOf reads a subscription back. Policies that were never set read as their defaults.
func infoOf(message *feedmuxpb.Subscription, err error) (*SubscriptionInfo, error) {
	if err != nil {
		return nil, err
	}
	return &SubscriptionInfo{
		Name:          message.GetName(),
		Feed:          feedOf(message.GetFeed()),
		OnInvalidate:  max(InvalidateStop, OnInvalidate(message.GetOnInvalidate())),
		OnHistoryLost: max(HistoryLostFail, OnHistoryLost(message.GetOnHistoryLost())),
		Position:      message.GetPosition(),
		ClusterTime:   timestamp(message.GetClusterTime()),
		CreateTime:    timeOf(message.GetCreateTime()),
		UpdateTime:    timeOf(message.GetUpdateTime()),
		ETag:          message.GetEtag(),
		Active:        message.GetActive(),
		Owner:         message.GetOwner(),
		Epoch:         message.GetEpoch(),
	}, nil
}

func timeOf(message *timestamppb.Timestamp) time.Time {
	if message == nil {
		return time.Time{}
	}
	return message.AsTime()
}
