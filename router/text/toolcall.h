/* toolcall: the calls that a model writes into its reply, as they come: names, and arguments as JSON text.
 *
 *   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
 *
 * Takes what is inside, byte by byte or more at once, and gives the same text however it is cut. <tool_call> and
 * </tool_call> are ids and come by calls of their own; the inner tags are text, with spaces allowed around their words.
 * A value ends at the first </parameter>, <parameter= or </function> and loses one newline at each end. A parameter
 * that is only a string goes out as it is written; any other when it is whole (argument.h). Text between the tags is
 * dropped. A second function in one <tool_call> is a call of its own, and so is one whose tool was not offered. One
 * thread at a time. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct toolcall; // defined in toolcall.c

struct toolcall_sink {
    void *arg;
    // A call begins. Calls are counted from 0.
    void (*on_name)(void *arg, uint32_t call, const char *name, size_t len);
    // More of its arguments: joined, they are one JSON object.
    void (*on_arguments)(void *arg, uint32_t call, const char *text, size_t len);
};

// tools: the request's, for the types of parameters; they outlive it.
struct toolcall *toolcall_new(const json_t *tools, const struct toolcall_sink *sink);
void toolcall_free(struct toolcall *t); // NULL is fine

void toolcall_open(struct toolcall *t);                               // <tool_call>
void toolcall_open_function(struct toolcall *t);                      // <function= without it
void toolcall_close(struct toolcall *t);                              // </tool_call>
void toolcall_text(struct toolcall *t, const char *text, size_t len); // while toolcall_inside
// The end of the ids. Cut by a limit, a call keeps the arguments so far; otherwise what is open is closed.
void toolcall_finish(struct toolcall *t, bool cut);

bool toolcall_inside(const struct toolcall *t);   // what comes belongs to it
bool toolcall_in_value(const struct toolcall *t); // a mark that comes is text of a value
uint32_t toolcall_complete(const struct toolcall *t);
