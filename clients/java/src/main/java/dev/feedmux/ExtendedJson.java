package dev.feedmux;

import java.time.DateTimeException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.regex.Pattern;
import org.bson.BsonArray;
import org.bson.BsonBinary;
import org.bson.BsonBoolean;
import org.bson.BsonDateTime;
import org.bson.BsonDbPointer;
import org.bson.BsonDecimal128;
import org.bson.BsonDocument;
import org.bson.BsonDouble;
import org.bson.BsonInt32;
import org.bson.BsonInt64;
import org.bson.BsonJavaScript;
import org.bson.BsonJavaScriptWithScope;
import org.bson.BsonMaxKey;
import org.bson.BsonMinKey;
import org.bson.BsonNull;
import org.bson.BsonObjectId;
import org.bson.BsonRegularExpression;
import org.bson.BsonString;
import org.bson.BsonSymbol;
import org.bson.BsonTimestamp;
import org.bson.BsonUndefined;
import org.bson.BsonValue;
import org.bson.json.JsonParseException;
import org.bson.types.Decimal128;
import org.bson.types.ObjectId;
import org.jspecify.annotations.Nullable;

/**
 * Reads events in extended JSON.
 *
 * <p>{@code JsonReader} takes every object that begins with a name such as {@code $oid} for a value, but a document may
 * have such names itself. Here a value is only what the server writes for its type: exactly its names, and a text of its
 * form. Everything else is the document that it is.
 */
final class ExtendedJson {
    private static final int DEPTH_MAX = 1000;
    private static final Pattern NUMBER = Pattern.compile("-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?");
    private static final Pattern OBJECT_ID = Pattern.compile("[0-9a-f]{24}");
    private static final Pattern INTEGER = Pattern.compile("0|-?[1-9][0-9]{0,18}");
    private static final Pattern DOUBLE = Pattern.compile("-?[0-9]+(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|NaN|-?Infinity");
    private static final Pattern DATE =
            Pattern.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\\.[0-9]{3})?Z");
    private static final Pattern SUBTYPE = Pattern.compile("[0-9a-f]{2}");
    private static final int HEX = 16;
    private static final int UNICODE_DIGITS = 4;

    /** The form of each type that is written as an object with one name. Null if the content has another form. */
    private static final Map<String, Function<Object, @Nullable BsonValue>> FORMS = new HashMap<>();

    static {
        FORMS.put("$oid", ExtendedJson::objectId);
        FORMS.put("$symbol", content -> content instanceof String text ? new BsonSymbol(text) : null);
        FORMS.put("$code", content -> content instanceof String text ? new BsonJavaScript(text) : null);
        FORMS.put(
                "$numberInt",
                content -> matches(INTEGER, content) ? new BsonInt32(Integer.parseInt((String) content)) : null);
        FORMS.put(
                "$numberLong",
                content -> matches(INTEGER, content) ? new BsonInt64(Long.parseLong((String) content)) : null);
        FORMS.put(
                "$numberDouble",
                content -> matches(DOUBLE, content) ? new BsonDouble(Double.parseDouble((String) content)) : null);
        FORMS.put("$numberDecimal", ExtendedJson::decimal);
        FORMS.put("$date", ExtendedJson::date);
        FORMS.put("$binary", ExtendedJson::binary);
        FORMS.put("$regularExpression", ExtendedJson::regularExpression);
        FORMS.put("$timestamp", ExtendedJson::timestamp);
        FORMS.put("$dbPointer", ExtendedJson::dbPointer);
        FORMS.put("$undefined", content -> Boolean.TRUE.equals(content) ? new BsonUndefined() : null);
        FORMS.put("$minKey", content -> new Bare("1").equals(content) ? new BsonMinKey() : null);
        FORMS.put("$maxKey", content -> new Bare("1").equals(content) ? new BsonMaxKey() : null);
    }

    private final String text;
    private int at;

    /** A number without quotes. */
    private record Bare(String text) {}

    private ExtendedJson(String text) {
        this.text = text;
    }

    /** Returns the document in a text. Throws RuntimeExceptions of several kinds if there is none. */
    static BsonDocument parse(String text) {
        ExtendedJson reader = new ExtendedJson(text);
        Object value = reader.value(0);
        reader.skipSpace();
        if (!(value instanceof Map<?, ?> object) || reader.at < text.length()) {
            throw new JsonParseException("not a document");
        }
        return document(object);
    }

    /** Returns one member of a document, or null, without reading what follows it. Throws as {@link #parse}. */
    static @Nullable BsonValue member(String text, String wanted) {
        ExtendedJson reader = new ExtendedJson(text);
        reader.skipSpace();
        reader.expect("{");
        do {
            reader.skipSpace();
            if (reader.skip("}")) {
                return null;
            }
            String name = reader.name();
            Object value = reader.value(1);
            if (name.equals(wanted)) {
                return bson(value);
            }
            reader.skipSpace();
        } while (reader.skip(","));
        reader.expect("}");
        return null;
    }

    private Object value(int depth) {
        if (depth > DEPTH_MAX) {
            throw new JsonParseException("too many levels");
        }
        skipSpace();
        if (skip("{")) {
            return object(depth);
        }
        if (skip("[")) {
            return array(depth);
        }
        if (skip("\"")) {
            return string();
        }
        if (skip("true")) {
            return true;
        }
        if (skip("false")) {
            return false;
        }
        if (skip("null")) {
            return BsonNull.VALUE;
        }
        var number = NUMBER.matcher(text).region(at, text.length());
        if (!number.lookingAt()) {
            throw new JsonParseException("not JSON at character " + at);
        }
        at = number.end();
        return new Bare(number.group());
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> members = new LinkedHashMap<>();
        skipSpace();
        if (skip("}")) {
            return members;
        }
        do {
            skipSpace();
            String name = name();
            members.put(name, value(depth + 1));
            skipSpace();
        } while (skip(","));
        expect("}");
        return members;
    }

    private String name() {
        expect("\"");
        String name = string();
        skipSpace();
        expect(":");
        return name;
    }

    private List<Object> array(int depth) {
        List<Object> values = new ArrayList<>();
        skipSpace();
        if (skip("]")) {
            return values;
        }
        do {
            values.add(value(depth + 1));
            skipSpace();
        } while (skip(","));
        expect("]");
        return values;
    }

    private String string() {
        StringBuilder found = new StringBuilder();
        while (true) {
            int start = at;
            while (text.charAt(at) != '"' && text.charAt(at) != '\\') {
                at++;
            }
            found.append(text, start, at);
            if (text.charAt(at++) == '"') {
                return found.toString();
            }
            char escaped = text.charAt(at++);
            switch (escaped) {
                case 'b' -> found.append('\b');
                case 'f' -> found.append('\f');
                case 'n' -> found.append('\n');
                case 'r' -> found.append('\r');
                case 't' -> found.append('\t');
                case 'u' -> {
                    found.append((char) Integer.parseInt(text, at, at + UNICODE_DIGITS, HEX));
                    at += UNICODE_DIGITS;
                }
                default -> found.append(escaped);
            }
        }
    }

    private void skipSpace() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private boolean skip(String wanted) {
        boolean found = text.startsWith(wanted, at);
        at += found ? wanted.length() : 0;
        return found;
    }

    private void expect(String wanted) {
        if (!skip(wanted)) {
            throw new JsonParseException("no " + wanted + " at character " + at);
        }
    }

    private static BsonDocument document(Map<?, ?> members) {
        BsonDocument document = new BsonDocument();
        members.forEach((name, value) -> document.put((String) name, bson(value)));
        return document;
    }

    private static BsonValue bson(Object value) {
        if (value instanceof Map<?, ?> object) {
            BsonValue wrapped = wrapped(object);
            return wrapped == null ? document(object) : wrapped;
        }
        if (value instanceof List<?> list) {
            BsonArray array = new BsonArray();
            list.forEach(each -> array.add(bson(each)));
            return array;
        }
        if (value instanceof String string) {
            return new BsonString(string);
        }
        if (value instanceof Boolean flag) {
            return BsonBoolean.valueOf(flag);
        }
        return value instanceof Bare bare ? number(bare.text()) : BsonNull.VALUE;
    }

    /** A number of relaxed JSON, in which doubles have a fraction or an exponent. */
    private static BsonValue number(String text) {
        if (text.chars().anyMatch(each -> ".eE".indexOf(each) >= 0)) {
            return new BsonDouble(Double.parseDouble(text));
        }
        long value = Long.parseLong(text);
        return value == (int) value ? new BsonInt32((int) value) : new BsonInt64(value);
    }

    /** Returns the value that an object stands for; null if the object is a document. */
    private static @Nullable BsonValue wrapped(Map<?, ?> object) {
        if (hasNames(object, "$code", "$scope")) {
            return object.get("$code") instanceof String code && object.get("$scope") instanceof Map<?, ?> scope
                    ? new BsonJavaScriptWithScope(code, document(scope))
                    : null;
        }
        if (object.size() != 1) {
            return null;
        }
        var only = object.entrySet().iterator().next();
        Function<Object, @Nullable BsonValue> form = FORMS.get(only.getKey());
        if (form == null) {
            return null;
        }
        try {
            return form.apply(only.getValue());
        } catch (IllegalArgumentException | DateTimeException itsOwn) {
            return null;
        }
    }

    private static @Nullable BsonValue objectId(Object content) {
        return matches(OBJECT_ID, content) ? new BsonObjectId(new ObjectId((String) content)) : null;
    }

    private static @Nullable BsonValue decimal(Object content) {
        if (!(content instanceof String number)) {
            return null;
        }
        Decimal128 value = Decimal128.parse(number);
        return value.toString().equals(number) ? new BsonDecimal128(value) : null;
    }

    private static @Nullable BsonValue date(Object content) {
        if (matches(DATE, content)) {
            return new BsonDateTime(Instant.parse((String) content).toEpochMilli());
        }
        Object milliseconds = hasNames(content, "$numberLong") ? ((Map<?, ?>) content).get("$numberLong") : null;
        return matches(INTEGER, milliseconds) ? new BsonDateTime(Long.parseLong((String) milliseconds)) : null;
    }

    private static @Nullable BsonValue binary(Object content) {
        if (!hasNames(content, "base64", "subType")) {
            return null;
        }
        Object base64 = ((Map<?, ?>) content).get("base64");
        Object subtype = ((Map<?, ?>) content).get("subType");
        if (!(base64 instanceof String encoded) || !matches(SUBTYPE, subtype)) {
            return null;
        }
        byte[] bytes = Base64.getDecoder().decode(encoded);
        boolean isExact = Base64.getEncoder().encodeToString(bytes).equals(encoded);
        return isExact ? new BsonBinary((byte) Integer.parseInt((String) subtype, HEX), bytes) : null;
    }

    private static @Nullable BsonValue regularExpression(Object content) {
        if (!hasNames(content, "pattern", "options")) {
            return null;
        }
        Object pattern = ((Map<?, ?>) content).get("pattern");
        Object options = ((Map<?, ?>) content).get("options");
        return pattern instanceof String one && options instanceof String other && (one + other).indexOf('\0') < 0
                ? new BsonRegularExpression(one, other)
                : null;
    }

    private static @Nullable BsonValue timestamp(Object content) {
        if (!hasNames(content, "t", "i")) {
            return null;
        }
        Object seconds = ((Map<?, ?>) content).get("t");
        Object increment = ((Map<?, ?>) content).get("i");
        return seconds instanceof Bare t && increment instanceof Bare i
                ? new BsonTimestamp(Integer.parseUnsignedInt(t.text()), Integer.parseUnsignedInt(i.text()))
                : null;
    }

    private static @Nullable BsonValue dbPointer(Object content) {
        if (!hasNames(content, "$ref", "$id")) {
            return null;
        }
        Object namespace = ((Map<?, ?>) content).get("$ref");
        Object wrapped = ((Map<?, ?>) content).get("$id");
        Object id = hasNames(wrapped, "$oid") ? ((Map<?, ?>) wrapped).get("$oid") : null;
        return namespace instanceof String name && matches(OBJECT_ID, id)
                ? new BsonDbPointer(name, new ObjectId((String) id))
                : null;
    }

    private static boolean matches(Pattern pattern, @Nullable Object content) {
        return content instanceof String given && pattern.matcher(given).matches();
    }

    /** Whether a value is an object with exactly these names, in this order. */
    private static boolean hasNames(@Nullable Object value, String... names) {
        return value instanceof Map<?, ?> object && List.copyOf(object.keySet()).equals(List.of(names));
    }
}
