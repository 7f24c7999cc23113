package dev.feedmux;

import dev.feedmux.errors.Failure;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.v1.ChangeFeedGrpc;
import dev.feedmux.v1.SubscribeRequest;
import dev.feedmux.v1.SubscriptionsGrpc;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ConnectivityState;
import io.grpc.Context;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.AbstractStub;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/** The way to the server: one channel, credentials, and the calls that sessions and clients make. */
final class Link implements AutoCloseable {
    private static final int MESSAGE_BYTES_MAX = 72 * 1024 * 1024;
    private static final int METADATA_BYTES_MAX = 64 * 1024;
    private static final long KEEPALIVE_SECONDS = 20;
    private static final long KEEPALIVE_TIMEOUT_SECONDS = 10;
    /** A unary call that had no answer for so long leaves its connection; a shorter deadline proves nothing. */
    private static final Duration DEAD_AFTER = Duration.ofSeconds(5);

    private static final Metadata.Key<String> ROUTE =
            Metadata.Key.of("x-feedmux-route", Metadata.ASCII_STRING_MARSHALLER);
    /** Messages come as bytes: events are not copied out of them, and their size counts. */
    private static final MethodDescriptor<SubscribeRequest, byte[]> SUBSCRIBE =
            ChangeFeedGrpc.getSubscribeMethod().toBuilder(
                            ChangeFeedGrpc.getSubscribeMethod().getRequestMarshaller(), new Bytes())
                    .build();

    private final Supplier<ManagedChannel> dial;
    /** Takes new calls. */
    private ManagedChannel channel;
    /** Take none, and may still have some. */
    private final Set<ManagedChannel> left = new HashSet<>();

    private final Credentials credentials;
    private final Duration timeout;
    private final LongSupplier nanoTime;
    private final Map<String, String> routes = new ConcurrentHashMap<>();
    private final Set<Dependent> dependents = ConcurrentHashMap.newKeySet();
    private volatile boolean closed;

    Link(
            String target,
            @Nullable Tls tls,
            Credentials credentials,
            Duration timeout,
            UnaryOperator<ManagedChannelBuilder<?>> configure) {
        this(target, tls, credentials, timeout, configure, System::nanoTime);
    }

    Link(
            String target,
            @Nullable Tls tls,
            Credentials credentials,
            Duration timeout,
            UnaryOperator<ManagedChannelBuilder<?>> configure,
            LongSupplier nanoTime) {
        ChannelCredentials security = tls == null ? InsecureChannelCredentials.create() : tls.credentials();
        dial = () -> {
            ManagedChannelBuilder<?> builder = Grpc.newChannelBuilder(target, security)
                    .userAgent("feedmux-java")
                    .maxInboundMessageSize(MESSAGE_BYTES_MAX)
                    .maxInboundMetadataSize(METADATA_BYTES_MAX)
                    .keepAliveTime(KEEPALIVE_SECONDS, TimeUnit.SECONDS)
                    .keepAliveTimeout(KEEPALIVE_TIMEOUT_SECONDS, TimeUnit.SECONDS);
            if (tls != null && tls.serverName() != null) {
                builder.overrideAuthority(tls.serverName());
            }
            return configure.apply(builder).build();
        };
        channel = dial.get();
        this.credentials = credentials;
        this.timeout = timeout;
        this.nanoTime = nanoTime;
    }

    /** Whether each call asks for the token anew, so that after one that has expired another may come. */
    boolean renewsToken() {
        return credentials.renewed();
    }

    /** By subscription, as far as the server has told. */
    Map<String, String> routes() {
        return routes;
    }

    /** {@code session} is closed with the link, until {@link #forget}; at once where that is closed already. */
    void remember(Dependent session) {
        dependents.add(session);
        if (closed) {
            session.closeWithClient();
        }
    }

    void forget(Dependent session) {
        dependents.remove(session);
    }

    private synchronized ManagedChannel channel() {
        return channel;
    }

    /**
     * Has new calls go over a new connection, because this stream hears nothing: gRPC would use its connection for as long
     * as keepalive takes to give that up. Streams on it that are in order stay; it closes with the last of them.
     */
    void leave(Stream stream) {
        leave(stream.channel);
    }

    private synchronized void leave(ManagedChannel dead) {
        left.removeIf(ManagedChannel::isTerminated);
        if (closed || dead != channel) {
            return;
        }
        left.add(channel);
        channel.shutdown();
        channel = dial.get();
    }

    /** Begins a Subscribe call. Its messages come in a thread of gRPC, one at a time. */
    Stream subscribe(String route, Receiver receiver) {
        ManagedChannel channel = channel();
        if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
            // gRPC waits up to two minutes before it connects again; how long to wait is the session's decision.
            channel.enterIdle();
        }
        Metadata headers = new Metadata();
        if (!route.isEmpty()) {
            headers.put(ROUTE, route);
        }
        CallOptions options = credentials.on(CallOptions.DEFAULT).withExecutor(Runnable::run);
        // A session outlives the call of another service in which it was opened, its deadline and its cancellation.
        Context previous = Context.ROOT.attach();
        try {
            ClientCall<SubscribeRequest, byte[]> call = channel.newCall(SUBSCRIBE, options);
            call.start(new Listener(receiver), headers);
            return new Stream(call, channel);
        } finally {
            Context.ROOT.detach(previous);
        }
    }

    /** One call of the ChangeFeed service. Throws FeedmuxException. */
    <T> T feeds(Function<ChangeFeedGrpc.ChangeFeedBlockingStub, T> call) {
        return unary(ChangeFeedGrpc::newBlockingStub, call);
    }

    /** One call of the Subscriptions service. Throws FeedmuxException. */
    <T> T subscriptions(Function<SubscriptionsGrpc.SubscriptionsBlockingStub, T> call) {
        return unary(SubscriptionsGrpc::newBlockingStub, call);
    }

    /** Closes the sessions, all at the same time, then the connections. An interrupt ends the waiting for the sessions. */
    @Override
    public void close() {
        closed = true;
        List<Dependent> open = List.copyOf(dependents);
        open.forEach(Dependent::closeWithClient);
        CompletableFuture<?>[] ends = open.stream().map(Dependent::done).toArray(CompletableFuture<?>[]::new);
        try {
            CompletableFuture.allOf(ends).get();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException impossible) {
            throw new IllegalStateException(impossible);
        } finally {
            synchronized (this) {
                channel.shutdownNow();
                left.forEach(ManagedChannel::shutdownNow);
            }
        }
    }

    static FeedmuxException clientClosed() {
        return new FeedmuxException(Failure.of(Status.Code.CANCELLED, "the client was closed"));
    }

    private <S extends AbstractStub<S>, T> T unary(Function<Channel, S> stub, Function<S, T> call) {
        if (closed) {
            throw clientClosed();
        }
        ManagedChannel used = channel();
        long begun = nanoTime.getAsLong();
        try {
            return call.apply(
                    credentials.on(stub.apply(used)).withDeadlineAfter(timeout.toNanos(), TimeUnit.NANOSECONDS));
        } catch (StatusRuntimeException failed) {
            boolean late = failed.getStatus().getCode() == Status.Code.DEADLINE_EXCEEDED;
            if (late && nanoTime.getAsLong() - begun >= DEAD_AFTER.toNanos()) {
                leave(used);
            }
            throw Statuses.error(failed);
        }
    }

    /** A session, which is closed with the link. */
    interface Dependent {
        /** Begins to close it. */
        void closeWithClient();

        /** Done when nothing more will happen. */
        CompletableFuture<Void> done();
    }

    /** Told what comes down a stream. */
    interface Receiver {
        void message(byte[] message);

        /** The stream has ended; {@code error} is null for OK. */
        void ended(@Nullable FeedmuxException error);
    }

    /** One Subscribe call. For one thread at a time. */
    static final class Stream {
        private final ClientCall<SubscribeRequest, byte[]> call;
        private final ManagedChannel channel;

        private Stream(ClientCall<SubscribeRequest, byte[]> call, ManagedChannel channel) {
            this.call = call;
            this.channel = channel;
        }

        void send(SubscribeRequest request) {
            call.sendMessage(request);
        }

        /** Lets so many more messages come. */
        void request(int messages) {
            call.request(messages);
        }

        void cancel(String why) {
            call.cancel(why, null);
        }
    }

    private static final class Listener extends ClientCall.Listener<byte[]> {
        private final Receiver receiver;

        private Listener(Receiver receiver) {
            this.receiver = receiver;
        }

        @Override
        public void onMessage(byte[] message) {
            receiver.message(message);
        }

        @Override
        public void onClose(Status status, Metadata trailers) {
            receiver.ended(status.isOk() ? null : Statuses.error(status, trailers));
        }
    }

    private static final class Bytes implements MethodDescriptor.Marshaller<byte[]> {
        @Override
        public InputStream stream(byte[] value) {
            throw new UnsupportedOperationException("responses are only read");
        }

        @Override
        public byte[] parse(InputStream stream) {
            try {
                // The stream knows its length; readAllBytes would collect pieces of some kilobytes and join them.
                byte[] message = new byte[stream.available()];
                int read = stream.readNBytes(message, 0, message.length);
                if (read != message.length || stream.read() >= 0) {
                    throw new EOFException("a message is not as long as it says");
                }
                return message;
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }
}
