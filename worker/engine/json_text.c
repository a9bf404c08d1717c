/* json_text: see json_text.h. */
#include "worker/engine/json_text.h"

#include <stdio.h>
#include <string.h>

const char *json_text_clean(char ret[JSON_TEXT_BYTES], const char *s) {
    size_t n = strlen(s), room = JSON_TEXT_BYTES - sizeof "...";
    if (n > room) {
        n = room;
        while (n && ((unsigned char)s[n] & 0xc0) == 0x80) n--;
    }
    for (size_t i = 0; i < n; i++)
        ret[i] = (unsigned char)s[i] < 0x20 || (unsigned char)s[i] == 0x7f ? '?' : s[i];
    strcpy(ret + n, s[n] ? "..." : "");
    return ret;
}

const char *json_text_kind(const json_t *v) {
    if (!v) return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a truth value";
    case JSON_NULL: return "null";
    }
    return "something else";
}

const char *json_text(char ret[JSON_TEXT_BYTES], const json_t *v) {
    char raw[JSON_TEXT_BYTES * 2];
    // Only a short list is worth showing; dumping a hostile megabyte for a message is not.
    if (!v || json_is_object(v) || (json_is_array(v) && json_array_size(v) > 8))
        return json_text_clean(ret, json_text_kind(v));
    if (json_is_string(v)) {
        char body[JSON_TEXT_BYTES];
        json_text_clean(body, json_string_value(v));
        snprintf(raw, sizeof raw, "\"%s\"", body);
        return json_text_clean(ret, raw);
    }
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_number(json_array_get(v, i)))
            return json_text_clean(ret, "a list with other things than numbers");
    size_t n = json_dumpb(v, raw, sizeof raw - 1, JSON_ENCODE_ANY);
    raw[n < sizeof raw ? n : 0] = '\0';
    return json_text_clean(ret, n < sizeof raw ? raw : json_text_kind(v));
}
