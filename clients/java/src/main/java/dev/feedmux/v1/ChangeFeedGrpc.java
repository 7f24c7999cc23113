package dev.feedmux.v1;

import static io.grpc.MethodDescriptor.generateFullMethodName;

/**
 * <pre>
 * Delivers change events. Credentials travel in the metadata `authorization: Bearer &lt;api key&gt;`.
 * </pre>
 */
@io.grpc.stub.annotations.GrpcGenerated
public final class ChangeFeedGrpc {

  private ChangeFeedGrpc() {}

  public static final java.lang.String SERVICE_NAME = "feedmux.v1.ChangeFeed";

  // Static method descriptors that strictly reflect the proto.
  private static volatile io.grpc.MethodDescriptor<dev.feedmux.v1.SubscribeRequest,
      dev.feedmux.v1.SubscribeResponse> getSubscribeMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Subscribe",
      requestType = dev.feedmux.v1.SubscribeRequest.class,
      responseType = dev.feedmux.v1.SubscribeResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.BIDI_STREAMING)
  public static io.grpc.MethodDescriptor<dev.feedmux.v1.SubscribeRequest,
      dev.feedmux.v1.SubscribeResponse> getSubscribeMethod() {
    io.grpc.MethodDescriptor<dev.feedmux.v1.SubscribeRequest, dev.feedmux.v1.SubscribeResponse> getSubscribeMethod;
    if ((getSubscribeMethod = ChangeFeedGrpc.getSubscribeMethod) == null) {
      synchronized (ChangeFeedGrpc.class) {
        if ((getSubscribeMethod = ChangeFeedGrpc.getSubscribeMethod) == null) {
          ChangeFeedGrpc.getSubscribeMethod = getSubscribeMethod =
              io.grpc.MethodDescriptor.<dev.feedmux.v1.SubscribeRequest, dev.feedmux.v1.SubscribeResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.BIDI_STREAMING)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Subscribe"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.SubscribeRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.SubscribeResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ChangeFeedMethodDescriptorSupplier("Subscribe"))
              .build();
        }
      }
    }
    return getSubscribeMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.feedmux.v1.WatchRequest,
      dev.feedmux.v1.WatchResponse> getWatchMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Watch",
      requestType = dev.feedmux.v1.WatchRequest.class,
      responseType = dev.feedmux.v1.WatchResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.SERVER_STREAMING)
  public static io.grpc.MethodDescriptor<dev.feedmux.v1.WatchRequest,
      dev.feedmux.v1.WatchResponse> getWatchMethod() {
    io.grpc.MethodDescriptor<dev.feedmux.v1.WatchRequest, dev.feedmux.v1.WatchResponse> getWatchMethod;
    if ((getWatchMethod = ChangeFeedGrpc.getWatchMethod) == null) {
      synchronized (ChangeFeedGrpc.class) {
        if ((getWatchMethod = ChangeFeedGrpc.getWatchMethod) == null) {
          ChangeFeedGrpc.getWatchMethod = getWatchMethod =
              io.grpc.MethodDescriptor.<dev.feedmux.v1.WatchRequest, dev.feedmux.v1.WatchResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.SERVER_STREAMING)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Watch"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.WatchRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.WatchResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ChangeFeedMethodDescriptorSupplier("Watch"))
              .build();
        }
      }
    }
    return getWatchMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.feedmux.v1.ResolvePositionRequest,
      dev.feedmux.v1.ResolvePositionResponse> getResolvePositionMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "ResolvePosition",
      requestType = dev.feedmux.v1.ResolvePositionRequest.class,
      responseType = dev.feedmux.v1.ResolvePositionResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.feedmux.v1.ResolvePositionRequest,
      dev.feedmux.v1.ResolvePositionResponse> getResolvePositionMethod() {
    io.grpc.MethodDescriptor<dev.feedmux.v1.ResolvePositionRequest, dev.feedmux.v1.ResolvePositionResponse> getResolvePositionMethod;
    if ((getResolvePositionMethod = ChangeFeedGrpc.getResolvePositionMethod) == null) {
      synchronized (ChangeFeedGrpc.class) {
        if ((getResolvePositionMethod = ChangeFeedGrpc.getResolvePositionMethod) == null) {
          ChangeFeedGrpc.getResolvePositionMethod = getResolvePositionMethod =
              io.grpc.MethodDescriptor.<dev.feedmux.v1.ResolvePositionRequest, dev.feedmux.v1.ResolvePositionResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "ResolvePosition"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.ResolvePositionRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.ResolvePositionResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ChangeFeedMethodDescriptorSupplier("ResolvePosition"))
              .build();
        }
      }
    }
    return getResolvePositionMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.feedmux.v1.PlanRangeRequest,
      dev.feedmux.v1.PlanRangeResponse> getPlanRangeMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "PlanRange",
      requestType = dev.feedmux.v1.PlanRangeRequest.class,
      responseType = dev.feedmux.v1.PlanRangeResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.feedmux.v1.PlanRangeRequest,
      dev.feedmux.v1.PlanRangeResponse> getPlanRangeMethod() {
    io.grpc.MethodDescriptor<dev.feedmux.v1.PlanRangeRequest, dev.feedmux.v1.PlanRangeResponse> getPlanRangeMethod;
    if ((getPlanRangeMethod = ChangeFeedGrpc.getPlanRangeMethod) == null) {
      synchronized (ChangeFeedGrpc.class) {
        if ((getPlanRangeMethod = ChangeFeedGrpc.getPlanRangeMethod) == null) {
          ChangeFeedGrpc.getPlanRangeMethod = getPlanRangeMethod =
              io.grpc.MethodDescriptor.<dev.feedmux.v1.PlanRangeRequest, dev.feedmux.v1.PlanRangeResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "PlanRange"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.PlanRangeRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.PlanRangeResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ChangeFeedMethodDescriptorSupplier("PlanRange"))
              .build();
        }
      }
    }
    return getPlanRangeMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.feedmux.v1.ReadRangeRequest,
      dev.feedmux.v1.ReadRangeResponse> getReadRangeMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "ReadRange",
      requestType = dev.feedmux.v1.ReadRangeRequest.class,
      responseType = dev.feedmux.v1.ReadRangeResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.SERVER_STREAMING)
  public static io.grpc.MethodDescriptor<dev.feedmux.v1.ReadRangeRequest,
      dev.feedmux.v1.ReadRangeResponse> getReadRangeMethod() {
    io.grpc.MethodDescriptor<dev.feedmux.v1.ReadRangeRequest, dev.feedmux.v1.ReadRangeResponse> getReadRangeMethod;
    if ((getReadRangeMethod = ChangeFeedGrpc.getReadRangeMethod) == null) {
      synchronized (ChangeFeedGrpc.class) {
        if ((getReadRangeMethod = ChangeFeedGrpc.getReadRangeMethod) == null) {
          ChangeFeedGrpc.getReadRangeMethod = getReadRangeMethod =
              io.grpc.MethodDescriptor.<dev.feedmux.v1.ReadRangeRequest, dev.feedmux.v1.ReadRangeResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.SERVER_STREAMING)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "ReadRange"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.ReadRangeRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.ReadRangeResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ChangeFeedMethodDescriptorSupplier("ReadRange"))
              .build();
        }
      }
    }
    return getReadRangeMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.feedmux.v1.ExplainRequest,
      dev.feedmux.v1.ExplainResponse> getExplainMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Explain",
      requestType = dev.feedmux.v1.ExplainRequest.class,
      responseType = dev.feedmux.v1.ExplainResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.feedmux.v1.ExplainRequest,
      dev.feedmux.v1.ExplainResponse> getExplainMethod() {
    io.grpc.MethodDescriptor<dev.feedmux.v1.ExplainRequest, dev.feedmux.v1.ExplainResponse> getExplainMethod;
    if ((getExplainMethod = ChangeFeedGrpc.getExplainMethod) == null) {
      synchronized (ChangeFeedGrpc.class) {
        if ((getExplainMethod = ChangeFeedGrpc.getExplainMethod) == null) {
          ChangeFeedGrpc.getExplainMethod = getExplainMethod =
              io.grpc.MethodDescriptor.<dev.feedmux.v1.ExplainRequest, dev.feedmux.v1.ExplainResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Explain"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.ExplainRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.ExplainResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ChangeFeedMethodDescriptorSupplier("Explain"))
              .build();
        }
      }
    }
    return getExplainMethod;
  }

  /**
   * Creates a new async stub that supports all call types for the service
   */
  public static ChangeFeedStub newStub(io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<ChangeFeedStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<ChangeFeedStub>() {
        @java.lang.Override
        public ChangeFeedStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new ChangeFeedStub(channel, callOptions);
        }
      };
    return ChangeFeedStub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports all types of calls on the service
   */
  public static ChangeFeedBlockingV2Stub newBlockingV2Stub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<ChangeFeedBlockingV2Stub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<ChangeFeedBlockingV2Stub>() {
        @java.lang.Override
        public ChangeFeedBlockingV2Stub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new ChangeFeedBlockingV2Stub(channel, callOptions);
        }
      };
    return ChangeFeedBlockingV2Stub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports unary and streaming output calls on the service
   */
  public static ChangeFeedBlockingStub newBlockingStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<ChangeFeedBlockingStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<ChangeFeedBlockingStub>() {
        @java.lang.Override
        public ChangeFeedBlockingStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new ChangeFeedBlockingStub(channel, callOptions);
        }
      };
    return ChangeFeedBlockingStub.newStub(factory, channel);
  }

  /**
   * Creates a new ListenableFuture-style stub that supports unary calls on the service
   */
  public static ChangeFeedFutureStub newFutureStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<ChangeFeedFutureStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<ChangeFeedFutureStub>() {
        @java.lang.Override
        public ChangeFeedFutureStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new ChangeFeedFutureStub(channel, callOptions);
        }
      };
    return ChangeFeedFutureStub.newStub(factory, channel);
  }

  /**
   * <pre>
   * Delivers change events. Credentials travel in the metadata `authorization: Bearer &lt;api key&gt;`.
   * </pre>
   */
  public interface AsyncService {

    /**
     * <pre>
     * One session of a durable subscription, or of a feed given inline. Open, credits and acks go up; batches come down.
     * </pre>
     */
    default io.grpc.stub.StreamObserver<dev.feedmux.v1.SubscribeRequest> subscribe(
        io.grpc.stub.StreamObserver<dev.feedmux.v1.SubscribeResponse> responseObserver) {
      return io.grpc.stub.ServerCalls.asyncUnimplementedStreamingCall(getSubscribeMethod(), responseObserver);
    }

    /**
     * <pre>
     * A feed given inline, throttled only by HTTP/2 flow control. The client stores the position. No acks, no credits.
     * </pre>
     */
    default void watch(dev.feedmux.v1.WatchRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.WatchResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getWatchMethod(), responseObserver);
    }

    /**
     * <pre>
     * Converts a start (earliest, latest, a time, an operation time, a resume token) to a position that can be stored.
     * </pre>
     */
    default void resolvePosition(dev.feedmux.v1.ResolvePositionRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.ResolvePositionResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getResolvePositionMethod(), responseObserver);
    }

    /**
     * <pre>
     * For bulk readers: returns how far to read next, split into slices that several readers can read at once. The server
     * retains the planned events for ReadRange until they are read, or for two minutes. A range continues after an
     * invalidate event.
     * </pre>
     */
    default void planRange(dev.feedmux.v1.PlanRangeRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.PlanRangeResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getPlanRangeMethod(), responseObserver);
    }

    /**
     * <pre>
     * Returns exactly the events after `after` and up to `until`, the same on every call. Throttled only by HTTP/2 flow
     * control.
     * </pre>
     */
    default void readRange(dev.feedmux.v1.ReadRangeRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.ReadRangeResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getReadRangeMethod(), responseObserver);
    }

    /**
     * <pre>
     * Reports what opening a feed would do, without opening it: the pipeline sent to MongoDB, whether the server already
     * reads this feed, what the feed needs, what the tenant's grants withhold, and why the server would reject the feed.
     * The response carries a rejection as a field, not as a status; only UNAUTHENTICATED, UNAVAILABLE and an undecodable
     * request end the call with an error status.
     * </pre>
     */
    default void explain(dev.feedmux.v1.ExplainRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.ExplainResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getExplainMethod(), responseObserver);
    }
  }

  /**
   * Base class for the server implementation of the service ChangeFeed.
   * <pre>
   * Delivers change events. Credentials travel in the metadata `authorization: Bearer &lt;api key&gt;`.
   * </pre>
   */
  public static abstract class ChangeFeedImplBase
      implements io.grpc.BindableService, AsyncService {

    @java.lang.Override public final io.grpc.ServerServiceDefinition bindService() {
      return ChangeFeedGrpc.bindService(this);
    }
  }

  /**
   * A stub to allow clients to do asynchronous rpc calls to service ChangeFeed.
   * <pre>
   * Delivers change events. Credentials travel in the metadata `authorization: Bearer &lt;api key&gt;`.
   * </pre>
   */
  public static final class ChangeFeedStub
      extends io.grpc.stub.AbstractAsyncStub<ChangeFeedStub> {
    private ChangeFeedStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected ChangeFeedStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new ChangeFeedStub(channel, callOptions);
    }

    /**
     * <pre>
     * One session of a durable subscription, or of a feed given inline. Open, credits and acks go up; batches come down.
     * </pre>
     */
    public io.grpc.stub.StreamObserver<dev.feedmux.v1.SubscribeRequest> subscribe(
        io.grpc.stub.StreamObserver<dev.feedmux.v1.SubscribeResponse> responseObserver) {
      return io.grpc.stub.ClientCalls.asyncBidiStreamingCall(
          getChannel().newCall(getSubscribeMethod(), getCallOptions()), responseObserver);
    }

    /**
     * <pre>
     * A feed given inline, throttled only by HTTP/2 flow control. The client stores the position. No acks, no credits.
     * </pre>
     */
    public void watch(dev.feedmux.v1.WatchRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.WatchResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncServerStreamingCall(
          getChannel().newCall(getWatchMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Converts a start (earliest, latest, a time, an operation time, a resume token) to a position that can be stored.
     * </pre>
     */
    public void resolvePosition(dev.feedmux.v1.ResolvePositionRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.ResolvePositionResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getResolvePositionMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * For bulk readers: returns how far to read next, split into slices that several readers can read at once. The server
     * retains the planned events for ReadRange until they are read, or for two minutes. A range continues after an
     * invalidate event.
     * </pre>
     */
    public void planRange(dev.feedmux.v1.PlanRangeRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.PlanRangeResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getPlanRangeMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Returns exactly the events after `after` and up to `until`, the same on every call. Throttled only by HTTP/2 flow
     * control.
     * </pre>
     */
    public void readRange(dev.feedmux.v1.ReadRangeRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.ReadRangeResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncServerStreamingCall(
          getChannel().newCall(getReadRangeMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Reports what opening a feed would do, without opening it: the pipeline sent to MongoDB, whether the server already
     * reads this feed, what the feed needs, what the tenant's grants withhold, and why the server would reject the feed.
     * The response carries a rejection as a field, not as a status; only UNAUTHENTICATED, UNAVAILABLE and an undecodable
     * request end the call with an error status.
     * </pre>
     */
    public void explain(dev.feedmux.v1.ExplainRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.ExplainResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getExplainMethod(), getCallOptions()), request, responseObserver);
    }
  }

  /**
   * A stub to allow clients to do synchronous rpc calls to service ChangeFeed.
   * <pre>
   * Delivers change events. Credentials travel in the metadata `authorization: Bearer &lt;api key&gt;`.
   * </pre>
   */
  public static final class ChangeFeedBlockingV2Stub
      extends io.grpc.stub.AbstractBlockingStub<ChangeFeedBlockingV2Stub> {
    private ChangeFeedBlockingV2Stub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected ChangeFeedBlockingV2Stub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new ChangeFeedBlockingV2Stub(channel, callOptions);
    }

    /**
     * <pre>
     * One session of a durable subscription, or of a feed given inline. Open, credits and acks go up; batches come down.
     * </pre>
     */
    @io.grpc.ExperimentalApi("https://github.com/grpc/grpc-java/issues/10918")
    public io.grpc.stub.BlockingClientCall<dev.feedmux.v1.SubscribeRequest, dev.feedmux.v1.SubscribeResponse>
        subscribe() {
      return io.grpc.stub.ClientCalls.blockingBidiStreamingCall(
          getChannel(), getSubscribeMethod(), getCallOptions());
    }

    /**
     * <pre>
     * A feed given inline, throttled only by HTTP/2 flow control. The client stores the position. No acks, no credits.
     * </pre>
     */
    @io.grpc.ExperimentalApi("https://github.com/grpc/grpc-java/issues/10918")
    public io.grpc.stub.BlockingClientCall<?, dev.feedmux.v1.WatchResponse>
        watch(dev.feedmux.v1.WatchRequest request) {
      return io.grpc.stub.ClientCalls.blockingV2ServerStreamingCall(
          getChannel(), getWatchMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Converts a start (earliest, latest, a time, an operation time, a resume token) to a position that can be stored.
     * </pre>
     */
    public dev.feedmux.v1.ResolvePositionResponse resolvePosition(dev.feedmux.v1.ResolvePositionRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getResolvePositionMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * For bulk readers: returns how far to read next, split into slices that several readers can read at once. The server
     * retains the planned events for ReadRange until they are read, or for two minutes. A range continues after an
     * invalidate event.
     * </pre>
     */
    public dev.feedmux.v1.PlanRangeResponse planRange(dev.feedmux.v1.PlanRangeRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getPlanRangeMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Returns exactly the events after `after` and up to `until`, the same on every call. Throttled only by HTTP/2 flow
     * control.
     * </pre>
     */
    @io.grpc.ExperimentalApi("https://github.com/grpc/grpc-java/issues/10918")
    public io.grpc.stub.BlockingClientCall<?, dev.feedmux.v1.ReadRangeResponse>
        readRange(dev.feedmux.v1.ReadRangeRequest request) {
      return io.grpc.stub.ClientCalls.blockingV2ServerStreamingCall(
          getChannel(), getReadRangeMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Reports what opening a feed would do, without opening it: the pipeline sent to MongoDB, whether the server already
     * reads this feed, what the feed needs, what the tenant's grants withhold, and why the server would reject the feed.
     * The response carries a rejection as a field, not as a status; only UNAUTHENTICATED, UNAVAILABLE and an undecodable
     * request end the call with an error status.
     * </pre>
     */
    public dev.feedmux.v1.ExplainResponse explain(dev.feedmux.v1.ExplainRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getExplainMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do limited synchronous rpc calls to service ChangeFeed.
   * <pre>
   * Delivers change events. Credentials travel in the metadata `authorization: Bearer &lt;api key&gt;`.
   * </pre>
   */
  public static final class ChangeFeedBlockingStub
      extends io.grpc.stub.AbstractBlockingStub<ChangeFeedBlockingStub> {
    private ChangeFeedBlockingStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected ChangeFeedBlockingStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new ChangeFeedBlockingStub(channel, callOptions);
    }

    /**
     * <pre>
     * A feed given inline, throttled only by HTTP/2 flow control. The client stores the position. No acks, no credits.
     * </pre>
     */
    public java.util.Iterator<dev.feedmux.v1.WatchResponse> watch(
        dev.feedmux.v1.WatchRequest request) {
      return io.grpc.stub.ClientCalls.blockingServerStreamingCall(
          getChannel(), getWatchMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Converts a start (earliest, latest, a time, an operation time, a resume token) to a position that can be stored.
     * </pre>
     */
    public dev.feedmux.v1.ResolvePositionResponse resolvePosition(dev.feedmux.v1.ResolvePositionRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getResolvePositionMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * For bulk readers: returns how far to read next, split into slices that several readers can read at once. The server
     * retains the planned events for ReadRange until they are read, or for two minutes. A range continues after an
     * invalidate event.
     * </pre>
     */
    public dev.feedmux.v1.PlanRangeResponse planRange(dev.feedmux.v1.PlanRangeRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getPlanRangeMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Returns exactly the events after `after` and up to `until`, the same on every call. Throttled only by HTTP/2 flow
     * control.
     * </pre>
     */
    public java.util.Iterator<dev.feedmux.v1.ReadRangeResponse> readRange(
        dev.feedmux.v1.ReadRangeRequest request) {
      return io.grpc.stub.ClientCalls.blockingServerStreamingCall(
          getChannel(), getReadRangeMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Reports what opening a feed would do, without opening it: the pipeline sent to MongoDB, whether the server already
     * reads this feed, what the feed needs, what the tenant's grants withhold, and why the server would reject the feed.
     * The response carries a rejection as a field, not as a status; only UNAUTHENTICATED, UNAVAILABLE and an undecodable
     * request end the call with an error status.
     * </pre>
     */
    public dev.feedmux.v1.ExplainResponse explain(dev.feedmux.v1.ExplainRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getExplainMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do ListenableFuture-style rpc calls to service ChangeFeed.
   * <pre>
   * Delivers change events. Credentials travel in the metadata `authorization: Bearer &lt;api key&gt;`.
   * </pre>
   */
  public static final class ChangeFeedFutureStub
      extends io.grpc.stub.AbstractFutureStub<ChangeFeedFutureStub> {
    private ChangeFeedFutureStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected ChangeFeedFutureStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new ChangeFeedFutureStub(channel, callOptions);
    }

    /**
     * <pre>
     * Converts a start (earliest, latest, a time, an operation time, a resume token) to a position that can be stored.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.feedmux.v1.ResolvePositionResponse> resolvePosition(
        dev.feedmux.v1.ResolvePositionRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getResolvePositionMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * For bulk readers: returns how far to read next, split into slices that several readers can read at once. The server
     * retains the planned events for ReadRange until they are read, or for two minutes. A range continues after an
     * invalidate event.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.feedmux.v1.PlanRangeResponse> planRange(
        dev.feedmux.v1.PlanRangeRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getPlanRangeMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Reports what opening a feed would do, without opening it: the pipeline sent to MongoDB, whether the server already
     * reads this feed, what the feed needs, what the tenant's grants withhold, and why the server would reject the feed.
     * The response carries a rejection as a field, not as a status; only UNAUTHENTICATED, UNAVAILABLE and an undecodable
     * request end the call with an error status.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.feedmux.v1.ExplainResponse> explain(
        dev.feedmux.v1.ExplainRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getExplainMethod(), getCallOptions()), request);
    }
  }

  private static final int METHODID_WATCH = 0;
  private static final int METHODID_RESOLVE_POSITION = 1;
  private static final int METHODID_PLAN_RANGE = 2;
  private static final int METHODID_READ_RANGE = 3;
  private static final int METHODID_EXPLAIN = 4;
  private static final int METHODID_SUBSCRIBE = 5;

  private static final class MethodHandlers<Req, Resp> implements
      io.grpc.stub.ServerCalls.UnaryMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.ServerStreamingMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.ClientStreamingMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.BidiStreamingMethod<Req, Resp> {
    private final AsyncService serviceImpl;
    private final int methodId;

    MethodHandlers(AsyncService serviceImpl, int methodId) {
      this.serviceImpl = serviceImpl;
      this.methodId = methodId;
    }

    @java.lang.Override
    @java.lang.SuppressWarnings("unchecked")
    public void invoke(Req request, io.grpc.stub.StreamObserver<Resp> responseObserver) {
      switch (methodId) {
        case METHODID_WATCH:
          serviceImpl.watch((dev.feedmux.v1.WatchRequest) request,
              (io.grpc.stub.StreamObserver<dev.feedmux.v1.WatchResponse>) responseObserver);
          break;
        case METHODID_RESOLVE_POSITION:
          serviceImpl.resolvePosition((dev.feedmux.v1.ResolvePositionRequest) request,
              (io.grpc.stub.StreamObserver<dev.feedmux.v1.ResolvePositionResponse>) responseObserver);
          break;
        case METHODID_PLAN_RANGE:
          serviceImpl.planRange((dev.feedmux.v1.PlanRangeRequest) request,
              (io.grpc.stub.StreamObserver<dev.feedmux.v1.PlanRangeResponse>) responseObserver);
          break;
        case METHODID_READ_RANGE:
          serviceImpl.readRange((dev.feedmux.v1.ReadRangeRequest) request,
              (io.grpc.stub.StreamObserver<dev.feedmux.v1.ReadRangeResponse>) responseObserver);
          break;
        case METHODID_EXPLAIN:
          serviceImpl.explain((dev.feedmux.v1.ExplainRequest) request,
              (io.grpc.stub.StreamObserver<dev.feedmux.v1.ExplainResponse>) responseObserver);
          break;
        default:
          throw new AssertionError();
      }
    }

    @java.lang.Override
    @java.lang.SuppressWarnings("unchecked")
    public io.grpc.stub.StreamObserver<Req> invoke(
        io.grpc.stub.StreamObserver<Resp> responseObserver) {
      switch (methodId) {
        case METHODID_SUBSCRIBE:
          return (io.grpc.stub.StreamObserver<Req>) serviceImpl.subscribe(
              (io.grpc.stub.StreamObserver<dev.feedmux.v1.SubscribeResponse>) responseObserver);
        default:
          throw new AssertionError();
      }
    }
  }

  public static final io.grpc.ServerServiceDefinition bindService(AsyncService service) {
    return io.grpc.ServerServiceDefinition.builder(getServiceDescriptor())
        .addMethod(
          getSubscribeMethod(),
          io.grpc.stub.ServerCalls.asyncBidiStreamingCall(
            new MethodHandlers<
              dev.feedmux.v1.SubscribeRequest,
              dev.feedmux.v1.SubscribeResponse>(
                service, METHODID_SUBSCRIBE)))
        .addMethod(
          getWatchMethod(),
          io.grpc.stub.ServerCalls.asyncServerStreamingCall(
            new MethodHandlers<
              dev.feedmux.v1.WatchRequest,
              dev.feedmux.v1.WatchResponse>(
                service, METHODID_WATCH)))
        .addMethod(
          getResolvePositionMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.feedmux.v1.ResolvePositionRequest,
              dev.feedmux.v1.ResolvePositionResponse>(
                service, METHODID_RESOLVE_POSITION)))
        .addMethod(
          getPlanRangeMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.feedmux.v1.PlanRangeRequest,
              dev.feedmux.v1.PlanRangeResponse>(
                service, METHODID_PLAN_RANGE)))
        .addMethod(
          getReadRangeMethod(),
          io.grpc.stub.ServerCalls.asyncServerStreamingCall(
            new MethodHandlers<
              dev.feedmux.v1.ReadRangeRequest,
              dev.feedmux.v1.ReadRangeResponse>(
                service, METHODID_READ_RANGE)))
        .addMethod(
          getExplainMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.feedmux.v1.ExplainRequest,
              dev.feedmux.v1.ExplainResponse>(
                service, METHODID_EXPLAIN)))
        .build();
  }

  private static abstract class ChangeFeedBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoFileDescriptorSupplier, io.grpc.protobuf.ProtoServiceDescriptorSupplier {
    ChangeFeedBaseDescriptorSupplier() {}

    @java.lang.Override
    public com.google.protobuf.Descriptors.FileDescriptor getFileDescriptor() {
      return dev.feedmux.v1.ChangeFeedProto.getDescriptor();
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.ServiceDescriptor getServiceDescriptor() {
      return getFileDescriptor().findServiceByName("ChangeFeed");
    }
  }

  private static final class ChangeFeedFileDescriptorSupplier
      extends ChangeFeedBaseDescriptorSupplier {
    ChangeFeedFileDescriptorSupplier() {}
  }

  private static final class ChangeFeedMethodDescriptorSupplier
      extends ChangeFeedBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoMethodDescriptorSupplier {
    private final java.lang.String methodName;

    ChangeFeedMethodDescriptorSupplier(java.lang.String methodName) {
      this.methodName = methodName;
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.MethodDescriptor getMethodDescriptor() {
      return getServiceDescriptor().findMethodByName(methodName);
    }
  }

  private static volatile io.grpc.ServiceDescriptor serviceDescriptor;

  public static io.grpc.ServiceDescriptor getServiceDescriptor() {
    io.grpc.ServiceDescriptor result = serviceDescriptor;
    if (result == null) {
      synchronized (ChangeFeedGrpc.class) {
        result = serviceDescriptor;
        if (result == null) {
          serviceDescriptor = result = io.grpc.ServiceDescriptor.newBuilder(SERVICE_NAME)
              .setSchemaDescriptor(new ChangeFeedFileDescriptorSupplier())
              .addMethod(getSubscribeMethod())
              .addMethod(getWatchMethod())
              .addMethod(getResolvePositionMethod())
              .addMethod(getPlanRangeMethod())
              .addMethod(getReadRangeMethod())
              .addMethod(getExplainMethod())
              .build();
        }
      }
    }
    return result;
  }
}
