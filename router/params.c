/* params: see params.h. */
#include "router/params.h"
#include "router/model.h"

void params_init(struct params *p, const struct model *m, bool openai_defaults) {
    *p = (struct params){
        .stream_interval = 1,
        .temperature = 1,
        .top_p = 1,
        .repetition = 1,
        .n = 1,
        .skip_special = true,
        .include_reasoning = true,
        .add_generation_prompt = true,
        .draft = true,
        .parallel_calls = true,
        .think_budget = -1,
    };
    if (openai_defaults) return;
    p->temperature = m->sampling.temperature;
    p->top_p = m->sampling.top_p;
    p->top_k = m->sampling.top_k;
    p->min_p = m->sampling.min_p;
    p->repetition = m->sampling.repetition;
}

void params_fini(struct params *p) {
    json_decref(p->messages);
    json_decref(p->tools);
    json_decref(p->prompts);
    p->messages = p->tools = p->prompts = NULL;
}
