package dev.feedmux;

import java.time.Duration;
import org.bson.BsonTimestamp;
import org.jspecify.annotations.Nullable;

/**
 * How far a copy of existing documents is. A number that the server does not know is 0.
 *
 * @param documents the number of documents copied so far; after an interruption, some may count twice
 * @param bytes the size of these documents
 * @param documentsEstimated MongoDB's estimate of the number of documents in what is copied
 * @param remaining the time left at the present rate; null if it is not known
 * @param readTime the cluster time as of which the documents were read; null if it is not known
 * @param namespace the collection that is being copied; of several, before the first one and after the last one the
 *     database, or {@code *} for the deployment
 * @param generation the number of the copy, see {@link Notice.SnapshotComplete}
 */
public record SnapshotStatus(
        long documents,
        long bytes,
        long documentsEstimated,
        @Nullable Duration remaining,
        @Nullable BsonTimestamp readTime,
        String namespace,
        long generation) {}
