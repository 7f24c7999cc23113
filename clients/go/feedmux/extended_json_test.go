package feedmux

import (
	"encoding/base64"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestCanonicalTextIsTheBytesOfItsDocument(t *testing.T) {
	var samples []struct{ Name, BSON, Canonical string }
	testdata(t, "extended_json.json", &samples)
	for _, each := range samples {
		raw, err := bsonOf([]byte(each.Canonical))
		same(t, err, nil)
		if got := base64.StdEncoding.EncodeToString(raw); got != each.BSON {
			t.Errorf("%s: %s is %s, not %s", each.Name, each.Canonical, got, each.BSON)
		}
		batch := jsonBatch([]string{each.Canonical}, FormatExtendedJSONCanonical, FeedPosition{}, time.Time{})
		got, err := batch.Event(0).Document()
		same(t, err, nil)
		wanted, err := inDriver(raw)
		same(t, err, nil)
		same(t, string(marshal(got)), string(marshal(wanted)))
		var decoded bson.D
		same(t, batch.Event(0).Decode(&decoded), nil)
		same(t, string(marshal(decoded)), string(marshal(wanted)))
	}
	if len(samples) < 100 {
		t.Errorf("%d samples", len(samples))
	}
}

func TestARelaxedNumberIsNoPartOfAValue(t *testing.T) {
	for text, wanted := range map[string]any{
		`{"q":{"$date":9223372036854775807}}`:          bson.D{{Key: "$date", Value: int64(1<<63 - 1)}},
		`{"q":{"$numberDouble":1.0}}`:                  bson.D{{Key: "$numberDouble", Value: 1.0}},
		`{"q":{"$date":"2024-01-02T03:04:05.678Z"}}`:   bson.DateTime(1704164645678),
		`{"q":{"$date":"2024-02-30T03:04:05Z"}}`:       bson.D{{Key: "$date", Value: "2024-02-30T03:04:05Z"}},
		`{"q":[1,1e+20,-0.0,2147483648,true,null,{}]}`: bson.A{1, 1e20, math.Copysign(0, -1), int64(1 << 31), true, nil, bson.D{}},
	} {
		raw, err := bsonOf([]byte(text))
		same(t, err, nil)
		same(t, raw.String(), marshal(bson.D{{Key: "q", Value: wanted}}).String())
	}
}

func TestAnyOtherTextIsAnErrorThatNamesTheWayOut(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)
	for _, text := range []string{
		"", "{", "[]", "5", "null", `{"a": 1} x`, `{"a": 1}{}`, `{"a\u0000b": 1}`, `{"n": 1000000000000000000000}`, `{"n": 1e999}`, deep,
	} {
		batch := jsonBatch([]string{text}, FormatExtendedJSONRelaxed, FeedPosition{}, time.Time{})
		_, err := batch.Event(0).Document()
		if !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "use FormatBSON") {
			t.Errorf("%.20s: %v", text, err)
		}
	}
}
