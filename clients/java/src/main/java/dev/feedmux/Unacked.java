package dev.feedmux;

import dev.feedmux.errors.ProtocolException;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/** What the {@link Ledger} keeps of a batch: all of it, or the resume tokens of its events. */
sealed interface Unacked {
    /** The batch, and with it the message that it came in. */
    static Unacked whole(Batch batch) {
        return new Whole(batch);
    }

    /** The tokens of its events, copied. */
    static Unacked reduced(Batch batch) {
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
        return new Reduced(batch.firstSequence(), batch.place(), tokens.toByteArray(), offsets);
    }

    /** {@link Batch#key}; null also where the event cannot be decoded: that is for whoever decodes it. */
    static @Nullable ByteBuffer keyOf(Batch batch, int index) {
        try {
            return batch.key(index);
        } catch (ProtocolException undecodable) {
            return null;
        }
    }

    /** The number of events. */
    int size();

    /** The ordinal of the first event. */
    long firstSequence();

    /** The ordinal of the last event. */
    default long lastSequence() {
        return firstSequence() + size() - 1;
    }

    /** The place after the last event. */
    Place place();

    /** The resume token of an event; null where it has none. */
    @Nullable
    ByteBuffer key(int index);

    /** Bytes of its events; 0 for what is reduced. */
    long wholeBytes();

    /** The same without the events. */
    Unacked reduce();

    /** The events [first, end), reduced. */
    Unacked part(int first, int end);

    /** Everything. */
    record Whole(Batch batch) implements Unacked {
        @Override
        public int size() {
            return batch.size();
        }

        @Override
        public long firstSequence() {
            return batch.firstSequence();
        }

        @Override
        public Place place() {
            return batch.place();
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
        public Unacked reduce() {
            return reduced(batch);
        }

        @Override
        public Unacked part(int first, int end) {
            return reduce().part(first, end);
        }
    }

    /** The tokens, one after the other, and where each begins and the last ends. Shared by its parts. */
    @SuppressWarnings("ArrayRecordComponent")
    record Reduced(long firstSequence, Place place, byte[] tokens, int[] offsets) implements Unacked {
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
        public Unacked reduce() {
            return this;
        }

        @Override
        public Unacked part(int first, int end) {
            Place after = end == size() ? place : Place.NOWHERE;
            return new Reduced(firstSequence + first, after, tokens, Arrays.copyOfRange(offsets, first, end + 1));
        }
    }
}
