package dev.feedmux.v1;

import static io.grpc.MethodDescriptor.generateFullMethodName;

/**
 * <pre>
 * Manages durable subscriptions of the caller's tenant. A durable subscription is a feed with a stored position.
 * </pre>
 */
@io.grpc.stub.annotations.GrpcGenerated
public final class SubscriptionsGrpc {

  private SubscriptionsGrpc() {}

  public static final java.lang.String SERVICE_NAME = "feedmux.v1.Subscriptions";

  // Static method descriptors that strictly reflect the proto.
  private static volatile io.grpc.MethodDescriptor<dev.feedmux.v1.CreateSubscriptionRequest,
      dev.feedmux.v1.Subscription> getCreateSubscriptionMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "CreateSubscription",
      requestType = dev.feedmux.v1.CreateSubscriptionRequest.class,
      responseType = dev.feedmux.v1.Subscription.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.feedmux.v1.CreateSubscriptionRequest,
      dev.feedmux.v1.Subscription> getCreateSubscriptionMethod() {
    io.grpc.MethodDescriptor<dev.feedmux.v1.CreateSubscriptionRequest, dev.feedmux.v1.Subscription> getCreateSubscriptionMethod;
    if ((getCreateSubscriptionMethod = SubscriptionsGrpc.getCreateSubscriptionMethod) == null) {
      synchronized (SubscriptionsGrpc.class) {
        if ((getCreateSubscriptionMethod = SubscriptionsGrpc.getCreateSubscriptionMethod) == null) {
          SubscriptionsGrpc.getCreateSubscriptionMethod = getCreateSubscriptionMethod =
              io.grpc.MethodDescriptor.<dev.feedmux.v1.CreateSubscriptionRequest, dev.feedmux.v1.Subscription>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "CreateSubscription"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.CreateSubscriptionRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.Subscription.getDefaultInstance()))
              .setSchemaDescriptor(new SubscriptionsMethodDescriptorSupplier("CreateSubscription"))
              .build();
        }
      }
    }
    return getCreateSubscriptionMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.feedmux.v1.GetSubscriptionRequest,
      dev.feedmux.v1.Subscription> getGetSubscriptionMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "GetSubscription",
      requestType = dev.feedmux.v1.GetSubscriptionRequest.class,
      responseType = dev.feedmux.v1.Subscription.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.feedmux.v1.GetSubscriptionRequest,
      dev.feedmux.v1.Subscription> getGetSubscriptionMethod() {
    io.grpc.MethodDescriptor<dev.feedmux.v1.GetSubscriptionRequest, dev.feedmux.v1.Subscription> getGetSubscriptionMethod;
    if ((getGetSubscriptionMethod = SubscriptionsGrpc.getGetSubscriptionMethod) == null) {
      synchronized (SubscriptionsGrpc.class) {
        if ((getGetSubscriptionMethod = SubscriptionsGrpc.getGetSubscriptionMethod) == null) {
          SubscriptionsGrpc.getGetSubscriptionMethod = getGetSubscriptionMethod =
              io.grpc.MethodDescriptor.<dev.feedmux.v1.GetSubscriptionRequest, dev.feedmux.v1.Subscription>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "GetSubscription"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.GetSubscriptionRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.Subscription.getDefaultInstance()))
              .setSchemaDescriptor(new SubscriptionsMethodDescriptorSupplier("GetSubscription"))
              .build();
        }
      }
    }
    return getGetSubscriptionMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.feedmux.v1.ListSubscriptionsRequest,
      dev.feedmux.v1.ListSubscriptionsResponse> getListSubscriptionsMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "ListSubscriptions",
      requestType = dev.feedmux.v1.ListSubscriptionsRequest.class,
      responseType = dev.feedmux.v1.ListSubscriptionsResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.feedmux.v1.ListSubscriptionsRequest,
      dev.feedmux.v1.ListSubscriptionsResponse> getListSubscriptionsMethod() {
    io.grpc.MethodDescriptor<dev.feedmux.v1.ListSubscriptionsRequest, dev.feedmux.v1.ListSubscriptionsResponse> getListSubscriptionsMethod;
    if ((getListSubscriptionsMethod = SubscriptionsGrpc.getListSubscriptionsMethod) == null) {
      synchronized (SubscriptionsGrpc.class) {
        if ((getListSubscriptionsMethod = SubscriptionsGrpc.getListSubscriptionsMethod) == null) {
          SubscriptionsGrpc.getListSubscriptionsMethod = getListSubscriptionsMethod =
              io.grpc.MethodDescriptor.<dev.feedmux.v1.ListSubscriptionsRequest, dev.feedmux.v1.ListSubscriptionsResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "ListSubscriptions"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.ListSubscriptionsRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.ListSubscriptionsResponse.getDefaultInstance()))
              .setSchemaDescriptor(new SubscriptionsMethodDescriptorSupplier("ListSubscriptions"))
              .build();
        }
      }
    }
    return getListSubscriptionsMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.feedmux.v1.UpdateSubscriptionRequest,
      dev.feedmux.v1.Subscription> getUpdateSubscriptionMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "UpdateSubscription",
      requestType = dev.feedmux.v1.UpdateSubscriptionRequest.class,
      responseType = dev.feedmux.v1.Subscription.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.feedmux.v1.UpdateSubscriptionRequest,
      dev.feedmux.v1.Subscription> getUpdateSubscriptionMethod() {
    io.grpc.MethodDescriptor<dev.feedmux.v1.UpdateSubscriptionRequest, dev.feedmux.v1.Subscription> getUpdateSubscriptionMethod;
    if ((getUpdateSubscriptionMethod = SubscriptionsGrpc.getUpdateSubscriptionMethod) == null) {
      synchronized (SubscriptionsGrpc.class) {
        if ((getUpdateSubscriptionMethod = SubscriptionsGrpc.getUpdateSubscriptionMethod) == null) {
          SubscriptionsGrpc.getUpdateSubscriptionMethod = getUpdateSubscriptionMethod =
              io.grpc.MethodDescriptor.<dev.feedmux.v1.UpdateSubscriptionRequest, dev.feedmux.v1.Subscription>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "UpdateSubscription"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.UpdateSubscriptionRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.Subscription.getDefaultInstance()))
              .setSchemaDescriptor(new SubscriptionsMethodDescriptorSupplier("UpdateSubscription"))
              .build();
        }
      }
    }
    return getUpdateSubscriptionMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.feedmux.v1.DeleteSubscriptionRequest,
      com.google.protobuf.Empty> getDeleteSubscriptionMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "DeleteSubscription",
      requestType = dev.feedmux.v1.DeleteSubscriptionRequest.class,
      responseType = com.google.protobuf.Empty.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.feedmux.v1.DeleteSubscriptionRequest,
      com.google.protobuf.Empty> getDeleteSubscriptionMethod() {
    io.grpc.MethodDescriptor<dev.feedmux.v1.DeleteSubscriptionRequest, com.google.protobuf.Empty> getDeleteSubscriptionMethod;
    if ((getDeleteSubscriptionMethod = SubscriptionsGrpc.getDeleteSubscriptionMethod) == null) {
      synchronized (SubscriptionsGrpc.class) {
        if ((getDeleteSubscriptionMethod = SubscriptionsGrpc.getDeleteSubscriptionMethod) == null) {
          SubscriptionsGrpc.getDeleteSubscriptionMethod = getDeleteSubscriptionMethod =
              io.grpc.MethodDescriptor.<dev.feedmux.v1.DeleteSubscriptionRequest, com.google.protobuf.Empty>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "DeleteSubscription"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.DeleteSubscriptionRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  com.google.protobuf.Empty.getDefaultInstance()))
              .setSchemaDescriptor(new SubscriptionsMethodDescriptorSupplier("DeleteSubscription"))
              .build();
        }
      }
    }
    return getDeleteSubscriptionMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.feedmux.v1.SeekSubscriptionRequest,
      dev.feedmux.v1.Subscription> getSeekSubscriptionMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "SeekSubscription",
      requestType = dev.feedmux.v1.SeekSubscriptionRequest.class,
      responseType = dev.feedmux.v1.Subscription.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.feedmux.v1.SeekSubscriptionRequest,
      dev.feedmux.v1.Subscription> getSeekSubscriptionMethod() {
    io.grpc.MethodDescriptor<dev.feedmux.v1.SeekSubscriptionRequest, dev.feedmux.v1.Subscription> getSeekSubscriptionMethod;
    if ((getSeekSubscriptionMethod = SubscriptionsGrpc.getSeekSubscriptionMethod) == null) {
      synchronized (SubscriptionsGrpc.class) {
        if ((getSeekSubscriptionMethod = SubscriptionsGrpc.getSeekSubscriptionMethod) == null) {
          SubscriptionsGrpc.getSeekSubscriptionMethod = getSeekSubscriptionMethod =
              io.grpc.MethodDescriptor.<dev.feedmux.v1.SeekSubscriptionRequest, dev.feedmux.v1.Subscription>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "SeekSubscription"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.SeekSubscriptionRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.feedmux.v1.Subscription.getDefaultInstance()))
              .setSchemaDescriptor(new SubscriptionsMethodDescriptorSupplier("SeekSubscription"))
              .build();
        }
      }
    }
    return getSeekSubscriptionMethod;
  }

  /**
   * Creates a new async stub that supports all call types for the service
   */
  public static SubscriptionsStub newStub(io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<SubscriptionsStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<SubscriptionsStub>() {
        @java.lang.Override
        public SubscriptionsStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new SubscriptionsStub(channel, callOptions);
        }
      };
    return SubscriptionsStub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports all types of calls on the service
   */
  public static SubscriptionsBlockingV2Stub newBlockingV2Stub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<SubscriptionsBlockingV2Stub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<SubscriptionsBlockingV2Stub>() {
        @java.lang.Override
        public SubscriptionsBlockingV2Stub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new SubscriptionsBlockingV2Stub(channel, callOptions);
        }
      };
    return SubscriptionsBlockingV2Stub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports unary and streaming output calls on the service
   */
  public static SubscriptionsBlockingStub newBlockingStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<SubscriptionsBlockingStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<SubscriptionsBlockingStub>() {
        @java.lang.Override
        public SubscriptionsBlockingStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new SubscriptionsBlockingStub(channel, callOptions);
        }
      };
    return SubscriptionsBlockingStub.newStub(factory, channel);
  }

  /**
   * Creates a new ListenableFuture-style stub that supports unary calls on the service
   */
  public static SubscriptionsFutureStub newFutureStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<SubscriptionsFutureStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<SubscriptionsFutureStub>() {
        @java.lang.Override
        public SubscriptionsFutureStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new SubscriptionsFutureStub(channel, callOptions);
        }
      };
    return SubscriptionsFutureStub.newStub(factory, channel);
  }

  /**
   * <pre>
   * Manages durable subscriptions of the caller's tenant. A durable subscription is a feed with a stored position.
   * </pre>
   */
  public interface AsyncService {

    /**
     * <pre>
     * Creates a subscription and stores its first position at once. Repeating the call with the same content succeeds and
     * changes nothing.
     * </pre>
     */
    default void createSubscription(dev.feedmux.v1.CreateSubscriptionRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.Subscription> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getCreateSubscriptionMethod(), responseObserver);
    }

    /**
     * <pre>
     * Returns one subscription.
     * </pre>
     */
    default void getSubscription(dev.feedmux.v1.GetSubscriptionRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.Subscription> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getGetSubscriptionMethod(), responseObserver);
    }

    /**
     * <pre>
     * Returns all subscriptions, sorted by name, in pages.
     * </pre>
     */
    default void listSubscriptions(dev.feedmux.v1.ListSubscriptionsRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.ListSubscriptionsResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getListSubscriptionsMethod(), responseObserver);
    }

    /**
     * <pre>
     * Changes the feed or the policies; the position stays the same. An open session ends with FENCED and may reopen.
     * </pre>
     */
    default void updateSubscription(dev.feedmux.v1.UpdateSubscriptionRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.Subscription> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getUpdateSubscriptionMethod(), responseObserver);
    }

    /**
     * <pre>
     * Deletes a subscription. An open session ends with FENCED. If the subscription does not exist, the call fails with
     * NOT_FOUND unless `allow_missing` is set.
     * </pre>
     */
    default void deleteSubscription(dev.feedmux.v1.DeleteSubscriptionRequest request,
        io.grpc.stub.StreamObserver<com.google.protobuf.Empty> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getDeleteSubscriptionMethod(), responseObserver);
    }

    /**
     * <pre>
     * Moves the stored position, forwards or backwards. An open session ends with FENCED and may reopen.
     * </pre>
     */
    default void seekSubscription(dev.feedmux.v1.SeekSubscriptionRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.Subscription> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getSeekSubscriptionMethod(), responseObserver);
    }
  }

  /**
   * Base class for the server implementation of the service Subscriptions.
   * <pre>
   * Manages durable subscriptions of the caller's tenant. A durable subscription is a feed with a stored position.
   * </pre>
   */
  public static abstract class SubscriptionsImplBase
      implements io.grpc.BindableService, AsyncService {

    @java.lang.Override public final io.grpc.ServerServiceDefinition bindService() {
      return SubscriptionsGrpc.bindService(this);
    }
  }

  /**
   * A stub to allow clients to do asynchronous rpc calls to service Subscriptions.
   * <pre>
   * Manages durable subscriptions of the caller's tenant. A durable subscription is a feed with a stored position.
   * </pre>
   */
  public static final class SubscriptionsStub
      extends io.grpc.stub.AbstractAsyncStub<SubscriptionsStub> {
    private SubscriptionsStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected SubscriptionsStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new SubscriptionsStub(channel, callOptions);
    }

    /**
     * <pre>
     * Creates a subscription and stores its first position at once. Repeating the call with the same content succeeds and
     * changes nothing.
     * </pre>
     */
    public void createSubscription(dev.feedmux.v1.CreateSubscriptionRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.Subscription> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getCreateSubscriptionMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Returns one subscription.
     * </pre>
     */
    public void getSubscription(dev.feedmux.v1.GetSubscriptionRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.Subscription> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getGetSubscriptionMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Returns all subscriptions, sorted by name, in pages.
     * </pre>
     */
    public void listSubscriptions(dev.feedmux.v1.ListSubscriptionsRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.ListSubscriptionsResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getListSubscriptionsMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Changes the feed or the policies; the position stays the same. An open session ends with FENCED and may reopen.
     * </pre>
     */
    public void updateSubscription(dev.feedmux.v1.UpdateSubscriptionRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.Subscription> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getUpdateSubscriptionMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Deletes a subscription. An open session ends with FENCED. If the subscription does not exist, the call fails with
     * NOT_FOUND unless `allow_missing` is set.
     * </pre>
     */
    public void deleteSubscription(dev.feedmux.v1.DeleteSubscriptionRequest request,
        io.grpc.stub.StreamObserver<com.google.protobuf.Empty> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getDeleteSubscriptionMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Moves the stored position, forwards or backwards. An open session ends with FENCED and may reopen.
     * </pre>
     */
    public void seekSubscription(dev.feedmux.v1.SeekSubscriptionRequest request,
        io.grpc.stub.StreamObserver<dev.feedmux.v1.Subscription> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getSeekSubscriptionMethod(), getCallOptions()), request, responseObserver);
    }
  }

  /**
   * A stub to allow clients to do synchronous rpc calls to service Subscriptions.
   * <pre>
   * Manages durable subscriptions of the caller's tenant. A durable subscription is a feed with a stored position.
   * </pre>
   */
  public static final class SubscriptionsBlockingV2Stub
      extends io.grpc.stub.AbstractBlockingStub<SubscriptionsBlockingV2Stub> {
    private SubscriptionsBlockingV2Stub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected SubscriptionsBlockingV2Stub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new SubscriptionsBlockingV2Stub(channel, callOptions);
    }

    /**
     * <pre>
     * Creates a subscription and stores its first position at once. Repeating the call with the same content succeeds and
     * changes nothing.
     * </pre>
     */
    public dev.feedmux.v1.Subscription createSubscription(dev.feedmux.v1.CreateSubscriptionRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getCreateSubscriptionMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Returns one subscription.
     * </pre>
     */
    public dev.feedmux.v1.Subscription getSubscription(dev.feedmux.v1.GetSubscriptionRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getGetSubscriptionMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Returns all subscriptions, sorted by name, in pages.
     * </pre>
     */
    public dev.feedmux.v1.ListSubscriptionsResponse listSubscriptions(dev.feedmux.v1.ListSubscriptionsRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getListSubscriptionsMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Changes the feed or the policies; the position stays the same. An open session ends with FENCED and may reopen.
     * </pre>
     */
    public dev.feedmux.v1.Subscription updateSubscription(dev.feedmux.v1.UpdateSubscriptionRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getUpdateSubscriptionMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Deletes a subscription. An open session ends with FENCED. If the subscription does not exist, the call fails with
     * NOT_FOUND unless `allow_missing` is set.
     * </pre>
     */
    public com.google.protobuf.Empty deleteSubscription(dev.feedmux.v1.DeleteSubscriptionRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getDeleteSubscriptionMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Moves the stored position, forwards or backwards. An open session ends with FENCED and may reopen.
     * </pre>
     */
    public dev.feedmux.v1.Subscription seekSubscription(dev.feedmux.v1.SeekSubscriptionRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getSeekSubscriptionMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do limited synchronous rpc calls to service Subscriptions.
   * <pre>
   * Manages durable subscriptions of the caller's tenant. A durable subscription is a feed with a stored position.
   * </pre>
   */
  public static final class SubscriptionsBlockingStub
      extends io.grpc.stub.AbstractBlockingStub<SubscriptionsBlockingStub> {
    private SubscriptionsBlockingStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected SubscriptionsBlockingStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new SubscriptionsBlockingStub(channel, callOptions);
    }

    /**
     * <pre>
     * Creates a subscription and stores its first position at once. Repeating the call with the same content succeeds and
     * changes nothing.
     * </pre>
     */
    public dev.feedmux.v1.Subscription createSubscription(dev.feedmux.v1.CreateSubscriptionRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getCreateSubscriptionMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Returns one subscription.
     * </pre>
     */
    public dev.feedmux.v1.Subscription getSubscription(dev.feedmux.v1.GetSubscriptionRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getGetSubscriptionMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Returns all subscriptions, sorted by name, in pages.
     * </pre>
     */
    public dev.feedmux.v1.ListSubscriptionsResponse listSubscriptions(dev.feedmux.v1.ListSubscriptionsRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getListSubscriptionsMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Changes the feed or the policies; the position stays the same. An open session ends with FENCED and may reopen.
     * </pre>
     */
    public dev.feedmux.v1.Subscription updateSubscription(dev.feedmux.v1.UpdateSubscriptionRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getUpdateSubscriptionMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Deletes a subscription. An open session ends with FENCED. If the subscription does not exist, the call fails with
     * NOT_FOUND unless `allow_missing` is set.
     * </pre>
     */
    public com.google.protobuf.Empty deleteSubscription(dev.feedmux.v1.DeleteSubscriptionRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getDeleteSubscriptionMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Moves the stored position, forwards or backwards. An open session ends with FENCED and may reopen.
     * </pre>
     */
    public dev.feedmux.v1.Subscription seekSubscription(dev.feedmux.v1.SeekSubscriptionRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getSeekSubscriptionMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do ListenableFuture-style rpc calls to service Subscriptions.
   * <pre>
   * Manages durable subscriptions of the caller's tenant. A durable subscription is a feed with a stored position.
   * </pre>
   */
  public static final class SubscriptionsFutureStub
      extends io.grpc.stub.AbstractFutureStub<SubscriptionsFutureStub> {
    private SubscriptionsFutureStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected SubscriptionsFutureStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new SubscriptionsFutureStub(channel, callOptions);
    }

    /**
     * <pre>
     * Creates a subscription and stores its first position at once. Repeating the call with the same content succeeds and
     * changes nothing.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.feedmux.v1.Subscription> createSubscription(
        dev.feedmux.v1.CreateSubscriptionRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getCreateSubscriptionMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Returns one subscription.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.feedmux.v1.Subscription> getSubscription(
        dev.feedmux.v1.GetSubscriptionRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getGetSubscriptionMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Returns all subscriptions, sorted by name, in pages.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.feedmux.v1.ListSubscriptionsResponse> listSubscriptions(
        dev.feedmux.v1.ListSubscriptionsRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getListSubscriptionsMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Changes the feed or the policies; the position stays the same. An open session ends with FENCED and may reopen.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.feedmux.v1.Subscription> updateSubscription(
        dev.feedmux.v1.UpdateSubscriptionRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getUpdateSubscriptionMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Deletes a subscription. An open session ends with FENCED. If the subscription does not exist, the call fails with
     * NOT_FOUND unless `allow_missing` is set.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<com.google.protobuf.Empty> deleteSubscription(
        dev.feedmux.v1.DeleteSubscriptionRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getDeleteSubscriptionMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Moves the stored position, forwards or backwards. An open session ends with FENCED and may reopen.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.feedmux.v1.Subscription> seekSubscription(
        dev.feedmux.v1.SeekSubscriptionRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getSeekSubscriptionMethod(), getCallOptions()), request);
    }
  }

  private static final int METHODID_CREATE_SUBSCRIPTION = 0;
  private static final int METHODID_GET_SUBSCRIPTION = 1;
  private static final int METHODID_LIST_SUBSCRIPTIONS = 2;
  private static final int METHODID_UPDATE_SUBSCRIPTION = 3;
  private static final int METHODID_DELETE_SUBSCRIPTION = 4;
  private static final int METHODID_SEEK_SUBSCRIPTION = 5;

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
        case METHODID_CREATE_SUBSCRIPTION:
          serviceImpl.createSubscription((dev.feedmux.v1.CreateSubscriptionRequest) request,
              (io.grpc.stub.StreamObserver<dev.feedmux.v1.Subscription>) responseObserver);
          break;
        case METHODID_GET_SUBSCRIPTION:
          serviceImpl.getSubscription((dev.feedmux.v1.GetSubscriptionRequest) request,
              (io.grpc.stub.StreamObserver<dev.feedmux.v1.Subscription>) responseObserver);
          break;
        case METHODID_LIST_SUBSCRIPTIONS:
          serviceImpl.listSubscriptions((dev.feedmux.v1.ListSubscriptionsRequest) request,
              (io.grpc.stub.StreamObserver<dev.feedmux.v1.ListSubscriptionsResponse>) responseObserver);
          break;
        case METHODID_UPDATE_SUBSCRIPTION:
          serviceImpl.updateSubscription((dev.feedmux.v1.UpdateSubscriptionRequest) request,
              (io.grpc.stub.StreamObserver<dev.feedmux.v1.Subscription>) responseObserver);
          break;
        case METHODID_DELETE_SUBSCRIPTION:
          serviceImpl.deleteSubscription((dev.feedmux.v1.DeleteSubscriptionRequest) request,
              (io.grpc.stub.StreamObserver<com.google.protobuf.Empty>) responseObserver);
          break;
        case METHODID_SEEK_SUBSCRIPTION:
          serviceImpl.seekSubscription((dev.feedmux.v1.SeekSubscriptionRequest) request,
              (io.grpc.stub.StreamObserver<dev.feedmux.v1.Subscription>) responseObserver);
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
        default:
          throw new AssertionError();
      }
    }
  }

  public static final io.grpc.ServerServiceDefinition bindService(AsyncService service) {
    return io.grpc.ServerServiceDefinition.builder(getServiceDescriptor())
        .addMethod(
          getCreateSubscriptionMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.feedmux.v1.CreateSubscriptionRequest,
              dev.feedmux.v1.Subscription>(
                service, METHODID_CREATE_SUBSCRIPTION)))
        .addMethod(
          getGetSubscriptionMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.feedmux.v1.GetSubscriptionRequest,
              dev.feedmux.v1.Subscription>(
                service, METHODID_GET_SUBSCRIPTION)))
        .addMethod(
          getListSubscriptionsMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.feedmux.v1.ListSubscriptionsRequest,
              dev.feedmux.v1.ListSubscriptionsResponse>(
                service, METHODID_LIST_SUBSCRIPTIONS)))
        .addMethod(
          getUpdateSubscriptionMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.feedmux.v1.UpdateSubscriptionRequest,
              dev.feedmux.v1.Subscription>(
                service, METHODID_UPDATE_SUBSCRIPTION)))
        .addMethod(
          getDeleteSubscriptionMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.feedmux.v1.DeleteSubscriptionRequest,
              com.google.protobuf.Empty>(
                service, METHODID_DELETE_SUBSCRIPTION)))
        .addMethod(
          getSeekSubscriptionMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.feedmux.v1.SeekSubscriptionRequest,
              dev.feedmux.v1.Subscription>(
                service, METHODID_SEEK_SUBSCRIPTION)))
        .build();
  }

  private static abstract class SubscriptionsBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoFileDescriptorSupplier, io.grpc.protobuf.ProtoServiceDescriptorSupplier {
    SubscriptionsBaseDescriptorSupplier() {}

    @java.lang.Override
    public com.google.protobuf.Descriptors.FileDescriptor getFileDescriptor() {
      return dev.feedmux.v1.SubscriptionsProto.getDescriptor();
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.ServiceDescriptor getServiceDescriptor() {
      return getFileDescriptor().findServiceByName("Subscriptions");
    }
  }

  private static final class SubscriptionsFileDescriptorSupplier
      extends SubscriptionsBaseDescriptorSupplier {
    SubscriptionsFileDescriptorSupplier() {}
  }

  private static final class SubscriptionsMethodDescriptorSupplier
      extends SubscriptionsBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoMethodDescriptorSupplier {
    private final java.lang.String methodName;

    SubscriptionsMethodDescriptorSupplier(java.lang.String methodName) {
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
      synchronized (SubscriptionsGrpc.class) {
        result = serviceDescriptor;
        if (result == null) {
          serviceDescriptor = result = io.grpc.ServiceDescriptor.newBuilder(SERVICE_NAME)
              .setSchemaDescriptor(new SubscriptionsFileDescriptorSupplier())
              .addMethod(getCreateSubscriptionMethod())
              .addMethod(getGetSubscriptionMethod())
              .addMethod(getListSubscriptionsMethod())
              .addMethod(getUpdateSubscriptionMethod())
              .addMethod(getDeleteSubscriptionMethod())
              .addMethod(getSeekSubscriptionMethod())
              .build();
        }
      }
    }
    return result;
  }
}
