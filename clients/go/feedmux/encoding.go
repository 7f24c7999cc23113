package feedmux

import (
	"bytes"
	"cmp"
	"reflect"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// encode is bson.Marshal, except that it sorts the entries of maps by key. The server compares the bytes of feeds, and
// Go iterates over maps in random order: without sorting, a program's feed would not equal its feed of the last run.
func encode(document any) ([]byte, error) {
	var encoded bytes.Buffer
	encoder := bson.NewEncoder(bson.NewDocumentWriter(&encoded))
	encoder.SetRegistry(sortingRegistry)
	err := encoder.Encode(document)
	return encoded.Bytes(), err
}

var sortingRegistry = newSortingRegistry()

func newSortingRegistry() *bson.Registry {
	driver, sorting := bson.NewRegistry(), bson.NewRegistry()
	for _, one := range []reflect.Type{reflect.TypeFor[map[string]any](), reflect.TypeFor[struct{}]()} {
		encoder, err := driver.LookupEncoder(one)
		if err != nil {
			panic(err)
		}
		sorting.RegisterKindEncoder(one.Kind(), sortingEncoder{encoder})
	}
	return sorting
}

// sortingEncoder encodes a map, or a struct into which a map may be inlined.
type sortingEncoder struct{ driver bson.ValueEncoder }

func (e sortingEncoder) EncodeValue(ec bson.EncodeContext, vw bson.ValueWriter, value reflect.Value) error {
	entries := mapEntries(value)
	if entries < 2 {
		return e.driver.EncodeValue(ec, vw, value)
	}
	var encoded bytes.Buffer
	if err := e.driver.EncodeValue(ec, bson.NewDocumentWriter(&encoded), value); err != nil {
		return err
	}
	elements, err := bson.Raw(encoded.Bytes()).Elements()
	if err != nil {
		return err
	}
	// The driver writes an inlined map after the fields of its struct.
	ofMap := elements[len(elements)-entries:]
	slices.SortFunc(ofMap, func(a, b bson.RawElement) int { return cmp.Compare(a.Key(), b.Key()) })
	sorted := bson.Raw(slices.Clone(encoded.Bytes()[:4])) // the length
	for _, element := range elements {
		sorted = append(sorted, element...)
	}
	sorted = append(sorted, 0)
	raw := reflect.ValueOf(sorted)
	encoder, err := ec.LookupEncoder(raw.Type())
	if err != nil {
		return err
	}
	return encoder.EncodeValue(ec, vw, raw)
}

// mapEntries returns the number of entries of a map, or of the map that is inlined into a struct.
func mapEntries(value reflect.Value) int {
	if value.Kind() == reflect.Map {
		return value.Len()
	}
	for field, inner := range value.Fields() {
		options := strings.Split(field.Tag.Get("bson"), ",")
		if inner.Kind() == reflect.Map && field.IsExported() && slices.Contains(options, "inline") {
			return inner.Len()
		}
	}
	return 0
}
