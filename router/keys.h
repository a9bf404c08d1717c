/* keys: who may ask: the API keys of auth.keys_file and auth.keys (docs/http.md).
 *
 * The set is read on any thread and replaced whole by keys_reload, on the main one; a key that a request holds stays
 * until the request lets go of it. Only digests are kept. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/sha256.h"

struct err;
struct keys; // defined in keys.c

enum {
    KEYS_MAX = 4096,
    KEYS_NAME_BYTES = 65,
    KEYS_MODELS_BYTES = 1024,
    KEYS_SECRET_BYTES_MAX = 1024, // of a key as a client sends it
};

struct key {
    char name[KEYS_NAME_BYTES];
    bool is_admin;
    int64_t priority_min;           // a request's priority is raised to it; INT64_MIN: none
    uint32_t weight;                // share of a waiting queue; 1
    char models[KEYS_MODELS_BYTES]; // split by '|'; "": all
    uint8_t digest[SHA256_BYTES];
    uint32_t refs; // keys.c's, under its lock
};

// file: lines of name:class:sha256hex[:option,...]; plain: keys of class user in plain text, split by commas. Either
// may be "". A failure names the line, wanted and found.
int keys_open(struct keys **ret, const char *file, const char *plain, struct err *e);
void keys_close(struct keys *k);                // NULL is fine
int keys_reload(struct keys *k, struct err *e); // a failure leaves the old ones
bool keys_any(const struct keys *k);            // false: nobody is asked for a key
bool keys_any_admin(const struct keys *k);
size_t keys_count(const struct keys *k);

// The key with this secret, to be given back with keys_give; NULL: there is none. Takes the same time for every set.
struct key *keys_take(struct keys *k, const char *secret, size_t len);
void keys_give(struct keys *k, struct key *key); // NULL is fine
bool key_allows_model(const struct key *key, const char *model);
