package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"google.golang.org/genproto/googleapis/rpc/code"

	"github.com/feedmux/feedmux/clients/go/feedmux"
)

// item is an event or a notice.
type item struct {
	Event  map[string]any `json:"event,omitempty"`
	Notice *notice        `json:"notice,omitempty"`
}

type notice struct {
	Kind   string
	Fields map[string]any
}

func (n *notice) MarshalJSON() ([]byte, error) {
	fields := map[string]any{"kind": n.Kind}
	for name, value := range n.Fields {
		fields[name] = value
	}
	return json.Marshal(fields)
}

func describeNotice(told feedmux.Notice) *notice {
	type fields = map[string]any
	switch told := told.(type) {
	case feedmux.Draining:
		return &notice{"draining", fields{"deadline_s": told.Deadline.Seconds(), "position": orEmpty(told.Position)}}
	case feedmux.Rewound:
		return &notice{"rewound", fields{"from": pair(told.BeginsAt), "to": pair(told.HadReached)}}
	case feedmux.Skipped:
		return &notice{"skipped", fields{
			"from": pair(told.HadReached), "to": pair(told.BeginsAt),
			"from_position": told.HadReachedPosition, "to_position": told.BeginsAtPosition,
		}}
	case feedmux.HistoryAtRisk:
		return &notice{"history_at_risk", fields{"remaining_s": told.Remaining.Seconds()}}
	case feedmux.Gap:
		return &notice{"gap", fields{"from": pair(told.After), "to": pair(told.Before), "reason": told.Reason}}
	case feedmux.Degraded:
		return &notice{"degraded", fields{"dependency": told.Dependency, "unavailable": told.Unavailable}}
	case feedmux.Unacknowledged:
		return &notice{"unacknowledged", fields{"events": told.Events}}
	case feedmux.SnapshotProgress:
		return &notice{"snapshot_progress", fields{
			"documents": told.Documents, "bytes": told.Bytes, "documents_estimated": told.DocumentsEstimated,
			"remaining_s": told.Remaining.Seconds(), "read_time": clusterTime(told.ReadTime), "namespace": told.Namespace,
		}}
	case feedmux.SnapshotComplete:
		return &notice{"snapshot_complete", fields{
			"documents": told.Documents, "bytes": told.Bytes, "read_time": clusterTime(told.ReadTime),
			"generation": told.Generation,
		}}
	case feedmux.Disconnected:
		return &notice{"disconnected", fields{
			"reason": told.Err.Reason, "status": code.Code(told.Err.Code).String(), "retry_in_s": told.RetryIn.Seconds(),
		}}
	}
	return &notice{Kind: fmt.Sprintf("%T", told)}
}

func pair(at bson.Timestamp) [2]uint32 { return [2]uint32{at.T, at.I} }

func describeEvent(event feedmux.Event, report []string) (map[string]any, error) {
	shown := map[string]any{}
	if slices.Contains(report, "document") {
		decoded, err := event.Document()
		if err != nil {
			return nil, err
		}
		text, err := bson.MarshalExtJSON(decoded, true, false)
		if err != nil {
			return nil, err
		}
		shown["document"] = json.RawMessage(text)
	}
	if slices.Contains(report, "raw") {
		if shown["raw"] = []byte(event.Raw()); event.JSON() != nil {
			shown["raw"] = event.JSON()
		}
	}
	if slices.Contains(report, "snapshot") {
		shown["snapshot"] = event.Snapshot()
	}
	if slices.Contains(report, "generation") {
		shown["generation"] = event.Batch().Generation()
	}
	if slices.Contains(report, "token") {
		shown["token"] = []byte(event.ResumeToken())
	}
	return shown, nil
}

// failed is an error, as the harness reads it.
type failed struct {
	Type        string            `json:"type"`
	Reason      string            `json:"reason"`
	Status      string            `json:"status"`
	Message     string            `json:"message"`
	Metadata    map[string]string `json:"metadata"`
	RetryAfterS *float64          `json:"retry_after_s"`
	Position    []byte            `json:"position,omitempty"`
	ResumeToken []byte            `json:"resume_token,omitempty"`
}

// kinds are in the order in which they are looked for: a kind of another kind comes before it.
var kinds = []struct {
	err  error
	name string
}{
	{feedmux.ErrPositionInvalid, "PositionInvalid"},
	{feedmux.ErrOptionRefused, "OptionRefused"},
	{feedmux.ErrInvalidArgument, "InvalidArgument"},
	{feedmux.ErrUnauthenticated, "Unauthenticated"},
	{feedmux.ErrPermissionDenied, "PermissionDenied"},
	{feedmux.ErrSubscriptionNotFound, "SubscriptionNotFound"},
	{feedmux.ErrNotFound, "NotFound"},
	{feedmux.ErrSubscriptionExists, "SubscriptionExists"},
	{feedmux.ErrSubscriptionBusy, "SubscriptionBusy"},
	{feedmux.ErrFeedInvalidated, "FeedInvalidated"},
	{feedmux.ErrFailedPrecondition, "FailedPrecondition"},
	{feedmux.ErrHistoryLost, "HistoryLost"},
	{feedmux.ErrTimelineForked, "TimelineForked"},
	{feedmux.ErrOutOfRange, "OutOfRange"},
	{feedmux.ErrFenced, "Fenced"},
	{feedmux.ErrEndedByOperator, "EndedByOperator"},
	{feedmux.ErrAborted, "Aborted"},
	{feedmux.ErrQuotaExceeded, "QuotaExceeded"},
	{feedmux.ErrUnavailable, "Unavailable"},
	{feedmux.ErrInternal, "InternalError"},
	{feedmux.ErrProtocol, "ProtocolError"},
	{feedmux.ErrSnapshotUnsupported, "SnapshotUnsupported"},
}

func describe(err error) *failed {
	if errors.Is(err, context.Canceled) || errors.Is(err, feedmux.ErrClosed) {
		return &failed{Type: "Cancelled", Message: err.Error()}
	}
	known, ok := errors.AsType[*feedmux.Error](err)
	if !ok {
		return &failed{Type: "BadCommand", Message: err.Error()}
	}
	made := &failed{
		Type: "FeedmuxError", Reason: known.Reason, Status: code.Code(known.Code).String(), Message: known.Message,
		Metadata: known.Metadata, Position: known.Position, ResumeToken: known.ResumeToken,
	}
	for _, kind := range kinds {
		if errors.Is(err, kind.err) {
			made.Type = kind.name
			break
		}
	}
	if known.RetryAfter > 0 {
		asked := known.RetryAfter.Seconds()
		made.RetryAfterS = &asked
	}
	return made
}

type feedFields struct {
	Database                 string                           `json:"database"`
	Collection               string                           `json:"collection"`
	Pipeline                 json.RawMessage                  `json:"pipeline"`
	FullDocument             feedmux.FullDocument             `json:"full_document"`
	FullDocumentBeforeChange feedmux.FullDocumentBeforeChange `json:"full_document_before_change"`
	ShowExpandedEvents       bool                             `json:"show_expanded_events"`
	BatchSize                int32                            `json:"batch_size"`
	ExtraOptions             []string                         `json:"extra_options"`
}

func (f *feedFields) feed() feedmux.Feed {
	feed := feedmux.Feed{
		Database: f.Database, Collection: f.Collection, FullDocument: f.FullDocument,
		FullDocumentBeforeChange: f.FullDocumentBeforeChange, ShowExpandedEvents: f.ShowExpandedEvents,
		BatchSize: f.BatchSize, ExtraOptions: f.ExtraOptions,
	}
	if len(f.Pipeline) > 0 && string(f.Pipeline) != "null" {
		feed.Pipeline = string(f.Pipeline)
	}
	return feed
}

// start is null, a word, or an object of one field.
type start struct{ feedmux.Start }

func (s *start) UnmarshalJSON(text []byte) error {
	switch string(text) {
	case "null":
		return nil
	case `"earliest"`:
		s.Start = feedmux.Earliest()
		return nil
	case `"latest"`:
		s.Start = feedmux.Latest()
		return nil
	case `"snapshot"`:
		s.Start = feedmux.StartSnapshot()
		return nil
	}
	var given struct {
		Position      []byte     `json:"position"`
		ResumeAfter   []byte     `json:"resume_after"`
		StartAfter    []byte     `json:"start_after"`
		OperationTime *[2]uint32 `json:"operation_time"`
		Time          *time.Time `json:"time"`
	}
	if err := json.Unmarshal(text, &given); err != nil {
		return err
	}
	switch {
	case given.Position != nil:
		s.Start = feedmux.AtPosition(given.Position)
	case given.ResumeAfter != nil:
		s.Start = feedmux.ResumeAfter(given.ResumeAfter)
	case given.StartAfter != nil:
		s.Start = feedmux.StartAfter(given.StartAfter)
	case given.OperationTime != nil:
		s.Start = feedmux.AtOperationTime(bson.Timestamp{T: given.OperationTime[0], I: given.OperationTime[1]})
	case given.Time != nil:
		s.Start = feedmux.AtTime(*given.Time)
	default:
		return fmt.Errorf("no such start: %s", text)
	}
	return nil
}
