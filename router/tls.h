/* tls: the server's certificate and key as an OpenSSL context: TLS 1.2 and later, ALPN h2 and http/1.1. */
#pragma once

struct err;
struct ssl_ctx_st; // OpenSSL's SSL_CTX

// A failure names the file and OpenSSL's reason. The caller frees with SSL_CTX_free; connections keep theirs alive.
int tls_open(struct ssl_ctx_st **ret, const char *cert, const char *key, struct err *e);
