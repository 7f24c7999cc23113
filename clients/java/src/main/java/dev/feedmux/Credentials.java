package dev.feedmux;

import io.grpc.CallCredentials;
import io.grpc.CallOptions;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.stub.AbstractStub;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/** An API key or a token in the metadata of every call; a token that a supplier gives is asked for each time. */
final class Credentials extends CallCredentials {
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
    /** A supplier may wait for the network; neither gRPC's threads nor a session's reader do. */
    private static final Executor SUPPLIERS = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work, "feedmux-token");
        thread.setDaemon(true);
        return thread;
    });

    private final @Nullable Supplier<String> supplier;
    private final boolean renewed;

    private Credentials(@Nullable Supplier<String> supplier, boolean renewed) {
        this.supplier = supplier;
        this.renewed = renewed;
    }

    static Credentials none() {
        return new Credentials(null, false);
    }

    static Credentials fixed(String key) {
        return new Credentials(() -> key, false);
    }

    static Credentials renewed(Supplier<String> supplier) {
        return new Credentials(supplier, true);
    }

    boolean renewed() {
        return renewed;
    }

    CallOptions on(CallOptions options) {
        return supplier == null ? options : options.withCallCredentials(this);
    }

    <S extends AbstractStub<S>> S on(S stub) {
        return supplier == null ? stub : stub.withCallCredentials(this);
    }

    @Override
    public void applyRequestMetadata(RequestInfo request, Executor callExecutor, MetadataApplier applier) {
        if (renewed) {
            SUPPLIERS.execute(() -> apply(applier));
        } else {
            apply(applier);
        }
    }

    private void apply(MetadataApplier applier) {
        if (supplier == null) {
            throw new IllegalStateException("no credentials to apply");
        }
        try {
            Metadata headers = new Metadata();
            headers.put(AUTHORIZATION, "Bearer " + supplier.get());
            applier.apply(headers);
        } catch (RuntimeException error) {
            applier.fail(Status.UNAUTHENTICATED
                    .withDescription("the token supplier failed")
                    .withCause(error));
        }
    }

    /** Says nothing of what it holds. */
    @Override
    public String toString() {
        return "Credentials";
    }
}
