package feedmux

import (
	"fmt"
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// FullDocument says whether update events carry the document.
type FullDocument string

// The values of FullDocument, as MongoDB names them.
const (
	FullDocumentDefault       FullDocument = "default"
	FullDocumentUpdateLookup  FullDocument = "updateLookup"
	FullDocumentWhenAvailable FullDocument = "whenAvailable"
	FullDocumentRequired      FullDocument = "required"
)

// FullDocumentBeforeChange says whether events carry the document as it was before the change.
type FullDocumentBeforeChange string

// The values of FullDocumentBeforeChange, as MongoDB names them.
const (
	FullDocumentBeforeChangeOff           FullDocumentBeforeChange = "off"
	FullDocumentBeforeChangeWhenAvailable FullDocumentBeforeChange = "whenAvailable"
	FullDocumentBeforeChangeRequired      FullDocumentBeforeChange = "required"
)

// ReadPreference says which members of the replica set the feed may be read from.
type ReadPreference string

// The values of ReadPreference, as MongoDB names them.
const (
	ReadPreferencePrimary            ReadPreference = "primary"
	ReadPreferencePrimaryPreferred   ReadPreference = "primaryPreferred"
	ReadPreferenceSecondary          ReadPreference = "secondary"
	ReadPreferenceSecondaryPreferred ReadPreference = "secondaryPreferred"
	ReadPreferenceNearest            ReadPreference = "nearest"
)

// Feed is what to watch: scope, pipeline and MongoDB's change stream options. Without Collection, it covers the whole
// database; without Database, the whole deployment. A zero field is not sent to MongoDB. The entries of maps such as
// bson.M are sorted by key, so that equal maps make equal feeds; bson.D and structs keep their order.
type Feed struct {
	// Source is by default Options.Source of the client.
	Source     string
	Database   string
	Collection string
	// Pipeline is any value that BSON encodes as an array of stages, such as mongo.Pipeline, []bson.D or bson.A; or a
	// string with that array in JSON, which the server parses (docs/pipelines.md). As in MongoDB's driver, nil is null,
	// and a struct's unexported fields and empty ones with omitempty are left out: a filter from such a struct has fewer
	// conditions.
	Pipeline                 any
	FullDocument             FullDocument
	FullDocumentBeforeChange FullDocumentBeforeChange
	ShowExpandedEvents       bool
	// Collation is a document, such as bson.D.
	Collation any
	// Comment is any value that BSON can hold.
	Comment any
	// BatchSize limits the number of events in one batch; 0: as many as fit.
	BatchSize int32
	// MaxAwaitTime is stored with the feed, for clients that poll: up to 24 days, in whole milliseconds.
	MaxAwaitTime   time.Duration
	ReadPreference ReadPreference
	// ReadConcern is majority: MongoDB accepts no other for change streams.
	ReadConcern string
	// MatchCollectionUUIDForUpdateLookup is MongoDB's option of this name.
	MatchCollectionUUIDForUpdateLookup bool
	// ExtraOptions are options of newer MongoDB versions that are true, by MongoDB's names: showCommitTimestamp, for
	// example.
	ExtraOptions []string
}

func (f *Feed) message(defaultSource string) (*feedmuxpb.Feed, error) {
	if f.MaxAwaitTime%time.Millisecond != 0 || f.MaxAwaitTime < 0 || f.MaxAwaitTime.Milliseconds() > math.MaxInt32 {
		return nil, fmt.Errorf("feedmux: MaxAwaitTime must be whole milliseconds, up to 24 days, not %v", f.MaxAwaitTime)
	}
	message := &feedmuxpb.Feed{
		Source:                             f.Source,
		Database:                           f.Database,
		Collection:                         f.Collection,
		FullDocument:                       string(f.FullDocument),
		FullDocumentBeforeChange:           string(f.FullDocumentBeforeChange),
		ShowExpandedEvents:                 f.ShowExpandedEvents,
		BatchSize:                          f.BatchSize,
		MaxAwaitTimeMs:                     int32(f.MaxAwaitTime.Milliseconds()),
		ReadPreference:                     string(f.ReadPreference),
		ReadConcern:                        f.ReadConcern,
		MatchCollectionUuidForUpdateLookup: f.MatchCollectionUUIDForUpdateLookup,
		ExtraOptions:                       f.ExtraOptions,
	}
	if message.Source == "" {
		message.Source = defaultSource
	}
	var err error
	switch pipeline := f.Pipeline.(type) {
	case nil:
	case string:
		message.Pipeline = &feedmuxpb.Pipeline{Notation: &feedmuxpb.Pipeline_ExtendedJson{ExtendedJson: pipeline}}
	default:
		stages, err := encode(bson.D{{Key: "pipeline", Value: pipeline}})
		if err != nil {
			return nil, fmt.Errorf("feedmux: the pipeline cannot be encoded as BSON: %w", err)
		}
		message.Pipeline = &feedmuxpb.Pipeline{Notation: &feedmuxpb.Pipeline_Bson{Bson: stages}}
	}
	if f.Collation != nil {
		if message.Collation, err = encode(f.Collation); err != nil {
			return nil, fmt.Errorf("feedmux: the collation cannot be encoded as BSON: %w", err)
		}
	}
	if f.Comment != nil {
		if message.Comment, err = encode(bson.D{{Key: "comment", Value: f.Comment}}); err != nil {
			return nil, fmt.Errorf("feedmux: the comment cannot be encoded as BSON: %w", err)
		}
	}
	return message, nil
}

// feedOf converts a feed that the server returned. Its pipeline is a bson.RawArray or a string, its collation a
// bson.Raw, its comment a bson.RawValue.
func feedOf(message *feedmuxpb.Feed) Feed {
	feed := Feed{
		Source:                             message.GetSource(),
		Database:                           message.GetDatabase(),
		Collection:                         message.GetCollection(),
		FullDocument:                       FullDocument(message.GetFullDocument()),
		FullDocumentBeforeChange:           FullDocumentBeforeChange(message.GetFullDocumentBeforeChange()),
		ShowExpandedEvents:                 message.GetShowExpandedEvents(),
		BatchSize:                          message.GetBatchSize(),
		MaxAwaitTime:                       time.Duration(message.GetMaxAwaitTimeMs()) * time.Millisecond,
		ReadPreference:                     ReadPreference(message.GetReadPreference()),
		ReadConcern:                        message.GetReadConcern(),
		MatchCollectionUUIDForUpdateLookup: message.GetMatchCollectionUuidForUpdateLookup(),
		ExtraOptions:                       message.GetExtraOptions(),
	}
	switch notation := message.GetPipeline().GetNotation().(type) {
	case *feedmuxpb.Pipeline_ExtendedJson:
		feed.Pipeline = notation.ExtendedJson
	case *feedmuxpb.Pipeline_Bson:
		if stages, ok := bson.Raw(notation.Bson).Lookup("pipeline").ArrayOK(); ok {
			feed.Pipeline = stages
		}
	}
	if collation := message.GetCollation(); len(collation) > 0 {
		feed.Collation = bson.Raw(collation)
	}
	if comment := message.GetComment(); len(comment) > 0 {
		feed.Comment = bson.Raw(comment).Lookup("comment")
	}
	return feed
}

// Start is where a session begins. The zero Start leaves the choice to the server, which starts now.
type Start struct{ message *feedmuxpb.Start }

// Earliest starts as far back as MongoDB's oplog reaches.
func Earliest() Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_Earliest{Earliest: &feedmuxpb.Earliest{}}}}
}

// Latest starts now.
func Latest() Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_Latest{Latest: &feedmuxpb.Latest{}}}}
}

// StartSnapshot starts with the documents that exist, as insert events; every change after them follows. A server
// that does not know it is ErrSnapshotUnsupported.
func StartSnapshot() Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_Snapshot{Snapshot: &feedmuxpb.Snapshot{}}}}
}

// AtPosition starts after a position that feedmux returned.
func AtPosition(position []byte) Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_Position{Position: position}}}
}

// ResumeAfter starts as MongoDB's resumeAfter does.
func ResumeAfter(token bson.Raw) Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_ResumeAfter{ResumeAfter: token}}}
}

// StartAfter starts as MongoDB's startAfter does: it also accepts the token of an invalidate event.
func StartAfter(token bson.Raw) Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_StartAfter{StartAfter: token}}}
}

// AtOperationTime starts with the first event at or after a cluster time.
func AtOperationTime(at bson.Timestamp) Start {
	time := &feedmuxpb.ClusterTime{Seconds: at.T, Increment: at.I}
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_StartAtOperationTime{StartAtOperationTime: time}}}
}

// AtTime starts with the first event at or after a wall-clock time, cut to the whole second.
func AtTime(at time.Time) Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_Time{Time: &timestamppb.Timestamp{Seconds: at.Unix()}}}}
}

// isSnapshot says whether a start asks for a copy of the existing documents.
func isSnapshot(start *feedmuxpb.Start) bool { return start.GetSnapshot() != nil }
