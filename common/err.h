/* err: status codes, and the message that goes with one.
 *
 * A function that can fail returns an enum st (ST_OK is 0) and fills the struct err of its caller. The message
 * names the thing, what was wanted and what was found; it is one line: control characters in it become '?'.
 * Any thread; a struct err belongs to whoever holds it. */
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

enum st {
    ST_OK = 0,
    ST_INVAL,       // the caller's input is wrong: shape, range, syntax
    ST_NOMEM,       // no memory, on the host or on the device
    ST_IO,          // file, socket or process trouble
    ST_FULL,        // no room right now; asking again later can help
    ST_NOT_FOUND,   // no such name
    ST_UNSUPPORTED, // known, and not something this build or this checkpoint can do
    ST_CORRUPT,     // data that breaks its own format: checkpoint, frame
    ST_VERSION,     // peer or file of a version we do not speak
    ST_DEVICE,      // the accelerator failed
    ST_CLOSED,      // the other side has gone
    ST_CANCELLED,
    ST_TIMEOUT,
    ST_INTERNAL, // our own mistake, found in time
};

enum { ERR_MSG_BYTES = 1024 }; // a longer message is cut on a character border

struct err {
    enum st st;
    char msg[ERR_MSG_BYTES];
};

// Fills e (which may be NULL) and returns st, so that "return err_set(...)" reads well.
enum st err_set(struct err *e, enum st st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
enum st err_setv(struct err *e, enum st st, const char *fmt, va_list ap);
// As err_set with ST_IO (ST_NOMEM for ENOMEM, ST_NOT_FOUND for ENOENT), ": <text of errno>" at the end.
enum st err_errno(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// Puts "prefix: " before the message there is; the status stays. Returns that status.
enum st err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
