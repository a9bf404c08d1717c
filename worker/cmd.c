/* cmd: see cmd.h. */
#include "worker/cmd.h"

#include <errno.h>
#include <stdio.h>

void cmd_complain(const char *name, const char *what) {
    fprintf(stderr, "%s%s%s: %s\n", program_invocation_short_name, *name ? " " : "", name, what);
}
