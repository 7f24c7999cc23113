package dev.feedmux;

import static dev.feedmux.support.ScriptedServer.until;
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
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.X509Certificate;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.UnaryOperator;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509TrustManager;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

final class TransportTest {
    private final VirtualTime time = new VirtualTime();

    @ParameterizedTest
    @CsvSource({"DEADLINE_EXCEEDED, 5000, 2", "DEADLINE_EXCEEDED, 4999, 1", "UNAVAILABLE, 5000, 1"})
    void aUnaryCallWithoutAnAnswerLeavesItsConnection(Status.Code code, long afterMillis, int connections) {
        AtomicInteger dialed = new AtomicInteger();
        ClientInterceptor failing = new Failing(code, Duration.ofMillis(afterMillis));
        try (Transport transport = transport("localhost:1", null, channel -> {
            dialed.incrementAndGet();
            return channel.intercept(failing);
        })) {
            fail(transport);
            assertEquals(connections, dialed.get());
        }
    }

    /** gRPC would wait a second before it connects again, then twice as long each time, up to two minutes. */
    @Test
    @Timeout(120)
    void eachUnaryCallConnectsAgain() throws Exception {
        AtomicInteger accepted = new AtomicInteger();
        try (ServerSocket server = new ServerSocket(0);
                Transport transport = transport("localhost:" + server.getLocalPort(), null, channel -> channel)) {
            Thread hangsUp = new Thread(() -> {
                try {
                    while (true) {
                        server.accept().close();
                        accepted.incrementAndGet();
                    }
                } catch (IOException closed) {
                    return;
                }
            });
            hangsUp.start();
            until(() -> {
                fail(transport);
                return accepted.get() >= 15;
            });
        }
    }

    @Test
    void changedTlsFilesAreReadForNewConnections(@TempDir Path folder) throws Exception {
        Path root = folder.resolve("ca.pem");
        AtomicInteger dialed = new AtomicInteger();
        ClientInterceptor failing = new Failing(Status.Code.UNAVAILABLE, Duration.ZERO);
        List<String> authorities = authorities();
        Files.writeString(root, authorities.get(0));
        try (Transport transport = transport("localhost:1", Tls.root(root), channel -> {
            dialed.incrementAndGet();
            return channel.intercept(failing);
        })) {
            fail(transport);
            assertEquals(1, dialed.get());
            Files.writeString(root, authorities.get(1));
            fail(transport);
            assertEquals(2, dialed.get());
            Files.writeString(root, "-----BEGIN CERTIFICATE-----\n");
            fail(transport);
            Files.delete(root);
            fail(transport);
            assertEquals(2, dialed.get(), "files that are being replaced change nothing");
            Files.writeString(root, authorities.get(0));
            fail(transport);
            fail(transport);
            assertEquals(3, dialed.get());
        }
    }

    private Transport transport(String target, @Nullable Tls tls, UnaryOperator<ManagedChannelBuilder<?>> configure) {
        return new Transport(target, tls, Credentials.none(), Duration.ofSeconds(30), configure, time::nanoTime);
    }

    private static void fail(Transport transport) {
        assertThrows(
                FeedmuxException.class,
                () -> transport.subscriptions(
                        stub -> stub.getSubscription(GetSubscriptionRequest.getDefaultInstance())));
    }

    /** The authorities that Java trusts, as PEM. */
    private static List<String> authorities() throws Exception {
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init((KeyStore) null);
        List<String> pem = new ArrayList<>();
        for (X509Certificate each : ((X509TrustManager) factory.getTrustManagers()[0]).getAcceptedIssuers()) {
            String body = Base64.getMimeEncoder().encodeToString(each.getEncoded());
            pem.add("-----BEGIN CERTIFICATE-----\n" + body + "\n-----END CERTIFICATE-----\n");
        }
        return pem;
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
