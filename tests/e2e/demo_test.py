"""The demo model does what it was trained for: held-out questions, a sum, a story, through the whole system."""

import concurrent.futures
import json
import os

from demo_questions import questions, right, story_is_sound
from harness import MODEL, check, check_eq, join_chunks, main, note, run_program, shared, test

NEEDED = 0.9


def server():
    return shared()


@test
def it_answers_nine_of_ten_held_out_questions_of_each_skill():
    skills = questions()
    check(len(skills) >= 6, f"skills: {sorted(skills)}")
    flat = [q for of in skills.values() for q in of]
    server()  # a process dies with the thread that made it: not one of the pool's
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda q: server().chat(**q["request"]), flat))
    count, missed, lost = {}, [], 0
    for q, r in zip(flat, replies):
        ok = right(q["check"], r["choices"][0]["message"])
        got, of = count.get(q["skill"], (0, 0))
        count[q["skill"]] = (got + ok, of + 1)
        if not ok:
            lost += q["reference_right"]
            missed.append(f"{q['skill']}: {q['request']['messages'][-1]['content'][-80:]!r} -> {r['choices'][0]['message']!r}, "
                          f"wanted {q['check']}; the model alone {'can' if q['reference_right'] else 'cannot'}")
        check_eq(r["usage"]["prompt_tokens"], q["prompt_tokens"], f"prompt ids of {q['request']['messages'][-1]['content'][-80:]!r}")
    for skill, (got, of) in sorted(count.items()):
        note(f"{skill}: {got} of {of}")
    for m in missed:
        note(m)
    check(sum(g for g, _ in count.values()) >= NEEDED * len(flat), f"only {sum(g for g, _ in count.values())} of {len(flat)}")
    # What the model answers right by itself it answers right when served.
    check_eq(lost, 0, "answers lost in serving")


@test
def it_answers_a_held_out_sum_with_a_worked_thought():
    sums = [q for skill, of in questions().items() if "sums" in skill and skill.endswith("thinking") for q in of]
    check(sums, "no sums among the questions")
    q = next(q for q in sums if q["reference_right"])
    message = server().chat(**q["request"])["choices"][0]["message"]
    note(f"{q['request']['messages'][-1]['content']} -> {message['content']}")
    check_eq(message["content"].strip(), q["check"]["content"].strip(), "answer")
    check(message["reasoning_content"], "no thought")


@test
def it_tells_a_story_in_good_sentences():
    body = {"messages": [{"role": "user", "content": "Tell me a story about a brave fox."}], "temperature": 0, "max_tokens": 400,
            "chat_template_kwargs": {"enable_thinking": False}}
    text = join_chunks(server().stream(**body))["content"]
    note(text)
    check(story_is_sound(text, ["fox"]), text)


@test
def the_program_tokenizes_as_the_server_does():
    lines = ["Hello world", "12 + 7 = 19", "Gr\u00fc\u00dfe \U0001f98a", "", "<|im_end|>"]
    code, out, err = run_program("tokenize", MODEL, stdin="".join(json.dumps(x) + "\n" for x in lines))
    check_eq((code, err), (0, ""), "how it ends")
    found = out.splitlines()
    wanted = [server().post("/tokenize", {"prompt": x}).json()["tokens"] for x in lines]
    check_eq([json.loads(x) for x in found], wanted, "ids")


main()
