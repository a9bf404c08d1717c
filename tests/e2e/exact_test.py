"""One answer: a request's tokens and the bits of its logits do not depend on how it is served.

Equality is checked on two digests of a reply: token_sha256 over its ids, and logits_hash over the bits of every row of
logits that an id was drawn from. The same comparisons are run against servers with a planted fault and must find it.
"""

import concurrent.futures
import os
import random
import signal

from harness import (SMALL, EventReader, Server, check, check_eq, main, note, shared, test, wait_for)

# Prompt lengths in words of the filler, about one id each; the longest prompts are about 2,000 ids.
LENGTHS = (1, 17, 63, 70, 90, 130) if SMALL else (1, 17, 63, 200, 700, 1900)
TARGET_WORDS = 80 if SMALL else 250
NEW_IDS = 24 if SMALL else 40  # enough rounds that requests are seen beside each other
CANCELLED_WORDS = 1900

WORDS = """the a small brave cat dog king queen river forest found lost gave took ran slept under over near blue red golden
lamp book key hat and then but so because with without every morning night soon again one two three seven friend house""".split()


def filler(words, seed):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(words))


def request(words, seed, sampled):
    body = {"messages": [{"role": "user", "content": filler(words, seed)}], "max_tokens": NEW_IDS, "ignore_eos": True,
            "return_logits_hash": True, "return_token_ids": True, "seed": seed, "temperature": 0}
    if sampled:
        body |= {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "presence_penalty": 0.5, "frequency_penalty": 0.3,
                 "repetition_penalty": 1.1}
    return body


# The target first; every second one is sampled with penalties.
REQUESTS = [request(TARGET_WORDS, 1000, True)] + [request(n, 1001 + i, i % 2 == 0) for i, n in enumerate(LENGTHS[:5])]
LONGEST = request(LENGTHS[5], 1100, False)


def digest(reply):
    """What must be equal, of a whole reply."""
    choice = reply["choices"][0]
    check_eq(len(choice["token_ids"]), NEW_IDS, "ids of a reply")
    return choice["token_sha256"], reply["railyard"]["logits_hash"]


def alone(server, requests):
    return [digest(server.chat(**body)) for body in requests]


def cancel_in_fill(server):
    """Sends long prompts and hangs up, until one was hung up on inside its fill: the moment is not ours to choose."""
    def closed(**labels):
        return server.metric("railyard_client_closed_total", **labels)

    for _ in range(50):
        inside, anywhere = closed(phase="prefill"), closed()
        accepted = server.metric("railyard_requests_accepted_total")
        c = server.connect()
        c.send_request("POST", "/v1/chat/completions",
                       {**request(CANCELLED_WORDS, random.randrange(1 << 30), True), "max_tokens": 1500, "ignore_eos": True})
        wait_for(lambda: server.metric("railyard_requests_accepted_total") > accepted, "a request is accepted", every_s=0.002)
        c.close()
        wait_for(lambda: closed() > anywhere, "the hang-up is counted")
        if closed(phase="prefill") > inside:
            return
    check(False, "none of 50 hang-ups fell inside a fill")


class Company:
    """A long reply that runs through all that happens meanwhile, so that no round is anybody's alone."""

    def __init__(self, server):
        self.c = server.connect()
        self.c.send_request("POST", "/v1/chat/completions", {**request(30, 1, False), "max_tokens": 3000, "stream": True})
        self.reader = EventReader(self.c)
        self.reader.next()

    def leave(self):
        """Whether the company was still there to the end."""
        stayed = self.reader.next() is not None
        self.c.close()
        return stayed


def run_together(server, requests, cancelled):
    """The digests, and how many streams ran at once at most."""
    most = 0
    with concurrent.futures.ThreadPoolExecutor(len(requests) + 1) as pool:
        half = len(requests) // 2
        runs = [pool.submit(lambda b=body: digest(server.chat(**b))) for body in requests[:half]]
        cancels = pool.submit(lambda: [cancel_in_fill(server) for _ in range(cancelled)])
        runs += [pool.submit(lambda b=body: digest(server.chat(**b))) for body in requests[half:]]
        while not all(r.done() for r in runs):
            most = max(most, server.running_streams())
        cancels.result()
        return [r.result() for r in runs], most


def together(server, requests, cancelled=2):
    """All at once, beside a reply that outlasts them and some that are cancelled inside their fill. A machine may be so busy that
    they run one after the other all the same: then again."""
    for tries in range(1, 21):
        company = Company(server)
        found, most = run_together(server, requests, cancelled)
        stayed = company.leave()
        server.wait_idle()
        if stayed and most >= 3:
            break
    note(f"up to {most:.0f} streams in a round, {cancelled} cancelled in their fill" + (f", try {tries}" if tries > 1 else ""))
    check(stayed and most >= 3, "the requests did not run together")
    return found


def in_shared_rounds(server, requests):
    """The digests of requests that all wait for a standing worker and so begin together."""
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        with server.stopped(server.wait_worker()["pid"]):
            runs = [pool.submit(lambda b=body: digest(server.chat(**b))) for body in requests]
            wait_for(lambda: server.running_streams() + server.metric("vllm:num_requests_waiting") == len(requests), "all are sent")
        return [r.result() for r in runs]


def differences(found, wanted):
    """How many replies differ in ids, and how many in logits."""
    check_eq(len(found), len(wanted), "count of replies")
    return (sum(f[0] != w[0] for f, w in zip(found, wanted)), sum(f[1] != w[1] for f, w in zip(found, wanted)))


KNOWN = []


def reference():
    """The replies of a plain server, each request alone: what all else is held against."""
    if not KNOWN:
        KNOWN.extend(alone(shared(), REQUESTS))
    return KNOWN


def check_same(found, wanted=None):
    check_eq(differences(found, wanted or reference()), (0, 0), "replies that differ in (ids, logits)")


@test
def the_reference_itself_is_not_trivial():
    hashes = reference()
    check_eq(len(set(h for _, h in hashes)), len(hashes), "different requests have different logits hashes")
    check(all(h and int(h, 16) for _, h in hashes), f"a logits hash is empty: {hashes}")


@test
def a_request_sent_again_gives_the_same_bits():
    check_same(alone(shared(), REQUESTS))


@test
def a_streamed_reply_has_the_bits_of_the_whole_one():
    for body, wanted in zip(REQUESTS, reference()):
        last = [c for c in shared().stream(**body) if c["choices"] and c["choices"][0]["finish_reason"]][-1]
        check_eq((last["choices"][0]["token_sha256"], last["railyard"]["logits_hash"]), wanted, "digests of a stream")


@test
def beside_others_of_ragged_lengths_a_request_has_the_bits_it_has_alone():
    long = alone(shared(), [LONGEST])
    check_same(together(shared(), [*REQUESTS, LONGEST]), reference() + long)


@test
def another_seed_gives_another_text():
    story = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 1.5, "max_tokens": 40, "ignore_eos": True}
    texts = {shared().chat(**story, seed=seed)["choices"][0]["token_sha256"] for seed in range(5)}
    check_eq(len(texts), 5, "different texts of five seeds")


def with_flags(*flags):
    """A server of its own: alone and together, all as the reference."""
    with Server(*flags) as s:
        check_same(alone(s, REQUESTS))
        check_same(together(s, REQUESTS, 1 if SMALL else 2))


@test
def prompt_chunks_of_1_row_change_no_bit():
    with_flags("--chunk=1")


@test
def prompt_chunks_of_16_rows_change_no_bit():
    with_flags("--chunk=16")


@test
def prompt_chunks_of_17_rows_change_no_bit():
    with_flags("--chunk=17")


@test
def prompt_chunks_of_64_rows_change_no_bit():
    with_flags("--chunk=64")


@test
def a_prompt_filled_whole_changes_no_bit():
    with_flags("--chunk=4096")


@test
def one_thread_changes_no_bit():
    with_flags("--threads=1")


@test
def two_threads_change_no_bit():
    with_flags("--threads=2")


@test
def three_threads_change_no_bit():
    with_flags("--threads=3")


@test
def a_restarted_worker_gives_the_same_bits():
    with Server() as s:
        check_same(alone(s, REQUESTS[:2]), reference()[:2])
        pid = s.wait_worker()["pid"]
        os.kill(pid, signal.SIGKILL)
        s.wait_worker(other_than_pid=pid)
        check_same(alone(s, REQUESTS))


@test
def a_restarted_server_gives_the_same_bits():
    for _ in range(2):
        with Server() as s:
            check_same(alone(s, REQUESTS[:3]), reference()[:3])


# The comparisons above, against engines that are wrong on purpose: they must say so.


@test
def one_ulp_in_one_row_of_a_shared_round_is_found():
    with Server("--debug.fault=ulp") as s:
        check_same(alone(s, REQUESTS))  # the fault is in shared rounds only
        ids, logits = differences(in_shared_rounds(s, REQUESTS), reference())
        note(f"replies that differ: {ids} in ids, {logits} in logits")
        check(logits > 0, "the planted ulp was not found")


@test
def a_stale_conv_row_at_a_chunk_border_is_found():
    with Server("--debug.fault=stale-conv", "--chunk=16") as s:
        ids, logits = differences(alone(s, REQUESTS), reference())
        note(f"replies that differ: {ids} in ids, {logits} in logits")
        check(logits > 0, "the planted stale row was not found")


main()
