package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.List;
import org.bson.Document;
import org.junit.jupiter.api.Test;

final class FeedTest {
    private static final String JSON =
            "[{\"$match\": {\"a\": {\"$elemMatch\": {\"$regex\": \"^a\", \"$options\": \"i\"}}, \"a\": 9e999}}]";

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
                        false));
    }
}
