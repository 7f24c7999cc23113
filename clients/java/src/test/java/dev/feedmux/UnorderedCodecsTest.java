package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.junit.jupiter.api.Test;

/** Equal maps and sets are encoded equally, whatever their classes do with the order. */
final class UnorderedCodecsTest {
    /** Not in the order of their hash codes. */
    private static final List<String> KEYS = List.of(
            "apple", "banana", "cherry", "date", "elder", "fig", "grape", "hazel", "iris", "juniper", "kiwi", "lemon");

    private static final List<String> REVERSED = reversed();

    private static List<String> reversed() {
        List<String> keys = new ArrayList<>(KEYS);
        Collections.reverse(keys);
        return keys;
    }

    private static <M extends Map<String, Object>> M filled(M map) {
        REVERSED.forEach(key -> map.put(key, 7));
        return map;
    }

    private static Document sorted() {
        Document document = new Document();
        KEYS.forEach(key -> document.append(key, 7));
        return document;
    }

    private static String sent(Object value) {
        Feed feed = Feed.builder()
                .pipeline(new Document("$match", value))
                .collation(new Document("value", value))
                .build();
        dev.feedmux.v1.Feed message = Messages.feed(feed, "main");
        String stage = json(message.getPipeline().getBson().toByteArray());
        String collation = json(message.getCollation().toByteArray());
        assertEquals(stage, "{\"pipeline\": [" + collation.replaceFirst("value", "\\$match") + "]}");
        return collation;
    }

    private static String json(byte[] bson) {
        return new RawBsonDocument(bson).toJson();
    }

    @Test
    void mapsWithoutAnOrderAreSorted() {
        Map<String, Object> given = filled(new HashMap<>());
        Set<Map<String, Object>> maps = Set.of(Map.copyOf(given), Map.copyOf(filled(new TreeMap<>(Map.of("more", 1)))));
        Properties properties = new Properties();
        properties.putAll(given);
        List<Map<?, ?>> unordered = List.of(
                given,
                filled(new HashMap<>(1_000)),
                Map.copyOf(given),
                REVERSED.stream().collect(Collectors.toUnmodifiableMap(key -> key, key -> 7)),
                filled(new ConcurrentHashMap<>()),
                properties,
                filled(new WeakHashMap<>()));
        for (Map<?, ?> map : unordered) {
            assertEquals(sent(sorted()), sent(map), map.getClass().getName());
            assertEquals(
                    sent(new Document("a", List.of(sorted(), new Document("b", sorted())))),
                    sent(Map.of("a", List.of(map, new LinkedHashMap<>(Map.of("b", map))))),
                    map.getClass().getName());
        }
        assertEquals(sent(List.of(sorted(), sorted().append("more", 1))), sent(maps));
    }

    @Test
    void setsWithoutAnOrderAreSorted() {
        Set<String> concurrent = ConcurrentHashMap.newKeySet();
        concurrent.addAll(REVERSED);
        for (Set<String> set : List.of(new HashSet<>(REVERSED), Set.copyOf(KEYS), concurrent)) {
            // By their bytes, which begin with the length.
            List<String> wanted = List.of(
                    "fig", "date", "iris", "kiwi", "apple", "elder", "grape", "hazel", "lemon", "banana", "cherry",
                    "juniper");
            assertEquals(sent(wanted), sent(set), set.getClass().getName());
        }
        assertEquals(sent(List.of("insert", "update")), sent(Set.of("update", "insert")));
        assertEquals(sent(Collections.singletonList(null)), sent(new HashSet<>(Collections.singletonList(null))));
    }

    @Test
    void whatHasAnOrderKeepsIt() {
        String reversed = sent(filled(new LinkedHashMap<>()));
        assertEquals(
                "{\"value\": {"
                        + REVERSED.stream().map(key -> "\"" + key + "\": 7").collect(Collectors.joining(", ")) + "}}",
                reversed);
        BsonDocument bson = new BsonDocument();
        REVERSED.forEach(key -> bson.append(key, new BsonInt32(7)));
        for (Map<?, ?> map : List.of(
                filled(new Document()),
                bson,
                filled(new TreeMap<>(Collections.reverseOrder())),
                Collections.unmodifiableMap(filled(new LinkedHashMap<>())))) {
            assertEquals(reversed, sent(map), map.getClass().getName());
        }
        for (Iterable<String> values : List.of(new LinkedHashSet<>(REVERSED), new ArrayList<>(REVERSED))) {
            assertEquals(sent(REVERSED), sent(values));
        }
        assertEquals(sent(KEYS), sent(new TreeSet<>(KEYS)));
    }

    @Test
    void keysAreStrings() {
        for (Map<?, ?> map :
                List.of(Map.of(1, 2), Map.of("a", 1, 2, 3), new HashMap<>(Collections.singletonMap(null, 1)))) {
            assertThrows(RuntimeException.class, () -> sent(map));
        }
    }
}
