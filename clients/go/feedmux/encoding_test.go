package feedmux

import (
	"bytes"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

type letters map[string]int

func tenLetters() letters {
	filled := letters{}
	for _, key := range "jihgfedcba" {
		filled[string(key)] = 7
	}
	return filled
}

// lettersSorted is tenLetters as a document.
func lettersSorted() bson.D {
	var sorted bson.D
	for _, key := range "abcdefghij" {
		sorted = append(sorted, bson.E{Key: string(key), Value: 7})
	}
	return sorted
}

func TestMapsAreEncodedInTheOrderOfTheirKeys(t *testing.T) {
	type fields struct {
		Z, M int
		Map  letters
	}
	type inlined struct {
		Z     int
		Empty string         `bson:"empty,omitempty"`
		More  map[string]any `bson:",inline"`
		B     int
	}
	numbers, numbersSorted := map[int]any{}, bson.D{}
	for number := range 10 {
		numbers[number] = bson.M{"z": 1, "b": 2}
		numbersSorted = append(numbersSorted,
			bson.E{Key: fmt.Sprint(number), Value: bson.D{{Key: "b", Value: 2}, {Key: "z", Value: 1}}})
	}
	given, sorted := tenLetters(), lettersSorted()
	inlinedMap := map[string]any{}
	for key := range given {
		inlinedMap[key+key] = given
	}
	inlinedSorted := bson.D{{Key: "z", Value: 1}, {Key: "b", Value: 2}}
	for _, element := range sorted {
		inlinedSorted = append(inlinedSorted, bson.E{Key: element.Key + element.Key, Value: sorted})
	}
	for _, one := range []struct{ value, wanted any }{
		{given, sorted},
		{&given, sorted},
		{bson.M{"z": given, "b": bson.A{&given}}, bson.D{{Key: "b", Value: bson.A{sorted}}, {Key: "z", Value: sorted}}},
		{bson.D{{Key: "z", Value: given}, {Key: "b"}}, bson.D{{Key: "z", Value: sorted}, {Key: "b"}}},
		{[]letters{given}, bson.A{sorted}},
		{[1]any{[]map[string]letters{{"x": given}}}, bson.A{bson.A{bson.D{{Key: "x", Value: sorted}}}}},
		{fields{1, 2, given}, bson.D{{Key: "z", Value: 1}, {Key: "m", Value: 2}, {Key: "map", Value: sorted}}},
		{&inlined{Z: 1, B: 2, More: inlinedMap}, inlinedSorted},
		{numbers, numbersSorted},
		{bson.CodeWithScope{Code: "x", Scope: given}, bson.CodeWithScope{Code: "x", Scope: sorted}},
	} {
		for range 50 {
			message, err := (&Feed{
				Pipeline:  bson.A{bson.M{"$match": one.value}},
				Collation: map[string]any{"collation": one.value},
				Comment:   one.value,
			}).message("main")
			same(t, err, nil)
			pipeline := bson.D{{Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: one.wanted}}}}}
			same(t, bson.Raw(message.GetPipeline().GetBson()), marshal(pipeline))
			same(t, bson.Raw(message.GetCollation()), marshal(bson.D{{Key: "collation", Value: one.wanted}}))
			same(t, bson.Raw(message.GetComment()), marshal(bson.D{{Key: "comment", Value: one.wanted}}))
		}
	}
}

func TestWhatHasAnOrderKeepsIt(t *testing.T) {
	raw := marshal(bson.D{{Key: "z", Value: 1}, {Key: "b", Value: bson.D{{Key: "y", Value: 2}, {Key: "a", Value: 3}}}})
	tagged := struct {
		Z int
		// The tag is not BSON's: the map is a field, which comes before the last one.
		Map map[string]int `json:",inline"`
		B   int
	}{1, map[string]int{"y": 1, "c": 2}, 3}
	for _, ordered := range []any{raw, bson.D{{Key: "z", Value: raw}, {Key: "b", Value: bson.A{raw}}}} {
		encoded, err := encode(ordered)
		same(t, err, nil)
		same(t, bson.Raw(encoded), marshal(ordered))
	}
	encoded, err := encode(tagged)
	same(t, err, nil)
	same(t, bson.Raw(encoded), marshal(bson.D{
		{Key: "z", Value: 1},
		{Key: "map", Value: bson.D{{Key: "c", Value: 2}, {Key: "y", Value: 1}}},
		{Key: "b", Value: 3},
	}))
}

// Sorting changes the order and no byte of a value: neither of a rare type, nor of nil.
func TestValuesInMapsAreEncodedAsTheDriverDoes(t *testing.T) {
	elements, err := everyType().Elements()
	same(t, err, nil)
	for _, element := range elements {
		encoded, err := encode(map[string]any{"b": element.Value(), "a": bson.M(nil), "c": (*int)(nil)})
		same(t, err, nil)
		wanted := marshal(bson.D{{Key: "a"}, {Key: "b", Value: element.Value()}, {Key: "c"}})
		if !bytes.Equal(encoded, wanted) {
			t.Errorf("%x, not %x", encoded, []byte(wanted))
		}
	}
	if _, err := encode(bson.M{"a": func() {}, "b": 1}); err == nil {
		t.Error("a function was encoded")
	}
	if _, err := encode(map[complex64]int{1: 1, 2: 2}); err == nil {
		t.Error("complex keys were encoded")
	}
}
