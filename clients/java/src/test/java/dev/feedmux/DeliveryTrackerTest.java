package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import dev.feedmux.errors.ProtocolException;
import dev.feedmux.support.Wire;
import java.util.ArrayList;
import java.util.List;
import java.util.NavigableSet;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;
import java.util.stream.IntStream;
import org.bson.BsonString;
import org.bson.BsonTimestamp;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.RepetitionInfo;
import org.junit.jupiter.api.Test;

final class DeliveryTrackerTest {
    /** Retains everything whole, about two batches, or nothing. */
    private static final long[] BUDGETS = {Long.MAX_VALUE, 500, 0};

    private final DeliveryTracker tracker = begun(true);

    @Test
    void numbersEventsFromOneAndFindsGaps() {
        Batch first = tracker.arrive(1, events(1, 3)).get(0);
        Batch second = tracker.arrive(4, events(4, 1)).get(0);
        assertEquals(List.of(1L, 3L, 4L), List.of(first.firstSequence(), first.lastSequence(), second.firstSequence()));
        assertEquals(at(4), tracker.latest());
        assertThrows(ProtocolException.class, () -> tracker.arrive(6, events(6, 1)));
    }

    @Test
    void acksSayWhereToBeginAgain() {
        assertEquals(at(0), tracker.ackedPosition(0));
        tracker.arrive(1, events(1, 3));
        tracker.arrive(4, events(4, 2));
        assertEquals(2, tracker.ackedSequence(2));
        FeedPosition middle = tracker.ackedPosition(2);
        assertTrue(middle.position().isEmpty());
        assertEquals(new BsonTimestamp(1002, 1), middle.clusterTime());
        assertEquals(at(3), tracker.ackedPosition(3));
        assertEquals(5, tracker.ackedSequence(5));
        tracker.progress(at(9));
        assertEquals(at(9), tracker.ackedPosition(5));
    }

    @Test
    void whereATokenIsMissingTheLastKnownPlaceCounts() {
        tracker.arrive(1, events(1, 2));
        tracker.arrive(3, new JsonBatch(List.of("{\"n\":3}", "{\"n\":4}"), at(4), null).part(0, 1));
        tracker.arrive(4, events(5, 1));
        assertEquals(at(2), tracker.ackedPosition(3), "nothing is made up");
    }

    @Test
    void thePlaceOfATokenHasItsTime() {
        tracker.arrive(1, events(1, 2).part(0, 1));
        tracker.arrive(2, events(2, 1));
        assertEquals(at(1).clusterTime(), tracker.ackedPosition(1).clusterTime());
    }

    @Test
    void progressPastAllRepeatsEndsTheWaitForThem() {
        tracker.arrive(1, events(1, 3));
        tracker.begin(at(5), 1);
        tracker.progress(at(3));
        assertTrue(tracker.expectsRepeats());
        tracker.progress(at(5));
        assertFalse(tracker.expectsRepeats(), "the stored position was moved forward meanwhile");
        assertEquals(at(5), tracker.latest());
    }

    @Test
    void repeatsAreDroppedAndTheirAcksMapped() {
        tracker.arrive(1, events(1, 3));
        tracker.arrive(4, events(4, 2));
        tracker.begin(at(2), 2);
        assertEquals(0, tracker.ackedSequence(4));
        assertEquals(List.of(), tracker.arrive(1, events(3, 2)));
        assertEquals(2, tracker.ackedSequence(4));
        tracker.progress(at(4));
        assertEquals(at(5), tracker.latest(), "progress among repeats moves nothing");
        List<Batch> fresh = tracker.arrive(3, events(5, 3));
        assertEquals(List.of(6, 7), numbers(fresh));
        assertEquals(6, fresh.get(0).firstSequence());
        assertFalse(tracker.expectsRepeats());
        assertEquals(4, tracker.ackedSequence(6));
    }

    @Test
    void aLaterEventEndsTheDropping() {
        tracker.arrive(1, events(1, 2));
        tracker.begin(at(0), 0);
        assertEquals(List.of(7), numbers(tracker.arrive(1, events(7, 1))));
        assertFalse(tracker.expectsRepeats());
        assertEquals(1, tracker.ackedSequence(3));
    }

    @Test
    void afterARewindOlderEventsComeFirstAndHoldBackTheAck() {
        tracker.arrive(1, events(5, 2));
        tracker.begin(at(2), 0);
        assertEquals(3, tracker.arrive(1, events(3, 2)).get(0).firstSequence());
        assertEquals(List.of(), tracker.arrive(3, events(5, 2)));
        assertEquals(0, tracker.ackedSequence(2));
        assertEquals(4, tracker.ackedSequence(4));
    }

    @Test
    void forgettingLetsEverythingComeAgain() {
        tracker.arrive(1, events(1, 3));
        tracker.forget();
        assertTrue(tracker.ackedPosition(2).isEmpty());
        tracker.begin(at(0), 2);
        assertEquals(List.of(1, 2), numbers(tracker.arrive(1, events(1, 2))));
        assertEquals(0, tracker.ackedSequence(3));
        assertEquals(1, tracker.ackedSequence(4));
    }

    @Test
    void whatIsKeptWholeIsBoundedAndTheRestStillRecognised() {
        long each = events(1, 5).sizeBytes();
        long most = 3 * each + 1;
        DeliveryTracker bounded = begun(true, most);
        for (int first = 1; first <= 96; first += 5) {
            bounded.arrive(first, events(first, 5));
            assertEquals(Math.min(first / 5 + 1, 3) * each, bounded.wholeBytes());
        }
        assertEquals(7, bounded.ackedSequence(7));
        assertEquals(new BsonTimestamp(1007, 1), bounded.ackedPosition(7).clusterTime(), "of a reduced batch");
        bounded.begin(at(7), 7);
        assertEquals(0, bounded.wholeBytes());
        assertEquals(List.of(), bounded.arrive(1, events(8, 90)));
        assertEquals(90, bounded.ackedSequence(97));
        assertEquals(List.of(101), numbers(bounded.arrive(91, events(98, 4))));
        bounded.arrive(95, events(102, 5));
        assertEquals(each, bounded.wholeBytes());
        bounded.ackedSequence(106);
        assertEquals(0, bounded.wholeBytes());
        bounded.arrive(100, events(107, 5));
        bounded.forget();
        assertEquals(0, bounded.wholeBytes());
    }

    @Test
    void aBatchLargerThanTheBoundIsReducedAtOnce() {
        DeliveryTracker bounded = begun(true, 10);
        assertEquals(List.of(1, 2), numbers(bounded.arrive(1, events(1, 2))));
        assertEquals(0, bounded.wholeBytes());
    }

    @Test
    void whatIsAckedIsLetGoBeforeAnythingIsReduced() {
        long each = events(1, 5).sizeBytes();
        AtomicLong acked = new AtomicLong();
        DeliveryTracker bounded = begun(true, 3 * each, acked::get);
        bounded.arrive(1, events(1, 5));
        bounded.arrive(6, events(6, 5));
        bounded.arrive(11, events(11, 5));
        acked.set(10);
        bounded.arrive(16, events(16, 5));
        assertEquals(2 * each, bounded.wholeBytes());
    }

    @Test
    void aReducedBatchAnswersAsTheWholeOne() {
        ByteString without = Wire.encode(new Document("n", 2));
        ByteString undecodable = ByteString.copyFrom(new byte[] {9, 0, 0, 0, 77, 'x', 0, 0, 0});
        ByteString data = Wire.events(1, 1).concat(without).concat(undecodable).concat(Wire.events(4, 1));
        Batch batch = BsonBatch.over(data, 4, at(4), null);
        batch.number(7, this);
        UnackedBatch whole = UnackedBatch.whole(batch);
        assertEquals(batch.sizeBytes(), whole.wholeBytes());
        for (UnackedBatch each : List.of(whole.reduce(), whole.reduce().reduce())) {
            assertEquals(0, each.wholeBytes());
            assertAlike(whole, each);
            assertAlike(UnackedBatch.whole(batch.part(0, 2)), each.part(0, 2));
            assertAlike(UnackedBatch.whole(batch.part(1, 4)), each.part(1, 4));
            assertAlike(whole.part(1, 4), each.part(1, 4));
        }
    }

    private static void assertAlike(UnackedBatch expected, UnackedBatch found) {
        assertEquals(expected.size(), found.size());
        assertEquals(expected.firstSequence(), found.firstSequence());
        assertEquals(expected.lastSequence(), found.lastSequence());
        assertEquals(expected.feedPosition(), found.feedPosition());
        for (int index = 0; index < expected.size(); index++) {
            assertEquals(expected.key(index), found.key(index));
        }
    }

    @Test
    void anEventThatCannotBeDecodedStopsNoReconnect() {
        ByteString undecodable = ByteString.copyFrom(new byte[] {9, 0, 0, 0, 77, 'x', 0, 0, 0});
        Batch batch = BsonBatch.over(Wire.events(1, 1).concat(undecodable), 2, at(2), null);
        tracker.arrive(1, batch);
        assertThrows(ProtocolException.class, () -> batch.event(1).resumeToken());
        tracker.begin(at(0), 0);
        Batch again = BsonBatch.over(Wire.events(1, 1).concat(undecodable).concat(Wire.events(3, 1)), 3, at(3), null);
        List<Batch> fresh = tracker.arrive(1, again);
        assertEquals(2, fresh.get(0).size(), "without a token it cannot be recognised");
    }

    @Test
    void anInlineFeedKeepsNothing() {
        DeliveryTracker inline = begun(false);
        inline.arrive(1, events(1, 2));
        inline.begin(inline.latest(), 0);
        assertFalse(inline.expectsRepeats());
    }

    @Test
    void theTimeOfATokenThatIsNotUnderstoodIsNotCompared() {
        RawBsonDocument token = new RawBsonDocument(Wire.encode(Wire.token(5)).toByteArray());
        assertEquals(new BsonTimestamp(1005, 1), Tokens.timeOf(token));
        assertEquals(null, Tokens.timeOf(new org.bson.BsonDocument("_data", new BsonString("99"))));
        assertEquals(
                null, Tokens.timeOf(new org.bson.BsonDocument("_data", new BsonString("82rubbish_and_more_of_it"))));
    }

    /**
     * The server begins after the event that was acked when the stream was asked for, as far as its last one had come:
     * there could have been new events among what it had not repeated.
     */
    @RepeatedTest(100)
    void randomReconnectsGiveEveryEventOnceInOrder(RepetitionInfo run) {
        for (long wholeBytesMax : BUDGETS) {
            reconnectAtRandom(new Random(run.getCurrentRepetition()), begun(true, wholeBytesMax));
        }
    }

    private static void reconnectAtRandom(Random random, DeliveryTracker tracker) {
        List<Integer> seen = new ArrayList<>();
        int acked = 0;
        int begin = 0;
        while (seen.size() < 60) {
            int sequence = 1;
            for (int chunks = random.nextInt(6); chunks > 0; chunks--) {
                int count = 1 + random.nextInt(4);
                for (Batch fresh : tracker.arrive(sequence, events(begin + sequence, count))) {
                    assertEquals(seen.size() + 1, fresh.firstSequence());
                    seen.addAll(numbers(List.of(fresh)));
                }
                sequence += count;
                acked = random.nextBoolean() ? between(random, acked, seen.size()) : acked;
                // Sequence s of this stream is event begin + s: everything acked is covered, and nothing else.
                int covered = Math.min(Math.max(acked, begin), begin + sequence - 1);
                assertEquals(covered, begin + tracker.ackedSequence(acked));
            }
            int known = acked;
            int wanted = Math.min(known, begin + sequence - 1);
            begin = numberOf(tracker.ackedPosition(known));
            assertEquals(wanted, begin);
            acked = between(random, acked, seen.size());
            tracker.begin(at(begin), known);
        }
        assertEquals(IntStream.rangeClosed(1, seen.size()).boxed().toList(), seen);
    }

    /** After the filter was widened, a new event has a higher ordinal than the events after it. */
    @Test
    void anEventAmongRepeatsThatWasNotThereBeforeIsBegunBeforeUntilItIsAcked() {
        tracker.arrive(1, events(1, 2));
        tracker.arrive(3, events(4, 2));
        tracker.begin(at(2), 2);
        assertEquals(List.of(3), numbers(tracker.arrive(1, events(3, 3))));
        assertEquals(0, tracker.ackedSequence(4));
        assertEquals(at(2), tracker.ackedPosition(4), "3 is not acked");
        tracker.begin(at(2), 4);
        assertEquals(List.of(), tracker.arrive(1, events(3, 3)), "4 and 5 were acked, and are not handed out again");
        assertEquals(3, tracker.ackedSequence(5));
        assertEquals(at(5), tracker.ackedPosition(5));
    }

    /** All received unacked events come again when the next process begins where this process would. */
    @RepeatedTest(100)
    void randomReconnectsUnderAGrowingFilterLoseNothing(RepetitionInfo run) {
        for (long wholeBytesMax : BUDGETS) {
            widenAtRandom(new Random(run.getCurrentRepetition()), begun(true, wholeBytesMax));
        }
    }

    private static void widenAtRandom(Random random, DeliveryTracker tracker) {
        NavigableSet<Integer> shown = new TreeSet<>();
        List<Integer> received = new ArrayList<>();
        int acked = 0;
        int begin = 0;
        for (int round = 0; round < 12; round++) {
            random.ints(8, 1, 81).forEach(shown::add);
            List<Integer> coming = new ArrayList<>(shown.tailSet(begin, false));
            coming = coming.subList(0, random.nextInt(coming.size() + 1));
            for (int first = 0, count; first < coming.size(); first += count) {
                count = Math.min(coming.size() - first, between(random, 1, 4));
                received.addAll(numbers(tracker.arrive(first + 1, events(coming.subList(first, first + count)))));
                if (random.nextBoolean()) {
                    acked = between(random, acked, received.size());
                    tracker.ackedSequence(acked);
                }
            }
            begin = numberOf(tracker.ackedPosition(acked));
            for (int number : received.subList(acked, received.size())) {
                assertTrue(number > begin, "begins after " + begin + ", and " + number + " is not acked");
            }
            tracker.begin(at(begin), acked);
        }
        assertEquals(received.size(), Set.copyOf(received).size(), "handed out twice");
    }

    private static int numberOf(FeedPosition where) {
        return where.clusterTime() == null ? 0 : where.clusterTime().getTime() - 1000;
    }

    private static int between(Random random, int least, int most) {
        return least + random.nextInt(most - least + 1);
    }

    private static DeliveryTracker begun(boolean durable) {
        return begun(durable, Long.MAX_VALUE);
    }

    private static DeliveryTracker begun(boolean durable, long wholeBytesMax) {
        return begun(durable, wholeBytesMax, () -> 0);
    }

    private static DeliveryTracker begun(boolean durable, long wholeBytesMax, LongSupplier acked) {
        DeliveryTracker tracker = new DeliveryTracker(durable, new Object(), wholeBytesMax, acked);
        tracker.begin(at(0), 0);
        return tracker;
    }

    private static FeedPosition at(int number) {
        return new FeedPosition(
                Position.of(Wire.position(number)),
                Documents.raw(Wire.encode(Wire.token(number))),
                new BsonTimestamp(1000 + number, 1));
    }

    private static Batch events(int first, int count) {
        return BsonBatch.over(Wire.events(first, count), count, at(first + count - 1), null);
    }

    private static Batch events(List<Integer> numbers) {
        ByteString data =
                numbers.stream().map(number -> Wire.events(number, 1)).reduce(ByteString.EMPTY, ByteString::concat);
        return BsonBatch.over(data, numbers.size(), at(numbers.get(numbers.size() - 1)), null);
    }

    private static List<Integer> numbers(List<Batch> batches) {
        return batches.stream()
                .flatMap(batch -> batch.events().stream())
                .map(event -> event.document().getInteger("n"))
                .toList();
    }
}
