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
	// InvalidateContinue: the event is delivered, and the feed continues after it.
	InvalidateContinue = OnInvalidate(feedmuxpb.OnInvalidate_ON_INVALIDATE_CONTINUE)
)

// OnHistoryLost is what happens when the stored position is no longer in the oplog.
type OnHistoryLost int

const (
	// HistoryLostFail: the session ends with ErrHistoryLost. The default.
	HistoryLostFail = OnHistoryLost(feedmuxpb.OnHistoryLost_ON_HISTORY_LOST_FAIL)
	// HistoryLostEarliest: a Gap notice comes, then the feed continues from the oldest available event.
	HistoryLostEarliest = OnHistoryLost(feedmuxpb.OnHistoryLost_ON_HISTORY_LOST_EARLIEST)
	// HistoryLostSnapshot: a Gap notice comes, then the existing documents are copied again: see SnapshotComplete.
	HistoryLostSnapshot = OnHistoryLost(feedmuxpb.OnHistoryLost_ON_HISTORY_LOST_SNAPSHOT)
)

// Subscription is a durable subscription, by name: a feed whose position the server stores.
type Subscription struct {
	client *Client
	name   string
}

// SubscriptionInfo is a subscription as the server stores it.
type SubscriptionInfo struct {
	Name          string
	Feed          Feed
	OnInvalidate  OnInvalidate
	OnHistoryLost OnHistoryLost
	// Position is the stored position: everything at or before it has been processed. ClusterTime is its time.
	Position    []byte
	ClusterTime bson.Timestamp
	CreateTime  time.Time
	// UpdateTime is when the definition or, by a seek, the position was last changed.
	UpdateTime time.Time
	// ETag changes with the definition.
	ETag string
	// Active says whether a session is open, Owner is the instance that opened it, and Epoch that of the newest
	// session.
	Active bool
	Owner  string
	Epoch  int64
	// Snapshot is set while Position is within a copy of existing documents.
	Snapshot *SnapshotStatus
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
	// ETag, if set, must be the stored one: it guards against another client's change in between.
	ETag string
}

// DeleteOptions say how to delete.
type DeleteOptions struct {
	// ETag, if set, must be the stored one.
	ETag string
	// AllowMissing succeeds when there is nothing to delete.
	AllowMissing bool
}

// Open opens a session. The context limits the time for opening; the session lives until it is closed. Options may be
// nil. Possible errors include ErrSubscriptionNotFound, ErrSubscriptionBusy (see SessionOptions.Takeover) and
// ErrHistoryLost.
func (s *Subscription) Open(ctx context.Context, options *SessionOptions) (*Session, error) {
	return open(ctx, s.client, opening{subscription: s.name, instanceID: rand.Text()}, options)
}

// Name is the subscription's name.
func (s *Subscription) Name() string { return s.name }

// Create creates the subscription and stores its first position. Creating it again with the same content changes
// nothing; different content gives ErrSubscriptionExists.
func (s *Subscription) Create(ctx context.Context, spec SubscriptionSpec) (*SubscriptionInfo, error) {
	feed, err := spec.Feed.message(s.client.source)
	if err != nil {
		return nil, err
	}
	start, err := storedStart(ctx, s.client, feed, spec.Start.message)
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
		Start: start,
	}))
}

// Get returns the subscription, or ErrSubscriptionNotFound.
func (s *Subscription) Get(ctx context.Context) (*SubscriptionInfo, error) {
	request := &feedmuxpb.GetSubscriptionRequest{Name: s.name}
	return infoOf(call(ctx, s.client, s.client.control.GetSubscription, request))
}

// Update changes the feed or the policies; the position stays. An open session continues with the new definition.
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
		return nil, errors.New("feedmux: nothing to update: set Feed, OnInvalidate or OnHistoryLost")
	}
	return infoOf(call(ctx, s.client, s.client.control.UpdateSubscription, &feedmuxpb.UpdateSubscriptionRequest{
		Subscription: message, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
	}))
}

// Seek moves the stored position, forward or backward. An open session continues from there. The zero Start is an error.
func (s *Subscription) Seek(ctx context.Context, to Start) (*SubscriptionInfo, error) {
	if to.message == nil {
		// A position that was not found would otherwise skip everything up to now.
		return nil, errors.New("feedmux: a seek needs a Start other than the zero one")
	}
	start := to.message
	if isSnapshot(start) {
		stored, err := call(
			ctx, s.client, s.client.control.GetSubscription, &feedmuxpb.GetSubscriptionRequest{Name: s.name})
		if err != nil {
			return nil, err
		}
		if start, err = storedStart(ctx, s.client, stored.GetFeed(), start); err != nil {
			return nil, err
		}
	}
	request := &feedmuxpb.SeekSubscriptionRequest{Name: s.name, To: start}
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

// Subscriptions iterates over all of the tenant's subscriptions, in order of their names, and requests each page when
// it is needed.
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

// infoOf converts a subscription that the server returned. Policies that were never set become their defaults.
func infoOf(message *feedmuxpb.Subscription, err error) (*SubscriptionInfo, error) {
	if err != nil {
		return nil, err
	}
	var snapshot *SnapshotStatus
	if status := message.GetSnapshot(); status.GetState() == feedmuxpb.SnapshotStatus_STATE_RUNNING {
		snapshot = snapshotStatus(status)
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
		Snapshot:      snapshot,
	}, nil
}

func timeOf(message *timestamppb.Timestamp) time.Time {
	if message == nil {
		return time.Time{}
	}
	return message.AsTime()
}
