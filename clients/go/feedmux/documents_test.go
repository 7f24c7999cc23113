package feedmux

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// inDriver is what bson.Unmarshal makes of a document.
func inDriver(raw bson.Raw) (decoded bson.D, err error) {
	err = bson.Unmarshal(raw, &decoded)
	return decoded, err
}

func everyType() bson.Raw {
	return marshal(bson.D{
		{Key: "double", Value: math.Inf(-1)},
		{Key: "string", Value: "süß\x00ß"},
		{Key: "document", Value: bson.D{{Key: "", Value: bson.D{}}}},
		{Key: "array", Value: bson.A{1, bson.A{}, bson.D{{Key: "x", Value: nil}}}},
		{Key: "binary", Value: bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}},
		{Key: "old binary", Value: bson.Binary{Subtype: 2, Data: []byte("old")}},
		{Key: "empty binary", Value: bson.Binary{Data: []byte{}}},
		{Key: "undefined", Value: bson.Undefined{}},
		{Key: "id", Value: bson.NewObjectID()},
		{Key: "boolean", Value: true},
		{Key: "date", Value: bson.DateTime(-1 << 60)},
		{Key: "null", Value: nil},
		{Key: "regex", Value: bson.Regex{Pattern: "a", Options: "i"}},
		{Key: "pointer", Value: bson.DBPointer{DB: "d", Pointer: bson.NewObjectID()}},
		{Key: "code", Value: bson.JavaScript("x")},
		{Key: "symbol", Value: bson.Symbol("s")},
		{Key: "scoped", Value: bson.CodeWithScope{Code: "x", Scope: bson.D{}}},
		{Key: "int32", Value: int32(-5)},
		{Key: "timestamp", Value: bson.Timestamp{T: math.MaxUint32, I: 7}},
		{Key: "int64", Value: int64(math.MinInt64)},
		{Key: "decimal", Value: bson.NewDecimal128(0x3040000000000000, 12)},
		{Key: "least", Value: bson.MinKey{}},
		{Key: "most", Value: bson.MaxKey{}},
	})
}

func TestEveryTypeIsDecodedAsTheDriverDoes(t *testing.T) {
	elements, err := everyType().Elements()
	same(t, err, nil)
	for _, element := range elements {
		raw := marshal(bson.D{{Key: element.Key(), Value: element.Value()}})
		wanted, err := inDriver(raw)
		same(t, err, nil)
		got, err := decodeDocument(raw)
		same(t, err, nil)
		if !reflect.DeepEqual(got, wanted) {
			t.Errorf("%#v, not %#v", got, wanted)
		}
	}
}

func TestADocumentThatNestsTooDeeplyIsTheDrivers(t *testing.T) {
	raw := marshal(bson.D{})
	for range 2 * depthMax {
		raw = marshal(bson.D{{Key: "d", Value: raw}})
	}
	got, err := decodeDocument(raw)
	same(t, err, nil)
	wanted, _ := inDriver(raw)
	if !reflect.DeepEqual(got, wanted) {
		t.Error("not the same")
	}
}

// A date is any number of milliseconds: no format fails for one, or makes another of it.
func TestAFarDateIsTheSameInEveryFormat(t *testing.T) {
	for _, milliseconds := range []int64{-1, 253402300800000, -62135596800001, 1 << 60, math.MaxInt64, math.MinInt64} {
		wanted := bson.D{{Key: "at", Value: bson.DateTime(milliseconds)}}
		raw := marshal(wanted)
		binary, err := bsonBatch(raw, 1, FeedPosition{}, batchTime)
		same(t, err, nil)
		text := fmt.Sprintf(`{"at":{"$date":{"$numberLong":"%d"}}}`, milliseconds)
		for _, batch := range []*Batch{
			binary,
			jsonBatch([]string{text}, FormatExtendedJSONCanonical, FeedPosition{}, batchTime),
			jsonBatch([]string{text}, FormatExtendedJSONRelaxed, FeedPosition{}, batchTime),
		} {
			got, err := batch.Event(0).Document()
			same(t, err, nil)
			if !reflect.DeepEqual(got, wanted) {
				t.Errorf("%#v, not %#v", got, wanted)
			}
		}
	}
}

// Whatever the bytes: no panic, and where both find a document, the same one.
func FuzzDocument(f *testing.F) {
	f.Add([]byte(everyType()))
	f.Add([]byte(documentOf(1, 3)))
	f.Add([]byte("\x05\x00\x00\x00\x00"))
	f.Add([]byte("\xff\xff\xff\xff\x02a\x00\xff\xff\xff\x7f\x00"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := decodeDocument(raw)
		wanted, wantedErr := inDriver(raw)
		if err == nil && wantedErr == nil && !reflect.DeepEqual(marshal(got), marshal(wanted)) {
			t.Errorf("%#v, not %#v", got, wanted)
		}
		eventToken(raw)
		tokenTime(raw)
		_, _ = bsonBatch(raw, 1, FeedPosition{}, batchTime)
	})
}
