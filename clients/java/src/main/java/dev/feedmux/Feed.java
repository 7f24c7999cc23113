package dev.feedmux;

import java.util.List;
import java.util.Objects;
import org.bson.BsonDocument;
import org.bson.BsonValue;
import org.bson.conversions.Bson;
import org.jspecify.annotations.Nullable;

/**
 * What to watch: the scope, the pipeline and MongoDB's change stream options. A component that is null or 0 is not sent
 * to MongoDB.
 *
 * @param source the name of the MongoDB deployment in the server's configuration; null means the client's default
 *     source
 * @param database the database; null means the whole deployment
 * @param collection the collection; null means the whole database
 * @param pipeline the stages after {@code $changeStream}
 * @param pipelineJson the stages as a JSON array, which the server parses (docs/pipelines.md); null if {@code pipeline}
 *     has the stages
 * @param fullDocument whether update events carry the document; null in a feed that the server returned if this client
 *     does not know the value, as with the other enums
 * @param fullDocumentBeforeChange whether events carry the document before the change
 * @param showExpandedEvents whether to include DDL events and additional fields
 * @param collation MongoDB's collation for the pipeline
 * @param comment a comment for MongoDB's log and profiler
 * @param batchSize the maximum number of events in a batch; 0 means as many as fit
 * @param maxAwaitTimeMs the maximum wait in milliseconds, stored with the feed for clients that poll; 0 means one
 *     second
 * @param readPreference the read preference; null means the source's default
 * @param readConcern the read concern; null means {@code majority}, and MongoDB accepts no other for change streams
 * @param matchCollectionUuidForUpdateLookup MongoDB's option of that name
 * @param extraOptions options of newer MongoDB versions that are true, by MongoDB's names: {@code showCommitTimestamp},
 *     for example
 */
public record Feed(
        @Nullable String source,
        @Nullable String database,
        @Nullable String collection,
        List<BsonDocument> pipeline,
        @Nullable String pipelineJson,
        @Nullable FullDocument fullDocument,
        @Nullable FullDocumentBeforeChange fullDocumentBeforeChange,
        boolean showExpandedEvents,
        @Nullable BsonDocument collation,
        @Nullable BsonValue comment,
        int batchSize,
        int maxAwaitTimeMs,
        @Nullable ReadPreference readPreference,
        @Nullable String readConcern,
        boolean matchCollectionUuidForUpdateLookup,
        List<String> extraOptions) {

    /**
     * Copies the lists. Throws IllegalArgumentException if there are stages in both notations, if a name is empty (an
     * unset variable would widen the feed to everybody's events), or if a text has half of a surrogate pair.
     */
    public Feed {
        if ("".equals(database) || "".equals(collection)) {
            throw new IllegalArgumentException(
                    "a feed's database or collection is empty; leave it out for all of them");
        }
        Documents.checkText(source, "a feed's source");
        Documents.checkText(database, "a feed's database");
        Documents.checkText(collection, "a feed's collection");
        Documents.checkText(pipelineJson, "a feed's pipelineJson");
        pipeline = List.copyOf(pipeline);
        extraOptions = List.copyOf(extraOptions);
        if (pipelineJson != null && !pipeline.isEmpty()) {
            throw new IllegalArgumentException("a feed has either a pipeline or a pipelineJson");
        }
    }

    /** Returns a feed of the whole deployment. */
    public static Feed deployment() {
        return builder().build();
    }

    /** Returns a feed of a database. */
    public static Feed database(String database) {
        return builder().database(database).build();
    }

    /** Returns a feed of a collection. */
    public static Feed collection(String database, String collection) {
        return builder().database(database).collection(collection).build();
    }

    /** Returns a builder for a feed. */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Sets the components of a {@link Feed} one by one. Components that are not set are not sent to MongoDB. Within
     * documents, maps and sets without an order ({@code Map.of}, {@code HashMap}, …) are sorted, so that equal ones make
     * equal feeds; {@code Document}, {@code LinkedHashMap} and all others keep their order.
     */
    public static final class Builder {
        private @Nullable String source;
        private @Nullable String database;
        private @Nullable String collection;
        private List<BsonDocument> pipeline = List.of();
        private @Nullable String pipelineJson;
        private @Nullable FullDocument fullDocument;
        private @Nullable FullDocumentBeforeChange fullDocumentBeforeChange;
        private boolean showExpandedEvents;
        private @Nullable BsonDocument collation;
        private @Nullable BsonValue comment;
        private int batchSize;
        private int maxAwaitTimeMs;
        private @Nullable ReadPreference readPreference;
        private @Nullable String readConcern;
        private boolean matchCollectionUuidForUpdateLookup;
        private List<String> extraOptions = List.of();

        private Builder() {}

        /** Sets the name of the MongoDB deployment; null means the client's default source. */
        public Builder source(@Nullable String name) {
            source = name;
            return this;
        }

        /** Sets the database. Without it, the feed is of the whole deployment. */
        public Builder database(String name) {
            // A variable that was not set would widen the feed to everybody's events.
            database = Objects.requireNonNull(name, "database");
            return this;
        }

        /** Sets the collection. Without it, the feed is of the whole database. */
        public Builder collection(String name) {
            collection = Objects.requireNonNull(name, "collection");
            return this;
        }

        /** Sets the stages, as documents or made with the builders of MongoDB's driver. */
        public Builder pipeline(List<? extends Bson> stages) {
            pipelineJson = null;
            pipeline = stages.stream().map(UnorderedCodecs::document).toList();
            return this;
        }

        /** Sets the stages, as documents or made with the builders of MongoDB's driver. */
        public Builder pipeline(Bson... stages) {
            return pipeline(List.of(stages));
        }

        /** Sets the stages, as a JSON array. Only the server parses it: Java's parser would rewrite some conditions. */
        public Builder pipelineJson(@Nullable String json) {
            pipelineJson = json;
            pipeline = List.of();
            return this;
        }

        /** Sets {@link Feed#fullDocument}. */
        public Builder fullDocument(@Nullable FullDocument mode) {
            fullDocument = mode;
            return this;
        }

        /** Sets {@link Feed#fullDocumentBeforeChange}. */
        public Builder fullDocumentBeforeChange(@Nullable FullDocumentBeforeChange mode) {
            fullDocumentBeforeChange = mode;
            return this;
        }

        /** Sets {@link Feed#showExpandedEvents}. */
        public Builder showExpandedEvents(boolean show) {
            showExpandedEvents = show;
            return this;
        }

        /** Sets {@link Feed#collation}. */
        public Builder collation(@Nullable Bson document) {
            collation = document == null ? null : Objects.requireNonNull(UnorderedCodecs.document(document));
            return this;
        }

        /** Sets {@link Feed#comment}. */
        public Builder comment(@Nullable BsonValue value) {
            comment = value;
            return this;
        }

        /** Sets {@link Feed#batchSize}. */
        public Builder batchSize(int events) {
            batchSize = events;
            return this;
        }

        /** Sets {@link Feed#maxAwaitTimeMs}. */
        public Builder maxAwaitTimeMs(int milliseconds) {
            maxAwaitTimeMs = milliseconds;
            return this;
        }

        /** Sets {@link Feed#readPreference}. */
        public Builder readPreference(@Nullable ReadPreference mode) {
            readPreference = mode;
            return this;
        }

        /** Sets {@link Feed#readConcern}. */
        public Builder readConcern(@Nullable String level) {
            readConcern = level;
            return this;
        }

        /** Sets {@link Feed#matchCollectionUuidForUpdateLookup}. */
        public Builder matchCollectionUuidForUpdateLookup(boolean match) {
            matchCollectionUuidForUpdateLookup = match;
            return this;
        }

        /** Sets {@link Feed#extraOptions}. */
        public Builder extraOptions(List<String> names) {
            extraOptions = names;
            return this;
        }

        /** Builds the feed. */
        public Feed build() {
            return new Feed(
                    source,
                    database,
                    collection,
                    pipeline,
                    pipelineJson,
                    fullDocument,
                    fullDocumentBeforeChange,
                    showExpandedEvents,
                    collation,
                    comment,
                    batchSize,
                    maxAwaitTimeMs,
                    readPreference,
                    readConcern,
                    matchCollectionUuidForUpdateLookup,
                    extraOptions);
        }
    }
}
