package dev.feedmux;

import com.google.protobuf.ByteString;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Hashtable;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentHashMap;
import org.bson.BsonArray;
import org.bson.BsonDocument;
import org.bson.BsonReader;
import org.bson.BsonValue;
import org.bson.BsonWriter;
import org.bson.Document;
import org.bson.codecs.Codec;
import org.bson.codecs.DecoderContext;
import org.bson.codecs.EncoderContext;
import org.bson.codecs.configuration.CodecProvider;
import org.bson.codecs.configuration.CodecRegistries;
import org.bson.codecs.configuration.CodecRegistry;
import org.bson.conversions.Bson;
import org.jspecify.annotations.Nullable;

/**
 * Encodes maps and sets that have no order in a sorted one. The order of Map.of and Set.of differs from one run of a
 * program to the next, but the server compares the bytes of feeds.
 *
 * <p>A class that is unknown here may have an order that MongoDB depends on, so it keeps its own.
 */
final class UnorderedCodecs implements CodecProvider {
    private static final List<Class<?>> UNORDERED = List.of(
            Map.of(1, 1, 2, 2).getClass(),
            HashMap.class,
            ConcurrentHashMap.class,
            Hashtable.class,
            WeakHashMap.class,
            Set.of(1, 2).getClass(),
            Set.of(1, 2, 3).getClass(),
            HashSet.class,
            ConcurrentHashMap.KeySetView.class);
    private static final List<Class<?>> ORDERED = List.of(LinkedHashMap.class, LinkedHashSet.class);
    private static final CodecRegistry SORTING = CodecRegistries.fromRegistries(
            CodecRegistries.fromProviders(new UnorderedCodecs()), Bson.DEFAULT_CODEC_REGISTRY);

    private UnorderedCodecs() {}

    /** Returns a document for the stages or the collation of a feed. */
    static BsonDocument document(Bson document) {
        return document.toBsonDocument(BsonDocument.class, SORTING);
    }

    @Override
    public <T> @Nullable Codec<T> get(Class<T> type, CodecRegistry registry) {
        if (!isIn(UNORDERED, type) || isIn(ORDERED, type)) {
            return null;
        }
        return new Codec<>() {
            @Override
            public void encode(BsonWriter writer, T value, EncoderContext context) {
                if (value instanceof Map<?, ?> map) {
                    registry.get(TreeMap.class).encode(writer, new TreeMap<>(map), context);
                } else {
                    registry.get(BsonArray.class).encode(writer, sorted((Set<?>) value, registry), context);
                }
            }

            @Override
            public T decode(BsonReader reader, DecoderContext context) {
                throw new UnsupportedOperationException();
            }

            @Override
            public Class<T> getEncoderClass() {
                return type;
            }
        };
    }

    private static boolean isIn(List<Class<?>> types, Class<?> type) {
        return types.stream().anyMatch(one -> one.isAssignableFrom(type));
    }

    private static BsonArray sorted(Set<?> values, CodecRegistry registry) {
        Comparator<BsonValue> byBytes = Comparator.comparing(
                value -> Documents.encode(new BsonDocument("value", value)),
                ByteString.unsignedLexicographicalComparator());
        return new BsonArray(values.stream()
                .map(value -> new Document("value", value)
                        .toBsonDocument(BsonDocument.class, registry)
                        .get("value"))
                .sorted(byBytes)
                .toList());
    }
}
