package feedmux

import (
	"time"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// Explanation describes what opening a feed would do. Fields that are unknown because of a refusal are zero.
type Explanation struct {
	// Refusal is nil if the feed would be opened.
	Refusal *Refusal
	// Pipeline is the pipeline for MongoDB, in extended JSON, without the stages of the tenant's grants.
	Pipeline string
	// StreamKey names the shared stream; StreamOpen says whether the server already reads it.
	StreamKey  string
	StreamOpen bool
	Images     []CollectionImages
	// OplogHeadroom is the time from the oldest entry of the oplog to the start: how much longer the start stays
	// readable. 0 if it is unknown.
	OplogHeadroom time.Duration
	// Withheld lists the parts of the feed's scope that the server does not deliver.
	Withheld []Withheld
	// MayBeView says whether the server may serve the feed from one stream that reads its database or deployment for
	// many feeds.
	MayBeView bool
	// ScopeMissing says whether the feed's collection does not exist now, or its database has no collections. False
	// if it is unknown.
	ScopeMissing bool
	// DocumentsEstimated is, for a start at StartSnapshot, about how many documents the copy would read. 0 if it is
	// unknown, or if grants withhold documents.
	DocumentsEstimated int64
}

// Refusal is the error with which opening would end.
type Refusal struct {
	// Status is the name of the gRPC status, such as PERMISSION_DENIED; Reason is as in Error.
	Status, Reason, Message string
}

// CollectionImages is a collection whose stored pre- and post-images are needed, for the tenant's grants or only for
// the feed.
type CollectionImages struct {
	Database, Collection string
	Enabled, ForGrants   bool
}

// Withheld is something that the server does not deliver.
type Withheld struct{ What, Why string }

func explanationOf(message *feedmuxpb.ExplainResponse, err error) (*Explanation, error) {
	if err != nil {
		return nil, err
	}
	made := &Explanation{
		Pipeline:           message.GetPipeline(),
		StreamKey:          message.GetStreamKey(),
		StreamOpen:         message.GetStreamOpen(),
		OplogHeadroom:      message.GetOplogHeadroom().AsDuration(),
		MayBeView:          message.GetMayBeView(),
		ScopeMissing:       message.GetScopeMissing(),
		DocumentsEstimated: message.GetDocumentsEstimated(),
	}
	if refusal := message.GetRefusal(); refusal != nil {
		made.Refusal = &Refusal{refusal.GetStatus(), refusal.GetReason(), refusal.GetMessage()}
	}
	for _, one := range message.GetImages() {
		made.Images = append(made.Images, CollectionImages{
			one.GetDatabase(), one.GetCollection(), one.GetEnabled(), one.GetForGrants(),
		})
	}
	for _, one := range message.GetWithheld() {
		made.Withheld = append(made.Withheld, Withheld{one.GetWhat(), one.GetWhy()})
	}
	return made, nil
}
