package dev.feedmux;

import java.time.Duration;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * What opening a feed would do, without doing it. What a refusal keeps from being known is empty.
 *
 * @param refusal null: it would be opened
 * @param pipeline what MongoDB is asked, in extended JSON; the stages of the tenant's grants are not shown
 * @param streamKey names the shared stream: feeds of one key are read once
 * @param streamOpen whether the server reads that stream already
 * @param images collections whose stored pre- and post-images are needed
 * @param oplogHeadroom from the oldest entry of the oplog to the start; null where it is not known
 * @param withheld what of the feed's scope does not come
 * @param mayBeView whether it may be served from one stream that reads its database or the deployment for many feeds
 */
public record Explanation(
        @Nullable Refusal refusal,
        String pipeline,
        String streamKey,
        boolean streamOpen,
        List<CollectionImages> images,
        @Nullable Duration oplogHeadroom,
        List<Withheld> withheld,
        boolean mayBeView) {

    /**
     * How opening would end.
     *
     * @param status the name of the gRPC status code
     * @param reason as of an error
     * @param message for people
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
     * Something that does not come.
     *
     * @param what what
     * @param why why
     */
    public record Withheld(String what, String why) {}
}
