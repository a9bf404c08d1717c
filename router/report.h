/* report: what the router says on stderr at its start, and the line when it is ready. Main thread. */
#pragma once

struct server;
struct config;

void report_start(const struct server *s);
void report_ready(const struct server *s);
