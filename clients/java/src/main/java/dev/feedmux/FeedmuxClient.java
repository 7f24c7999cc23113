package dev.feedmux;

import dev.feedmux.errors.InvalidArgumentException;
import dev.feedmux.errors.SnapshotUnsupportedException;
import dev.feedmux.v1.ListSubscriptionsRequest;
import dev.feedmux.v1.ListSubscriptionsResponse;
import dev.feedmux.v1.ResolvePositionRequest;
import dev.feedmux.v1.ResolvePositionResponse;
import io.grpc.ManagedChannelBuilder;
import java.time.Duration;
import java.util.Objects;
import java.util.UUID;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * A client of feedmux. It connects at the first call, and is safe to use from several threads.
 *
 * <pre>{@code
 * try (FeedmuxClient client = FeedmuxClient.builder("localhost:7117").apiKey("…").build();
 *         Session session = client.subscription("orders-to-search").open()) {
 *     for (Event event : session) {
 *         index(event.document());
 *         session.ack(event);
 *     }
 * }
 * }</pre>
 */
public final class FeedmuxClient implements AutoCloseable {
    private static final int PAGE_SIZE = 100;
    /** Host and port, or a target with a scheme: without a port, gRPC would take that of HTTPS. */
    private static final Pattern TARGET = Pattern.compile(
            "(?i)(\\[[^\\]]+\\]|[^:/\\s\\[\\]]+):\\d{1,5}|(dns|ipv4|ipv6|unix|unix-abstract|xds):.+|(?!https?:)[a-z][a-z0-9+.-]*://.+");

    private final Transport transport;
    private final String source;
    private final SessionOptions sessions;

    private FeedmuxClient(Transport transport, String source, SessionOptions sessions) {
        this.transport = transport;
        this.source = source;
        this.sessions = sessions;
    }

    /**
     * Returns a builder for a client of this target: {@code host:port}, or any gRPC target with a scheme. Throws
     * IllegalArgumentException for other texts.
     */
    public static Builder builder(String target) {
        return new Builder(target);
    }

    /** Returns a durable subscription by name. Sends nothing to the server. */
    public Subscription subscription(String name) {
        return new Subscription(this, name);
    }

    /** Returns all subscriptions of the tenant, ordered by name. Pages are requested as needed. */
    public Stream<SubscriptionInfo> subscriptions() {
        return Stream.iterate(
                        page(""),
                        Objects::nonNull,
                        page -> page.getNextPageToken().isEmpty() ? null : page(page.getNextPageToken()))
                .flatMap(page -> page.getSubscriptionsList().stream())
                .map(Messages::info);
    }

    /** Returns a feed whose position you store. Sends nothing to the server. */
    public InlineFeed feed(Feed feed) {
        return new InlineFeed(this, feed);
    }

    /**
     * Closes the open sessions as {@link Session#close()} does, all at the same time and each within its
     * {@code closeTimeout}; then closes the connection. Waiting and later calls on these sessions throw a
     * {@link dev.feedmux.errors.FeedmuxException} with the status CANCELLED, and so do later calls on this client. An
     * interrupt ends only the wait for this, and sets the interrupt flag again.
     */
    @Override
    public void close() {
        transport.close();
    }

    Transport transport() {
        return transport;
    }

    String source() {
        return source;
    }

    SessionOptions options(Consumer<SessionOptions.Builder> change) {
        SessionOptions.Builder builder = sessions.toBuilder();
        change.accept(builder);
        return builder.build();
    }

    static String instanceId() {
        return UUID.randomUUID().toString().replace("-", "");
    }

    ResolvePositionResponse resolve(dev.feedmux.v1.Feed feed, Start start) {
        ResolvePositionRequest request = ResolvePositionRequest.newBuilder()
                .setFeed(feed)
                .setStart(Messages.start(start))
                .build();
        boolean isSnapshot = start instanceof Start.Snapshot;
        ResolvePositionResponse answer;
        try {
            answer = transport.feeds(stub -> stub.resolvePosition(request));
        } catch (InvalidArgumentException error) {
            // A server that does not know the field sees an empty Start.
            if (isSnapshot && error.getMessage().contains("start is required")) {
                throw new SnapshotUnsupportedException("would begin at the present");
            }
            throw error;
        }
        if (isSnapshot && !answer.hasSnapshot()) {
            throw new SnapshotUnsupportedException("would begin at the present");
        }
        return answer;
    }

    /**
     * Returns what to send where the server stores the start. A server that is older than copies would store the present
     * for {@link Start#snapshot}, and a call that is repeated at a newer replica would find nothing wrong. It rejects the
     * position of a copy.
     */
    dev.feedmux.v1.Start storedStart(dev.feedmux.v1.Feed feed, Start start) {
        if (!(start instanceof Start.Snapshot)) {
            return Messages.start(start);
        }
        return dev.feedmux.v1.Start.newBuilder()
                .setPosition(resolve(feed, start).getPosition())
                .build();
    }

    private ListSubscriptionsResponse page(String token) {
        ListSubscriptionsRequest request = ListSubscriptionsRequest.newBuilder()
                .setPageSize(PAGE_SIZE)
                .setPageToken(token)
                .build();
        return transport.subscriptions(stub -> stub.listSubscriptions(request));
    }

    /** Sets how to connect. */
    public static final class Builder {
        private final String target;
        private @Nullable Credentials key;
        private @Nullable Credentials token;
        private @Nullable Tls tls;
        private String source = "main";
        private Duration timeout = Duration.ofSeconds(30);
        private SessionOptions sessions = SessionOptions.defaults();
        private UnaryOperator<ManagedChannelBuilder<?>> configure = builder -> builder;

        private Builder(String target) {
            this.target = Objects.requireNonNull(target, "the target is host:port");
            if (!TARGET.matcher(target).matches()) {
                throw new IllegalArgumentException("the target is host:port, as in localhost:7117, not " + target);
            }
        }

        /**
         * Sets an API key. White space around it is removed.
         *
         * @throws IllegalArgumentException if it is empty or contains a character other than visible ASCII
         */
        public Builder apiKey(String key) {
            this.key = Credentials.fixed(key);
            return this;
        }

        /**
         * Sets a token (JWT). White space around it is removed.
         *
         * @throws IllegalArgumentException if it is empty or contains a character other than visible ASCII
         */
        public Builder token(String token) {
            this.token = Credentials.fixed(token);
            return this;
        }

        /**
         * Sets a supplier, which is called for a token before every call and may block. White space around the token is
         * removed. When a token has expired, a session reconnects with a new one. If the supplier throws, or returns a
         * token that {@link #token(String)} rejects, a session tries again with its backoff, and any other call throws
         * {@link dev.feedmux.errors.UnavailableException}.
         */
        public Builder token(Supplier<String> supplier) {
            token = Credentials.renewed(supplier);
            return this;
        }

        /** Sets TLS. Without it, the connection is plaintext. */
        public Builder tls(Tls security) {
            tls = security;
            return this;
        }

        /** Sets the name of the MongoDB deployment in the server's configuration; by default {@code main}. */
        public Builder source(String name) {
            source = name;
            return this;
        }

        /**
         * Sets the timeout of every call that is not a session; by default 30 s. After a call that timed out after 5 s
         * or more, new calls use another connection.
         */
        public Builder timeout(Duration each) {
            timeout = Durations.capped(each);
            return this;
        }

        /**
         * Sets the session options, which each {@code open} can change.
         *
         * @throws IllegalArgumentException if they have {@code takeover}: each session would end the one that another
         *     client has opened, and that client's next one would end this one
         */
        public Builder sessions(SessionOptions options) {
            if (options.takeover()) {
                throw new IllegalArgumentException("takeover cannot be a default: set it where a session is opened");
            }
            sessions = options;
            return this;
        }

        /** Changes the gRPC channel: keepalive, proxy, interceptors, … */
        public Builder channel(UnaryOperator<ManagedChannelBuilder<?>> change) {
            configure = change;
            return this;
        }

        /**
         * Builds the client.
         *
         * @throws IllegalArgumentException if it has both an API key and a token
         * @throws java.io.UncheckedIOException if a TLS file cannot be read
         */
        public FeedmuxClient build() {
            return new FeedmuxClient(new Transport(target, tls, credentials(), timeout, configure), source, sessions);
        }

        private Credentials credentials() {
            if (key != null && token != null) {
                throw new IllegalArgumentException("give apiKey or token, not both");
            }
            return key != null ? key : token != null ? token : Credentials.none();
        }
    }
}
