#!/usr/bin/env python3
"""Holds demo/chat_template.jinja against render.py on fixed and random conversations. Needs jinja2.

check_template.py [COUNT]
"""
import hashlib, json, os, random, sys
import jinja2, jinja2.sandbox
import render

HERE = os.path.dirname(os.path.abspath(__file__))


def load(path):
    def fail(message):
        raise ValueError(message)
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda v: json.dumps(v, ensure_ascii=False)
    env.globals["raise_exception"] = fail
    return env.from_string(open(path).read())


def outcome(f):
    try: return f()
    except (ValueError, TypeError, AttributeError) as e: return f"error: {e}"


LONG = dict(messages=[
    {"role": "system", "content": "SYS"}, {"role": "user", "content": "w?"},
    {"role": "assistant", "content": "ok", "reasoning_content": "need", "tool_calls": [
        {"function": {"name": "get_weather", "arguments":
            {"city": "Paris", "n": 3, "f": True, "z": None, "l": [1, 2], "o": {"a": 1}}}},
        {"function": {"name": "get_weather", "arguments": {}}}]},
    {"role": "tool", "content": "sunny\n"}, {"role": "tool", "content": "rain"}],
    tools=[{"type": "function", "function": {"name": "get_weather", "description": "Get weather", "parameters":
        {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}, "required": ["city"]}}}])
FIRST = dict(messages=[{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi\n"}])
HASHES = [(LONG, "55e73ff1d78ad468a1a9e153dce80712454413b647566f5d2e474d8c4829bb9d"),
          (FIRST, "7af1302f02f3df31b3efd94a7f08d2ac8fd4adaf2568e034b6cdcff0076a296a")]


def random_case(r):
    words = ["a", "b ", " c\n", "", "\n", "<think>x</think>\ny", "p</think>\n\n q", "<tool_response>\nz\n</tool_response>",
             "\u00e9\u3000", "<think>A</think>\nB<think>C</think>\n\nD"]
    text = lambda: "".join(r.choice(words) for _ in range(r.randint(0, 3)))
    parts = lambda: [r.choice([{"type": "text", "text": text()}, {"type": "image", "image": "x"}, {"image_url": "u"},
                               {"type": "video"}, {"text": "t"}, {"type": "odd"}]) for _ in range(r.randint(0, 3))]
    content = lambda: r.choices([text(), parts(), None, 7], [12, 4, 1, 0.1])[0]
    value = lambda: r.choice([text(), 1, 1.5, True, None, [1, "x"], {"k": "v"}, 1e5])
    messages = []
    for i in range(r.randint(0, 7)):
        role = r.choices(["user", "assistant", "tool", "system", "developer"], [5, 5, 4, 4 if i == 0 else 0.2, 0.1])[0]
        m = {"role": role, "content": content()}
        if role == "assistant":
            if r.random() < 0.4: m["reasoning_content"] = r.choice([text(), None])
            if r.random() < 0.4:
                calls = [{"name": "f" + str(k), "arguments": {n: value() for n in r.sample("xyz", r.randint(0, 3))}}
                         for k in range(r.randint(0, 3))]
                m["tool_calls"] = [r.choice([c, {"type": "function", "function": c}]) for c in calls]
        messages.append(m)
    case = {"messages": messages, "add_generation_prompt": r.random() < 0.8}
    if r.random() < 0.3: case["tools"] = r.choice([[], [{"type": "function", "function": {"name": "\u00fc", "p": 1.0}}]])
    for key in ("enable_thinking", "preserve_thinking", "add_vision_id"):
        if r.random() < 0.5: case[key] = r.choice([True, False, None])
    return case


def main():
    template = load(os.path.join(HERE, "demo", "chat_template.jinja"))
    for case, want in HASHES:
        a, b = template.render(**case, add_generation_prompt=True), render.prompt(**case)
        assert a == b, (a, b)
        assert hashlib.sha256(a.encode()).hexdigest() == want, a
    r, errors, count = random.Random(5), 0, int(sys.argv[1]) if len(sys.argv) > 1 else 20000
    for _ in range(count):
        case = random_case(r)
        a, b = outcome(lambda: template.render(**case)), outcome(lambda: render.prompt(**case))
        errors += a.startswith("error")
        if a != b: sys.exit(f"different:\n{json.dumps(case, indent=1)}\ntemplate: {a!r}\nrender:   {b!r}")
    print(f"template and render.py agree on {count} random conversations, {errors} of them errors")


if __name__ == "__main__":
    main()
