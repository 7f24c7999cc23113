package dev.feedmux;

import com.google.protobuf.ByteOutput;
import com.google.protobuf.ByteString;
import com.google.protobuf.UnsafeByteOperations;
import dev.feedmux.errors.ProtocolException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Instant;
import java.util.Arrays;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.jspecify.annotations.Nullable;

/** A batch of concatenated BSON documents in the bytes of the message in which they arrived. */
final class BsonBatch extends Batch {
    private static final int SMALLEST_DOCUMENT = 5;

    private final byte[] bytes;
    /** Where each event begins, and the end of the last one. */
    private final int[] offsets;

    private BsonBatch(byte[] bytes, int[] offsets, FeedPosition feedPosition, @Nullable Instant readTime) {
        super(offsets.length - 1, feedPosition, readTime);
        this.bytes = bytes;
        this.offsets = offsets;
    }

    /** Creates a batch that uses these bytes. Throws ProtocolException unless they are {@code count} documents. */
    static BsonBatch over(ByteString events, int count, FeedPosition feedPosition, @Nullable Instant readTime) {
        View view = View.on(events);
        return new BsonBatch(view.bytes, split(view, count), feedPosition, readTime);
    }

    @Override
    public long sizeBytes() {
        return (long) offsets[offsets.length - 1] - offsets[0];
    }

    @Override
    RawBsonDocument bson(int index) {
        return new RawBsonDocument(bytes, offsets[index], eventBytes(index));
    }

    @Override
    Document document(int index) {
        return Documents.decode(bson(index));
    }

    @Override
    String json(int index) {
        return bson(index).toJson();
    }

    @Override
    int eventBytes(int index) {
        return offsets[index + 1] - offsets[index];
    }

    @Override
    @Nullable
    ByteBuffer token(int index) {
        return Tokens.idOf(bson(index));
    }

    @Override
    Batch part(int first, int end) {
        int[] chosen = Arrays.copyOfRange(offsets, first, end + 1);
        return numberedLike(new BsonBatch(bytes, chosen, feedPositionOfPart(end), readAt()), first);
    }

    private static int[] split(View view, int count) {
        ByteBuffer buffer = ByteBuffer.wrap(view.bytes).order(ByteOrder.LITTLE_ENDIAN);
        int end = view.offset + view.length;
        if ((long) count * SMALLEST_DOCUMENT > view.length) {
            throw new ProtocolException("a batch of " + count + " events holds " + view.length + " bytes");
        }
        int[] offsets = new int[count + 1];
        int at = view.offset;
        for (int index = 0; index < count; index++) {
            offsets[index] = at;
            int size = end - at >= SMALLEST_DOCUMENT ? buffer.getInt(at) : 0;
            if (size < SMALLEST_DOCUMENT || size > end - at) {
                throw new ProtocolException("the lengths of a batch do not add up");
            }
            at += size;
        }
        if (at != end) {
            throw new ProtocolException("a batch holds more than its " + count + " events");
        }
        offsets[count] = end;
        return offsets;
    }

    /** Accesses the array of a ByteString, because copying batches would cost as much as reading them. */
    private static final class View extends ByteOutput {
        private byte[] bytes = new byte[0];
        private int offset;
        private int length;

        static View on(ByteString string) {
            View view = new View();
            try {
                UnsafeByteOperations.unsafeWriteTo(string, view);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            return view;
        }

        @Override
        public void writeLazy(byte[] value, int at, int size) {
            if (length > 0) {
                write(value, at, size);
                return;
            }
            bytes = value;
            offset = at;
            length = size;
        }

        @Override
        public void write(byte[] value, int at, int size) {
            byte[] joined = new byte[length + size];
            System.arraycopy(bytes, offset, joined, 0, length);
            System.arraycopy(value, at, joined, length, size);
            bytes = joined;
            offset = 0;
            length = joined.length;
        }

        @Override
        public void write(byte value) {
            write(new byte[] {value}, 0, 1);
        }

        @Override
        public void write(ByteBuffer value) {
            byte[] copy = new byte[value.remaining()];
            value.get(copy);
            write(copy, 0, copy.length);
        }

        @Override
        public void writeLazy(ByteBuffer value) {
            write(value);
        }
    }
}
