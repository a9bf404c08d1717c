/* hangup: ends the connections of one unix socket path from our side, whoever owns their descriptors.
 *
 * nng 1.5.2 can wait for ever in nng_close when a message arrives at that very moment: the receive that the close
 * cancels is between two reads, and nobody completes it (nng issues 1543, 1813). It has no such trouble with a
 * connection that ends. So before a socket with a live peer is closed, its connection is shut down here and its end
 * awaited (NNG_PIPE_EV_REM_POST); what is then closed is at rest. Any thread. */
#pragma once

// url: "ipc://PATH". Shuts down every connection of this process whose own or other end is bound to PATH; listeners are
// left alone. Returns how many there were.
int hangup_url(const char *url);
