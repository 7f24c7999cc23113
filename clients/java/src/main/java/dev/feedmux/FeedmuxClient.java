package dev.feedmux;

import dev.feedmux.v1.ListSubscriptionsRequest;
import dev.feedmux.v1.ListSubscriptionsResponse;
import io.grpc.ManagedChannelBuilder;
import java.time.Duration;
import java.util.Objects;
import java.util.UUID;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * A connection to feedmux. Nothing connects before the first call. Safe to use from several threads.
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

    private final Link link;
    private final String source;
    private final SessionOptions sessions;

    private FeedmuxClient(Link link, String source, SessionOptions sessions) {
        this.link = link;
        this.source = source;
        this.sessions = sessions;
    }

    /** A client of this target: {@code host:port}, or any gRPC target. */
    public static Builder builder(String target) {
        return new Builder(target);
    }

    /** A durable subscription by name. Nothing is sent. */
    public Subscription subscription(String name) {
        return new Subscription(this, name);
    }

    /** All of the tenant's subscriptions, by name; a page is asked for when it is needed. */
    public Stream<SubscriptionInfo> subscriptions() {
        return Stream.iterate(
                        page(""),
                        Objects::nonNull,
                        page -> page.getNextPageToken().isEmpty() ? null : page(page.getNextPageToken()))
                .flatMap(page -> page.getSubscriptionsList().stream())
                .map(Messages::info);
    }

    /** A feed whose place you keep. Nothing is sent. */
    public InlineFeed feed(Feed feed) {
        return new InlineFeed(this, feed);
    }

    /**
     * Closes the sessions that are open, as their own {@link Session#close()} does, all at the same time and each within its
     * {@code closeTimeout}; then the connection. Calls that wait in a session closed in this way, and further ones, throw a
     * {@link dev.feedmux.errors.FeedmuxException} with the status CANCELLED; so do calls of this client after it. An interrupt
     * ends the waiting for the sessions, with the flag set again.
     */
    @Override
    public void close() {
        link.close();
    }

    Link link() {
        return link;
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

    private ListSubscriptionsResponse page(String token) {
        ListSubscriptionsRequest request = ListSubscriptionsRequest.newBuilder()
                .setPageSize(PAGE_SIZE)
                .setPageToken(token)
                .build();
        return link.subscriptions(stub -> stub.listSubscriptions(request));
    }

    /** How to connect. */
    public static final class Builder {
        private final String target;
        private Credentials credentials = Credentials.none();
        private @Nullable Tls tls;
        private String source = "main";
        private Duration timeout = Duration.ofSeconds(30);
        private SessionOptions sessions = SessionOptions.defaults();
        private UnaryOperator<ManagedChannelBuilder<?>> configure = builder -> builder;

        private Builder(String target) {
            this.target = target;
        }

        /**
         * An API key. White space around it is removed.
         *
         * @throws IllegalArgumentException where it is empty or holds a character other than visible ASCII
         */
        public Builder apiKey(String key) {
            credentials = Credentials.fixed(key);
            return this;
        }

        /**
         * A token (JWT). White space around it is removed.
         *
         * @throws IllegalArgumentException where it is empty or holds a character other than visible ASCII
         */
        public Builder token(String token) {
            credentials = Credentials.fixed(token);
            return this;
        }

        /**
         * Gives a fresh token for every call; may wait. White space around the token is removed. A session reconnects with
         * another token when one has expired. Where the supplier throws, or gives what {@link #token(String)} refuses, a
         * session tries again with its backoff, and any other call throws
         * {@link dev.feedmux.errors.UnavailableException}.
         */
        public Builder token(Supplier<String> supplier) {
            credentials = Credentials.renewed(supplier);
            return this;
        }

        /** TLS; without it the connection is plaintext. */
        public Builder tls(Tls security) {
            tls = security;
            return this;
        }

        /** Names the MongoDB deployment in the server's configuration; by default {@code main}. */
        public Builder source(String name) {
            source = name;
            return this;
        }

        /**
         * Bounds every call that is not a session; by default 30 s. After one that ran into it, from 5 s on, new calls take
         * another connection.
         */
        public Builder timeout(Duration each) {
            timeout = each;
            return this;
        }

        /** The options of sessions, which each {@code open} may change. */
        public Builder sessions(SessionOptions options) {
            sessions = options;
            return this;
        }

        /** Changes the gRPC channel: keepalive, proxy, interceptors, … */
        public Builder channel(UnaryOperator<ManagedChannelBuilder<?>> change) {
            configure = change;
            return this;
        }

        /**
         * The client.
         *
         * @throws java.io.UncheckedIOException where a TLS file cannot be read
         */
        public FeedmuxClient build() {
            return new FeedmuxClient(new Link(target, tls, credentials, timeout, configure), source, sessions);
        }
    }
}
