"""The demo's held-out questions, and when an answer is right: for the tests that ask them."""

import json
import os
import re

from harness import SMALL, SOURCE

QUESTIONS = os.path.join(SOURCE, "tests", "models", "questions.jsonl")
PER_SKILL = 1 if SMALL else 8


def story_is_sound(text, words):
    """All the words kept, 5 to 16 sentences, the last one closed, none said twice."""
    sentences = [s for s in re.split(r'[.?!]"? ', text) if s]
    return (all(w in text for w in words) and 5 <= len(sentences) <= 16 and text[-1] in '.!"'
            and len(set(sentences)) == len(sentences))


def right(check_of, message):
    content = (message["content"] or "").strip()
    calls = [{"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])}
             for c in message.get("tool_calls", [])]
    if calls != check_of.get("calls", []):
        return False
    if "words" in check_of:
        return story_is_sound(content, check_of["words"])
    return content == check_of["content"].strip()


def questions(per_skill=PER_SKILL):
    """A few of each skill."""
    with open(QUESTIONS, encoding="utf-8") as f:
        all_of = [json.loads(line) for line in f]
    by_skill = {}
    for q in all_of:
        by_skill.setdefault(q["skill"], []).append(q)
    return {skill: of[:per_skill] for skill, of in by_skill.items()}
