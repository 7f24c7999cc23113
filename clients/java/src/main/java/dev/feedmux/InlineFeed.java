package dev.feedmux;

import dev.feedmux.v1.ExplainRequest;
import java.util.Objects;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/** A feed whose position you store. Created by {@link FeedmuxClient#feed}. */
public final class InlineFeed {
    private final FeedmuxClient client;
    private final Feed feed;

    InlineFeed(FeedmuxClient client, Feed feed) {
        this.client = client;
        this.feed = feed;
    }

    /** Returns the definition of the feed. */
    public Feed feed() {
        return feed;
    }

    /** Opens a session that begins now. See {@link #open(Start, Consumer)}. */
    public Session open() {
        return open(Start.latest());
    }

    /** Opens a session. See {@link #open(Start, Consumer)}. */
    public Session open(Start start) {
        return open(start, options -> {});
    }

    /**
     * Opens a session, and returns when the server has opened it.
     *
     * @param start where to begin
     * @param change changes the client's session options for this session
     * @throws dev.feedmux.errors.FeedmuxException if the session cannot be opened
     */
    public Session open(Start start, Consumer<SessionOptions.Builder> change) {
        Objects.requireNonNull(start, "a start is required");
        Opening opening = new Opening("", message(), start, FeedmuxClient.instanceId());
        return Session.open(client.transport(), opening, client.options(change));
    }

    /** Explains what {@link #open()} would do, without doing it. A rejection is part of the answer. */
    public Explanation explain() {
        return explained(null);
    }

    /** Explains what {@link #open(Start)} would do, without doing it. A rejection is part of the answer. */
    public Explanation explain(Start start) {
        return explained(Objects.requireNonNull(start, "a start is required"));
    }

    /** Resolves a start to a position in this feed, which you can store. */
    public ResolvedPosition resolve(Start start) {
        return Messages.resolved(client.resolve(message(), start));
    }

    private Explanation explained(@Nullable Start start) {
        ExplainRequest.Builder request = ExplainRequest.newBuilder().setFeed(message());
        if (start != null) {
            request.setStart(Messages.start(start));
        }
        return Messages.explanation(client.transport().feeds(stub -> stub.explain(request.build())));
    }

    private dev.feedmux.v1.Feed message() {
        return Messages.feed(feed, client.source());
    }
}
