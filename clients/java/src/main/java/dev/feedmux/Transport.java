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
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/** The connection to the server: a channel, credentials, and the calls of sessions and clients. */
final class Transport implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger("dev.feedmux");
    private static final int MESSAGE_BYTES_MAX = 72 * 1024 * 1024;
    private static final int METADATA_BYTES_MAX = 64 * 1024;
    private static final long KEEPALIVE_SECONDS = 20;
    private static final long KEEPALIVE_TIMEOUT_SECONDS = 10;
    /**
     * A unary call without an answer for this long makes new calls use another connection; a shorter deadline proves
     * nothing.
     */
    private static final Duration DEAD_AFTER = Duration.ofSeconds(5);

    private static final Metadata.Key<String> ROUTE =
            Metadata.Key.of("x-feedmux-route", Metadata.ASCII_STRING_MARSHALLER);
    /** Messages are received as bytes, because events are not copied out of them and their size is needed. */
    private static final MethodDescriptor<SubscribeRequest, byte[]> SUBSCRIBE =
            ChangeFeedGrpc.getSubscribeMethod().toBuilder(
                            ChangeFeedGrpc.getSubscribeMethod().getRequestMarshaller(), new Bytes())
                    .build();

    private final @Nullable Tls tls;
    private final Function<ChannelCredentials, ManagedChannel> dial;
    /** The contents of the TLS files, and the credentials that have them. */
    private List<String> files;

    private ChannelCredentials security;
    /** The channel for new calls. */
    private ManagedChannel channel;
    /** Channels that take no new calls, but may still have calls in progress. */
    private final Set<ManagedChannel> left = new HashSet<>();

    private final Credentials credentials;
    private final Duration timeout;
    private final LongSupplier nanoTime;
    private final Map<String, String> routes = new ConcurrentHashMap<>();
    private final Set<Dependent> dependents = ConcurrentHashMap.newKeySet();
    private volatile boolean closed;

    Transport(
            String target,
            @Nullable Tls tls,
            Credentials credentials,
            Duration timeout,
            UnaryOperator<ManagedChannelBuilder<?>> configure) {
        this(target, tls, credentials, timeout, configure, System::nanoTime);
    }

    Transport(
            String target,
            @Nullable Tls tls,
            Credentials credentials,
            Duration timeout,
            UnaryOperator<ManagedChannelBuilder<?>> configure,
            LongSupplier nanoTime) {
        this.tls = tls;
        files = tls == null ? List.of() : tls.read();
        security = tls == null ? InsecureChannelCredentials.create() : tls.credentials(files);
        dial = security -> {
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
        channel = dial.apply(security);
        this.credentials = credentials;
        this.timeout = timeout;
        this.nanoTime = nanoTime;
    }

    /** Whether each call requests the token again, so that an expired token can be replaced. */
    boolean renewsToken() {
        return credentials.renewed();
    }

    /** The routing keys by subscription, as far as the server has sent them. */
    Map<String, String> routes() {
        return routes;
    }

    /** Closes {@code session} with the transport, until {@link #forget}; at once if the transport is already closed. */
    void remember(Dependent session) {
        dependents.add(session);
        if (closed) {
            session.closeWithClient();
        }
    }

    void forget(Dependent session) {
        dependents.remove(session);
    }

    /** Returns the channel for a new call. */
    private synchronized ManagedChannel channel() {
        renewTls();
        if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
            // gRPC waits up to two minutes before it connects again, but the session or the caller decides how long to
            // wait.
            channel.enterIdle();
        }
        return channel;
    }

    /**
     * Makes new calls use a new connection if the TLS files have changed. To read them only after a failure would not do:
     * where a server rejects a client certificate, gRPC does not see that the connection cannot be made (TLS 1.3).
     */
    private void renewTls() {
        if (tls == null || closed) {
            return;
        }
        try {
            List<String> current = tls.read();
            if (!current.equals(files)) {
                ChannelCredentials changed = tls.credentials(current);
                ManagedChannel next = dial.apply(changed);
                files = current;
                security = changed;
                replace(next);
            }
        } catch (RuntimeException halfWritten) {
            // The files are being replaced: this call uses the connection that there is, the next one reads them again.
            LOG.log(System.Logger.Level.WARNING, "cannot use the changed TLS files: {0}", halfWritten.getMessage());
        }
    }

    /**
     * Makes new calls use a new connection, because this stream receives nothing: gRPC would reuse the old connection
     * until keepalive fails. Working streams on the old connection continue; it closes with the last of them.
     */
    void leave(Stream stream) {
        leave(stream.channel);
    }

    private synchronized void leave(ManagedChannel dead) {
        if (!closed && dead == channel) {
            replace(dial.apply(security));
        }
    }

    private void replace(ManagedChannel next) {
        left.removeIf(ManagedChannel::isTerminated);
        left.add(channel);
        channel.shutdown();
        channel = next;
    }

    /** Begins a Subscribe call. Its messages arrive on a gRPC thread, one at a time. */
    Stream subscribe(String route, Receiver receiver) {
        ManagedChannel channel = channel();
        Metadata headers = new Metadata();
        if (!route.isEmpty()) {
            headers.put(ROUTE, route);
        }
        CallOptions options = credentials.on(CallOptions.DEFAULT).withExecutor(Runnable::run);
        // If a session is opened during a gRPC call, it outlives that call, its deadline and its cancellation.
        Context previous = Context.ROOT.attach();
        try {
            ClientCall<SubscribeRequest, byte[]> call = channel.newCall(SUBSCRIBE, options);
            call.start(new Listener(receiver), headers);
            return new Stream(call, channel);
        } finally {
            Context.ROOT.detach(previous);
        }
    }

    /** Makes a call to the ChangeFeed service. Throws FeedmuxException. */
    <T> T feeds(Function<ChangeFeedGrpc.ChangeFeedBlockingStub, T> call) {
        return unary(ChangeFeedGrpc::newBlockingStub, call);
    }

    /** Makes a call to the Subscriptions service. Throws FeedmuxException. */
    <T> T subscriptions(Function<SubscriptionsGrpc.SubscriptionsBlockingStub, T> call) {
        return unary(SubscriptionsGrpc::newBlockingStub, call);
    }

    /** Closes the sessions, all at the same time, then the connections. An interrupt ends only the wait for that. */
    @Override
    public void close() {
        closed = true;
        List<Dependent> open = List.copyOf(dependents);
        open.forEach(Dependent::closeWithClient);
        CompletableFuture<?>[] ends = open.stream().map(Dependent::done).toArray(CompletableFuture<?>[]::new);
        try {
            CompletableFuture.allOf(ends).thenRun(this::disconnect).get();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private synchronized void disconnect() {
        channel.shutdownNow();
        left.forEach(ManagedChannel::shutdownNow);
    }

    static FeedmuxException clientClosed() {
        return new FeedmuxException(Failure.of(Status.Code.CANCELLED, "the client was closed"));
    }

    private <S extends AbstractStub<S>, T> T unary(Function<Channel, S> stub, Function<S, T> call) {
        if (closed) {
            throw clientClosed();
        }
        ManagedChannel used = channel();
        Credentials sent = credentials.forOneCall();
        long begun = nanoTime.getAsLong();
        try {
            return call.apply(sent.on(stub.apply(used)).withDeadlineAfter(timeout.toNanos(), TimeUnit.NANOSECONDS));
        } catch (StatusRuntimeException failed) {
            boolean late = failed.getStatus().getCode() == Status.Code.DEADLINE_EXCEEDED;
            if (late && sent.isAwaited()) {
                String message = "the token function has not returned within " + Durations.text(timeout);
                throw Statuses.error(Status.DEADLINE_EXCEEDED.withDescription(message), null);
            }
            if (late && nanoTime.getAsLong() - begun >= DEAD_AFTER.toNanos()) {
                leave(used);
            }
            throw Statuses.error(failed);
        }
    }

    /** A session that is closed with the transport. */
    interface Dependent {
        /** Begins to close the session. */
        void closeWithClient();

        /** Completes when the session has ended. */
        CompletableFuture<Void> done();
    }

    /** Receives the messages of a stream and its end. */
    interface Receiver {
        void message(byte[] message);

        /** The stream has ended; {@code error} is null for OK. */
        void ended(@Nullable FeedmuxException error);
    }

    /** A Subscribe call, used by one thread at a time. */
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

        /** Permits this many more messages. */
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
                // The stream knows its length; readAllBytes would collect and join pieces of a few kilobytes.
                byte[] message = new byte[stream.available()];
                int read = stream.readNBytes(message, 0, message.length);
                if (read != message.length || stream.read() >= 0) {
                    throw new EOFException("a message does not have its stated length");
                }
                return message;
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }
}
