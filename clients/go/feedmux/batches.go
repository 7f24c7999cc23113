package feedmux

import (
	"encoding/binary"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Event is one change event. It is a small value that points into its batch: the batch's bytes stay in memory as long
// as one of its events does.
type Event struct {
	batch *Batch
	index int
}

// Decode decodes the event into a pointer, as bson.Unmarshal does, whatever the session's format. An event whose extended
// JSON cannot be read is ErrProtocol.
func (e Event) Decode(into any) error {
	raw, err := e.bson()
	if err != nil {
		return err
	}
	return bson.Unmarshal(raw, into)
}

// Document decodes the whole event, as Decode into a bson.D does, in a third of the time.
func (e Event) Document() (bson.D, error) {
	raw, err := e.bson()
	if err != nil {
		return nil, err
	}
	return decodeDocument(raw)
}

func (e Event) bson() (bson.Raw, error) {
	if e.batch.format == FormatBSON {
		return e.batch.bytes(e.index), nil
	}
	raw, err := bsonOf(e.batch.bytes(e.index))
	if err != nil {
		return nil, protocolError("an event cannot be decoded from its extended JSON; use FormatBSON: %v", err)
	}
	return raw, nil
}

// Raw is the event as MongoDB sent it. It is not a copy: do not change it. Nil with an extended JSON format.
func (e Event) Raw() bson.Raw {
	if e.batch.format != FormatBSON {
		return nil
	}
	return e.batch.bytes(e.index)
}

// JSON is the event's text with an extended JSON format. It is not a copy: do not change it. Nil with BSON.
func (e Event) JSON() []byte {
	if e.batch.format == FormatBSON {
		return nil
	}
	return e.batch.bytes(e.index)
}

// ResumeToken is MongoDB's resume token: the event's `_id`. Nil if the pipeline removed it.
func (e Event) ResumeToken() bson.Raw { return e.batch.token(e.index) }

// Sequence is the number of this event within its session. It counts from 1 without gaps, also across reconnects.
func (e Event) Sequence() int64 { return e.batch.first + int64(e.index) }

// Snapshot says whether the event is a document of a copy (StartSnapshot) rather than a change.
func (e Event) Snapshot() bool { return e.batch.snapshot }

// Batch is the batch that the event came in.
func (e Event) Batch() *Batch { return e.batch }

// Batch is consecutive events in MongoDB's order, for bulk work.
type Batch struct {
	// Event i is data[offsets[i]:offsets[i+1]].
	data    []byte
	offsets []int
	format  Format
	// first is the ordinal of the first event: the client's own count during the life of a session.
	first        int64
	feedPosition FeedPosition
	readTime     time.Time
	snapshot     bool
	generation   int64
	// buffer belongs to the session that received the batch.
	buffer *sessionBuffer
}

// Len is the number of events, at least 1.
func (b *Batch) Len() int { return len(b.offsets) - 1 }

// Event returns the event at an index, from 0.
func (b *Batch) Event(index int) Event {
	_ = b.offsets[index+1]
	return Event{b, index}
}

// Raw is the BSON of all events, one document after the other. It is not a copy: do not change it. Nil with extended
// JSON.
func (b *Batch) Raw() []byte {
	if b.format != FormatBSON {
		return nil
	}
	return b.data[b.offsets[0]:b.offsets[b.Len()]]
}

// FirstSequence is the number of the first event within the session.
func (b *Batch) FirstSequence() int64 { return b.first }

// LastSequence is the number of the last event within the session.
func (b *Batch) LastSequence() int64 { return b.first + int64(b.Len()) - 1 }

// FeedPosition is the position after the last event. It is empty for the first part of a batch that was split.
func (b *Batch) FeedPosition() FeedPosition { return b.feedPosition }

// ReadTime is when the server read the first of these events from MongoDB; zero for an event that arrived in fragments.
func (b *Batch) ReadTime() time.Time { return b.readTime }

// Snapshot says whether the events are documents of a copy (StartSnapshot) rather than changes: all of them are, or none.
func (b *Batch) Snapshot() bool { return b.snapshot }

// Generation is the number of the last copy that the session had read, or was reading, when the batch came; 0 for none.
// See SnapshotComplete.
func (b *Batch) Generation() int64 { return b.generation }

func (b *Batch) size() int64 { return int64(b.offsets[b.Len()] - b.offsets[0]) }

func (b *Batch) bytes(index int) []byte {
	start, end := b.offsets[index], b.offsets[index+1]
	return b.data[start:end:end]
}

// token is the resume token of one event; nil if there is none.
func (b *Batch) token(index int) bson.Raw {
	if b.format == FormatBSON {
		return eventToken(b.bytes(index))
	}
	return jsonToken(b.bytes(index))
}

// part returns the events [first, end) as a separate batch over the same bytes.
func (b *Batch) part(first, end int) *Batch {
	part := *b
	part.offsets = b.offsets[first : end+1]
	part.first = b.first + int64(first)
	if end < b.Len() {
		part.feedPosition = FeedPosition{}
	}
	return &part
}

const smallestDocument = 5

// bsonBatch makes a batch of count events over their documents, without a copy.
func bsonBatch(data []byte, count int, feedPosition FeedPosition, readTime time.Time) (*Batch, error) {
	if count > len(data)/smallestDocument {
		return nil, protocolError("a batch of %d bytes cannot hold %d events", len(data), count)
	}
	offsets := make([]int, count+1)
	at := 0
	for index := range count {
		if at+smallestDocument > len(data) {
			return nil, protocolError("the lengths of a batch do not add up")
		}
		size := int(int32(binary.LittleEndian.Uint32(data[at:])))
		if size < smallestDocument || size > len(data)-at {
			return nil, protocolError("the lengths of a batch do not add up")
		}
		at += size
		offsets[index+1] = at
	}
	if at != len(data) {
		return nil, protocolError("the lengths of a batch do not add up")
	}
	return &Batch{data: data, offsets: offsets, format: FormatBSON, feedPosition: feedPosition, readTime: readTime}, nil
}

// jsonBatch makes a batch from texts, one for each event.
func jsonBatch(texts []string, format Format, feedPosition FeedPosition, readTime time.Time) *Batch {
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	data := make([]byte, 0, size)
	offsets := make([]int, 1, len(texts)+1)
	for _, text := range texts {
		data = append(data, text...)
		offsets = append(offsets, len(data))
	}
	return &Batch{data: data, offsets: offsets, format: format, feedPosition: feedPosition, readTime: readTime}
}
