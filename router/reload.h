/* reload: what files hold, read again while the router runs: keys, the certificate, the --config file. What cannot be read
 * is named in the log and leaves what there was. Loop thread. */
#pragma once
#include "common/strbuf.h"

struct err;
struct server;

struct reload_news { // names of settings, split by spaces; zero-initialised, reload_news_fini frees
    struct strbuf changed;
    struct strbuf kept; // differ in the file, and change with a restart of the router alone
};

void reload_news_fini(struct reload_news *n);
// ST_OK: all was read; else e has the first that could not be.
int reload_all(struct server *s, struct reload_news *ret, struct err *e);
