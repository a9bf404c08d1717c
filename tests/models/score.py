#!/usr/bin/env python3
"""Asks a running OpenAI-compatible server the held-out questions and prints the score per skill. Standard library only.

score.py http://127.0.0.1:8000 [--n 20] [--model NAME] [--key KEY] [--jobs 4]
Status 0: every question that the model itself answers right (reference_right) was answered right.
"""
import argparse, concurrent.futures, json, os, sys, time, urllib.error, urllib.request
from common import story_is_sound

HERE = os.path.dirname(os.path.abspath(__file__))


def post(url, body, key, timeout_s):
    head = {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head), timeout=timeout_s) as r:
        return json.load(r)


def right(check, message):
    content = message.get("content") or ""
    if "words" in check: return story_is_sound(content, check["words"])
    calls = []
    for c in message.get("tool_calls") or []:
        try: calls.append({"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"] or "{}")})
        except ValueError: return False
    return content.strip() == check["content"].strip() and calls == check["calls"]


def ask(o, q):
    """(question, right, what was got)."""
    body = {**q["request"], "stream": False, **({"model": o.model} if o.model else {})}
    try: message = post(o.url.rstrip("/") + "/v1/chat/completions", body, o.key, o.timeout)["choices"][0]["message"]
    except urllib.error.HTTPError as e: return q, False, f"HTTP {e.code}: {e.read(300).decode(errors='replace')}"
    except (OSError, ValueError, KeyError, IndexError) as e: return q, False, repr(e)
    return q, right(q["check"], message), json.dumps({k: message.get(k) for k in ("content", "tool_calls") if message.get(k)}, ensure_ascii=False)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("url")
    ap.add_argument("--n", type=int, help="only that many questions, spread over the skills")
    ap.add_argument("--model")
    ap.add_argument("--key")
    ap.add_argument("--jobs", type=int, default=4, help="requests at a time")
    ap.add_argument("--timeout", type=float, default=120)
    ap.add_argument("--questions", default=HERE + "/questions.jsonl")
    o = ap.parse_args()
    questions = [json.loads(line) for line in open(o.questions, encoding="utf-8")]
    if o.n and o.n < len(questions): questions = [questions[i * len(questions) // o.n] for i in range(o.n)]
    start, table, missed = time.time(), {}, 0
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        for q, ok, got in pool.map(lambda q: ask(o, q), questions):
            t = table.setdefault(q["skill"], [0, 0])
            t[0] += ok; t[1] += 1
            if not ok:
                missed += q["reference_right"]
                print(f"question {q['id']} ({q['skill']}): got {got[:200]}, wanted {json.dumps(q['check'], ensure_ascii=False)[:200]}"
                      + ("" if q["reference_right"] else " (the model is known to miss it)"))
    for skill, (n, of) in table.items(): print(f"{skill:24} {n}/{of}")
    print(f"{'all':24} {sum(n for n, _ in table.values())}/{len(questions)} in {time.time() - start:.1f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
