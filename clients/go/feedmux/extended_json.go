package feedmux

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

var (
	errNoDocument = errors.New("not a document in extended JSON")

	lowerObjectID = regexp.MustCompile(`^[0-9a-f]{24}$`)
	wholeNumber   = regexp.MustCompile(`^(0|-?[1-9][0-9]{0,18})$`)
	doubleNumber  = regexp.MustCompile(`^(-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|-?Infinity)$`)
	utcDate       = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3})?Z$`)
	twoHexDigits  = regexp.MustCompile(`^[0-9a-f]{2}$`)
)

// quietNaN is the NaN that MongoDB's drivers write; Go's has other bits.
const quietNaN = 0x7FF8000000000000

// jsonDepthMax is more than MongoDB allows in a document, and keeps the stack small.
const jsonDepthMax = 1000

// member is one member of an object. An object is a []member, an array a []any.
type member struct {
	name  string
	value any
}

// bsonOf returns the BSON of an event in extended JSON.
//
// bson.UnmarshalExtJSON takes every object that begins with a name such as `$oid` for a value, but a document may have
// such names itself. Here a value is only what the server writes for its type: exactly its names, and a text of its
// form. Everything else is the document that it is.
func bsonOf(text []byte) (bson.Raw, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	value, err := readJSON(decoder, 0)
	if err != nil {
		return nil, err
	}
	document, ok := value.([]member)
	if _, err = decoder.Token(); !ok || !errors.Is(err, io.EOF) {
		return nil, errNoDocument
	}
	return appendDocument(nil, document)
}

func readJSON(decoder *json.Decoder, depth int) (any, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return token, nil
	}
	if depth > jsonDepthMax {
		return nil, errNoDocument
	}
	object, array := []member{}, []any{}
	for decoder.More() {
		var name json.Token
		if delim == '{' {
			if name, err = decoder.Token(); err != nil {
				return nil, err
			}
		}
		value, err := readJSON(decoder, depth+1)
		if err != nil {
			return nil, err
		}
		if delim == '{' {
			object = append(object, member{name.(string), value})
		} else {
			array = append(array, value)
		}
	}
	if _, err = decoder.Token(); err != nil {
		return nil, err
	}
	if delim == '{' {
		return object, nil
	}
	return array, nil
}

func appendDocument(into []byte, members []member) ([]byte, error) {
	start := len(into)
	into = append(into, 0, 0, 0, 0)
	for _, each := range members {
		if strings.ContainsRune(each.name, 0) {
			return nil, errNoDocument
		}
		at := len(into)
		into = append(append(append(into, 0), each.name...), 0)
		kind, after, err := appendValue(into, each.value)
		if err != nil {
			return nil, err
		}
		into = after
		into[at] = byte(kind)
	}
	into = append(into, 0)
	binary.LittleEndian.PutUint32(into[start:], uint32(len(into)-start))
	return into, nil
}

func appendValue(into []byte, value any) (bson.Type, []byte, error) {
	switch value := value.(type) {
	case string:
		return bson.TypeString, appendText(into, value), nil
	case bool:
		if value {
			return bson.TypeBoolean, append(into, 1), nil
		}
		return bson.TypeBoolean, append(into, 0), nil
	case json.Number:
		return appendNumber(into, string(value))
	case []any:
		members := make([]member, len(value))
		for index, each := range value {
			members[index] = member{strconv.Itoa(index), each}
		}
		into, err := appendDocument(into, members)
		return bson.TypeArray, into, err
	case []member:
		if kind, wrapped, ok := appendWrapped(into, value); ok {
			return kind, wrapped, nil
		}
		into, err := appendDocument(into, value)
		return bson.TypeEmbeddedDocument, into, err
	}
	return bson.TypeNull, into, nil
}

// appendNumber appends a bare number of relaxed JSON, in which doubles have a fraction or an exponent.
func appendNumber(into []byte, text string) (bson.Type, []byte, error) {
	if strings.ContainsAny(text, ".eE") {
		value, err := strconv.ParseFloat(text, 64)
		return bson.TypeDouble, appendUint64(into, math.Float64bits(value)), err
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if value < math.MinInt32 || value > math.MaxInt32 {
		return bson.TypeInt64, appendUint64(into, uint64(value)), err
	}
	return bson.TypeInt32, appendUint32(into, uint32(value)), err
}

// appendWrapped appends the value that an object stands for; false if the object is a document.
func appendWrapped(into []byte, object []member) (bson.Type, []byte, bool) {
	if code, scope, ok := codeWithScope(object); ok {
		start := len(into)
		scoped, err := appendDocument(appendText(appendUint32(into, 0), code), scope)
		if err != nil {
			return 0, nil, false
		}
		binary.LittleEndian.PutUint32(scoped[start:], uint32(len(scoped)-start))
		return bson.TypeCodeWithScope, scoped, true
	}
	if len(object) != 1 {
		return 0, nil, false
	}
	content := object[0].value
	text, isText := content.(string)
	switch object[0].name {
	case "$oid":
		id, ok := objectIDOf(content)
		return bson.TypeObjectID, append(into, id...), ok
	case "$symbol":
		return bson.TypeSymbol, appendText(into, text), isText
	case "$code":
		return bson.TypeJavaScript, appendText(into, text), isText
	case "$numberInt":
		value, err := strconv.ParseInt(text, 10, 32)
		return bson.TypeInt32, appendUint32(into, uint32(value)), wholeNumber.MatchString(text) && err == nil
	case "$numberLong":
		value, ok := int64Of(content)
		return bson.TypeInt64, appendUint64(into, uint64(value)), ok
	case "$numberDouble":
		if text == "NaN" {
			return bson.TypeDouble, appendUint64(into, quietNaN), true
		}
		value, err := strconv.ParseFloat(text, 64)
		return bson.TypeDouble, appendUint64(into, math.Float64bits(value)), doubleNumber.MatchString(text) && err == nil
	case "$numberDecimal":
		value, err := bson.ParseDecimal128(text)
		high, low := value.GetBytes()
		return bson.TypeDecimal128, appendUint64(appendUint64(into, low), high), isText && err == nil && value.String() == text
	case "$date":
		milliseconds, ok := dateOf(content)
		return bson.TypeDateTime, appendUint64(into, uint64(milliseconds)), ok
	case "$binary":
		return appendBinary(into, content)
	case "$regularExpression":
		parts, ok := textsOf(content, "pattern", "options")
		if !ok || strings.ContainsRune(parts[0]+parts[1], 0) {
			return 0, nil, false
		}
		return bson.TypeRegex, append(append(append(append(into, parts[0]...), 0), parts[1]...), 0), true
	case "$timestamp":
		return appendTimestamp(into, content)
	case "$dbPointer":
		pointer, ok := valuesOf(content, "$ref", "$id")
		if !ok {
			return 0, nil, false
		}
		namespace, isText := pointer[0].(string)
		wrapped, isObject := valuesOf(pointer[1], "$oid")
		if !isText || !isObject {
			return 0, nil, false
		}
		id, ok := objectIDOf(wrapped[0])
		return bson.TypeDBPointer, append(appendText(into, namespace), id...), ok
	case "$undefined":
		return bson.TypeUndefined, into, content == true
	case "$minKey":
		return bson.TypeMinKey, into, content == json.Number("1")
	case "$maxKey":
		return bson.TypeMaxKey, into, content == json.Number("1")
	}
	return 0, nil, false
}

func codeWithScope(object []member) (string, []member, bool) {
	values, ok := valuesOf(object, "$code", "$scope")
	if !ok {
		return "", nil, false
	}
	code, isText := values[0].(string)
	scope, isObject := values[1].([]member)
	return code, scope, isText && isObject
}

func appendBinary(into []byte, content any) (bson.Type, []byte, bool) {
	parts, ok := textsOf(content, "base64", "subType")
	if !ok || !twoHexDigits.MatchString(parts[1]) {
		return 0, nil, false
	}
	data, err := base64.StdEncoding.DecodeString(parts[0])
	if err != nil || base64.StdEncoding.EncodeToString(data) != parts[0] {
		return 0, nil, false
	}
	subtype, _ := strconv.ParseUint(parts[1], 16, 8)
	if byte(subtype) == bson.TypeBinaryBinaryOld {
		data = append(appendUint32(nil, uint32(len(data))), data...)
	}
	return bson.TypeBinary, append(append(appendUint32(into, uint32(len(data))), byte(subtype)), data...), true
}

func appendTimestamp(into []byte, content any) (bson.Type, []byte, bool) {
	parts, ok := valuesOf(content, "t", "i")
	if !ok {
		return 0, nil, false
	}
	seconds, isSeconds := uint32Of(parts[0])
	increment, isIncrement := uint32Of(parts[1])
	return bson.TypeTimestamp, appendUint32(appendUint32(into, increment), seconds), isSeconds && isIncrement
}

func objectIDOf(content any) ([]byte, bool) {
	text, _ := content.(string)
	id, _ := hex.DecodeString(text)
	return id, lowerObjectID.MatchString(text)
}

func int64Of(content any) (int64, bool) {
	text, _ := content.(string)
	value, err := strconv.ParseInt(text, 10, 64)
	return value, wholeNumber.MatchString(text) && err == nil
}

func uint32Of(content any) (uint32, bool) {
	number, _ := content.(json.Number)
	value, err := strconv.ParseUint(string(number), 10, 32)
	return uint32(value), err == nil
}

func dateOf(content any) (int64, bool) {
	if text, ok := content.(string); ok {
		at, err := time.Parse(time.RFC3339, text)
		return at.UnixMilli(), utcDate.MatchString(text) && err == nil
	}
	parts, ok := valuesOf(content, "$numberLong")
	if !ok {
		return 0, false
	}
	return int64Of(parts[0])
}

// valuesOf returns the values of an object that has exactly these names, in this order.
func valuesOf(content any, names ...string) ([]any, bool) {
	object, _ := content.([]member)
	if len(object) != len(names) {
		return nil, false
	}
	values := make([]any, len(names))
	for index, each := range object {
		if each.name != names[index] {
			return nil, false
		}
		values[index] = each.value
	}
	return values, true
}

func textsOf(content any, first, second string) ([2]string, bool) {
	values, ok := valuesOf(content, first, second)
	if !ok {
		return [2]string{}, false
	}
	one, isFirst := values[0].(string)
	other, isSecond := values[1].(string)
	return [2]string{one, other}, isFirst && isSecond
}

func appendText(into []byte, text string) []byte {
	return append(append(appendUint32(into, uint32(len(text)+1)), text...), 0)
}

func appendUint32(into []byte, value uint32) []byte {
	return binary.LittleEndian.AppendUint32(into, value)
}

func appendUint64(into []byte, value uint64) []byte {
	return binary.LittleEndian.AppendUint64(into, value)
}
