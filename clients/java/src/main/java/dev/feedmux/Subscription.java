package dev.feedmux;

import com.google.protobuf.FieldMask;
import dev.feedmux.v1.CreateSubscriptionRequest;
import dev.feedmux.v1.DeleteSubscriptionRequest;
import dev.feedmux.v1.GetSubscriptionRequest;
import dev.feedmux.v1.SeekSubscriptionRequest;
import dev.feedmux.v1.UpdateSubscriptionRequest;
import java.util.function.Consumer;

/** A durable subscription, by name. Made by {@link FeedmuxClient#subscription}; nothing is sent before a method is called. */
public final class Subscription {
    private final FeedmuxClient client;
    private final String name;

    Subscription(FeedmuxClient client, String name) {
        this.client = client;
        this.name = name;
    }

    /** The name. */
    public String name() {
        return name;
    }

    /** Opens a session with the client's options. As {@link #open(Consumer)}. */
    public Session open() {
        return open(options -> {});
    }

    /**
     * Opens a session; returns when the server has opened it.
     *
     * @param change changes the client's options of sessions for this one
     * @throws dev.feedmux.errors.SubscriptionNotFoundException where there is none
     * @throws dev.feedmux.errors.SubscriptionBusyException where another client has it open and {@code takeover} is not
     *     set
     * @throws dev.feedmux.errors.HistoryLostException where its position has left the oplog
     */
    public Session open(Consumer<SessionOptions.Builder> change) {
        Opening opening = new Opening(name, null, null, FeedmuxClient.instanceId());
        return Session.open(client.link(), opening, client.options(change));
    }

    /** Creates it, from now. As {@link #create(SubscriptionDefinition)}. */
    public SubscriptionInfo create(Feed feed) {
        return create(SubscriptionDefinition.of(feed));
    }

    /**
     * Creates it. The same content again changes nothing.
     *
     * @throws dev.feedmux.errors.SubscriptionExistsException where it exists with other content
     */
    public SubscriptionInfo create(SubscriptionDefinition definition) {
        CreateSubscriptionRequest request = CreateSubscriptionRequest.newBuilder()
                .setSubscription(Messages.subscription(
                        name,
                        definition.feed(),
                        definition.onInvalidate(),
                        definition.onHistoryLost(),
                        client.source()))
                .setStart(Messages.start(definition.start()))
                .build();
        return Messages.info(client.link().subscriptions(stub -> stub.createSubscription(request)));
    }

    /**
     * As the server has it.
     *
     * @throws dev.feedmux.errors.SubscriptionNotFoundException where there is none
     */
    public SubscriptionInfo get() {
        GetSubscriptionRequest request =
                GetSubscriptionRequest.newBuilder().setName(name).build();
        return Messages.info(client.link().subscriptions(stub -> stub.getSubscription(request)));
    }

    /**
     * Changes what is given; the position stays.
     *
     * @throws IllegalArgumentException where nothing is given
     */
    public SubscriptionInfo update(SubscriptionUpdate update) {
        FieldMask.Builder paths = FieldMask.newBuilder();
        if (update.feed() != null) {
            paths.addPaths("feed");
        }
        if (update.onInvalidate() != null) {
            paths.addPaths("on_invalidate");
        }
        if (update.onHistoryLost() != null) {
            paths.addPaths("on_history_lost");
        }
        if (paths.getPathsCount() == 0) {
            throw new IllegalArgumentException("nothing to update");
        }
        dev.feedmux.v1.Subscription changed = Messages.subscription(
                        name, update.feed(), update.onInvalidate(), update.onHistoryLost(), client.source())
                .toBuilder()
                .setEtag(update.etag())
                .build();
        UpdateSubscriptionRequest request = UpdateSubscriptionRequest.newBuilder()
                .setSubscription(changed)
                .setUpdateMask(paths)
                .build();
        return Messages.info(client.link().subscriptions(stub -> stub.updateSubscription(request)));
    }

    /** Moves the stored position, also backwards. An open session goes on from there. */
    public SubscriptionInfo seek(Start to) {
        SeekSubscriptionRequest request = SeekSubscriptionRequest.newBuilder()
                .setName(name)
                .setTo(Messages.start(to))
                .build();
        return Messages.info(client.link().subscriptions(stub -> stub.seekSubscription(request)));
    }

    /**
     * Deletes it.
     *
     * @throws dev.feedmux.errors.SubscriptionNotFoundException where there is none
     */
    public void delete() {
        delete(DeleteSubscriptionRequest.newBuilder());
    }

    /** Deletes it if its definition is still the one of this etag. */
    public void delete(String etag) {
        delete(DeleteSubscriptionRequest.newBuilder().setEtag(etag));
    }

    /** Deletes it where there is one. */
    public void deleteIfExists() {
        delete(DeleteSubscriptionRequest.newBuilder().setAllowMissing(true));
    }

    private void delete(DeleteSubscriptionRequest.Builder request) {
        request.setName(name);
        client.link().subscriptions(stub -> stub.deleteSubscription(request.build()));
    }
}
