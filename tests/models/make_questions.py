#!/usr/bin/env python3
"""Writes questions.jsonl: held-out items as requests for a running server, with the check for the answer. One GPU.

make_questions.py --model DIR [--per-skill 3] > questions.jsonl
Besides the check each line has the model's own greedy answer in fp32 (`reference`) and whether it is right.
"""
import argparse, json, os, sys
import evaluate, generate, render
from common import judge


def as_request(messages):
    """Messages as a client sends them: tool calls with ids, arguments as JSON text."""
    out, ids = [], []
    for m in messages:
        m = dict(m)
        if "tool_calls" in m:
            ids = [f"call_{len(out)}_{k}" for k in range(len(m["tool_calls"]))]
            m["tool_calls"] = [{"id": i, "type": "function", "function": {"name": c["function"]["name"], "arguments": render.to_json(c["function"]["arguments"])}}
                               for i, c in zip(ids, m["tool_calls"])]
            m["content"] = m["content"] or None
        if m["role"] == "tool": m["tool_call_id"] = ids.pop(0)
        out.append(m)
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--per-skill", type=int, default=3)
    ap.add_argument("--seed", type=int, default=501)
    o = ap.parse_args()
    m, _, tok = evaluate.load(os.path.abspath(o.model))
    for n, (it, p, q, text) in enumerate(evaluate.answers(m, tok, generate.test_set(o.per_skill, o.seed))):
        request = {"messages": as_request(it["messages"]), "max_tokens": 400, "temperature": 0,
                   "chat_template_kwargs": {"enable_thinking": it["think"], "preserve_thinking": it["preserve"]}}
        if it["tools"]: request["tools"] = it["tools"]
        check = {"words": it["check"][1]} if it["check"][0] == "words" else {"content": it["content"], "calls": [c["function"] for c in it["calls"]]}
        sys.stdout.write(json.dumps({"id": n, "skill": it["skill"], "request": request, "check": check, "prompt_tokens": len(p),
                                     "reference": text, "reference_tokens": len(q), "reference_right": judge(it, text)}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
