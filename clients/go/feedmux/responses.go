package feedmux

import (
	"bytes"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// A response is what came down, in the client's own values: *opened, *delivery, progress, committed or a Notice.
type response any

// opened says that the stream is open. A limit of 0 says nothing.
type opened struct {
	epoch           int64
	feedPosition    FeedPosition
	atLastAcked     bool
	heartbeat       time.Duration
	credit          grant
	unackedEvents   int64
	messageBytesMax int
	route           string
	copying         *SnapshotStatus
}

// delivery is events, and the sequence of the first of them.
type delivery struct {
	sequence int64
	batch    *Batch
}

// progress says that everything at or before feedPosition has been delivered.
type progress struct{ feedPosition FeedPosition }

// committed says that acks up to sequence are durable; position is stored.
type committed struct {
	sequence int64
	position []byte
}

// responseReader reads the messages of one stream and puts fragments together. Fields and kinds that are not known are
// ignored.
type responseReader struct {
	format    Format
	fragments [][]byte
	of        *feedmuxpb.EventFragment
}

// read reads one message; the response is nil for a kind that is not known and for a part of an unfinished event.
func (r *responseReader) read(message []byte) (response, error) {
	var outer feedmuxpb.SubscribeResponse
	if err := proto.Unmarshal(message, &outer); err != nil {
		return nil, protocolError("a message cannot be decoded: %v", err)
	}
	if part := outer.GetEventFragment(); part != nil {
		return r.join(part)
	}
	said, err := r.parse(&outer)
	if said != nil && len(r.fragments) > 0 {
		return nil, protocolError("a message came between the fragments of an event")
	}
	return said, err
}

func (r *responseReader) parse(outer *feedmuxpb.SubscribeResponse) (response, error) {
	switch kind := outer.GetMessage().(type) {
	case *feedmuxpb.SubscribeResponse_Batch:
		return r.delivery(kind.Batch)
	case *feedmuxpb.SubscribeResponse_Progress:
		return progress{feedPositionOf(kind.Progress)}, nil
	case *feedmuxpb.SubscribeResponse_Committed:
		return committed{kind.Committed.GetDeliverySequence(), kind.Committed.GetPosition()}, nil
	case *feedmuxpb.SubscribeResponse_Opened:
		return openedOf(kind.Opened), nil
	case *feedmuxpb.SubscribeResponse_Notice:
		if notice := noticeOf(kind.Notice); notice != nil {
			return notice, nil
		}
	}
	return nil, nil
}

func (r *responseReader) delivery(batch *feedmuxpb.Batch) (response, error) {
	count := int(batch.GetEventCount())
	if count < 1 {
		return nil, protocolError("a batch without events")
	}
	readTime := time.Time{}
	if batch.GetReadTime() != nil {
		readTime = batch.GetReadTime().AsTime()
	}
	if r.format == FormatBSON {
		made, err := bsonBatch(batch.GetBson(), count, feedPositionOf(batch), readTime)
		if err != nil {
			return nil, err
		}
		made.snapshot = batch.GetSnapshot()
		return &delivery{batch.GetFirstDeliverySequence(), made}, nil
	}
	if len(batch.GetJson()) != count {
		return nil, protocolError("a batch of %d events holds %d texts", count, len(batch.GetJson()))
	}
	made := jsonBatch(batch.GetJson(), r.format, feedPositionOf(batch), readTime)
	made.snapshot = batch.GetSnapshot()
	return &delivery{batch.GetFirstDeliverySequence(), made}, nil
}

func (r *responseReader) join(part *feedmuxpb.EventFragment) (response, error) {
	next := len(r.fragments)
	if int(part.GetIndex()) != next || part.GetCount() < 1 ||
		next > 0 && (part.GetDeliverySequence() != r.of.GetDeliverySequence() || part.GetCount() != r.of.GetCount()) {
		return nil, protocolError("fragments of an event out of order")
	}
	r.fragments, r.of = append(r.fragments, part.GetData()), part
	if len(r.fragments) < int(part.GetCount()) {
		return nil, nil
	}
	data := bytes.Join(r.fragments, nil)
	r.fragments, r.of = nil, nil
	if r.format == FormatBSON {
		made, err := bsonBatch(data, 1, feedPositionOf(part), time.Time{})
		if err != nil {
			return nil, err
		}
		made.snapshot = part.GetSnapshot()
		return &delivery{part.GetDeliverySequence(), made}, nil
	}
	if !utf8.Valid(data) {
		return nil, protocolError("a fragmented event is not UTF-8")
	}
	made := jsonBatch([]string{string(data)}, r.format, feedPositionOf(part), time.Time{})
	made.snapshot = part.GetSnapshot()
	return &delivery{part.GetDeliverySequence(), made}, nil
}

func openedOf(message *feedmuxpb.Opened) *opened {
	limits := message.GetLimits()
	var copying *SnapshotStatus
	if message.GetSnapshot() != nil {
		copying = snapshotStatus(message.GetSnapshot())
	}
	return &opened{
		epoch:           message.GetEpoch(),
		feedPosition:    feedPositionOf(message),
		atLastAcked:     message.GetAtLastAcked(),
		heartbeat:       message.GetHeartbeatInterval().AsDuration(),
		credit:          grant{limits.GetCreditEventsMax(), limits.GetCreditBytesMax()},
		unackedEvents:   limits.GetUnackedEventsMax(),
		messageBytesMax: int(limits.GetMessageBytesMax()),
		route:           message.GetRoutingKey(),
		copying:         copying,
	}
}

// positioned is every message that carries a position.
type positioned interface {
	GetPosition() []byte
	GetResumeToken() []byte
	GetClusterTime() *feedmuxpb.ClusterTime
}

func feedPositionOf(message positioned) FeedPosition {
	return FeedPosition{message.GetPosition(), message.GetResumeToken(), timestamp(message.GetClusterTime())}
}
