package feedmux

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

func TestCredentialsTravelWithEveryCall(t *testing.T) {
	refused := failure(codes.Unauthenticated, "UNAUTHENTICATED", nil, -1)
	server := serve(t, nil, fail(refused, openedAt(0, nil)), play(openedAt(0, nil), batchOf(1, 1)))
	var asked atomic.Int32
	token := func(context.Context) (string, error) { return fmt.Sprintf("token-%d", asked.Add(1)), nil }
	session, err := connect(t, server, &Options{Token: token}).Subscription("s").Open(limited(t), nil)
	same(t, err, nil)
	defer abandon(session)
	same(t, take(t, session, 1), []int{1})
	same(t, server.call(t, 0).metadata.Get("authorization"), []string{"Bearer token-1"})
	same(t, server.call(t, 1).metadata.Get("authorization"), []string{"Bearer token-2"})

	server = serve(t, nil, fail(refused))
	_, err = connect(t, server, &Options{APIKey: "key"}).Subscription("s").Open(limited(t), nil)
	if !errors.Is(err, ErrUnauthenticated) {
		t.Fatal(err)
	}
	same(t, server.call(t, 0).metadata.Get("authorization"), []string{"Bearer key"})

	if _, err := NewClient("localhost:1", &Options{APIKey: "key", Token: token}); err == nil {
		t.Fatal("both taken")
	}
}

func TestWhatIsNoTargetIsRejected(t *testing.T) {
	for _, wrong := range []string{"", "localhost", "http://localhost:7117", "localhost:", "::1"} {
		if _, err := NewClient(wrong, nil); err == nil || !strings.Contains(err.Error(), "host:port") {
			t.Error(wrong, err)
		}
	}
	for _, target := range []string{"[::1]:7117", "dns:///localhost", "unix:/run/feedmux.sock"} {
		client, err := NewClient(target, nil)
		same(t, err, nil)
		same(t, client.Close(), nil)
	}
}

func TestATokenThatCannotBeHadIsAskedForAgain(t *testing.T) {
	server := serve(t, nil, play(openedAt(0, nil), batchOf(1, 1)))
	var asked atomic.Int32
	token := func(context.Context) (string, error) {
		if asked.Add(1) == 1 {
			return "", errors.New("the issuer is away")
		}
		return "token", nil
	}
	session, err := connect(t, server, &Options{Token: token}).Subscription("s").Open(limited(t), nil)
	same(t, err, nil)
	defer abandon(session)
	same(t, take(t, session, 1), []int{1})
}

func TestKeysAndTokensAreSentWithoutWhiteSpace(t *testing.T) {
	for _, options := range []*Options{
		{APIKey: " key\r\n"},
		{Token: func(context.Context) (string, error) { return "key\n", nil }},
	} {
		server := serve(t, nil, play(openedAt(0, nil)))
		session, err := connect(t, server, options).Subscription("s").Open(limited(t), nil)
		same(t, err, nil)
		defer abandon(session)
		same(t, server.call(t, 0).metadata.Get("authorization"), []string{"Bearer key"})
	}
}

func TestAKeyThatCannotBeSentIsRefusedAndNotQuoted(t *testing.T) {
	for _, key := range []string{" \n", "two words", "schl\u00fcssel"} {
		_, err := NewClient("localhost:1", &Options{APIKey: key})
		if err == nil || strings.Contains(err.Error(), "schl") || strings.Contains(err.Error(), "words") {
			t.Error(err)
		}
		token := func(context.Context) (string, error) { return key, nil }
		client, err := NewClient("localhost:1", &Options{Token: token})
		same(t, err, nil)
		_, err = client.Subscription("s").Get(limited(t))
		if !errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), "schl") || strings.Contains(err.Error(), "words") {
			t.Error(err)
		}
	}
}

func TestMutualTLS(t *testing.T) {
	certificate, pool := selfSigned(t)
	server := serve(t, []grpc.ServerOption{grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}))}, play(openedAt(0, nil), batchOf(1, 1)))
	secure := &tls.Config{RootCAs: pool, ServerName: "feedmux.test", Certificates: []tls.Certificate{certificate}}
	session, err := connect(t, server, &Options{TLS: secure}).Subscription("s").Open(limited(t), nil)
	same(t, err, nil)
	defer abandon(session)
	same(t, take(t, session, 1), []int{1})

	short := &SessionOptions{OpenTimeout: time.Millisecond}
	for _, wrong := range []*tls.Config{nil, {RootCAs: pool, ServerName: "feedmux.test"}, {ServerName: "feedmux.test"}} {
		if _, err := connect(t, server, &Options{TLS: wrong}).Subscription("s").Open(limited(t), short); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"feedmux.test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// unaries answers the unary calls and keeps what was asked.
type unaries struct {
	pb.UnimplementedSubscriptionsServer
	created *pb.CreateSubscriptionRequest
	updated *pb.UpdateSubscriptionRequest
	sought  *pb.SeekSubscriptionRequest
	deleted *pb.DeleteSubscriptionRequest
	// mute leaves GetSubscription without an answer.
	mute bool
}

func stored() *pb.Subscription {
	return &pb.Subscription{
		Name: "s", Position: position(3), ClusterTime: clusterTime(3), Etag: "e", Active: true, Owner: "o", Epoch: 4,
		OnInvalidate: pb.OnInvalidate_ON_INVALIDATE_CONTINUE, CreateTime: &timestamppb.Timestamp{Seconds: 5},
		Feed: &pb.Feed{Source: "main", Collation: marshal(bson.D{{Key: "locale", Value: "de"}})},
	}
}

func (u *unaries) CreateSubscription(_ context.Context, request *pb.CreateSubscriptionRequest) (*pb.Subscription, error) {
	u.created = request
	return stored(), nil
}

func (u *unaries) GetSubscription(ctx context.Context, _ *pb.GetSubscriptionRequest) (*pb.Subscription, error) {
	if u.mute {
		<-ctx.Done()
	}
	return nil, failure(codes.NotFound, "SUBSCRIPTION_NOT_FOUND", nil, -1)
}

func (u *unaries) ListSubscriptions(_ context.Context, request *pb.ListSubscriptionsRequest) (*pb.ListSubscriptionsResponse, error) {
	answer := &pb.ListSubscriptionsResponse{Subscriptions: []*pb.Subscription{stored()}}
	if request.GetPageToken() == "" {
		answer.NextPageToken = "next"
	}
	return answer, nil
}

func (u *unaries) UpdateSubscription(_ context.Context, request *pb.UpdateSubscriptionRequest) (*pb.Subscription, error) {
	u.updated = request
	return stored(), nil
}

func (u *unaries) SeekSubscription(_ context.Context, request *pb.SeekSubscriptionRequest) (*pb.Subscription, error) {
	u.sought = request
	return stored(), nil
}

func (u *unaries) DeleteSubscription(_ context.Context, request *pb.DeleteSubscriptionRequest) (*emptypb.Empty, error) {
	u.deleted = request
	return &emptypb.Empty{}, nil
}

func (s *scripted) ResolvePosition(_ context.Context, request *pb.ResolvePositionRequest) (*pb.ResolvePositionResponse, error) {
	answer := &pb.ResolvePositionResponse{Position: position(1), ClusterTime: clusterTime(1)}
	if request.GetStart().GetTime() != nil {
		answer.Time = request.GetStart().GetTime()
	}
	return answer, nil
}

func (s *scripted) Explain(_ context.Context, request *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	return &pb.ExplainResponse{
		Refusal:  &pb.ExplainResponse_Refusal{Status: "PERMISSION_DENIED", Reason: "NAMESPACE_DENIED", Message: "no"},
		Pipeline: request.GetFeed().GetPipeline().GetExtendedJson(),
		Images:   []*pb.ExplainResponse_CollectionImages{{Database: "d", Collection: "c", Enabled: true}},
		Withheld: []*pb.ExplainResponse_Withheld{{What: "what", Why: "why"}}, MayBeView: true, ScopeMissing: true,
		DocumentsEstimated: 5,
	}, nil
}

func TestUnaryCalls(t *testing.T) {
	server := serve(t, nil, play())
	control, client := server.control, connect(t, server, nil)
	ctx := limited(t)
	subscription := client.Subscription("s")

	info, err := subscription.Create(ctx, SubscriptionSpec{
		Feed:  Feed{Database: "shop", Pipeline: "[]", Collation: bson.D{{Key: "locale", Value: "de"}}, Comment: 7, MaxAwaitTime: time.Second},
		Start: Earliest(), OnInvalidate: InvalidateContinue,
	})
	same(t, err, nil)
	same(t, info.Position, position(3))
	same(t, []any{info.OnInvalidate, info.OnHistoryLost}, []any{InvalidateContinue, HistoryLostFail})
	same(t, info.Feed.Collation, any(bson.Raw(stored().GetFeed().GetCollation())))
	feed := control.created.GetSubscription().GetFeed()
	same(t, []any{feed.GetSource(), feed.GetPipeline().GetExtendedJson(), feed.GetMaxAwaitTimeMs()}, []any{"main", "[]", 1000})
	same(t, feed.GetComment(), []byte(marshal(bson.D{{Key: "comment", Value: 7}})))
	same(t, control.created.GetStart().GetEarliest() != nil, true)

	if _, err := subscription.Get(ctx); !errors.Is(err, ErrSubscriptionNotFound) {
		t.Fatal(err)
	}
	names := []string{}
	for info, err := range client.Subscriptions(ctx) {
		same(t, err, nil)
		names = append(names, info.Name)
	}
	same(t, names, []string{"s", "s"})

	_, err = subscription.Update(ctx, SubscriptionChange{Feed: &Feed{Database: "shop"}, OnHistoryLost: HistoryLostEarliest, ETag: "e"})
	same(t, err, nil)
	same(t, control.updated.GetUpdateMask().GetPaths(), []string{"feed", "on_history_lost"})
	same(t, control.updated.GetSubscription().GetEtag(), "e")
	if _, err := subscription.Update(ctx, SubscriptionChange{}); err == nil {
		t.Fatal("updated nothing")
	}

	for _, to := range []Start{AtPosition(position(9)), StartAfter(token(9)), ResumeAfter(token(9)), AtOperationTime(at(9).ClusterTime), Latest()} {
		_, err = subscription.Seek(ctx, to)
		same(t, err, nil)
		same(t, control.sought.GetTo(), to.message)
	}
	if _, err := subscription.Seek(ctx, Start{}); err == nil {
		t.Fatal("moved to the present")
	}
	same(t, subscription.Delete(ctx, &DeleteOptions{AllowMissing: true}), nil)
	same(t, control.deleted.GetAllowMissing(), true)

	resolved, err := client.Feed(Feed{}).Resolve(ctx, AtTime(time.Unix(77, 0)))
	same(t, err, nil)
	same(t, resolved.Position, position(1))
	same(t, resolved.Time.Unix(), 77)
	explained, err := client.Feed(Feed{Pipeline: "[]"}).Explain(ctx, Start{})
	same(t, err, nil)
	same(t, *explained.Refusal, Refusal{"PERMISSION_DENIED", "NAMESPACE_DENIED", "no"})
	same(t, []any{explained.Withheld, explained.MayBeView}, []any{[]Withheld{{"what", "why"}}, true})
	same(t, []any{explained.ScopeMissing, explained.DocumentsEstimated}, []any{true, int64(5)})

	expired, cancel := context.WithTimeout(ctx, -1)
	defer cancel()
	if _, err := subscription.Get(expired); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if _, err := client.Feed(Feed{Pipeline: make(chan int)}).Open(ctx, Start{}, nil); err == nil {
		t.Fatal("a pipeline that BSON cannot hold")
	}
}

func TestTheOptionsOfAFeedComeBackAsTheyWent(t *testing.T) {
	feed := Feed{
		Source: "main", FullDocument: FullDocumentUpdateLookup, FullDocumentBeforeChange: FullDocumentBeforeChangeRequired,
		ReadPreference: ReadPreferenceSecondaryPreferred,
	}
	message, err := feed.message("")
	same(t, err, nil)
	same(t, []string{message.GetFullDocument(), message.GetFullDocumentBeforeChange(), message.GetReadPreference()},
		[]string{"updateLookup", "required", "secondaryPreferred"})
	same(t, feedOf(message), feed)
}

func TestAConditionIsSentWhateverItsValue(t *testing.T) {
	type owner struct {
		Name  *string `bson:"name"`
		Names []string
		Left  string `bson:"left,omitempty"`
	}
	null := bson.D{{Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "owner"}}}}}}}
	for _, nothing := range []any{
		nil, (*string)(nil), bson.D(nil), bson.M(nil), bson.A(nil), []string(nil), map[string]any(nil), (*owner)(nil),
		(*bson.ObjectID)(nil), error(nil), []byte(nil), (*time.Time)(nil),
	} {
		for _, stage := range []any{
			bson.D{{Key: "$match", Value: bson.D{{Key: "owner", Value: nothing}}}},
			bson.M{"$match": bson.M{"owner": nothing}},
			map[string]map[string]any{"$match": {"owner": nothing}},
			struct {
				Match any `bson:"$match"`
			}{struct{ Owner any }{nothing}},
		} {
			message, err := (&Feed{Pipeline: []any{stage}, Comment: bson.D{{Key: "a", Value: nothing}}}).message("main")
			same(t, err, nil)
			same(t, bson.Raw(message.GetPipeline().GetBson()).String(), marshal(null).String())
			same(t, bson.Raw(message.GetComment()).String(), `{"comment": {"a": null}}`)
		}
	}
	// omitempty is the user's own word, as with the driver.
	message, err := (&Feed{Pipeline: bson.A{bson.M{"$match": owner{}}}}).message("main")
	same(t, err, nil)
	same(t, bson.Raw(message.GetPipeline().GetBson()).String(), `{"pipeline": [{"$match": {"name": null,"names": null}}]}`)

	for _, wrong := range []any{func() {}, make(chan int), complex(1, 1), uint64(1) << 63, bson.Raw{}, bson.RawValue{}} {
		match := bson.D{{Key: "$match", Value: bson.D{{Key: "owner", Value: wrong}}}}
		for _, feed := range []Feed{{Pipeline: bson.A{match}}, {Collation: match}, {Comment: match}} {
			if _, err := feed.message("main"); err == nil {
				t.Errorf("%T was encoded", wrong)
			}
		}
	}
}
