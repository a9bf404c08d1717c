/* notify: what a service manager wants to be told, in systemd's sd_notify protocol: datagrams of NAME=value lines to the
 * unix socket that NOTIFY_SOCKET names. Without that variable every call does nothing. Any thread. */
#pragma once
#include <stdint.h>

// Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and takes them out of the environment: children of ours are not
// the service. Once, before there are threads.
void notify_init(void);
// A message may be lost (the manager's queue is full); it never blocks.
void notify_send(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// How often WATCHDOG=1 wants to be sent: a third of the manager's limit. 0: it does not watch.
uint64_t notify_watchdog_ms(void);
