/* err: see err.h. No state. */
#include "common/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

// A message that did not fit must not end inside a UTF-8 character.
static void cut_tail(char *msg) {
    size_t n = strlen(msg);
    if (n < ERR_MSG_BYTES - 1) return;
    size_t i = n;
    while (i > 0 && ((unsigned char)msg[i - 1] & 0xc0) == 0x80) i--;
    if (i > 0 && (unsigned char)msg[i - 1] >= 0xc0) i--;
    msg[i] = '\0';
}

// Names and excerpts in a message can hold anything; a message is one line.
static void keep_one_line(char *msg) {
    for (; *msg; msg++)
        if ((unsigned char)*msg < 0x20 || *msg == 0x7f) *msg = '?';
}

enum st err_setv(struct err *e, enum st st, const char *fmt, va_list ap) {
    if (!e) return st;
    e->st = st;
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    cut_tail(e->msg);
    keep_one_line(e->msg);
    return st;
}

enum st err_set(struct err *e, enum st st, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    err_setv(e, st, fmt, ap);
    va_end(ap);
    return st;
}

enum st err_errno(struct err *e, const char *fmt, ...) {
    int no = errno;
    enum st st = no == ENOMEM ? ST_NOMEM : no == ENOENT ? ST_NOT_FOUND : ST_IO;
    if (!e) return st;
    va_list ap;
    va_start(ap, fmt);
    err_setv(e, st, fmt, ap);
    va_end(ap);
    size_t n = strlen(e->msg);
    snprintf(e->msg + n, sizeof e->msg - n, ": %s", strerror(no));
    return st;
}

enum st err_prefix(struct err *e, const char *fmt, ...) {
    if (!e) return ST_INTERNAL;
    char old[ERR_MSG_BYTES];
    memcpy(old, e->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    size_t n = strlen(e->msg);
    snprintf(e->msg + n, sizeof e->msg - n, ": %s", old);
    cut_tail(e->msg);
    keep_one_line(e->msg);
    return e->st;
}
