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
import java.util.stream.IntStream;
import org.bson.BsonString;
import org.bson.BsonTimestamp;
import org.bson.RawBsonDocument;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.RepetitionInfo;
import org.junit.jupiter.api.Test;

final class LedgerTest {
    private final Ledger ledger = begun(true);

    @Test
    void numbersEventsFromOneAndFindsGaps() {
        Batch first = ledger.arrive(1, events(1, 3)).get(0);
        Batch second = ledger.arrive(4, events(4, 1)).get(0);
        assertEquals(List.of(1L, 3L, 4L), List.of(first.firstSequence(), first.lastSequence(), second.firstSequence()));
        assertEquals(at(4), ledger.latest());
        assertThrows(ProtocolException.class, () -> ledger.arrive(6, events(6, 1)));
    }

    @Test
    void acksSayWhereToBeginAgain() {
        assertEquals(at(0), ledger.ackedPlace(0));
        ledger.arrive(1, events(1, 3));
        ledger.arrive(4, events(4, 2));
        assertEquals(2, ledger.ackedSequence(2));
        Place middle = ledger.ackedPlace(2);
        assertTrue(middle.position().isEmpty());
        assertEquals(new BsonTimestamp(1002, 1), middle.clusterTime());
        assertEquals(at(3), ledger.ackedPlace(3));
        assertEquals(5, ledger.ackedSequence(5));
        ledger.progress(at(9));
        assertEquals(at(9), ledger.ackedPlace(5));
    }

    @Test
    void whereATokenIsMissingTheLastKnownPlaceCounts() {
        ledger.arrive(1, events(1, 2));
        ledger.arrive(3, new JsonBatch(List.of("{\"n\":3}", "{\"n\":4}"), at(4), null).part(0, 1));
        ledger.arrive(4, events(5, 1));
        assertEquals(at(2), ledger.ackedPlace(3), "nothing is made up");
    }

    @Test
    void thePlaceOfATokenHasItsTime() {
        ledger.arrive(1, events(1, 2).part(0, 1));
        ledger.arrive(2, events(2, 1));
        assertEquals(at(1).clusterTime(), ledger.ackedPlace(1).clusterTime());
    }

    @Test
    void progressPastAllRepeatsEndsTheWaitForThem() {
        ledger.arrive(1, events(1, 3));
        ledger.begin(at(5), 1);
        ledger.progress(at(3));
        assertTrue(ledger.expectsRepeats());
        ledger.progress(at(5));
        assertFalse(ledger.expectsRepeats(), "the stored position was moved forward meanwhile");
        assertEquals(at(5), ledger.latest());
    }

    @Test
    void repeatsAreDroppedAndTheirAcksMapped() {
        ledger.arrive(1, events(1, 3));
        ledger.arrive(4, events(4, 2));
        ledger.begin(at(2), 2);
        assertEquals(0, ledger.ackedSequence(4));
        assertEquals(List.of(), ledger.arrive(1, events(3, 2)));
        assertEquals(2, ledger.ackedSequence(4));
        ledger.progress(at(4));
        assertEquals(at(5), ledger.latest(), "progress among repeats moves nothing");
        List<Batch> fresh = ledger.arrive(3, events(5, 3));
        assertEquals(List.of(6, 7), numbers(fresh));
        assertEquals(6, fresh.get(0).firstSequence());
        assertFalse(ledger.expectsRepeats());
        assertEquals(4, ledger.ackedSequence(6));
    }

    @Test
    void aLaterEventEndsTheDropping() {
        ledger.arrive(1, events(1, 2));
        ledger.begin(at(0), 0);
        assertEquals(List.of(7), numbers(ledger.arrive(1, events(7, 1))));
        assertFalse(ledger.expectsRepeats());
        assertEquals(1, ledger.ackedSequence(3));
    }

    @Test
    void afterARewindOlderEventsComeFirstAndHoldBackTheAck() {
        ledger.arrive(1, events(5, 2));
        ledger.begin(at(2), 0);
        assertEquals(3, ledger.arrive(1, events(3, 2)).get(0).firstSequence());
        assertEquals(List.of(), ledger.arrive(3, events(5, 2)));
        assertEquals(0, ledger.ackedSequence(2));
        assertEquals(4, ledger.ackedSequence(4));
    }

    @Test
    void forgettingLetsEverythingComeAgain() {
        ledger.arrive(1, events(1, 3));
        ledger.forget();
        assertTrue(ledger.ackedPlace(2).isNowhere());
        ledger.begin(at(0), 2);
        assertEquals(List.of(1, 2), numbers(ledger.arrive(1, events(1, 2))));
        assertEquals(0, ledger.ackedSequence(3));
        assertEquals(1, ledger.ackedSequence(4));
    }

    @Test
    void anInlineFeedKeepsNothing() {
        Ledger inline = begun(false);
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
        Random random = new Random(run.getCurrentRepetition());
        List<Integer> seen = new ArrayList<>();
        int acked = 0;
        int begin = 0;
        while (seen.size() < 60) {
            int sequence = 1;
            for (int chunks = random.nextInt(6); chunks > 0; chunks--) {
                int count = 1 + random.nextInt(4);
                for (Batch fresh : ledger.arrive(sequence, events(begin + sequence, count))) {
                    assertEquals(seen.size() + 1, fresh.firstSequence());
                    seen.addAll(numbers(List.of(fresh)));
                }
                sequence += count;
                acked = random.nextBoolean() ? between(random, acked, seen.size()) : acked;
                // Sequence s of this stream is event begin + s: everything acked is covered, and nothing else.
                int covered = Math.min(Math.max(acked, begin), begin + sequence - 1);
                assertEquals(covered, begin + ledger.ackedSequence(acked));
            }
            int known = acked;
            int wanted = Math.min(known, begin + sequence - 1);
            begin = numberOf(ledger.ackedPlace(known));
            assertEquals(wanted, begin);
            acked = between(random, acked, seen.size());
            ledger.begin(at(begin), known);
        }
        assertEquals(IntStream.rangeClosed(1, seen.size()).boxed().toList(), seen);
    }

    /** The filter was widened. Its ordinal is higher than those of the events after it. */
    @Test
    void anEventAmongRepeatsThatWasNotThereBeforeIsBegunBeforeUntilItIsAcked() {
        ledger.arrive(1, events(1, 2));
        ledger.arrive(3, events(4, 2));
        ledger.begin(at(2), 2);
        assertEquals(List.of(3), numbers(ledger.arrive(1, events(3, 3))));
        assertEquals(0, ledger.ackedSequence(4));
        assertEquals(at(2), ledger.ackedPlace(4), "3 is not acked");
        ledger.begin(at(2), 4);
        assertEquals(List.of(), ledger.arrive(1, events(3, 3)), "4 and 5 were acked, and are not handed out again");
        assertEquals(3, ledger.ackedSequence(5));
        assertEquals(at(5), ledger.ackedPlace(5));
    }

    /** Whatever was received and is not acked comes again when the next process begins where this one would. */
    @RepeatedTest(100)
    void randomReconnectsUnderAGrowingFilterLoseNothing(RepetitionInfo run) {
        Random random = new Random(run.getCurrentRepetition());
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
                received.addAll(numbers(ledger.arrive(first + 1, events(coming.subList(first, first + count)))));
                if (random.nextBoolean()) {
                    acked = between(random, acked, received.size());
                    ledger.ackedSequence(acked);
                }
            }
            begin = numberOf(ledger.ackedPlace(acked));
            for (int number : received.subList(acked, received.size())) {
                assertTrue(number > begin, "begins after " + begin + ", and " + number + " is not acked");
            }
            ledger.begin(at(begin), acked);
        }
        assertEquals(received.size(), Set.copyOf(received).size(), "handed out twice");
    }

    private static int numberOf(Place where) {
        return where.clusterTime() == null ? 0 : where.clusterTime().getTime() - 1000;
    }

    private static int between(Random random, int least, int most) {
        return least + random.nextInt(most - least + 1);
    }

    private static Ledger begun(boolean durable) {
        Ledger ledger = new Ledger(durable, new Object());
        ledger.begin(at(0), 0);
        return ledger;
    }

    private static Place at(int number) {
        return new Place(
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
