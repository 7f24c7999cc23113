package feedmux

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"testing"
	"time"
)

func testdata(t *testing.T, name string, into any) {
	t.Helper()
	content, err := os.ReadFile("../../testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err = json.Unmarshal(content, into); err != nil {
		t.Fatal(err)
	}
}

func TestATokenIsTheSameBytesInEveryFormat(t *testing.T) {
	var events []struct{ ID, Event, Token, Canonical, Relaxed string }
	testdata(t, "resume_tokens.json", &events)
	withTypes := 0
	for _, each := range events {
		document, _ := base64.StdEncoding.DecodeString(each.Event)
		token, _ := base64.StdEncoding.DecodeString(each.Token)
		if got := eventToken(document); !bytes.Equal(got, token) {
			t.Errorf("%s: %v, not %v", each.ID, got, token)
		}
		if bytes.Contains(token, []byte("_typeBits")) {
			withTypes++
		}
		for format, text := range map[Format]string{FormatExtendedJSONCanonical: each.Canonical, FormatExtendedJSONRelaxed: each.Relaxed} {
			anywhere := `{"nested":{"_id":{"_data":"00"}},` + text[1:]
			batch := jsonBatch([]string{text, anywhere}, format, FeedPosition{}, time.Time{})
			for index := range batch.Len() {
				if got := batch.Event(index).ResumeToken(); !bytes.Equal(got, token) {
					t.Errorf("%s: %v, not %v", each.ID, got, token)
				}
			}
		}
	}
	if withTypes < 10 {
		t.Errorf("%d tokens with type bits", withTypes)
	}
}

func TestWhatIsNoTokenGivesNone(t *testing.T) {
	var texts []string
	testdata(t, "no_tokens.json", &texts)
	for _, text := range append(texts, "", "{", "[]", `{"_id":{"_data":"82","_typeBits":{"$binary":{"base64":"g"}}}}`) {
		if got := jsonToken([]byte(text)); got != nil {
			t.Errorf("%s: %v", text, got)
		}
	}
}
