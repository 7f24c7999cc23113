package dev.feedmux;

import java.time.Duration;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * What opening a feed would do, without doing it. If the server rejects the feed, facts that it could not determine are
 * empty.
 *
 * @param refusal why the server would reject the feed; null if it would open the feed
 * @param pipeline the pipeline sent to MongoDB, in extended JSON, without the stages of the tenant's grants
 * @param streamKey the key of the shared stream: the server reads feeds with the same key only once
 * @param streamOpen whether the server already reads that stream
 * @param images collections whose stored pre- and post-images are needed
 * @param oplogHeadroom the time from the oldest entry of the oplog to the start; null if it is unknown
 * @param withheld the parts of the feed's scope that are not delivered
 * @param mayBeView whether the server may serve the feed from one stream that reads its database or deployment for many
 *     feeds
 * @param scopeMissing whether the feed's collection does not exist now, or its database has no collections; false if
 *     unknown
 * @param documentsEstimated with a start at {@link Start#snapshot()}, about how many documents the copy would read; 0 if
 *     it is unknown, or if grants withhold documents
 */
public record Explanation(
        @Nullable Refusal refusal,
        String pipeline,
        String streamKey,
        boolean streamOpen,
        List<CollectionImages> images,
        @Nullable Duration oplogHeadroom,
        List<Withheld> withheld,
        boolean mayBeView,
        boolean scopeMissing,
        long documentsEstimated) {

    /**
     * The reason why opening would fail.
     *
     * @param status the name of the gRPC status code
     * @param reason the reason, as in {@link dev.feedmux.errors.Failure#reason}
     * @param message the text for people
     */
    public record Refusal(String status, String reason, String message) {}

    /**
     * A collection whose stored images are needed.
     *
     * @param database the database
     * @param collection the collection
     * @param enabled whether MongoDB stores them now
     * @param forGrants whether the tenant's grants need them, rather than the feed alone
     */
    public record CollectionImages(String database, String collection, boolean enabled, boolean forGrants) {}

    /**
     * A part of the feed's scope that is not delivered.
     *
     * @param what what is not delivered
     * @param why why it is not delivered
     */
    public record Withheld(String what, String why) {}
}
