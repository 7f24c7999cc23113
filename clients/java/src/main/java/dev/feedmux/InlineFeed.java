package dev.feedmux;

import dev.feedmux.v1.ExplainRequest;
import dev.feedmux.v1.ResolvePositionRequest;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/** A feed whose place you keep. Made by {@link FeedmuxClient#feed}. */
public final class InlineFeed {
    private final FeedmuxClient client;
    private final Feed feed;

    InlineFeed(FeedmuxClient client, Feed feed) {
        this.client = client;
        this.feed = feed;
    }

    /** What is watched. */
    public Feed feed() {
        return feed;
    }

    /** Opens a session from now. As {@link #open(Start, Consumer)}. */
    public Session open() {
        return open(Start.latest());
    }

    /** Opens a session. As {@link #open(Start, Consumer)}. */
    public Session open(Start start) {
        return open(start, options -> {});
    }

    /**
     * Opens a session; returns when the server has opened it.
     *
     * @param start where to begin
     * @param change changes the client's options of sessions for this one
     * @throws dev.feedmux.errors.FeedmuxException for which it will not be opened
     */
    public Session open(Start start, Consumer<SessionOptions.Builder> change) {
        Opening opening = new Opening("", message(), start, FeedmuxClient.instanceId());
        return Session.open(client.link(), opening, client.options(change));
    }

    /** What {@link #open()} would do, without doing it. A refusal is part of the answer. */
    public Explanation explain() {
        return explained(null);
    }

    /** What {@link #open(Start)} would do, without doing it. A refusal is part of the answer. */
    public Explanation explain(Start start) {
        return explained(start);
    }

    /** The position that a start stands for in this feed, to be stored. */
    public ResolvedPosition resolve(Start start) {
        ResolvePositionRequest request = ResolvePositionRequest.newBuilder()
                .setFeed(message())
                .setStart(Messages.start(start))
                .build();
        return Messages.resolved(client.link().feeds(stub -> stub.resolvePosition(request)));
    }

    private Explanation explained(@Nullable Start start) {
        ExplainRequest.Builder request = ExplainRequest.newBuilder().setFeed(message());
        if (start != null) {
            request.setStart(Messages.start(start));
        }
        return Messages.explanation(client.link().feeds(stub -> stub.explain(request.build())));
    }

    private dev.feedmux.v1.Feed message() {
        return Messages.feed(feed, client.source());
    }
}
