/* keys: see keys.h. */
#include "router/keys.h"
#include "common/err.h"
#include "common/mem.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 4096 };

struct set {
    struct key **keys;
    size_t count;
    bool any_admin;
};

struct keys {
    char *file, *plain;
    pthread_mutex_t lock; // of the rest
    struct set set;
};

static void give(struct key *key) {
    if (--key->refs == 0) free(key);
}

static void set_fini(struct set *s) {
    for (size_t i = 0; i < s->count; i++) give(s->keys[i]);
    free(s->keys);
    *s = (struct set){0};
}

static int set_add(struct set *s, const struct key *key, const char *where, struct err *e) {
    if (s->count == KEYS_MAX)
        return err_set(e, ST_INVAL, "%s: wanted at most %d keys", where, KEYS_MAX);
    for (size_t i = 0; i < s->count; i++) {
        if (!strcmp(s->keys[i]->name, key->name))
            return err_set(e, ST_INVAL, "%s: the name '%s' comes twice", where, key->name);
        if (!memcmp(s->keys[i]->digest, key->digest, SHA256_BYTES))
            return err_set(e, ST_INVAL, "%s: '%s' and '%s' are the same key", where,
                           s->keys[i]->name, key->name);
    }
    s->keys = mem_realloc(s->keys, (s->count + 1) * sizeof(struct key *));
    struct key *copy = mem_alloc(sizeof *copy);
    *copy = *key;
    copy->refs = 1;
    s->keys[s->count++] = copy;
    s->any_admin |= key->is_admin;
    return ST_OK;
}

static void digest_of(const char *secret, size_t len, uint8_t ret[SHA256_BYTES]) {
    struct sha256 *h = sha256_new();
    sha256_add(h, secret, len);
    sha256_digest(h, ret);
    sha256_free(h);
}

/* ---- the file ---- */

static bool read_hex(const char *s, uint8_t ret[SHA256_BYTES]) {
    if (strlen(s) != 2 * SHA256_BYTES || strspn(s, "0123456789abcdefABCDEF") != 2 * SHA256_BYTES)
        return false;
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        unsigned byte;
        sscanf(s + 2 * i, "%2x", &byte);
        ret[i] = (uint8_t)byte;
    }
    return true;
}

static bool is_name(const char *s) {
    size_t n = strlen(s);
    if (n == 0 || n >= KEYS_NAME_BYTES) return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("_-.@", s[i])) return false;
    return true;
}

static bool read_whole(const char *s, long min, long max, long *ret) {
    char *end;
    long v = strtol(s, &end, 10);
    if (end == s || *end || v < min || v > max) return false;
    *ret = v;
    return true;
}

static int read_option(struct key *k, const char *o, const char *where, struct err *e) {
    long v;
    if (!strncmp(o, "priority_min=", 13) && read_whole(o + 13, -100, 100, &v)) {
        k->priority_min = v;
    } else if (!strncmp(o, "weight=", 7) && read_whole(o + 7, 1, 1000, &v)) {
        k->weight = (uint32_t)v;
    } else if (!strncmp(o, "models=", 7) && o[7] && strlen(o + 7) < KEYS_MODELS_BYTES) {
        strcpy(k->models, o + 7);
    } else {
        return err_set(e, ST_INVAL,
                       "%s: wanted priority_min=-100..100, weight=1..1000 or models=A|B, found "
                       "'%.60s'",
                       where, o);
    }
    return ST_OK;
}

// name:class:sha256hex[:option,...]
static int read_line(char *line, struct key *k, const char *where, struct err *e) {
    char *rest = line;
    char *name = strsep(&rest, ":"), *class = strsep(&rest, ":"), *hex = strsep(&rest, ":");
    *k = (struct key){.priority_min = INT64_MIN, .weight = 1};
    if (!is_name(name))
        return err_set(e, ST_INVAL, "%s: wanted a name of 1 to %d of A-Za-z0-9_-.@", where,
                       KEYS_NAME_BYTES - 1);
    strcpy(k->name, name);
    if (!class || (strcmp(class, "user") && strcmp(class, "admin")))
        return err_set(e, ST_INVAL, "%s: wanted the class user or admin, found '%.20s'", where,
                       class ? class : "nothing");
    k->is_admin = !strcmp(class, "admin");
    // What stands here by mistake may be the key itself: it is not shown.
    if (!hex || !read_hex(hex, k->digest))
        return err_set(e, ST_INVAL, "%s: wanted the 64 hex digits of the key's SHA-256", where);
    char *option;
    while ((option = strsep(&rest, ","))) {
        int st = read_option(k, option, where, e);
        if (st) return st;
    }
    return ST_OK;
}

static int read_file(struct set *s, const char *path, struct err *e) {
    char line[LINE_BYTES], where[600];
    FILE *f = fopen(path, "re");
    if (!f) return err_errno(e, "open auth.keys_file '%s'", path);
    int st = ST_OK;
    for (unsigned number = 1; !st && fgets(line, sizeof line, f); number++) {
        struct key k;
        snprintf(where, sizeof where, "auth.keys_file '%.500s', line %u", path, number);
        size_t n = strlen(line);
        if (n == sizeof line - 1 && line[n - 1] != '\n')
            st = err_set(e, ST_INVAL, "%s: wanted at most %d bytes", where, LINE_BYTES - 2);
        while (n && isspace((unsigned char)line[n - 1])) line[--n] = '\0';
        if (st || n == 0 || line[0] == '#') continue;
        st = read_line(line, &k, where, e);
        if (!st) st = set_add(s, &k, where, e);
    }
    if (!st && ferror(f)) st = err_errno(e, "read auth.keys_file '%s'", path);
    fclose(f);
    if (!st && s->count == 0)
        st = err_set(e, ST_INVAL, "auth.keys_file '%s': wanted at least one key, found none", path);
    return st;
}

static int read_plain(struct set *s, const char *plain, struct err *e) {
    unsigned number = 0;
    for (const char *at = plain; *at;) {
        size_t n = strcspn(at, ",");
        struct key k = {.priority_min = INT64_MIN, .weight = 1};
        snprintf(k.name, sizeof k.name, "key%u", ++number);
        if (n == 0 || n > KEYS_SECRET_BYTES_MAX)
            return err_set(e, ST_INVAL, "auth.keys: key %u: wanted 1 to %d bytes, found %zu",
                           number, KEYS_SECRET_BYTES_MAX, n);
        digest_of(at, n, k.digest);
        int st = set_add(s, &k, "auth.keys", e);
        if (st) return st;
        at += n + (at[n] == ',');
    }
    return ST_OK;
}

static int read_all(struct set *ret, const char *file, const char *plain, struct err *e) {
    struct set s = {0};
    int st = *file ? read_file(&s, file, e) : ST_OK;
    if (!st) st = read_plain(&s, plain, e);
    if (st)
        set_fini(&s);
    else
        *ret = s;
    return st;
}

/* ---- the set ---- */

int keys_open(struct keys **ret, const char *file, const char *plain, struct err *e) {
    struct set s;
    int st = read_all(&s, file, plain, e);
    if (st) return st;
    struct keys *k = mem_calloc(1, sizeof *k);
    k->file = mem_strdup(file);
    k->plain = mem_strdup(plain);
    k->set = s;
    pthread_mutex_init(&k->lock, NULL);
    *ret = k;
    return ST_OK;
}

void keys_close(struct keys *k) {
    if (!k) return;
    set_fini(&k->set);
    pthread_mutex_destroy(&k->lock);
    free(k->file);
    free(k->plain);
    free(k);
}

int keys_reload(struct keys *k, struct err *e) {
    struct set fresh, old;
    int st = read_all(&fresh, k->file, k->plain, e);
    if (st) return st;
    pthread_mutex_lock(&k->lock);
    old = k->set;
    k->set = fresh;
    set_fini(&old);
    pthread_mutex_unlock(&k->lock);
    return ST_OK;
}

static struct set look(const struct keys *k) {
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&k->lock;
    pthread_mutex_lock(lock);
    struct set s = k->set;
    pthread_mutex_unlock(lock);
    return s;
}

size_t keys_count(const struct keys *k) {
    return look(k).count;
}

bool keys_any(const struct keys *k) {
    return keys_count(k) > 0;
}

bool keys_any_admin(const struct keys *k) {
    return look(k).any_admin;
}

struct key *keys_take(struct keys *k, const char *secret, size_t len) {
    uint8_t digest[SHA256_BYTES];
    struct key *found = NULL;
    if (len > KEYS_SECRET_BYTES_MAX) return NULL;
    digest_of(secret, len, digest);
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < k->set.count; i++) {
        unsigned differ = 0;
        for (size_t b = 0; b < SHA256_BYTES; b++) differ |= digest[b] ^ k->set.keys[i]->digest[b];
        if (!differ) found = k->set.keys[i];
    }
    if (found) found->refs++;
    pthread_mutex_unlock(&k->lock);
    return found;
}

void keys_give(struct keys *k, struct key *key) {
    if (!key) return;
    pthread_mutex_lock(&k->lock);
    give(key);
    pthread_mutex_unlock(&k->lock);
}

bool key_allows_model(const struct key *key, const char *model) {
    size_t n = strlen(model);
    if (!*key->models) return true;
    for (const char *at = key->models; *at;) {
        size_t len = strcspn(at, "|");
        if (len == n && !memcmp(at, model, n)) return true;
        at += len + (at[len] == '|');
    }
    return false;
}
