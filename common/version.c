/* version: see version.h. The one file that is compiled again when the commit changes. */
#include "common/version.h"
#include "commit.h"
#include "version_conf.h"

const char *version_string(void) {
    return RAILYARD_VERSION;
}

const char *version_commit(void) {
    return RAILYARD_COMMIT;
}
