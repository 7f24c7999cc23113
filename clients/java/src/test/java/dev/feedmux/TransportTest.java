package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.support.VirtualTime;
import dev.feedmux.v1.GetSubscriptionRequest;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

final class TransportTest {
    private final VirtualTime time = new VirtualTime();

    @ParameterizedTest
    @CsvSource({"DEADLINE_EXCEEDED, 5000, 2", "DEADLINE_EXCEEDED, 4999, 1", "UNAVAILABLE, 5000, 1"})
    void aUnaryCallWithoutAnAnswerLeavesItsConnection(Status.Code code, long afterMillis, int connections) {
        AtomicInteger dialed = new AtomicInteger();
        ClientInterceptor failing = new Failing(code, Duration.ofMillis(afterMillis));
        try (Transport transport = new Transport(
                "localhost:1",
                null,
                Credentials.none(),
                Duration.ofSeconds(30),
                channel -> {
                    dialed.incrementAndGet();
                    return channel.intercept(failing);
                },
                time::nanoTime)) {
            assertThrows(
                    FeedmuxException.class,
                    () -> transport.subscriptions(
                            stub -> stub.getSubscription(GetSubscriptionRequest.getDefaultInstance())));
            assertEquals(connections, dialed.get());
        }
    }

    /** Ends each call with this status after this time. */
    private final class Failing implements ClientInterceptor {
        private final Status.Code code;
        private final Duration after;

        private Failing(Status.Code code, Duration after) {
            this.code = code;
            this.after = after;
        }

        @Override
        public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
            return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
                @Override
                public void start(Listener<R> listener, Metadata headers) {
                    time.stopFor(after);
                    listener.onClose(code.toStatus(), new Metadata());
                }

                @Override
                public void sendMessage(Q message) {}

                @Override
                public void request(int messages) {}

                @Override
                public void halfClose() {}
            };
        }
    }
}
