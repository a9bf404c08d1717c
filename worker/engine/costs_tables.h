/* costs_tables: the tables of costs that the program carries: the files of worker/costs/, made into C by embed.py there. */
#pragma once

struct costs_table {
    const char *name; // of the file
    const char *text; // JSON
};

extern const struct costs_table costs_tables[]; // the last has no name
