package dev.feedmux;

import static dev.feedmux.ConnectionStates.Event.ABANDON;
import static dev.feedmux.ConnectionStates.Event.BACKOFF_OVER;
import static dev.feedmux.ConnectionStates.Event.CLOSE;
import static dev.feedmux.ConnectionStates.Event.CLOSE_WITH_ACKS;
import static dev.feedmux.ConnectionStates.Event.FAILED;
import static dev.feedmux.ConnectionStates.Event.LOST;
import static dev.feedmux.ConnectionStates.Event.MESSAGE;
import static dev.feedmux.ConnectionStates.Event.MOVED;
import static dev.feedmux.ConnectionStates.Event.OPENED;
import static dev.feedmux.ConnectionStates.Event.TIME_OVER;
import static dev.feedmux.ConnectionStates.State.CLOSING;
import static dev.feedmux.ConnectionStates.State.ENDED;
import static dev.feedmux.ConnectionStates.State.LAST_OPENING;
import static dev.feedmux.ConnectionStates.State.OPEN;
import static dev.feedmux.ConnectionStates.State.OPENING;
import static dev.feedmux.ConnectionStates.State.REOPENING;
import static dev.feedmux.ConnectionStates.State.RETRYING;
import static dev.feedmux.ConnectionStates.State.WAITING;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/** The states of a session's connection, as one table that all clients share. docs/protocol.md shows it. */
final class ConnectionStates {
    /** What the connection does now. */
    enum State {
        /** The first stream is being opened. */
        OPENING,
        /** Waits before the next attempt to open the first stream. */
        RETRYING,
        OPEN,
        /** Waits before the next attempt to reopen. */
        WAITING,
        /** Another stream is being opened. */
        REOPENING,
        /** Closed without a stream: one more stream is being opened, only to send the acks. */
        LAST_OPENING,
        /** Closed with an open stream: the server stores the acks and ends the stream. */
        CLOSING,
        ENDED;

        /** Whether the session has never been open. */
        boolean isFirstOpening() {
            return this == OPENING || this == RETRYING;
        }

        /** Whether the server has sent Opened on the present stream. */
        boolean hasStream() {
            return this == OPEN || this == CLOSING;
        }
    }

    /** What happens to the connection. */
    enum Event {
        OPENED,
        MESSAGE,
        /** The stream ended with an error that passes, or without an error, or was silent for too long. */
        LOST,
        /** The stream ended because the stored position was moved. */
        MOVED,
        /** The stream ended with any other error, or the server broke the protocol. */
        FAILED,
        /** The time to open, or to reopen, is over. */
        TIME_OVER,
        BACKOFF_OVER,
        /** Closed by the user. The server has confirmed all acks. */
        CLOSE,
        /** Closed by the user, and the server may not have some acks. */
        CLOSE_WITH_ACKS,
        /** The time to close is over, or the user dropped the session. */
        ABANDON
    }

    /** What the client does about an event, apart from the change of its state. */
    enum Action {
        /** The next stream resumes after the last ack. */
        NONE,
        /** Forget the unacked events: the next stream begins at the stored position. */
        FORGET,
        /** End the session with the error. */
        RAISE
    }

    /** The next state, and what to do. */
    record Transition(State next, Action action) {}

    private static final Transition END = to(ENDED);
    private static final Transition RAISE = new Transition(ENDED, Action.RAISE);

    /** A pair that is not here is illegal. If the server sends a message in such a state, it breaks the protocol. */
    static final Map<State, Map<Event, Transition>> TABLE = Map.of(
            OPENING,
            Map.of(
                    OPENED, to(OPEN),
                    LOST, to(RETRYING),
                    MOVED, new Transition(RETRYING, Action.FORGET),
                    FAILED, RAISE,
                    TIME_OVER, RAISE,
                    CLOSE, END,
                    ABANDON, END),
            RETRYING,
            Map.of(
                    BACKOFF_OVER, to(OPENING),
                    TIME_OVER, RAISE,
                    CLOSE, END,
                    CLOSE_WITH_ACKS, END,
                    ABANDON, END),
            OPEN,
            Map.of(
                    MESSAGE,
                    to(OPEN),
                    LOST,
                    to(WAITING),
                    MOVED,
                    new Transition(WAITING, Action.FORGET),
                    FAILED,
                    RAISE,
                    TIME_OVER,
                    RAISE,
                    CLOSE,
                    to(CLOSING),
                    CLOSE_WITH_ACKS,
                    to(CLOSING),
                    ABANDON,
                    END),
            WAITING,
            Map.of(
                    BACKOFF_OVER, to(REOPENING),
                    TIME_OVER, RAISE,
                    CLOSE, END,
                    CLOSE_WITH_ACKS, to(LAST_OPENING),
                    ABANDON, END),
            REOPENING,
            Map.of(
                    OPENED,
                    to(OPEN),
                    LOST,
                    to(WAITING),
                    MOVED,
                    new Transition(WAITING, Action.FORGET),
                    FAILED,
                    RAISE,
                    TIME_OVER,
                    RAISE,
                    CLOSE,
                    END,
                    CLOSE_WITH_ACKS,
                    to(LAST_OPENING),
                    ABANDON,
                    END),
            LAST_OPENING,
            Map.of(
                    OPENED, to(CLOSING),
                    LOST, END,
                    MOVED, END,
                    FAILED, END,
                    TIME_OVER, END,
                    BACKOFF_OVER, to(LAST_OPENING),
                    CLOSE, END,
                    CLOSE_WITH_ACKS, to(LAST_OPENING),
                    ABANDON, END),
            CLOSING,
            Map.of(
                    MESSAGE, to(CLOSING),
                    LOST, END,
                    MOVED, END,
                    FAILED, END,
                    TIME_OVER, END,
                    CLOSE, to(CLOSING),
                    CLOSE_WITH_ACKS, to(CLOSING),
                    ABANDON, END),
            ENDED,
            Map.of(CLOSE, END, CLOSE_WITH_ACKS, END, ABANDON, END));

    private ConnectionStates() {}

    /** Returns what the event leads to; null if it is illegal. */
    static @Nullable Transition find(State state, Event event) {
        return TABLE.getOrDefault(state, Map.of()).get(event);
    }

    /** Returns what the event leads to, and throws if it is illegal. */
    static Transition after(State state, Event event) {
        Transition found = find(state, event);
        if (found == null) {
            throw new IllegalStateException(event + " in the state " + state);
        }
        return found;
    }

    private static Transition to(State next) {
        return new Transition(next, Action.NONE);
    }
}
