package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.bson.BsonArray;
import org.bson.BsonDocument;
import org.bson.BsonNull;
import org.bson.BsonString;
import org.bson.BsonValue;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.bson.codecs.configuration.CodecRegistry;
import org.bson.conversions.Bson;
import org.junit.jupiter.api.Test;

/** A feed is sent with everything that it has. */
final class FeedTest {
    private static final String JSON =
            "[{\"$match\": {\"a\": {\"$elemMatch\": {\"$regex\": \"^a\", \"$options\": \"i\"}}, \"a\": 9e999}}]";

    record Owner(String name) {}

    /** A document that is none. */
    static final class Nothing implements Bson {
        @Override
        @SuppressWarnings("NullAway")
        public <T> BsonDocument toBsonDocument(Class<T> type, CodecRegistry registry) {
            return null;
        }
    }

    private static String sent(Feed feed) {
        return new RawBsonDocument(
                        Messages.feed(feed, "main").getPipeline().getBson().toByteArray())
                .toJson();
    }

    @Test
    void aTextThatWasCutWithinAnEmojiIsNotSentAsAnother() {
        String half = "x\ud83d";
        Feed.Builder feed = Feed.builder().pipelineJson("[{\"$match\": {\"a\": \"" + half + "\"}}]");
        assertThrows(IllegalArgumentException.class, feed::build);
        assertThrows(IllegalArgumentException.class, () -> Feed.database(half));
        assertThrows(IllegalArgumentException.class, () -> Feed.collection("shop", half));
        try (FeedmuxClient client = FeedmuxClient.builder("localhost:1").build()) {
            assertThrows(IllegalArgumentException.class, () -> client.subscription(half));
        }
        byte[] bytes =
                Documents.encode(new BsonDocument("a", new BsonString(half))).toByteArray();
        assertTrue(HexFormat.of().formatHex(bytes).contains("78eda0bd"), "the server must see, and reject, the half");
    }

    @Test
    @SuppressWarnings("NullAway")
    void whatIsNotThereDoesNotWidenAFeedAndIsNoStart() {
        assertThrows(NullPointerException.class, () -> Feed.database(null));
        Feed.Builder builder = Feed.builder();
        assertThrows(NullPointerException.class, () -> builder.database(null));
        assertThrows(NullPointerException.class, () -> builder.collection(null));
        assertThrows(NullPointerException.class, () -> Feed.collection("shop", null));
        assertThrows(IllegalArgumentException.class, () -> Feed.database(""));
        assertThrows(IllegalArgumentException.class, () -> Feed.collection("shop", ""));
        assertThrows(NullPointerException.class, () -> Messages.start(null));
        try (FeedmuxClient client = FeedmuxClient.builder("localhost:1").build()) {
            InlineFeed feed = client.feed(Feed.database("shop"));
            assertThrows(NullPointerException.class, () -> feed.open(null));
            assertThrows(NullPointerException.class, () -> feed.explain(null));
        }
    }

    @Test
    void aConditionIsSentWhateverItsValue() {
        Map<Object, String> values = Map.of(
                Optional.empty(),
                "null",
                BsonNull.VALUE,
                "null",
                Arrays.asList((Object) null),
                "[null]",
                Collections.singletonMap("x", null),
                "{\"x\": null}",
                new Document("x", null),
                "{\"x\": null}",
                new BsonArray(List.of(BsonNull.VALUE)),
                "[null]",
                new Document(),
                "{}",
                "",
                "\"\"",
                0,
                "0",
                false,
                "false");
        values.forEach((value, json) -> {
            Object given = value instanceof Optional ? null : value;
            Document stage = new Document("$match", new Document("fullDocument.owner", given));
            String wanted = "{\"pipeline\": [{\"$match\": {\"fullDocument.owner\": " + json + "}}]}";
            assertEquals(wanted, sent(Feed.builder().pipeline(stage).build()));
            assertEquals(
                    wanted, sent(Feed.builder().pipeline(stage.toBsonDocument()).build()));
        });
    }

    @Test
    void whatBsonDoesNotHaveIsAnError() {
        for (Object wrong :
                List.of(Optional.empty(), Optional.of("x"), new Owner("x"), (Runnable) () -> {}, new int[1])) {
            Document stage = new Document("$match", new Document("fullDocument.owner", wrong));
            assertThrows(
                    RuntimeException.class,
                    () -> sent(Feed.builder().pipeline(stage).build()));
            assertThrows(
                    RuntimeException.class,
                    () -> sent(Feed.builder().collation(stage).build()));
        }
        assertThrows(
                RuntimeException.class,
                () -> sent(Feed.builder()
                        .pipeline(new Document("$match", Map.of(1, 2)))
                        .build()));
        assertThrows(
                NullPointerException.class,
                () -> Feed.builder().pipeline(new Nothing()).build());
        assertThrows(NullPointerException.class, () -> Feed.builder().collation(new Nothing()));
        assertThrows(RuntimeException.class, () -> {
            BsonValue holed = new BsonArray(Arrays.asList((BsonValue) null));
            sent(Feed.builder().pipeline(new BsonDocument("$match", holed)).build());
        });
    }

    @Test
    void aPipelineAsTextIsSentAndReturnedAsItIs() {
        dev.feedmux.v1.Feed message =
                Messages.feed(Feed.builder().pipelineJson(JSON).build(), "main");
        assertEquals(JSON, message.getPipeline().getExtendedJson());
        assertEquals(JSON, Messages.feed(message).pipelineJson());
        assertEquals(List.of(), Messages.feed(message).pipeline());
    }

    @Test
    void theLastNotationOfAPipelineCounts() {
        Feed.Builder builder = Feed.builder().pipeline(new Document("$match", new Document()));
        Feed inBson = builder.build();
        assertNull(inBson.pipelineJson());
        Feed asText = builder.pipelineJson(JSON).build();
        assertEquals(List.of(), asText.pipeline());
        assertEquals(
                inBson, builder.pipeline(new Document("$match", new Document())).build());
        assertThrows(
                IllegalArgumentException.class,
                () -> new Feed(
                        null,
                        null,
                        null,
                        inBson.pipeline(),
                        JSON,
                        null,
                        null,
                        false,
                        null,
                        null,
                        0,
                        0,
                        null,
                        null,
                        false,
                        List.of()));
    }
}
