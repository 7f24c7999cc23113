package dev.feedmux;

import com.google.protobuf.ByteString;
import java.util.Arrays;
import java.util.Base64;

/**
 * An opaque position in a feed, issued by feedmux. Store it unchanged, as bytes or as the text of {@link #toString}.
 */
public final class Position {
    /** No position. */
    public static final Position NONE = new Position(new byte[0]);

    private final byte[] bytes;

    private Position(byte[] bytes) {
        this.bytes = bytes;
    }

    /** Returns the position with these bytes. */
    public static Position of(byte[] bytes) {
        return bytes.length == 0 ? NONE : new Position(bytes.clone());
    }

    /**
     * Parses a position from the text of {@link #toString}.
     *
     * @throws IllegalArgumentException if the text is not base64url
     */
    public static Position parse(String text) {
        return of(Base64.getUrlDecoder().decode(text));
    }

    static Position of(ByteString bytes) {
        return bytes.isEmpty() ? NONE : new Position(bytes.toByteArray());
    }

    /** Returns a copy of the bytes. */
    public byte[] toBytes() {
        return bytes.clone();
    }

    /** Whether this is {@link #NONE}. */
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

    /** Returns the position as base64url without padding. */
    @Override
    public String toString() {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(bytes);
    }
}
