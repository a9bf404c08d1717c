/* exit_code: what a worker's exit code says. The router and other supervisors go by it: after USAGE, MODEL and REFUSED the
 * same process would end the same way again. */
#pragma once

enum exit_code {
    EXIT_CODE_OK = 0,
    EXIT_CODE_HURRIED = 1,     // told to end a second time, or a subcommand failed
    EXIT_CODE_USAGE = 2,       // flags, settings file, a file that a setting names
    EXIT_CODE_MODEL = 3,       // the checkpoint: missing, broken, not one we run
    EXIT_CODE_REFUSED = 4,     // the router does not want this worker: version, model, rank
    EXIT_CODE_ROUTER_GONE = 5, // a supervised worker outlives its router
    EXIT_CODE_DEVICE = 6,      // the device failed or fell off
    EXIT_CODE_MEMORY = 7,      // the model or the asked context does not fit
};
