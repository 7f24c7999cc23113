package dev.feedmux.support;

import java.time.Duration;
import java.util.Comparator;
import java.util.List;
import java.util.PriorityQueue;
import java.util.concurrent.AbstractExecutorService;
import java.util.concurrent.Callable;
import java.util.concurrent.Delayed;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/** Timers that run when the test advances the time. */
public final class VirtualTime extends AbstractExecutorService implements ScheduledExecutorService {
    private final PriorityQueue<Task> tasks = new PriorityQueue<>(
            Comparator.comparingLong((Task task) -> task.dueAt).thenComparingLong(task -> task.number));
    private long now;
    private long scheduled;

    public synchronized long nanoTime() {
        return now;
    }

    /** Runs the timers that are due within this time, in order, on this thread. */
    public void advance(Duration by) {
        long end = nanoTime() + by.toNanos();
        for (Task next = due(end); next != null; next = due(end)) {
            next.run();
        }
    }

    /** Advances the time without running anything, as if the process were suspended. */
    public synchronized void stopFor(Duration by) {
        now += by.toNanos();
    }

    private synchronized Task due(long end) {
        Task first = tasks.peek();
        if (first == null || first.dueAt > end) {
            now = Math.max(now, end);
            return null;
        }
        now = Math.max(now, first.dueAt);
        return tasks.remove();
    }

    @Override
    public synchronized ScheduledFuture<?> schedule(Runnable command, long delay, TimeUnit unit) {
        Task task = new Task(command, now + unit.toNanos(delay), scheduled++);
        tasks.add(task);
        return task;
    }

    @Override
    public <V> ScheduledFuture<V> schedule(Callable<V> callable, long delay, TimeUnit unit) {
        throw new UnsupportedOperationException();
    }

    @Override
    public ScheduledFuture<?> scheduleAtFixedRate(Runnable command, long delay, long period, TimeUnit unit) {
        throw new UnsupportedOperationException();
    }

    @Override
    public ScheduledFuture<?> scheduleWithFixedDelay(Runnable command, long delay, long period, TimeUnit unit) {
        throw new UnsupportedOperationException();
    }

    @Override
    public void execute(Runnable command) {
        command.run();
    }

    @Override
    public void shutdown() {}

    @Override
    public List<Runnable> shutdownNow() {
        return List.of();
    }

    @Override
    public boolean isShutdown() {
        return false;
    }

    @Override
    public boolean isTerminated() {
        return false;
    }

    @Override
    public boolean awaitTermination(long timeout, TimeUnit unit) {
        return false;
    }

    private final class Task extends FutureTask<Void> implements ScheduledFuture<Void> {
        private final long dueAt;
        private final long number;

        private Task(Runnable command, long dueAt, long number) {
            super(command, null);
            this.dueAt = dueAt;
            this.number = number;
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return unit.convert(dueAt - nanoTime(), TimeUnit.NANOSECONDS);
        }

        @Override
        public int compareTo(Delayed other) {
            return Long.compare(getDelay(TimeUnit.NANOSECONDS), other.getDelay(TimeUnit.NANOSECONDS));
        }
    }
}
