package dev.feedmux;

import com.google.protobuf.FieldMask;
import dev.feedmux.v1.CreateSubscriptionRequest;
import dev.feedmux.v1.DeleteSubscriptionRequest;
import dev.feedmux.v1.GetSubscriptionRequest;
import dev.feedmux.v1.SeekSubscriptionRequest;
import dev.feedmux.v1.UpdateSubscriptionRequest;
import java.util.function.Consumer;

/**
 * A durable subscription, by name. Created by {@link FeedmuxClient#subscription}, which sends nothing to the server.
 */
public final class Subscription {
    private final FeedmuxClient client;
    private final String name;

    Subscription(FeedmuxClient client, String name) {
        this.client = client;
        Documents.checkText(name, "the name of a subscription");
        this.name = name;
    }

    /** Returns the name of the subscription. */
    public String name() {
        return name;
    }

    /** Opens a session with the client's options. See {@link #open(Consumer)}. */
    public Session open() {
        return open(options -> {});
    }

    /**
     * Opens a session, and returns when the server has opened it.
     *
     * @param change changes the client's session options for this session
     * @throws dev.feedmux.errors.SubscriptionNotFoundException if the subscription does not exist
     * @throws dev.feedmux.errors.SubscriptionBusyException if another client has the subscription open and
     *     {@code takeover} is not set
     * @throws dev.feedmux.errors.HistoryLostException if the stored position has left the oplog
     */
    public Session open(Consumer<SessionOptions.Builder> change) {
        Opening opening = new Opening(name, null, null, FeedmuxClient.instanceId());
        return Session.open(client.transport(), opening, client.options(change));
    }

    /** Creates the subscription, beginning now. See {@link #create(SubscriptionDefinition)}. */
    public SubscriptionInfo create(Feed feed) {
        return create(SubscriptionDefinition.of(feed));
    }

    /**
     * Creates the subscription. If it exists with the same definition, nothing changes.
     *
     * @throws dev.feedmux.errors.SubscriptionExistsException if the subscription exists with another definition
     */
    public SubscriptionInfo create(SubscriptionDefinition definition) {
        dev.feedmux.v1.Subscription subscription = Messages.subscription(
                name, definition.feed(), definition.onInvalidate(), definition.onHistoryLost(), client.source());
        CreateSubscriptionRequest request = CreateSubscriptionRequest.newBuilder()
                .setSubscription(subscription)
                .setStart(client.storedStart(subscription.getFeed(), definition.start()))
                .build();
        return Messages.info(client.transport().subscriptions(stub -> stub.createSubscription(request)));
    }

    /**
     * Returns the subscription as the server has stored it.
     *
     * @throws dev.feedmux.errors.SubscriptionNotFoundException if the subscription does not exist
     */
    public SubscriptionInfo get() {
        return Messages.info(stored());
    }

    /**
     * Changes the given parts of the definition. The position stays the same.
     *
     * @throws IllegalArgumentException if the update contains no change
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
            throw new IllegalArgumentException("nothing to update: set a feed or a policy");
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
        return Messages.info(client.transport().subscriptions(stub -> stub.updateSubscription(request)));
    }

    /** Moves the stored position, forwards or backwards. An open session continues from the new position. */
    public SubscriptionInfo seek(Start to) {
        dev.feedmux.v1.Start start =
                to instanceof Start.Snapshot ? client.storedStart(stored().getFeed(), to) : Messages.start(to);
        SeekSubscriptionRequest request =
                SeekSubscriptionRequest.newBuilder().setName(name).setTo(start).build();
        return Messages.info(client.transport().subscriptions(stub -> stub.seekSubscription(request)));
    }

    /**
     * Deletes the subscription.
     *
     * @throws dev.feedmux.errors.SubscriptionNotFoundException if the subscription does not exist
     */
    public void delete() {
        delete(DeleteSubscriptionRequest.newBuilder());
    }

    /** Deletes the subscription if its definition still has this etag. */
    public void delete(String etag) {
        delete(DeleteSubscriptionRequest.newBuilder().setEtag(etag));
    }

    /** Deletes the subscription if it exists. */
    public void deleteIfExists() {
        delete(DeleteSubscriptionRequest.newBuilder().setAllowMissing(true));
    }

    private dev.feedmux.v1.Subscription stored() {
        GetSubscriptionRequest request =
                GetSubscriptionRequest.newBuilder().setName(name).build();
        return client.transport().subscriptions(stub -> stub.getSubscription(request));
    }

    private void delete(DeleteSubscriptionRequest.Builder request) {
        request.setName(name);
        client.transport().subscriptions(stub -> stub.deleteSubscription(request.build()));
    }
}
