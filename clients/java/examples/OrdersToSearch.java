import dev.feedmux.Event;
import dev.feedmux.Feed;
import dev.feedmux.FeedmuxClient;
import dev.feedmux.FullDocument;
import dev.feedmux.Session;
import dev.feedmux.Subscription;
import java.util.List;
import org.bson.Document;

/** Prints new and changed orders. If you stop and restart it, it continues after the last acked order. */
final class OrdersToSearch {
    public static void main(String[] arguments) {
        String endpoint = System.getenv().getOrDefault("FEEDMUX_ENDPOINT", "localhost:7117");
        try (FeedmuxClient client = FeedmuxClient.builder(endpoint)
                .apiKey(System.getenv("FEEDMUX_API_KEY"))
                .build()) {
            // The server stores the position under this name. Creating the subscription again changes nothing.
            Subscription subscription = client.subscription("orders-in-java");
            Document changes = new Document("operationType", new Document("$in", List.of("insert", "update")));
            subscription.create(Feed.builder()
                    .database("shop")
                    .collection("orders")
                    .pipeline(new Document("$match", changes))
                    .fullDocument(FullDocument.UPDATE_LOOKUP)
                    .build());
            try (Session session = subscription.open()) {
                // Ctrl-C ends the loop and sends the last acks.
                Runtime.getRuntime().addShutdownHook(new Thread(session::close));
                for (Event event : session) {
                    Document change = event.document();
                    System.out.println(change.getString("operationType") + " " + change.get("documentKey"));
                    session.ack(event);
                }
            }
        }
    }
}
