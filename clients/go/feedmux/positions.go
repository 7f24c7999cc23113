package feedmux

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"regexp"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// FeedPosition is a position in a feed: everything at or before it has been delivered.
type FeedPosition struct {
	// Position is opaque: store it unchanged. AtPosition starts after it. Empty if only a token is known.
	Position []byte
	// ResumeToken is MongoDB's. Nil if there is none.
	ResumeToken bson.Raw
	// ClusterTime is zero if it is unknown.
	ClusterTime bson.Timestamp
}

var idFirst = []byte("\x03_id\x00")

// eventToken returns the `_id` of an event, which is its resume token. Nil if the event's `_id` is not a document.
// `_id` need not be the first field: a pipeline with $replaceRoot moves it. The result is not a copy.
func eventToken(document bson.Raw) bson.Raw {
	start := 4 + len(idFirst)
	if len(document) > start+4 && bytes.Equal(document[4:start], idFirst) {
		end := start + int(binary.LittleEndian.Uint32(document[start:]))
		if end >= start && end <= len(document) {
			return document[start:end]
		}
	}
	token, _ := document.Lookup("_id").DocumentOK()
	return token
}

var hexDigits = regexp.MustCompile("^[0-9A-Fa-f]+$")

// jsonToken returns the resume token of an event in extended JSON: its `_id`, as exactly the BSON that MongoDB sent.
// Nil if `_id` is not a resume token.
//
// A token is {_data: <hex>} or {_data: <hex>, _typeBits: <binary>}. MongoDB adds `_typeBits` if the hex alone does not
// determine the type of a number: int64, double and decimal `_id`s.
func jsonToken(event []byte) bson.Raw {
	raw, err := bsonOf(jsonMember(event, "_id"))
	if err != nil {
		return nil
	}
	var token bson.D
	if bson.Unmarshal(raw, &token) != nil {
		return nil
	}
	known := map[string]bool{}
	for _, element := range token {
		switch value := element.Value.(type) {
		case string:
			known[element.Key] = element.Key == "_data" && hexDigits.MatchString(value)
		case bson.Binary:
			known[element.Key] = element.Key == "_typeBits"
		}
	}
	if !known["_data"] || len(token) > 1 && !known["_typeBits"] || len(token) > len(known) {
		return nil
	}
	return raw
}

// jsonMember returns the text of one member of an object; nil if there is none. It does not read what follows the
// member, which is nearly the whole event, because `_id` is usually the first member.
func jsonMember(object []byte, wanted string) []byte {
	members := json.NewDecoder(bytes.NewReader(object))
	if begin, err := members.Token(); err != nil || begin != json.Delim('{') {
		return nil
	}
	for members.More() {
		name, err := members.Token()
		if err != nil {
			return nil
		}
		var value json.RawMessage
		if members.Decode(&value) != nil {
			return nil
		}
		if name == wanted {
			return value
		}
	}
	return nil
}

// tokenTime returns the cluster time inside a resume token. False if the token is not MongoDB's hex key string that
// begins with a timestamp: such a token is not compared.
func tokenTime(token bson.Raw) (bson.Timestamp, bool) {
	if token.Validate() != nil {
		return bson.Timestamp{}, false
	}
	data, ok := token.Lookup("_data").StringValueOK()
	if !ok || len(data) < 18 || data[:2] != "82" {
		return bson.Timestamp{}, false
	}
	seconds, err := strconv.ParseUint(data[2:10], 16, 32)
	if err != nil {
		return bson.Timestamp{}, false
	}
	increment, err := strconv.ParseUint(data[10:18], 16, 32)
	if err != nil {
		return bson.Timestamp{}, false
	}
	return bson.Timestamp{T: uint32(seconds), I: uint32(increment)}, true
}
