/* h2heads: see h2heads.h. Frames: RFC 9113, 4.1 and 6.2. */
#include "router/h2heads.h"
#include "common/err.h"
#include "common/num.h"
#include "common/planted.h"
#include "router/listen.h"

enum {
    HEADERS = 1,
    CONTINUATION = 9,
    END_HEADERS = 4,
    PADDED = 8,
    PRIORITY = 32,
    PRIORITY_BYTES = 5,
    SHIFT_MAX = 28, // longer numbers are h2o's to refuse
};

// Behind the first byte's prefix, and behind the bytes that go on with its number.
static void after_index(struct h2heads *h) {
    h->field = h->strings ? H2HEADS_LENGTH : H2HEADS_FIRST;
}

static void after_length(struct h2heads *h) {
    if (h->text) {
        h->field = H2HEADS_TEXT;
        return;
    }
    h->strings--;
    after_index(h);
}

// An index alone; the tables' size; a name, known by its index or not, and a value.
static void first_byte(struct h2heads *h, uint8_t b) {
    bool indexed = b & 0x80, kept = !indexed && b & 0x40, size = !indexed && !kept && b & 0x20;
    uint8_t mask = indexed ? 0x7f : kept ? 0x3f : size ? 0x1f : 0x0f;
    h->fields += !size;
    h->strings = indexed || size ? 0 : b & mask ? 1 : 2;
    h->field = H2HEADS_INDEX;
    if ((b & mask) != mask) after_index(h);
}

static void first_of_length(struct h2heads *h, uint8_t b) {
    h->text = b & 0x7f;
    h->shift = 0;
    h->field = H2HEADS_LENGTH_MORE;
    if (h->text != 0x7f) after_length(h);
}

static void more_of_length(struct h2heads *h, uint8_t b) {
    if (h->shift <= SHIFT_MAX || PLANTED) h->text += (uint64_t)(b & 0x7f) << h->shift;
    h->shift += 7;
    if (!(b & 0x80)) after_length(h);
}

static size_t take_text(struct h2heads *h, size_t len) {
    size_t n = (size_t)min_u64(h->text, len);
    h->text -= n;
    if (!h->text) after_length(h);
    return n;
}

static void take_block(struct h2heads *h, const uint8_t *p, size_t len) {
    h->bytes += len;
    for (size_t i = 0; i < len; i++) switch (h->field) {
        case H2HEADS_FIRST: first_byte(h, p[i]); break;
        case H2HEADS_INDEX:
            if (!(p[i] & 0x80)) after_index(h);
            break;
        case H2HEADS_LENGTH: first_of_length(h, p[i]); break;
        case H2HEADS_LENGTH_MORE: more_of_length(h, p[i]); break;
        case H2HEADS_TEXT: i += take_text(h, len - i) - 1; break;
        }
}

static void next_frame(struct h2heads *h) {
    if (h->frame[3] == HEADERS || h->frame[3] == CONTINUATION)
        h->open = !(h->frame[4] & END_HEADERS);
    h->part = H2HEADS_FRAME;
    h->seen = 0;
}

static void begin_frame(struct h2heads *h) {
    uint8_t flags = h->frame[4];
    bool head = h->frame[3] == HEADERS;
    h->left = (uint32_t)h->frame[0] << 16 | (uint32_t)h->frame[1] << 8 | h->frame[2];
    h->padding = 0;
    h->seen = 0;
    if (head) {
        h->fields = 0;
        h->bytes = 0;
        h->field = H2HEADS_FIRST;
    }
    h->part = head && flags & PADDED                             ? H2HEADS_PADDING
              : head && flags & PRIORITY                         ? H2HEADS_PRIORITY
              : head || (h->frame[3] == CONTINUATION && h->open) ? H2HEADS_BLOCK
                                                                 : H2HEADS_REST;
}

static void take_padding(struct h2heads *h, uint8_t count) {
    h->padding = count;
    h->seen = 0;
    h->part = h->frame[4] & PRIORITY ? H2HEADS_PRIORITY : H2HEADS_BLOCK;
}

// At least one byte of the frame's payload; returns how many.
static size_t take_payload(struct h2heads *h, const uint8_t *p, size_t len) {
    size_t n = min_size(len, h->left);
    if (h->part == H2HEADS_PADDING) {
        take_padding(h, *p);
        n = 1;
    } else if (h->part == H2HEADS_PRIORITY) {
        n = min_size(n, PRIORITY_BYTES - h->seen);
        h->seen += (uint32_t)n;
        if (h->seen == PRIORITY_BYTES) h->part = H2HEADS_BLOCK;
    } else if (h->part == H2HEADS_BLOCK && h->left > h->padding) {
        n = min_size(n, h->left - h->padding);
        take_block(h, p, n);
    }
    h->left -= (uint32_t)n;
    return n;
}

static size_t take_some(struct h2heads *h, const uint8_t *p, size_t len) {
    if (h->part == H2HEADS_PREFACE) {
        size_t n = min_size(len, H2HEADS_PREFACE_BYTES - h->seen);
        h->seen += (uint32_t)n;
        if (h->seen == H2HEADS_PREFACE_BYTES) next_frame(h);
        return n;
    }
    if (h->part == H2HEADS_FRAME) {
        h->frame[h->seen++] = *p;
        if (h->seen < H2HEADS_FRAME_BYTES) return 1;
        begin_frame(h);
        if (!h->left) next_frame(h);
        return 1;
    }
    size_t n = take_payload(h, p, len);
    if (!h->left) next_frame(h);
    return n;
}

int h2heads_take(struct h2heads *h, const void *in, size_t len, const struct http_limits *limits) {
    const uint8_t *p = in;
    for (size_t at = 0; at < len;) {
        at += take_some(h, p + at, len - at);
        if (h->fields > H2HEADS_FACTOR * limits->fields_max ||
            h->bytes > H2HEADS_FACTOR * limits->head_bytes_max)
            return ST_INVAL;
    }
    return ST_OK;
}
