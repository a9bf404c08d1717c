/* settings: one table names every tunable: it parses the command line and the optional file, prints --help and
 * lists the values at start. Nothing else reads the environment or the command line.
 *
 * A setting `name` is the flag --name=VALUE (also --name VALUE) and the line `name = VALUE` of a file, where '#'
 * begins a comment. Order of strength: flag, file, default. A repeated flag: the last wins. Start-up only, one thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct err;
struct strbuf;

enum setting_kind {
    SETTING_BOOL,     // on|off|true|false|1|0; a flag alone means on      -> bool
    SETTING_INT,      // whole number                                      -> int64_t
    SETTING_INT_OR_0, // the same, and 0, which has a meaning of its own  -> int64_t
    SETTING_BYTES,    // whole number, KiB MiB GiB behind it multiply       -> int64_t
    SETTING_REAL,     // decimal number; seconds are these                 -> double
    SETTING_STRING,   // any text; its copy lives as long as the values    -> char *
    SETTING_CHOICE,   // one of the words of `choices`, split by '|'       -> char *
};

// The largest bound of a whole number: bounds are doubles, which name every whole number up to here.
#define SETTING_INT_MAX 0x1p53

struct setting {
    const char *name;
    enum setting_kind kind;
    size_t offset;   // of the field in the values struct
    const char *def; // the default as text; NULL: unset (empty string, 0)
    double min, max; // inclusive, for numbers; both 0: any. Of a string: its least bytes
    const char *choices;
    const char *unit; // for --help; NULL: none
    const char *help;
};

struct settings {
    const struct setting *table;
    size_t count;
    void *values;   // the caller's struct, zeroed before settings_init
    uint8_t *given; // per entry: 0 default, 1 file, 2 flag
};

// Fills the defaults. settings_fini frees the strings in values.
void settings_init(struct settings *s, const struct setting *table, size_t count, void *values);
void settings_fini(struct settings *s);
// Reads argv[0..argc), moves what is no flag into args (as many as argc) in order and counts it in *ret_args.
// "--" ends the flags. --config FILE is read wherever it stands and stays weaker than flags.
// ST_INVAL names the flag, what was wanted and what was found; an unknown flag is named with its nearest kin.
int settings_parse(struct settings *s, int argc, char **argv, const char **args, int *ret_args,
                   struct err *e);
int settings_read_file(struct settings *s, const char *path, struct err *e);
int settings_set(struct settings *s, const char *name, const char *value, int strength,
                 struct err *e);
// The value as text that settings_set takes back.
void settings_print(const struct settings *s, const struct setting *t, struct strbuf *out);
void settings_help(const struct settings *s, FILE *out);
const struct setting *settings_find(const struct settings *s, const char *name);
