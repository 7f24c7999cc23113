package dev.feedmux.support;

import com.google.protobuf.Any;
import com.google.rpc.ErrorInfo;
import dev.feedmux.v1.ChangeFeedGrpc;
import dev.feedmux.v1.SubscribeRequest;
import dev.feedmux.v1.SubscribeResponse;
import io.grpc.BindableService;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerBuilder;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;

/** A server on its own port. Each Subscribe call plays the next script; further calls repeat the last script. */
public final class ScriptedServer implements AutoCloseable {
    /** The script of one call. It runs on its own thread; when it returns, the call ends with OK. */
    public interface Script {
        void play(Call call) throws Exception;
    }

    private final List<Script> scripts;
    private final List<Call> calls = new CopyOnWriteArrayList<>();
    private final LinkedBlockingQueue<String> authorizations = new LinkedBlockingQueue<>();
    private final Server server;

    public ScriptedServer(Script... scripts) {
        this(List.of(scripts), List.of());
    }

    public ScriptedServer(List<Script> scripts, List<BindableService> services) {
        this.scripts = scripts;
        ServerBuilder<?> builder = Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
                .addService(new ChangeFeed())
                .intercept(new Authorizations());
        services.forEach(builder::addService);
        try {
            server = builder.build().start();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    public String target() {
        return "localhost:" + server.getPort();
    }

    /** Returns the call of this number, counted from 0; null if there is none yet. */
    public Call call(int number) {
        return number < calls.size() ? calls.get(number) : null;
    }

    /** The `authorization` of the next call, in order. */
    public String authorization() throws InterruptedException {
        return authorizations.poll(60, TimeUnit.SECONDS);
    }

    @Override
    public void close() {
        server.shutdownNow();
    }

    /** Waits until the condition holds; fails after a minute. */
    public static void until(java.util.function.BooleanSupplier holds) {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!holds.getAsBoolean()) {
            if (System.nanoTime() - end > 0) {
                throw new AssertionError("did not come to hold within 60 s");
            }
            Thread.onSpinWait();
        }
    }

    /** Returns a status with a reason, as the real server sends it. */
    public static StatusRuntimeException status(Status.Code code, String reason, Map<String, String> metadata) {
        ErrorInfo info = ErrorInfo.newBuilder()
                .setDomain("feedmux")
                .setReason(reason)
                .putAllMetadata(metadata)
                .build();
        return StatusProto.toStatusRuntimeException(com.google.rpc.Status.newBuilder()
                .setCode(code.value())
                .setMessage("scripted")
                .addDetails(Any.pack(info))
                .build());
    }

    /** One Subscribe call: the received requests and the responses to send. */
    public static final class Call implements StreamObserver<SubscribeRequest> {
        private final StreamObserver<SubscribeResponse> down;
        private final Script script;
        private final List<SubscribeRequest> received = new ArrayList<>();
        private boolean gone;

        private Call(StreamObserver<SubscribeResponse> down, Script script) {
            this.down = down;
            this.script = script;
        }

        public void send(SubscribeResponse... messages) {
            for (SubscribeResponse message : messages) {
                down.onNext(message);
            }
        }

        /** Waits until what has been received satisfies this, or the client has disconnected. */
        public synchronized void await(Predicate<Call> wanted) throws InterruptedException {
            while (!wanted.test(this) && !gone) {
                wait();
            }
        }

        public void awaitClose() throws InterruptedException {
            await(Call::isClosed);
        }

        /** Whether the client has sent Close. */
        public synchronized boolean isClosed() {
            return received.stream().anyMatch(SubscribeRequest::hasClose);
        }

        public synchronized dev.feedmux.v1.Open open() {
            return received.get(0).getOpen();
        }

        public synchronized long acked() {
            return received.stream()
                    .mapToLong(each -> each.getAck().getDeliverySequence())
                    .max()
                    .orElse(0);
        }

        public synchronized long granted() {
            return open().getCredit().getEvents()
                    + received.stream()
                            .mapToLong(each -> each.getCredit().getEvents())
                            .sum();
        }

        public synchronized boolean isGone() {
            return gone;
        }

        @Override
        public synchronized void onNext(SubscribeRequest request) {
            received.add(request);
            notifyAll();
            if (request.hasOpen()) {
                Thread player = new Thread(this::play, "script");
                player.setDaemon(true);
                player.start();
            }
        }

        @Override
        public synchronized void onError(Throwable error) {
            gone = true;
            notifyAll();
        }

        @Override
        public synchronized void onCompleted() {
            gone = true;
            notifyAll();
        }

        private void play() {
            try {
                script.play(this);
                down.onCompleted();
            } catch (StatusRuntimeException ends) {
                down.onError(ends);
            } catch (Exception error) {
                down.onError(Status.UNIMPLEMENTED.withCause(error).asException());
            }
        }
    }

    private final class ChangeFeed extends ChangeFeedGrpc.ChangeFeedImplBase {
        @Override
        public StreamObserver<SubscribeRequest> subscribe(StreamObserver<SubscribeResponse> down) {
            Call call = new Call(down, scripts.get(Math.min(calls.size(), scripts.size() - 1)));
            calls.add(call);
            return call;
        }
    }

    private final class Authorizations implements ServerInterceptor {
        private static final Metadata.Key<String> AUTHORIZATION =
                Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

        @Override
        public <Q, R> ServerCall.Listener<Q> interceptCall(
                ServerCall<Q, R> call, Metadata headers, ServerCallHandler<Q, R> next) {
            String authorization = headers.get(AUTHORIZATION);
            authorizations.add(authorization == null ? "" : authorization);
            return next.startCall(call, headers);
        }
    }
}
