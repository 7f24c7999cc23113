package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.feedmux.ConnectionStates.Action;
import dev.feedmux.ConnectionStates.Event;
import dev.feedmux.ConnectionStates.State;
import dev.feedmux.ConnectionStates.Transition;
import dev.feedmux.errors.Errors;
import dev.feedmux.errors.Failure;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.ProtocolException;
import io.grpc.Status;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.bson.BsonBoolean;
import org.bson.BsonDocument;
import org.bson.BsonString;
import org.bson.BsonValue;
import org.junit.jupiter.api.Test;

/** The table of connection states and the reactions to errors are those of all clients. */
final class ConnectionStatesTest {
    private static final Path VECTORS = Path.of("../../tests/conformance/clients/vectors/connection.json");

    @Test
    void theTableOfStatesIsThatOfAllClients() throws IOException {
        int legal = 0;
        for (BsonDocument each : cases("transitions")) {
            Transition wanted = null;
            if (!each.isNull("next")) {
                wanted = new Transition(State.valueOf(text(each, "next")), Action.valueOf(text(each, "action")));
                legal++;
            }
            State state = State.valueOf(text(each, "state"));
            assertEquals(wanted, ConnectionStates.find(state, Event.valueOf(text(each, "event"))), () -> each.toJson());
        }
        assertEquals(
                legal,
                ConnectionStates.TABLE.values().stream().mapToInt(Map::size).sum());
    }

    @Test
    void theReactionsToErrorsAreThoseOfAllClients() throws IOException {
        List<BsonDocument> decisions = cases("decisions");
        assertFalse(decisions.isEmpty());
        for (BsonDocument each : decisions) {
            FeedmuxException error = flag(each, "violation") ? new ProtocolException("a gap") : error(each);
            Recovery.Step step = Recovery.nextStep(error, flag(each, "new_token"));
            assertEquals(text(each, "step"), step.name(), () -> each.toJson());
        }
        for (BsonDocument each : cases("events")) {
            Recovery.Step step = Recovery.Step.valueOf(text(each, "step"));
            assertEquals(text(each, "event"), step.ending.name());
        }
    }

    @Test
    void anIllegalTransitionThrows() {
        assertThrows(IllegalStateException.class, () -> ConnectionStates.after(State.OPEN, Event.BACKOFF_OVER));
    }

    private static FeedmuxException error(BsonDocument each) {
        return Errors.of(new Failure(
                Status.Code.valueOf(text(each, "status")),
                text(each, "reason"),
                "said",
                Map.of("cause", text(each, "cause")),
                flag(each, "retry_info") ? Duration.ofSeconds(1) : null,
                null));
    }

    private static List<BsonDocument> cases(String name) throws IOException {
        assumeTrue(Files.exists(VECTORS), "the vectors are in the repository only");
        BsonDocument vectors = BsonDocument.parse(Files.readString(VECTORS));
        return vectors.getArray(name).stream().map(BsonValue::asDocument).toList();
    }

    private static String text(BsonDocument each, String name) {
        return each.getString(name, new BsonString("")).getValue();
    }

    private static boolean flag(BsonDocument each, String name) {
        return each.getBoolean(name, BsonBoolean.FALSE).getValue();
    }
}
