/* tiny_model: see tiny_model.h. */
#include "tests/lib/tiny_model.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MODELS_MAX = 24, PATH_BYTES = 512 };

static struct { char args[200], path[PATH_BYTES]; } made[MODELS_MAX];
static int made_count;

const char *tiny_model(const char *args) {
    char cmd[PATH_BYTES * 3];
    for (int i = 0; i < made_count; i++)
        if (!strcmp(made[i].args, args)) return made[i].path;
    CHECK(made_count < MODELS_MAX);
    snprintf(made[made_count].args, sizeof made->args, "%s", args);
    snprintf(made[made_count].path, PATH_BYTES, "%s/tiny%d", test_temp_dir(), made_count);
    const char *python = getenv("RAILYARD_PYTHON"); // tests/gpu/run.py: the one with numpy
    snprintf(cmd, sizeof cmd, "'%s' '%s/tests/tools/%s' '%s' %s >/dev/null",
             python ? python : "/usr/bin/python3", test_source_dir(),
             strstr(args, "--widths") ? "make_exl3.py" : "make_tiny.py", made[made_count].path,
             args);
    if (system(cmd)) test_fail(__FILE__, __LINE__, "failed: %s", cmd);
    return made[made_count++].path;
}

const char *demo_model_of(const char *folder, char ret[TINY_MODEL_PATH_BYTES]) {
    char file[TINY_MODEL_PATH_BYTES + 20];
    snprintf(ret, TINY_MODEL_PATH_BYTES, "%s/tests/models/%s", test_source_dir(), folder);
    snprintf(file, sizeof file, "%s/config.json", ret);
    return access(file, R_OK) ? NULL : ret;
}

const char *demo_model(void) {
    static char path[TINY_MODEL_PATH_BYTES];
    return demo_model_of("demo", path);
}
