/* cmd_inspect: railyard inspect: what the router has to do with of a checkpoint, its tokeniser and its template, then the
 * worker program's inspect for all else. A checkpoint without either is fine here; serve says why it wants them. A
 * drafter's folder has neither. */
#include "common/err.h"
#include "common/strbuf.h"
#include "router/cmd.h"
#include "router/text/template.h"
#include "router/text/tokenizer.h"

#include <stdio.h>

static void print_tokenizer(const char *dir) {
    struct strbuf path = {0};
    struct tokenizer *t = NULL;
    struct err e = {0};
    strbuf_printf(&path, "%s/tokenizer.json", dir);
    if (tokenizer_open(&t, path.p, &e))
        printf("tokeniser   none, so serve refuses it: %s\n", e.msg);
    else
        printf("tokeniser   %u ids in use\n", tokenizer_count(t));
    tokenizer_free(t);
    strbuf_fini(&path);
}

static void print_template(const char *dir) {
    enum template_rules rules;
    const char *why = NULL;
    struct err e = {0};
    if (template_detect(dir, &rules, &why, &e))
        printf("template    none, so serve refuses it unless --template.rules names one: %s\n",
               e.msg);
    else
        printf("template    rules %s: %s\n", template_rules_name(rules), why);
}

int cmd_inspect(int argc, char **argv) {
    if (argc == 1 && argv[0][0] != '-' && !cmd_is_drafter(argv[0])) {
        print_tokenizer(argv[0]);
        print_template(argv[0]);
        fflush(stdout);
    }
    return cmd_exec_worker(argc + 1, argv - 1); // with the subcommand's name, which stands before
}
