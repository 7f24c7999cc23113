package dev.feedmux;

import java.util.List;
import org.bson.BsonArray;
import org.bson.BsonDocument;
import org.bson.BsonValue;
import org.bson.conversions.Bson;
import org.jspecify.annotations.Nullable;

/**
 * What to watch: the scope, the pipeline and MongoDB's change stream options. What is null or 0 is not sent to MongoDB.
 *
 * @param source names the MongoDB deployment in the server's configuration; null is the client's own
 * @param database null is the whole deployment
 * @param collection null is the whole database
 * @param pipeline the stages behind {@code $changeStream}
 * @param fullDocument {@code default}, {@code updateLookup}, {@code whenAvailable} or {@code required}
 * @param fullDocumentBeforeChange {@code off}, {@code whenAvailable} or {@code required}
 * @param showExpandedEvents DDL events and more fields
 * @param collation MongoDB's collation for the pipeline
 * @param comment goes into MongoDB's log and profile
 * @param batchSize most events of one batch; 0 is as many as fit
 * @param maxAwaitTimeMs 0 is one second; kept with the feed for clients that poll
 * @param readPreference null is the source's own
 * @param readConcern null is {@code majority}
 * @param matchCollectionUuidForUpdateLookup MongoDB's option of that name
 */
public record Feed(
        @Nullable String source,
        @Nullable String database,
        @Nullable String collection,
        List<BsonDocument> pipeline,
        @Nullable String fullDocument,
        @Nullable String fullDocumentBeforeChange,
        boolean showExpandedEvents,
        @Nullable BsonDocument collation,
        @Nullable BsonValue comment,
        int batchSize,
        int maxAwaitTimeMs,
        @Nullable String readPreference,
        @Nullable String readConcern,
        boolean matchCollectionUuidForUpdateLookup) {

    /** Copies the list of stages. */
    public Feed {
        pipeline = List.copyOf(pipeline);
    }

    /** The whole deployment. */
    public static Feed deployment() {
        return builder().build();
    }

    /** A database. */
    public static Feed database(String database) {
        return builder().database(database).build();
    }

    /** A collection. */
    public static Feed collection(String database, String collection) {
        return builder().database(database).collection(collection).build();
    }

    /** A feed to be filled in. */
    public static Builder builder() {
        return new Builder();
    }

    /** Sets the components of a {@link Feed} one by one; what is left out is not sent to MongoDB. */
    public static final class Builder {
        private @Nullable String source;
        private @Nullable String database;
        private @Nullable String collection;
        private List<BsonDocument> pipeline = List.of();
        private @Nullable String fullDocument;
        private @Nullable String fullDocumentBeforeChange;
        private boolean showExpandedEvents;
        private @Nullable BsonDocument collation;
        private @Nullable BsonValue comment;
        private int batchSize;
        private int maxAwaitTimeMs;
        private @Nullable String readPreference;
        private @Nullable String readConcern;
        private boolean matchCollectionUuidForUpdateLookup;

        private Builder() {}

        /** Names the MongoDB deployment; none is the client's own. */
        public Builder source(@Nullable String name) {
            source = name;
            return this;
        }

        /** None is the whole deployment. */
        public Builder database(@Nullable String name) {
            database = name;
            return this;
        }

        /** None is the whole database. */
        public Builder collection(@Nullable String name) {
            collection = name;
            return this;
        }

        /** The stages, as documents or by the builders of MongoDB's driver. */
        public Builder pipeline(List<? extends Bson> stages) {
            pipeline = stages.stream().map(Bson::toBsonDocument).toList();
            return this;
        }

        /** The stages, as documents or by the builders of MongoDB's driver. */
        public Builder pipeline(Bson... stages) {
            return pipeline(List.of(stages));
        }

        /** The stages as an extended JSON array. */
        public Builder pipelineJson(String json) {
            pipeline = BsonArray.parse(json).stream().map(BsonValue::asDocument).toList();
            return this;
        }

        /** As {@link Feed#fullDocument}. */
        public Builder fullDocument(@Nullable String mode) {
            fullDocument = mode;
            return this;
        }

        /** As {@link Feed#fullDocumentBeforeChange}. */
        public Builder fullDocumentBeforeChange(@Nullable String mode) {
            fullDocumentBeforeChange = mode;
            return this;
        }

        /** As {@link Feed#showExpandedEvents}. */
        public Builder showExpandedEvents(boolean show) {
            showExpandedEvents = show;
            return this;
        }

        /** As {@link Feed#collation}. */
        public Builder collation(@Nullable Bson document) {
            collation = document == null ? null : document.toBsonDocument();
            return this;
        }

        /** As {@link Feed#comment}. */
        public Builder comment(@Nullable BsonValue value) {
            comment = value;
            return this;
        }

        /** As {@link Feed#batchSize}. */
        public Builder batchSize(int events) {
            batchSize = events;
            return this;
        }

        /** As {@link Feed#maxAwaitTimeMs}. */
        public Builder maxAwaitTimeMs(int milliseconds) {
            maxAwaitTimeMs = milliseconds;
            return this;
        }

        /** As {@link Feed#readPreference}. */
        public Builder readPreference(@Nullable String mode) {
            readPreference = mode;
            return this;
        }

        /** As {@link Feed#readConcern}. */
        public Builder readConcern(@Nullable String level) {
            readConcern = level;
            return this;
        }

        /** As {@link Feed#matchCollectionUuidForUpdateLookup}. */
        public Builder matchCollectionUuidForUpdateLookup(boolean match) {
            matchCollectionUuidForUpdateLookup = match;
            return this;
        }

        /** The feed. */
        public Feed build() {
            return new Feed(
                    source,
                    database,
                    collection,
                    pipeline,
                    fullDocument,
                    fullDocumentBeforeChange,
                    showExpandedEvents,
                    collation,
                    comment,
                    batchSize,
                    maxAwaitTimeMs,
                    readPreference,
                    readConcern,
                    matchCollectionUuidForUpdateLookup);
        }
    }
}
