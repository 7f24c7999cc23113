package dev.feedmux;

import dev.feedmux.errors.ProtocolException;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/** What the {@link DeliveryTracker} retains of a batch: the whole batch, or the resume tokens of its events. */
sealed interface UnackedBatch {
    /** Retains the batch, and with it the message in which it arrived. */
    static UnackedBatch whole(Batch batch) {
        return new Whole(batch);
    }

    /** Retains a copy of the tokens of the batch's events. */
    static UnackedBatch reduced(Batch batch) {
        ByteArrayOutputStream tokens = new ByteArrayOutputStream();
        int[] offsets = new int[batch.size() + 1];
        for (int index = 0; index < batch.size(); index++) {
            ByteBuffer key = keyOf(batch, index);
            if (key != null) {
                byte[] copy = new byte[key.remaining()];
                key.duplicate().get(copy);
                tokens.writeBytes(copy);
            }
            offsets[index + 1] = tokens.size();
        }
        return new Reduced(batch.firstSequence(), batch.feedPosition(), tokens.toByteArray(), offsets);
    }

    /**
     * Returns {@link Batch#key}; null also if the event cannot be decoded, which is reported when the user decodes it.
     */
    static @Nullable ByteBuffer keyOf(Batch batch, int index) {
        try {
            return batch.key(index);
        } catch (ProtocolException undecodable) {
            return null;
        }
    }

    /** Returns the number of events. */
    int size();

    /** Returns the ordinal of the first event. */
    long firstSequence();

    /** Returns the ordinal of the last event. */
    default long lastSequence() {
        return firstSequence() + size() - 1;
    }

    /** Returns the position after the last event. */
    FeedPosition feedPosition();

    /** Returns the resume token of an event; null if it has none. */
    @Nullable
    ByteBuffer key(int index);

    /** Returns the bytes of its events; 0 if it is reduced. */
    long wholeBytes();

    /** Returns the same batch, reduced to its tokens. */
    UnackedBatch reduce();

    /** Returns the events [first, end), reduced. */
    UnackedBatch part(int first, int end);

    /** The whole batch. */
    record Whole(Batch batch) implements UnackedBatch {
        @Override
        public int size() {
            return batch.size();
        }

        @Override
        public long firstSequence() {
            return batch.firstSequence();
        }

        @Override
        public FeedPosition feedPosition() {
            return batch.feedPosition();
        }

        @Override
        public @Nullable ByteBuffer key(int index) {
            return keyOf(batch, index);
        }

        @Override
        public long wholeBytes() {
            return batch.sizeBytes();
        }

        @Override
        public UnackedBatch reduce() {
            return reduced(batch);
        }

        @Override
        public UnackedBatch part(int first, int end) {
            return reduce().part(first, end);
        }
    }

    /** The concatenated tokens, with the offset of each token and of the end. Parts share the bytes. */
    @SuppressWarnings("ArrayRecordComponent")
    record Reduced(long firstSequence, FeedPosition feedPosition, byte[] tokens, int[] offsets)
            implements UnackedBatch {
        @Override
        public int size() {
            return offsets.length - 1;
        }

        @Override
        public @Nullable ByteBuffer key(int index) {
            int bytes = offsets[index + 1] - offsets[index];
            return bytes == 0
                    ? null
                    : ByteBuffer.wrap(tokens, offsets[index], bytes).slice();
        }

        @Override
        public long wholeBytes() {
            return 0;
        }

        @Override
        public UnackedBatch reduce() {
            return this;
        }

        @Override
        public UnackedBatch part(int first, int end) {
            FeedPosition after = end == size() ? feedPosition : FeedPosition.NONE;
            return new Reduced(firstSequence + first, after, tokens, Arrays.copyOfRange(offsets, first, end + 1));
        }
    }
}
