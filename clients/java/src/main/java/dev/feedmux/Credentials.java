package dev.feedmux;

import io.grpc.CallCredentials;
import io.grpc.CallOptions;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.stub.AbstractStub;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/** An API key or a token in the metadata of every call. A supplier is called for a token each time. */
final class Credentials extends CallCredentials {
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
    /** The threads of one supplier: one that hangs would otherwise take another one with each attempt. */
    private static final int THREADS_MAX = 16;
    /** Calls that wait for one of these threads; more fail at once. */
    private static final int WAITING_MAX = 1000;

    /** Leaves room for other metadata in the 16 KiB that gRPC lets the server receive. */
    private static final int KEY_BYTES_MAX = 15 * 1024;

    private static final Pattern SPACE_AROUND = Pattern.compile("\\A[ \\t\\r\\n]+|[ \\t\\r\\n]+\\z");

    private final @Nullable Supplier<String> supplier;
    /** Runs the supplier, which may wait for the network, so that gRPC's threads and a session's reader do not. */
    private final @Nullable Executor threads;
    /** Whether the supplier of a call is running. */
    private volatile boolean awaited;

    private Credentials(@Nullable Supplier<String> supplier, @Nullable Executor threads) {
        this.supplier = supplier;
        this.threads = threads;
    }

    static Credentials none() {
        return new Credentials(null, null);
    }

    /** Throws IllegalArgumentException if the key cannot be sent, without the key in the message. */
    static Credentials fixed(@Nullable String key) {
        String sent = checked(key);
        return new Credentials(() -> sent, null);
    }

    static Credentials renewed(Supplier<String> supplier) {
        return new Credentials(supplier, threads());
    }

    private static Executor threads() {
        ThreadPoolExecutor threads = new ThreadPoolExecutor(
                THREADS_MAX, THREADS_MAX, 60, TimeUnit.SECONDS, new LinkedBlockingQueue<>(WAITING_MAX), work -> {
                    Thread thread = new Thread(work, "feedmux-token");
                    thread.setDaemon(true);
                    return thread;
                });
        threads.allowCoreThreadTimeOut(true);
        return threads;
    }

    boolean renewed() {
        return threads != null;
    }

    /** Returns credentials of their own for a call, so that {@link #isAwaited} is about that call. */
    Credentials forOneCall() {
        return threads == null ? this : new Credentials(supplier, threads);
    }

    /** Whether the supplier was called and has not returned. */
    boolean isAwaited() {
        return awaited;
    }

    CallOptions on(CallOptions options) {
        return supplier == null ? options : options.withCallCredentials(this);
    }

    <S extends AbstractStub<S>> S on(S stub) {
        return supplier == null ? stub : stub.withCallCredentials(this);
    }

    @Override
    public void applyRequestMetadata(RequestInfo request, Executor callExecutor, MetadataApplier applier) {
        if (threads == null) {
            apply(applier);
            return;
        }
        awaited = true;
        try {
            threads.execute(() -> apply(applier));
        } catch (Throwable noThread) {
            fail(applier, noThread);
        }
    }

    private void apply(MetadataApplier applier) {
        if (supplier == null) {
            throw new IllegalStateException("no credentials to apply");
        }
        String key;
        try {
            key = checked(supplier.get());
        } catch (Throwable error) {
            fail(applier, error);
            return;
        } finally {
            awaited = false;
        }
        if (key.length() > KEY_BYTES_MAX) {
            // Netty would send none of it, and gRPC calls that INTERNAL, which a session tries again.
            applier.fail(Status.RESOURCE_EXHAUSTED.withDescription(
                    "the token has " + key.length() + " bytes; the server reads at most 12 KiB of metadata"));
            return;
        }
        Metadata headers = new Metadata();
        headers.put(AUTHORIZATION, "Bearer " + key);
        applier.apply(headers);
    }

    private static void fail(MetadataApplier applier, Throwable error) {
        Throwable root = Statuses.lastCause(error);
        // When the status becomes an error, the message of the last cause is appended, if it has one.
        String unnamed = root.getMessage() == null ? ": " + root.getClass().getName() : "";
        applier.fail(Status.UNAVAILABLE
                .withDescription("the token function failed" + unnamed)
                .withCause(error));
    }

    /** Removes the white space around the key, because keys read from files end with a newline. */
    private static String checked(@Nullable String key) {
        String stripped = key == null ? "" : SPACE_AROUND.matcher(key).replaceAll("");
        if (stripped.isEmpty()) {
            throw new IllegalArgumentException("the API key or token is empty");
        }
        if (!stripped.chars().allMatch(each -> each >= 0x21 && each <= 0x7E)) {
            throw new IllegalArgumentException("the API key or token contains a character other than visible ASCII");
        }
        return stripped;
    }

    /** Does not reveal the key or token. */
    @Override
    public String toString() {
        return "Credentials";
    }
}
