"""The demo's EXL3 packs, dense and with experts, through the whole system: they answer, and beside others as alone."""

import concurrent.futures
import os

from demo_questions import questions, right
from harness import SMALL, SOURCE, check, check_eq, main, note, shared, test

NEEDED = 0.8  # of the dense demo's own score
PER_SKILL = 1 if SMALL else 2


def ask(server, q):
    c = server.chat(**q["request"])["choices"][0]
    return c["message"], c["token_sha256"]


def serve(name):
    server = shared(model=os.path.join(SOURCE, "tests", "models", name))
    flat = [q for of in questions(PER_SKILL).values() for q in of]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda q: ask(server, q), flat))
    got = sum(right(q["check"], message) for q, (message, _) in zip(flat, replies))
    demo = sum(q["reference_right"] for q in flat)
    for q, (message, _) in zip(flat, replies):
        if not right(q["check"], message):
            note(f"{q['skill']}: {q['request']['messages'][-1]['content'][-80:]!r} -> {message['content']!r}")
    note(f"{name}: {got} of {len(flat)}, the dense demo {demo}")
    check(demo > 0 and got >= NEEDED * demo, f"{name}: only {got} of {len(flat)}, the dense demo {demo}")
    for q, (_, sha) in list(zip(flat, replies))[::4]:
        check_eq(ask(server, q)[1], sha, f"{name}: ids of {q['skill']} alone and beside others")


@test
def the_dense_pack_answers_as_well_beside_others_as_alone():
    serve("demo-exl3")


@test
def the_pack_with_experts_answers_as_well_beside_others_as_alone():
    serve("demo-moe-exl3")


main()
