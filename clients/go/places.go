package feedmux

import (
	"bytes"
	"encoding/binary"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Place is a place in a feed: everything at or before it has been delivered.
type Place struct {
	// Position is opaque, to be stored as it is; AtPosition goes on behind it. Empty where only a token is known.
	Position []byte
	// ResumeToken is MongoDB's. Nil where there is none.
	ResumeToken bson.Raw
	// ClusterTime is zero where it is unknown.
	ClusterTime bson.Timestamp
}

var idFirst = []byte("\x03_id\x00")

// eventToken is the `_id` of an event: its resume token. Nil where the event has no document as `_id`, which need not
// be the first field: a pipeline with $replaceRoot moves it. The bytes are the event's own.
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

// tokenTime is the cluster time inside a resume token. False for a layout that is not MongoDB's hex key string
// beginning with a timestamp: such a token is not compared.
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
