/* tls: see tls.h. */
#include "router/tls.h"
#include "common/err.h"

#include <h2o.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

static const char *reason(void) {
    unsigned long code = ERR_peek_last_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    return text ? text : "no reason given";
}

static int load(SSL_CTX *ctx, const char *cert, const char *key, struct err *e) {
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        return err_set(e, ST_INVAL, "api.tls_cert '%s': wanted a PEM certificate chain: %s", cert,
                       reason());
    if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        return err_set(e, ST_INVAL, "api.tls_key '%s': wanted the certificate's PEM key: %s", key,
                       reason());
    if (SSL_CTX_check_private_key(ctx) != 1)
        return err_set(e, ST_INVAL, "api.tls_key '%s' does not belong to '%s': %s", key, cert,
                       reason());
    return ST_OK;
}

int tls_open(struct ssl_ctx_st **ret, const char *cert, const char *key, struct err *e) {
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) return err_set(e, ST_NOMEM, "a TLS context: %s", reason());
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    h2o_ssl_register_alpn_protocols(ctx, h2o_alpn_protocols);
    int st = load(ctx, cert, key, e);
    if (st)
        SSL_CTX_free(ctx);
    else
        *ret = ctx;
    return st;
}
