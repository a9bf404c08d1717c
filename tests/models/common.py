"""What the skill files share: items, held-out keys, and the small changes people make to a sentence."""
import json, re, zlib
import render

SYSTEMS = [None, None, None, "You are a helpful assistant.", "Be brief.",
           "You are a friendly helper. Answer in one or two sentences."]


def held(*key):
    """One key in ten is kept for tests only."""
    return zlib.crc32(repr(key).encode()) % 10 == 0


def norm(text):
    """A question without case, punctuation and spacing: what counts as the same text."""
    return " ".join(re.sub(r"[^a-z0-9+*/= -]", "", text.lower()).split())


def loosen(r, text):
    """Now and then a question as it is typed in a hurry: small first letter, no full stop at the end."""
    if r.random() < 0.8: return text
    if not re.match(r"I\b", text) and r.random() < 0.7: text = text[0].lower() + text[1:]
    return text.rstrip(".?!") if r.random() < 0.6 else text


def user(text): return {"role": "user", "content": text}
def tool_result(text): return {"role": "tool", "content": text}


def assistant(content, thought=None, calls=None):
    m = {"role": "assistant", "content": content}
    if thought is not None: m["reasoning_content"] = thought
    if calls: m["tool_calls"] = calls
    return m


def call(name, /, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def item(skill, turns, think, content, thought="", calls=None, system=None, tools=None, check=None, keep=None,
         key_text=None):
    """One exercise: a conversation (user texts may be plain strings) and what the model should say next.

    think: the answer opens with a thought. keep: earlier thoughts stay in the prompt (preserve_thinking).
    check: ["exact"], or ["words", [words that must occur]] for a story.
    key_text: the text that carries the held-out key, if that is not the last user text.
    """
    messages = [{"role": "system", "content": system}] if system else []
    for t in turns:
        messages.append(user(t) if isinstance(t, str) else t)
    return {"skill": skill, "think": think, "messages": messages, "tools": tools, "preserve": bool(keep),
            "content": content, "thought": thought if think else "", "calls": calls or [], "check": check or ["exact"],
            "key_text": norm(key_text or [m for m in messages if m["role"] == "user"][-1]["content"]),
            "prompt": render.prompt(messages, tools, think, bool(keep)),
            "answer": render.reply(content, thought, calls, think)}


def judge(it, text):
    """True if a decoded answer, stop token included, is right."""
    if not text.endswith(render.END): return False
    body = text[:-len(render.END)]
    if it["think"]:
        if "</think>\n\n" not in body: return False
        body = body.split("</think>\n\n", 1)[1]
    if it["check"][0] == "exact": return body == render.calls_text(it["content"], it["calls"])
    return story_is_sound(body, it["check"][1])


def story_is_sound(body, words):
    """All the words kept, 5 to 16 sentences, the last one closed, none said twice."""
    sentences = [s for s in re.split(r'[.?!]"? ', body) if s]
    return (all(w in body for w in words) and 5 <= len(sentences) <= 16 and body[-1] in '.!"'
            and len(set(sentences)) == len(sentences))


def to_json(value, indent=None): return json.dumps(value, ensure_ascii=False, indent=indent)
