package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/feedmux/feedmux/clients/go/feedmux"
)

// runner turns commands into calls of the client.
type runner struct {
	mu      sync.Mutex
	client  *feedmux.Client
	records map[string]*sessionRecord
}

// sessionRecord is a session, what it handed out, and how to interrupt whoever waits for it.
type sessionRecord struct {
	ctx     context.Context
	abandon context.CancelFunc

	mu      sync.Mutex
	session *feedmux.Session
	events  []feedmux.Event
	items   []item
	// heard is called with each notice's kind, while somebody waits for one.
	heard func(kind string)
}

type newCommand struct {
	Target   string    `json:"target"`
	APIKey   string    `json:"api_key"`
	Tokens   []*string `json:"tokens"`
	TLS      *tlsFiles `json:"tls"`
	Source   string    `json:"source"`
	TimeoutS float64   `json:"timeout_s"`
}

type tlsFiles struct {
	Root        string `json:"root"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
	ServerName  string `json:"server_name"`
}

type openCommand struct {
	Session       string         `json:"session"`
	Subscription  string         `json:"subscription"`
	Feed          *feedFields    `json:"feed"`
	Start         start          `json:"start"`
	OnHistoryLost string         `json:"on_history_lost"`
	Takeover      bool           `json:"takeover"`
	Options       sessionOptions `json:"options"`
}

type sessionOptions struct {
	WindowEvents      int64    `json:"window_events"`
	WindowBytes       int64    `json:"window_bytes"`
	MessageBytesMax   int      `json:"message_bytes_max"`
	HeartbeatS        float64  `json:"heartbeat_s"`
	AckIntervalS      float64  `json:"ack_interval_s"`
	OpenTimeoutS      float64  `json:"open_timeout_s"`
	ReconnectTimeoutS *float64 `json:"reconnect_timeout_s"`
	CloseTimeoutS     float64  `json:"close_timeout_s"`
	BackoffFirstS     float64  `json:"backoff_first_s"`
	BackoffMostS      float64  `json:"backoff_most_s"`
	Format            string   `json:"format"`
}

type takeCommand struct {
	Session     string   `json:"session"`
	Count       *int     `json:"count"`
	UntilNotice string   `json:"until_notice"`
	TimeoutS    *float64 `json:"timeout_s"`
	Report      []string `json:"report"`
}

type ackCommand struct {
	Session string `json:"session"`
	Event   *int   `json:"event"`
}

type closeCommand struct {
	Session  string   `json:"session"`
	TimeoutS *float64 `json:"timeout_s"`
}

type sessionCommand struct {
	Session string `json:"session"`
}

func hello() (any, error) {
	return map[string]any{"client": "go", "version": feedmux.Version, "runner": 1}, nil
}

func (r *runner) new(command newCommand) (any, error) {
	if _, err := r.reset(nothing{}); err != nil {
		return nil, err
	}
	options := &feedmux.Options{
		APIKey: command.APIKey, Source: command.Source, CallTimeout: seconds(command.TimeoutS),
	}
	if command.TLS != nil {
		var err error
		if options.TLS, err = command.TLS.config(); err != nil {
			return nil, err
		}
	}
	if len(command.Tokens) > 0 {
		options.Token = inTurn(command.Tokens)
	}
	client, err := feedmux.NewClient(command.Target, options)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.client = client
	return nothing{}, nil
}

// inTurn gives one token after the other, the last again and again, and fails for a nil.
func inTurn(tokens []*string) func(context.Context) (string, error) {
	var mu sync.Mutex
	return func(context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		token := tokens[0]
		if len(tokens) > 1 {
			tokens = tokens[1:]
		}
		if token == nil {
			return "", errors.New("no token now")
		}
		return *token, nil
	}
}

func (f *tlsFiles) config() (*tls.Config, error) {
	config := &tls.Config{ServerName: f.ServerName}
	if f.Root != "" {
		pem, err := os.ReadFile(f.Root)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificate in %s", f.Root)
		}
	}
	if f.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func (r *runner) open(command openCommand) (any, error) {
	one := &sessionRecord{}
	one.ctx, one.abandon = context.WithCancel(context.Background())
	r.mu.Lock()
	client := r.client
	r.records[command.Session] = one
	r.mu.Unlock()
	if client == nil {
		return nil, errors.New("no client")
	}
	options, err := command.Options.chosen()
	if err != nil {
		return nil, err
	}
	options.Takeover = command.Takeover
	options.OnNotice = one.onNotice
	var session *feedmux.Session
	if command.Feed == nil {
		session, err = client.Subscription(command.Subscription).Open(one.ctx, options)
	} else {
		session, err = client.Feed(command.Feed.feed()).Open(one.ctx, command.Start.Start, options)
	}
	if err != nil {
		return nil, err
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	one.session = session
	return nothing{}, nil
}

func (r *runner) connected() (*feedmux.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil {
		return nil, errors.New("no client")
	}
	return r.client, nil
}

func (r *runner) create(command openCommand) (any, error) {
	client, err := r.connected()
	if err != nil {
		return nil, err
	}
	policies := map[string]feedmux.OnHistoryLost{
		"earliest": feedmux.HistoryLostEarliest, "snapshot": feedmux.HistoryLostSnapshot,
	}
	spec := feedmux.SubscriptionSpec{
		Feed: command.Feed.feed(), Start: command.Start.Start, OnHistoryLost: policies[command.OnHistoryLost],
	}
	return copied(client.Subscription(command.Subscription).Create(context.Background(), spec))
}

func (r *runner) seek(command openCommand) (any, error) {
	client, err := r.connected()
	if err != nil {
		return nil, err
	}
	return copied(client.Subscription(command.Subscription).Seek(context.Background(), command.Start.Start))
}

func (r *runner) resolve(command openCommand) (any, error) {
	client, err := r.connected()
	if err != nil {
		return nil, err
	}
	resolved, err := client.Feed(command.Feed.feed()).Resolve(context.Background(), command.Start.Start)
	if err != nil {
		return nil, err
	}
	return map[string]any{"position": resolved.Position}, nil
}

func copied(info *feedmux.SubscriptionInfo, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	if info.Snapshot == nil {
		return map[string]any{"copied": nil}, nil
	}
	return map[string]any{"copied": info.Snapshot.Documents}, nil
}

var formats = map[string]feedmux.Format{
	"": feedmux.FormatBSON, "bson": feedmux.FormatBSON,
	"extended_json_relaxed":   feedmux.FormatExtendedJSONRelaxed,
	"extended_json_canonical": feedmux.FormatExtendedJSONCanonical,
}

func (o *sessionOptions) chosen() (*feedmux.SessionOptions, error) {
	format, known := formats[o.Format]
	if !known {
		return nil, errors.New("no format " + o.Format)
	}
	options := &feedmux.SessionOptions{
		WindowEvents:    o.WindowEvents,
		WindowBytes:     o.WindowBytes,
		MessageBytesMax: o.MessageBytesMax,
		Heartbeat:       seconds(o.HeartbeatS),
		AckInterval:     seconds(o.AckIntervalS),
		OpenTimeout:     seconds(o.OpenTimeoutS),
		CloseTimeout:    seconds(o.CloseTimeoutS),
		BackoffFirst:    seconds(o.BackoffFirstS),
		BackoffMost:     seconds(o.BackoffMostS),
		Format:          format,
	}
	if o.ReconnectTimeoutS != nil {
		options.ReconnectTimeout = max(1, seconds(*o.ReconnectTimeoutS))
	}
	return options, nil
}

func seconds(number float64) time.Duration { return time.Duration(number * float64(time.Second)) }

func (s *sessionRecord) onNotice(notice feedmux.Notice) {
	told := describeNotice(notice)
	s.mu.Lock()
	s.items = append(s.items, item{Notice: told})
	heard := s.heard
	s.mu.Unlock()
	if heard != nil {
		heard(told.Kind)
	}
}

// taken is the reply to take.
type taken struct {
	Outcome string  `json:"outcome"`
	Items   []item  `json:"items"`
	Error   *failed `json:"error,omitempty"`
}

func (r *runner) take(command takeCommand) (any, error) {
	one, session, err := r.record(command.Session)
	if err != nil {
		return nil, err
	}
	ctx, enough := context.WithCancel(one.ctx)
	defer enough()
	if command.TimeoutS != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, seconds(*command.TimeoutS))
		defer cancel()
	}
	told := false
	one.mu.Lock()
	one.heard = func(kind string) {
		if kind == command.UntilNotice {
			told = true
			enough()
		}
	}
	one.mu.Unlock()

	result := taken{Outcome: "enough"}
	for count := 0; command.Count == nil || count < *command.Count; count++ {
		event, err := session.Next(ctx)
		if err != nil {
			result.end(err, told)
			break
		}
		shown, err := describeEvent(event, command.Report)
		if err != nil {
			return nil, err
		}
		one.mu.Lock()
		one.events = append(one.events, event)
		one.items = append(one.items, item{Event: shown})
		one.mu.Unlock()
		if told {
			break
		}
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	one.heard = nil
	result.Items, one.items = append([]item{}, one.items...), nil
	return result, nil
}

// end says why Next gave no event; told, that the notice waited for was handed out.
func (t *taken) end(err error, told bool) {
	switch {
	case told:
	case errors.Is(err, context.DeadlineExceeded):
		t.Outcome = "timeout"
	case errors.Is(err, context.Canceled):
		t.Outcome = "cancelled"
	case errors.Is(err, feedmux.ErrClosed):
		t.Outcome = "closed"
	default:
		t.Outcome, t.Error = "error", describe(err)
	}
}

func (r *runner) ack(command ackCommand) (any, error) {
	one, session, err := r.record(command.Session)
	if err != nil {
		return nil, err
	}
	if command.Event == nil {
		return nothing{}, session.AckAll()
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	if *command.Event < 1 || *command.Event > len(one.events) {
		return nil, fmt.Errorf("event %d was not handed out", *command.Event)
	}
	return nothing{}, session.Ack(one.events[*command.Event-1])
}

func (r *runner) state(command sessionCommand) (any, error) {
	_, session, err := r.record(command.Session)
	if err != nil {
		return nil, err
	}
	feedPosition := session.Progress()
	var generation any
	copying := session.Copying()
	if copying != nil {
		generation = copying.Generation
	}
	return map[string]any{
		"position":     orEmpty(feedPosition.Position),
		"resume_token": session.ResumeToken(),
		"cluster_time": clusterTime(feedPosition.ClusterTime),
		"committed":    orEmpty(session.Committed()),
		"epoch":        session.Epoch(),
		"closed":       session.Closed(),
		"copying":      copying != nil,
		"generation":   generation,
	}, nil
}

func (r *runner) close(command closeCommand) (any, error) {
	_, session, err := r.record(command.Session)
	if err != nil {
		return nil, err
	}
	if command.TimeoutS == nil {
		err = session.Close()
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), seconds(*command.TimeoutS))
		defer cancel()
		err = session.CloseContext(ctx)
	}
	if err != nil && !errors.Is(err, feedmux.ErrAcksUnconfirmed) {
		return nil, err
	}
	return nothing{}, nil
}

func (r *runner) closeClient(nothing) (any, error) {
	r.mu.Lock()
	client := r.client
	r.mu.Unlock()
	if err := client.Close(); err != nil && !errors.Is(err, feedmux.ErrAcksUnconfirmed) {
		return nil, err
	}
	return nothing{}, nil
}

func (r *runner) cancel(command sessionCommand) (any, error) {
	r.mu.Lock()
	one := r.records[command.Session]
	r.mu.Unlock()
	if one == nil {
		return nil, errors.New("no session " + command.Session)
	}
	one.leave()
	return nothing{}, nil
}

func (r *runner) reset(nothing) (any, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.records {
		one.leave()
	}
	clear(r.records)
	if r.client == nil {
		return nothing{}, nil
	}
	client := r.client
	r.client = nil
	_ = client.Close()
	return nothing{}, nil
}

// leave abandons a session, or the attempt to open one.
func (s *sessionRecord) leave() {
	s.abandon()
	s.mu.Lock()
	session := s.session
	s.mu.Unlock()
	if session != nil {
		_ = session.CloseContext(s.ctx)
	}
}

func (r *runner) record(name string) (*sessionRecord, *feedmux.Session, error) {
	r.mu.Lock()
	one := r.records[name]
	r.mu.Unlock()
	if one != nil {
		one.mu.Lock()
		defer one.mu.Unlock()
		if one.session != nil {
			return one, one.session, nil
		}
	}
	return nil, nil, errors.New("no session " + name)
}

func clusterTime(at bson.Timestamp) any {
	if at.IsZero() {
		return nil
	}
	return [2]uint32{at.T, at.I}
}

func orEmpty(data []byte) []byte { return append([]byte{}, data...) }
