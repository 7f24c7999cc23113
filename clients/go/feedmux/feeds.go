package feedmux

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// Feed is what to watch: scope, pipeline and MongoDB's change stream options. Without Collection it is the whole
// database, without Database the whole deployment. A zero field is not sent to MongoDB.
type Feed struct {
	// Source is by default the client's own.
	Source     string
	Database   string
	Collection string
	// Pipeline is anything that BSON writes as an array of stages, such as mongo.Pipeline, []bson.D or bson.A; or the
	// same as a string in extended JSON.
	Pipeline any
	// FullDocument is default, updateLookup, whenAvailable or required.
	FullDocument string
	// FullDocumentBeforeChange is off, whenAvailable or required.
	FullDocumentBeforeChange string
	ShowExpandedEvents       bool
	// Collation is a document, such as bson.D.
	Collation any
	// Comment is any value that BSON can hold.
	Comment any
	// BatchSize bounds the events of one batch; 0: as many as fit.
	BatchSize int32
	// MaxAwaitTime is kept with a feed for clients that poll.
	MaxAwaitTime time.Duration
	// ReadPreference is primary, primaryPreferred, secondary, secondaryPreferred or nearest.
	ReadPreference string
	ReadConcern    string
	// MatchCollectionUUIDForUpdateLookup is MongoDB's option of this name.
	MatchCollectionUUIDForUpdateLookup bool
}

func (f *Feed) message(defaultSource string) (*feedmuxpb.Feed, error) {
	message := &feedmuxpb.Feed{
		Source:                             f.Source,
		Database:                           f.Database,
		Collection:                         f.Collection,
		FullDocument:                       f.FullDocument,
		FullDocumentBeforeChange:           f.FullDocumentBeforeChange,
		ShowExpandedEvents:                 f.ShowExpandedEvents,
		BatchSize:                          f.BatchSize,
		MaxAwaitTimeMs:                     int32(f.MaxAwaitTime.Milliseconds()),
		ReadPreference:                     f.ReadPreference,
		ReadConcern:                        f.ReadConcern,
		MatchCollectionUuidForUpdateLookup: f.MatchCollectionUUIDForUpdateLookup,
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
		stages, err := bson.Marshal(bson.D{{Key: "pipeline", Value: pipeline}})
		if err != nil {
			return nil, fmt.Errorf("feedmux: the pipeline: %w", err)
		}
		message.Pipeline = &feedmuxpb.Pipeline{Notation: &feedmuxpb.Pipeline_Bson{Bson: stages}}
	}
	if f.Collation != nil {
		if message.Collation, err = bson.Marshal(f.Collation); err != nil {
			return nil, fmt.Errorf("feedmux: the collation: %w", err)
		}
	}
	if f.Comment != nil {
		if message.Comment, err = bson.Marshal(bson.D{{Key: "comment", Value: f.Comment}}); err != nil {
			return nil, fmt.Errorf("feedmux: the comment: %w", err)
		}
	}
	return message, nil
}

// feedOf is a feed read back. Its pipeline is a bson.RawArray or a string, its collation a bson.Raw, its comment a
// bson.RawValue.
func feedOf(message *feedmuxpb.Feed) Feed {
	feed := Feed{
		Source:                             message.GetSource(),
		Database:                           message.GetDatabase(),
		Collection:                         message.GetCollection(),
		FullDocument:                       message.GetFullDocument(),
		FullDocumentBeforeChange:           message.GetFullDocumentBeforeChange(),
		ShowExpandedEvents:                 message.GetShowExpandedEvents(),
		BatchSize:                          message.GetBatchSize(),
		MaxAwaitTime:                       time.Duration(message.GetMaxAwaitTimeMs()) * time.Millisecond,
		ReadPreference:                     message.GetReadPreference(),
		ReadConcern:                        message.GetReadConcern(),
		MatchCollectionUUIDForUpdateLookup: message.GetMatchCollectionUuidForUpdateLookup(),
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

// Start is where to begin. The zero Start leaves it to the server: now.
type Start struct{ message *feedmuxpb.Start }

// Earliest is as far back as MongoDB's oplog reaches.
func Earliest() Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_Earliest{Earliest: &feedmuxpb.Earliest{}}}}
}

// Latest is from now.
func Latest() Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_Latest{Latest: &feedmuxpb.Latest{}}}}
}

// AtPosition is behind a position that feedmux gave out.
func AtPosition(position []byte) Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_Position{Position: position}}}
}

// ResumeAfter is MongoDB's resumeAfter.
func ResumeAfter(token bson.Raw) Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_ResumeAfter{ResumeAfter: token}}}
}

// StartAfter is MongoDB's startAfter: also behind an invalidate event.
func StartAfter(token bson.Raw) Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_StartAfter{StartAfter: token}}}
}

// AtOperationTime is the first event at or after a cluster time.
func AtOperationTime(at bson.Timestamp) Start {
	time := &feedmuxpb.ClusterTime{Seconds: at.T, Increment: at.I}
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_StartAtOperationTime{StartAtOperationTime: time}}}
}

// AtTime is the first event at or after a wall-clock time, by the whole second.
func AtTime(at time.Time) Start {
	return Start{&feedmuxpb.Start{At: &feedmuxpb.Start_Time{Time: &timestamppb.Timestamp{Seconds: at.Unix()}}}}
}
