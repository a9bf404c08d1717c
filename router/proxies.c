/* proxies: see proxies.h. */
#include "router/proxies.h"
#include "common/err.h"
#include "common/mem.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

struct address { // IPv4 as ::ffff:a.b.c.d
    uint8_t bytes[16];
};
struct network {
    struct address address;
    unsigned bits;
};
struct proxies {
    bool unix_peers;
    size_t count;
    struct network networks[PROXIES_MAX];
};

enum { V4_BITS = 96 }; // in front of the IPv4 part

static bool read_address(const char *text, struct address *ret, bool *ret_v4) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    memcpy(ret->bytes, mapped, sizeof mapped);
    *ret_v4 = inet_pton(AF_INET, text, ret->bytes + sizeof mapped) == 1;
    return *ret_v4 || inet_pton(AF_INET6, text, ret->bytes) == 1;
}

static bool address_of(const struct sockaddr *sa, struct address *ret) {
    char text[INET6_ADDRSTRLEN];
    bool v4;
    if (sa->sa_family == AF_INET6) {
        memcpy(ret->bytes, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr, 16);
        return true;
    }
    return sa->sa_family == AF_INET &&
           inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, text,
                     sizeof text) &&
           read_address(text, ret, &v4);
}

static bool is_within(const struct network *n, const struct address *a) {
    unsigned whole = n->bits / 8, rest = n->bits % 8;
    if (memcmp(n->address.bytes, a->bytes, whole)) return false;
    return !rest || !((n->address.bytes[whole] ^ a->bytes[whole]) >> (8 - rest));
}

static bool trusts(const struct proxies *p, const struct address *a) {
    for (size_t i = 0; i < p->count; i++)
        if (is_within(&p->networks[i], a)) return true;
    return false;
}

bool proxies_trust(const struct proxies *p, const struct sockaddr *sa) {
    struct address a;
    if (!sa) return p->unix_peers;
    return address_of(sa, &a) && trusts(p, &a);
}

/* ---- the setting ---- */

static bool read_bits(const char *s, unsigned max, unsigned *ret) {
    char *end;
    long v = strtol(s, &end, 10);
    if (*s < '0' || *s > '9' || *end || v < 0 || v > (long)max) return false;
    *ret = (unsigned)v;
    return true;
}

static bool read_network(char *text, struct network *ret) {
    char *slash = strchr(text, '/');
    bool v4;
    if (slash) *slash++ = '\0';
    if (!read_address(text, &ret->address, &v4)) return false;
    ret->bits = v4 ? 32 : 128;
    if (slash && !read_bits(slash, ret->bits, &ret->bits)) return false;
    if (v4) ret->bits += V4_BITS;
    return true;
}

static int read_item(struct proxies *p, const char *item, size_t len, struct err *e) {
    char text[64];
    while (len && *item == ' ') item++, len--;
    while (len && item[len - 1] == ' ') len--;
    snprintf(text, sizeof text, "%.*s", (int)(len < sizeof text ? len : sizeof text), item);
    if (!strcmp(text, "unix")) {
        p->unix_peers = true;
        return ST_OK;
    }
    if (p->count == PROXIES_MAX)
        return err_set(e, ST_INVAL, "api.trusted_proxies: wanted at most %d", PROXIES_MAX);
    if (!read_network(text, &p->networks[p->count]))
        return err_set(e, ST_INVAL,
                       "api.trusted_proxies: wanted addresses, networks (10.0.0.0/8) or unix, "
                       "split by commas, found '%.*s'",
                       (int)(len < 60 ? len : 60), item);
    p->count++;
    return ST_OK;
}

int proxies_open(struct proxies **ret, const char *list, struct err *e) {
    struct proxies *p = mem_calloc(1, sizeof *p);
    int st = ST_OK;
    for (bool more = *list; more && !st;) {
        size_t n = strcspn(list, ",");
        st = read_item(p, list, n, e);
        more = list[n] == ',';
        list += n + more;
    }
    if (st)
        proxies_close(p);
    else
        *ret = p;
    return st;
}

void proxies_close(struct proxies *p) {
    free(p);
}

/* ---- the fields ---- */

struct span {
    const char *p;
    size_t len;
};

static struct span trim(struct span s) {
    while (s.len && (*s.p == ' ' || *s.p == '\t')) s.p++, s.len--;
    while (s.len && (s.p[s.len - 1] == ' ' || s.p[s.len - 1] == '\t')) s.len--;
    return s;
}

// RFC 7239: for=192.0.2.60;proto=http, for="[2001:db8::1]:4711". len 0: none.
static struct span for_of(struct span element) {
    while (element.len) {
        const char *semicolon = memchr(element.p, ';', element.len);
        size_t n = semicolon ? (size_t)(semicolon - element.p) : element.len;
        struct span pair = trim((struct span){element.p, n});
        if (pair.len > 4 && !strncasecmp(pair.p, "for=", 4)) {
            struct span v = {pair.p + 4, pair.len - 4};
            if (v.len >= 2 && *v.p == '"' && v.p[v.len - 1] == '"') v.p++, v.len -= 2;
            return v;
        }
        n += semicolon != NULL;
        element.p += n, element.len -= n;
    }
    return (struct span){"", 0};
}

// 192.0.2.1, 192.0.2.1:80, 2001:db8::1, [2001:db8::1], [2001:db8::1]:80.
static bool read_node(struct span s, struct address *ret) {
    char text[PROXIES_ADDRESS_BYTES + 8];
    bool v4;
    const char *close = s.len && *s.p == '[' ? memchr(s.p, ']', s.len) : NULL;
    const char *colon = memchr(s.p, ':', s.len);
    if (close)
        s = (struct span){s.p + 1, (size_t)(close - s.p) - 1};
    else if (colon && !memchr(colon + 1, ':', s.len - (size_t)(colon + 1 - s.p)))
        s.len = (size_t)(colon - s.p);
    if (s.len == 0 || s.len >= sizeof text) return false;
    snprintf(text, sizeof text, "%.*s", (int)s.len, s.p);
    return strlen(text) == s.len && read_address(text, ret, &v4);
}

static void print_address(const struct address *a, char ret[PROXIES_ADDRESS_BYTES]) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (!memcmp(a->bytes, mapped, sizeof mapped))
        inet_ntop(AF_INET, a->bytes + sizeof mapped, ret, PROXIES_ADDRESS_BYTES);
    else
        inet_ntop(AF_INET6, a->bytes, ret, PROXIES_ADDRESS_BYTES);
}

bool proxies_client(const struct proxies *p, const char *field, size_t len, bool is_forwarded,
                    char ret[PROXIES_ADDRESS_BYTES]) {
    struct address found;
    bool any = false;
    for (size_t end = len + 1; end > 0;) { // end: one behind the element's end, at its comma
        size_t at = end - 1;
        while (at > 0 && field[at - 1] != ',') at--;
        struct span node = trim((struct span){field + at, end - 1 - at});
        if (is_forwarded) node = for_of(node);
        // What stands left of something that no proxy of ours would write is the client's own claim.
        if (!read_node(node, &found)) break;
        any = true;
        print_address(&found, ret);
        if (!trusts(p, &found)) break;
        end = at;
    }
    return any;
}
