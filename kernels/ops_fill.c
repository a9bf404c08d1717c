/* ops_fill: the table of one variant. Compiled once per instruction set. */
#include "kernels/cpu.h"

void CPU_NAME(ops_fill)(struct ops *o) {
    o->embed = CPU_NAME(embed);
    o->rmsnorm = CPU_NAME(rmsnorm);
    o->linear = CPU_NAME(linear);
    o->swiglu = CPU_NAME(swiglu);
    o->rope = CPU_NAME(rope);
    o->kv_append = CPU_NAME(kv_append);
    o->attn = CPU_NAME(attn);
    o->conv = CPU_NAME(conv);
    o->conv_store = CPU_NAME(conv_store);
    o->delta_gates = CPU_NAME(delta_gates);
    o->delta_norm = CPU_NAME(delta_norm);
    o->delta_scan = CPU_NAME(delta_scan);
    o->gated_norm = CPU_NAME(gated_norm);
    o->router = CPU_NAME(router);
    o->experts_room = CPU_NAME(experts_room);
    o->experts = CPU_NAME(experts);
    o->expert_sum = CPU_NAME(expert_sum);
    o->draft_attn = CPU_NAME(draft_attn);
    o->draft_keep = CPU_NAME(draft_keep);
    o->draft_rotate = CPU_NAME(draft_rotate);
    o->draft_conv = CPU_NAME(draft_conv);
    o->draft_gather = CPU_NAME(draft_gather);
    o->draft_scale = CPU_NAME(draft_scale);
    o->draft_top = CPU_NAME(draft_top);
    o->q4_pack = CPU_NAME(q4_pack);
    o->q4_linear = CPU_NAME(q4_linear);
    o->exl3_views = true;
}
