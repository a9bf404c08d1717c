#!/usr/bin/env python3
"""Synthetic conversations for the demo model: everything comes from the small grammars in skills_*.py and words.py.

generate.py --count 1000 --seed 1 [--split train|test] [--only SKILL] > items.jsonl
generate.py --overlap 300000 [--json FILE]      test items that share text with that many training items

An item holds the messages, the tools, thinking on or off, the answer (content, thought, calls), how it is judged, and
the rendered prompt and answer. One key in ten is held out; tests draw only those. Standard library only.
"""
import argparse, itertools, json, random, sys
import render, skills_talk, skills_tools, skills_work
from common import assistant

# Drawer and weight. A drawer returns None when the key it drew belongs to the other split.
DRAWERS = {"chat": (skills_talk.chat, 4), "story": (skills_talk.story, 5), "facts": (skills_talk.facts, 3),
           "unknown": (skills_talk.unknown, 3), "arith": (skills_work.arith, 10), "numbers": (skills_work.numbers, 4),
           "json": (skills_work.jsons, 4), "code": (skills_work.code, 2), "edit": (skills_work.edit, 3),
           "recall": (skills_work.recall, 3), "tool": (skills_tools.tool, 6)}
AFTER_OTHERS = ("facts", "arith", "numbers", "json", "unknown", "story", "edit", "chat", "code")


def items(count, seed, test=False, only=None):
    r = random.Random(seed)
    names = [only] if only else [s for s in DRAWERS for _ in range(DRAWERS[s][1])]
    while count:
        d = r.choice(names)
        it = DRAWERS[d][0](r, test)
        if it is None: continue
        if d in AFTER_OTHERS and r.random() < 0.15: it = after_others(r, it)
        count -= 1
        yield it


def after_others(r, it):
    """The same question after one to three finished turns about other things."""
    past = []
    for _ in range(r.randint(1, 3)):
        other = None
        while other is None: other = DRAWERS[r.choice(AFTER_OTHERS)][0](r, False)
        talk = [m for m in other["messages"] if m["role"] != "system"]
        past += talk + [assistant(other["content"], other["thought"] if other["think"] else None)]
    has_system = it["messages"][0]["role"] == "system"
    messages = it["messages"][:has_system] + past + it["messages"][has_system:]
    return {**it, "skill": "after other turns", "messages": messages, "prompt": render.prompt(messages, None, it["think"], it["preserve"])}


def test_set(per_skill, seed=77, skills=None):
    """The held-out items that scores are made of: as many of each skill. Ordered by skill."""
    found = {}
    for d in DRAWERS:
        for it in itertools.islice(items(10**9, seed, True, d), 80 * per_skill):
            got = found.setdefault(it["skill"], [])
            share = -(-per_skill // len(AFTER_OTHERS)) if it["skill"] == "after other turns" else per_skill  # a few from each drawer
            if sum(x["drawer"] == d for x in got) < share and len(got) < per_skill: got.append({**it, "drawer": d})
    return [it for s in found if not skills or s in skills for it in found[s]]


def overlap(train_count, per_skill=60, seed=1000):
    """Per skill: test items, how many prompts occur in training, how many key texts do (case and marks apart)."""
    prompts, texts = set(), set()
    for it in items(train_count, seed):
        prompts.add(it["prompt"]); texts.add(it["key_text"])
    table = {}
    for it in test_set(per_skill):
        t = table.setdefault(it["skill"], [0, 0, 0])
        t[0] += 1; t[1] += it["prompt"] in prompts; t[2] += it["key_text"] in texts
    return table


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--count", type=int, default=1000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--split", choices=["train", "test"], default="train")
    ap.add_argument("--only", choices=list(DRAWERS))
    ap.add_argument("--overlap", type=int, metavar="COUNT", help="compare the test split with COUNT training items")
    ap.add_argument("--json", help="with --overlap: also write the counts there")
    o = ap.parse_args()
    if o.overlap:
        table = overlap(o.overlap)
        for skill, (n, p, u) in table.items():
            print(f"{skill:24} {n:5} test items, same prompt in training {p}, same key text {u}")
        if o.json:
            with open(o.json, "w") as f: json.dump({k: u for k, (n, p, u) in table.items()}, f)
        return
    for it in items(o.count, o.seed, o.split == "test", o.only):
        sys.stdout.write(json.dumps(it, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
