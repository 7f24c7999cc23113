package feedmux

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// decodeDocument decodes BSON exactly as bson.Unmarshal into a bson.D does, without reflection and with a third of the
// allocations, because a loop over events spends its time on decoding whole documents. It leaves unusual input, such as
// a rare type or a wrong length, to the driver.
func decodeDocument(raw bson.Raw) (bson.D, error) {
	scratch := [24]bson.E{}
	w := walker{raw: raw, text: string(raw), elements: scratch[:0]}
	if decoded, ok := w.document(0, len(raw)); ok {
		return decoded, nil
	}
	var decoded bson.D
	err := bson.Unmarshal(raw, &decoded)
	return decoded, err
}

// walker decodes one document. Keys and strings are substrings of text, so they need no allocation.
type walker struct {
	raw  []byte
	text string
	// elements is a stack of the elements so far of the documents that are not finished yet.
	elements []bson.E
	depth    int
}

// depthMax is more than MongoDB allows in a document, and keeps the stack small.
const depthMax = 200

// document decodes the document that begins at an offset and must not extend beyond an end.
func (w *walker) document(at, end int) (bson.D, bool) {
	first := len(w.elements)
	ok := w.each(at, end, func(key string, value any) { w.elements = append(w.elements, bson.E{Key: key, Value: value}) })
	decoded := make(bson.D, len(w.elements)-first)
	copy(decoded, w.elements[first:])
	w.elements = w.elements[:first]
	return decoded, ok
}

func (w *walker) array(at, end int) (bson.A, bool) {
	decoded := bson.A{}
	ok := w.each(at, end, func(_ string, value any) { decoded = append(decoded, value) })
	return decoded, ok
}

func (w *walker) each(at, end int, found func(key string, value any)) bool {
	w.depth++
	defer func() { w.depth-- }()
	size, ok := w.size(at, end)
	if !ok || w.depth > depthMax || size < smallestDocument || w.raw[at+size-1] != 0 {
		return false
	}
	end = at + size - 1
	for at += 4; at < end; {
		kind := bson.Type(w.raw[at])
		length := strings.IndexByte(w.text[at+1:end], 0)
		if length < 0 {
			return false
		}
		key := w.text[at+1 : at+1+length]
		at += length + 2
		value, size, ok := w.value(kind, at, end)
		if !ok {
			return false
		}
		found(key, value)
		at += size
	}
	return at == end
}

// value decodes the value at an offset; false if its type is unusual or it extends beyond end.
func (w *walker) value(kind bson.Type, at, end int) (decoded any, size int, ok bool) {
	if at+fixedSizes[kind] > end {
		return nil, 0, false
	}
	switch kind {
	case bson.TypeNull:
		return nil, 0, true
	case bson.TypeBoolean:
		return w.raw[at] == 1, 1, w.raw[at] <= 1
	case bson.TypeInt32:
		return int32(binary.LittleEndian.Uint32(w.raw[at:])), 4, true
	case bson.TypeInt64:
		return int64(binary.LittleEndian.Uint64(w.raw[at:])), 8, true
	case bson.TypeDouble:
		return math.Float64frombits(binary.LittleEndian.Uint64(w.raw[at:])), 8, true
	case bson.TypeDateTime:
		return bson.DateTime(binary.LittleEndian.Uint64(w.raw[at:])), 8, true
	case bson.TypeTimestamp:
		increment, seconds := binary.LittleEndian.Uint32(w.raw[at:]), binary.LittleEndian.Uint32(w.raw[at+4:])
		return bson.Timestamp{T: seconds, I: increment}, 8, true
	case bson.TypeObjectID:
		return bson.ObjectID(w.raw[at : at+12]), 12, true
	case bson.TypeDecimal128:
		low, high := binary.LittleEndian.Uint64(w.raw[at:]), binary.LittleEndian.Uint64(w.raw[at+8:])
		return bson.NewDecimal128(high, low), 16, true
	case bson.TypeString:
		size, ok := w.size(at, end-4)
		if !ok || size < 1 || w.raw[at+4+size-1] != 0 {
			return nil, 0, false
		}
		return w.text[at+4 : at+4+size-1], 4 + size, true
	case bson.TypeBinary:
		size, ok := w.size(at, end-5)
		if !ok || w.raw[at+4] == bson.TypeBinaryBinaryOld {
			return nil, 0, false
		}
		return bson.Binary{Subtype: w.raw[at+4], Data: bytes.Clone(w.raw[at+5 : at+5+size])}, 5 + size, true
	case bson.TypeEmbeddedDocument:
		if size, ok = w.size(at, end); ok {
			decoded, ok = w.document(at, end)
		}
		return decoded, size, ok
	case bson.TypeArray:
		if size, ok = w.size(at, end); ok {
			decoded, ok = w.array(at, end)
		}
		return decoded, size, ok
	}
	return nil, 0, false
}

// size reads a length; false if there are fewer bytes than that between at and end.
func (w *walker) size(at, end int) (int, bool) {
	if at+4 > len(w.raw) || at > end {
		return 0, false
	}
	size := int(int32(binary.LittleEndian.Uint32(w.raw[at:])))
	return size, size >= 0 && size <= end-at
}

// fixedSizes holds the size of each type; 0 for types whose values contain their length.
var fixedSizes = [256]int{
	bson.TypeBoolean: 1, bson.TypeInt32: 4, bson.TypeInt64: 8, bson.TypeDouble: 8, bson.TypeDateTime: 8,
	bson.TypeTimestamp: 8, bson.TypeObjectID: 12, bson.TypeDecimal128: 16,
}
