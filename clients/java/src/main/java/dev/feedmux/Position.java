package dev.feedmux;

import com.google.protobuf.ByteString;
import java.util.Arrays;
import java.util.Base64;

/** An opaque place that feedmux gave out, to be stored as it is: as bytes, or as the text of {@link #toString}. */
public final class Position {
    /** No position. */
    public static final Position NONE = new Position(new byte[0]);

    private final byte[] bytes;

    private Position(byte[] bytes) {
        this.bytes = bytes;
    }

    /** The position of these bytes. */
    public static Position of(byte[] bytes) {
        return bytes.length == 0 ? NONE : new Position(bytes.clone());
    }

    /**
     * The position of this text.
     *
     * @throws IllegalArgumentException for what is not base64url
     */
    public static Position parse(String text) {
        return of(Base64.getUrlDecoder().decode(text));
    }

    static Position of(ByteString bytes) {
        return bytes.isEmpty() ? NONE : new Position(bytes.toByteArray());
    }

    /** A copy of the bytes. */
    public byte[] toBytes() {
        return bytes.clone();
    }

    /** Whether this is no position. */
    public boolean isEmpty() {
        return bytes.length == 0;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Position that && Arrays.equals(bytes, that.bytes);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(bytes);
    }

    /** Base64url without padding. */
    @Override
    public String toString() {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(bytes);
    }
}
