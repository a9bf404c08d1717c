#!/usr/bin/env python3
"""Compares the router's prompts with jinja2 on random conversations, byte for byte, refusals too.

    compare.py RENDER_PROGRAM COUNT [DEMO_TEMPLATE]

Against rules.jinja beside this file for all five rule sets, and against the demo model's own template (3.6).
"""
import json
import pathlib
import random
import subprocess
import sys

import jinja2
import jinja2.sandbox

SETS = ["3.5", "3.5-small", "3.6", "3.8", "3.8-large"]
BLANKS = ["", "", "", " ", "\n", "\n\n", "\t", "\u3000", "\u0085", "\x1c", "\u200b", "\r\n", "\u00a0"]
WORDS = ["Hi", "what?", "a b", "\u4e2d\u6587", "e\u0301", "\U0001F469\u200d\U0001F52C", "<think>", "</think>", "<think>A</think>",
         "<tool_response>", "</tool_response>", "<|im_end|>", "\n", "x\ny", "'\"\\", "{{ x }}", "\x7f", "\u2028", "<b>&", "0"]
ROLES = ["system", "user", "user", "user", "assistant", "assistant", "assistant", "tool", "tool", "developer"]


def template(path):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = lambda v: json.dumps(v, ensure_ascii=False)
    env.globals["raise_exception"] = refuse
    return env.from_string(path.read_text("utf-8"))


def text(rng):
    return rng.choice(BLANKS) + "".join(rng.choice(WORDS) for _ in range(rng.choice([0, 1, 1, 2, 3, 6]))) + rng.choice(BLANKS)


def content(rng):
    kind = rng.random()
    if kind < 0.70:
        return text(rng)
    if kind < 0.76:
        return None
    if kind < 0.78:
        return rng.choice([7, {}, True])
    items = [{"type": "text", "text": text(rng)}, {"text": text(rng)}, {"type": "image_url", "image_url": {"url": "x"}},
             {"type": "image"}, {"type": "video"}, {"video": "v"}, {"type": "text", "text": "t"}, {"type": "text", "text": "<tool_response>"}]
    if rng.random() < 0.1:
        items.append({"type": "audio"})
    return [rng.choice(items) for _ in range(rng.randint(0, 4))]


def number(rng):
    return rng.choice([0, -1, 3, 2 ** 53 + 1, -2 ** 63, 2 ** 63 - 1, 1.0, -0.0, 0.1, 1e16, 1e-5, 123456.75, 5e-324, 1.7976931348623157e308,
                       rng.uniform(-1e6, 1e6), rng.random() * 10.0 ** rng.randint(-320, 307), float(2 ** rng.randint(0, 1000)),
                       2.0 ** -rng.randint(1, 1070), float(rng.randint(0, 10 ** 18))])


def value(rng, depth=0):
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 3:
        return text(rng)
    if kind < 6:
        return rng.choice([None, True, False, number(rng), number(rng)])
    if kind < 7:
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(WORDS) + str(i): value(rng, depth + 1) for i in range(rng.randint(0, 3))}


def call(rng):
    function = {"name": rng.choice(["f", "get_weather", "a.b-c", "<x>"])}
    if rng.random() < 0.9:
        function["arguments"] = {rng.choice(["a", "city", "k\n", "\u00e9"]) + str(i): value(rng) for i in range(rng.randint(0, 3))}
    if rng.random() < 0.03:
        function["arguments"] = rng.choice(["", "{}", None, [1], 5])
    return {"type": "function", "function": function} if rng.random() < 0.8 else function


def message(rng, role):
    m = {"role": role}
    if rng.random() < 0.95:
        m["content"] = content(rng)
    if role == "assistant" and rng.random() < 0.4:
        m["reasoning_content"] = rng.choice([None, text(rng), text(rng), ""])
    if role == "assistant" and rng.random() < 0.4:
        m["tool_calls"] = [call(rng) for _ in range(rng.randint(0, 3))]
    return m


def request(rng):
    roles = [rng.choice(ROLES[1:] if rng.random() < 0.95 else ROLES) for _ in range(rng.randint(0, 7))]
    roles = [r for r in roles if r != "developer" or rng.random() < 0.1]
    if rng.random() < 0.4:
        roles.insert(0, "system")
    q = {"rules": rng.choice(SETS), "messages": [message(rng, r) for r in roles], "add_generation_prompt": rng.random() < 0.7}
    if rng.random() < 0.8:
        q["messages"].append({"role": "user", "content": text(rng)} if rng.random() < 0.6 else message(rng, "user"))
    if rng.random() < 0.3:
        q["tools"] = [value(rng) if rng.random() < 0.1 else {"type": "function", "function": value(rng)} for _ in range(rng.randint(0, 2))]
    for key in "enable_thinking", "preserve_thinking":
        if rng.random() < 0.4:
            q[key] = rng.choice([True, False, True, False, None, 1, "true"])
    if rng.random() < 0.3:
        q["reasoning_effort"] = rng.choice(["xhigh", "medium", "low", "high", ""])
    if rng.random() < 0.3:
        q["add_vision_id"] = rng.random() < 0.8
    return q


def rendered(jinja, q):
    # The program reads JSON with doubles as Python does, so the same object goes to both.
    try:
        return {"prompt": jinja.render(**dict(q, set=q["rules"]))}
    except jinja2.exceptions.TemplateError as e:
        return {"error": e.message}
    except TypeError as e:  # the items filter's own
        return {"error": str(e)}


def outside(answer):
    data, at, kept = answer["prompt"].encode("utf-8"), 0, []
    for first, length in answer["plain"]:
        assert at <= first and length > 0 and first + length <= len(data), "spans out of order"
        kept.append(data[at:first])
        at = first + length
    return b"\0".join(kept + [data[at:]])


def main():
    program, count = sys.argv[1], int(sys.argv[2])
    here = pathlib.Path(__file__).resolve().parent
    ours = template(here / "rules.jinja")
    demo = template(pathlib.Path(sys.argv[3])) if len(sys.argv) > 3 else None
    rng = random.Random(31)
    requests = [request(rng) for _ in range(count)]
    lines = "".join(json.dumps(q, ensure_ascii=False) + "\n" for q in requests)
    out = subprocess.run([program], input=lines.encode("utf-8"), stdout=subprocess.PIPE, check=True).stdout
    answers = [json.loads(line) for line in out.split(b"\n") if line]
    assert len(answers) == count, (len(answers), count)
    refused = bad = against_demo = 0
    for q, a in zip(requests, answers):
        wanted = [rendered(ours, q)]
        if demo and q["rules"] == "3.6":
            theirs = rendered(demo, q)
            # Of two faults in one request it may name the other.
            wanted.append(a if "error" in theirs and "error" in a else theirs)
            against_demo += 1
        for w in wanted:
            if w.get("error") != a.get("error") or w.get("prompt") != a.get("prompt"):
                bad += 1
                if bad <= 3:
                    print("request", json.dumps(q, ensure_ascii=False), "\nwanted ", w, "\nfound  ", a)
        refused += "error" in a
        if "prompt" in a:
            assert a["in_thought"] == a["prompt"].endswith("<|im_start|>assistant\n<think>\n"), q
            marks = outside(a)
            assert b"Hi" not in marks and "\u4e2d".encode() not in marks, q
    print(f"{count} requests, {refused} refused, {against_demo} against the demo's template too, {bad} differences")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
