package feedmux

import (
	"time"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// Explanation is what opening a feed would do, without doing it. Fields that a refusal keeps from being known are zero.
type Explanation struct {
	// Refusal is nil where the feed would be opened.
	Refusal *Refusal
	// Pipeline is what MongoDB is asked, in extended JSON; the stages of the tenant's grants are not shown.
	Pipeline string
	// StreamKey names the shared stream; StreamOpen says whether the server reads it already.
	StreamKey  string
	StreamOpen bool
	Images     []CollectionImages
	// OplogHeadroom is how much longer the start stays readable; 0 where it is not known.
	OplogHeadroom time.Duration
	// Withheld is what of the feed's scope does not come.
	Withheld []Withheld
}

// Refusal is how opening would end.
type Refusal struct {
	// Status is the name of the gRPC status, such as PERMISSION_DENIED; Reason is that of Error.
	Status, Reason, Message string
}

// CollectionImages is a collection whose stored pre- and post-images are needed: for the tenant's grants, or only for
// the feed.
type CollectionImages struct {
	Database, Collection string
	Enabled, ForGrants   bool
}

// Withheld is something that does not come.
type Withheld struct{ What, Why string }

func explanationOf(message *feedmuxpb.ExplainResponse, err error) (*Explanation, error) {
	if err != nil {
		return nil, err
	}
	made := &Explanation{
		Pipeline:      message.GetPipeline(),
		StreamKey:     message.GetStreamKey(),
		StreamOpen:    message.GetStreamOpen(),
		OplogHeadroom: message.GetOplogHeadroom().AsDuration(),
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
