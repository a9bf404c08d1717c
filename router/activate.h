/* activate: listening sockets that a service manager opened for us (systemd's LISTEN_FDS; docs/http.md). Main thread. */
#pragma once

// Reads LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES and takes them out of the environment: children of ours are not meant.
// Once, before there are threads.
void activate_init(void);
// The socket of that name ("api", "ops"), the caller's from now on; -1: none. Without names the first is api, the second ops.
int activate_take(const char *name);
void activate_close_rest(void); // what nobody took, with a line in the log for each
