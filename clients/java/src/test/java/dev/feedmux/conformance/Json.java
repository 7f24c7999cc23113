package dev.feedmux.conformance;

import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** Writes JSON. The bson library reads it. */
final class Json {
    /** Text that is already JSON. */
    record Raw(String text) {}

    private Json() {}

    static String write(Object value) {
        if (value instanceof Raw raw) {
            return raw.text();
        }
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream()
                    .map(each -> quote((String) each.getKey()) + ": " + write(each.getValue()))
                    .collect(Collectors.joining(", ", "{", "}"));
        }
        if (value instanceof List<?> list) {
            return list.stream().map(Json::write).collect(Collectors.joining(", ", "[", "]"));
        }
        return value instanceof String text ? quote(text) : String.valueOf(value);
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder(text.length() + 2).append('"');
        for (int index = 0; index < text.length(); index++) {
            char each = text.charAt(index);
            if (each == '"' || each == '\\') {
                quoted.append('\\').append(each);
            } else if (each < ' ') {
                quoted.append(String.format("\\u%04x", (int) each));
            } else {
                quoted.append(each);
            }
        }
        return quoted.append('"').toString();
    }
}
