/* proxies: whose word counts about who asks: api.trusted_proxies (docs/http.md). Pure; read once, constant afterwards. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct err;
struct proxies; // defined in proxies.c
struct sockaddr;

enum { PROXIES_MAX = 256, PROXIES_ADDRESS_BYTES = 46 };

// list: addresses and networks (10.0.0.0/8, fd00::/8) split by commas, and "unix" for whoever comes by a unix socket. "":
// nobody is trusted.
int proxies_open(struct proxies **ret, const char *list, struct err *e);
void proxies_close(struct proxies *p);                                  // NULL is fine
bool proxies_trust(const struct proxies *p, const struct sockaddr *sa); // NULL sa: a unix socket

// The client's address behind a trusted peer, from one X-Forwarded-For or Forwarded field, several joined by commas: from
// the right, the first that is no trusted proxy itself. False: the field names none, or what stands there is no address.
bool proxies_client(const struct proxies *p, const char *field, size_t len, bool is_forwarded,
                    char ret[PROXIES_ADDRESS_BYTES]);
