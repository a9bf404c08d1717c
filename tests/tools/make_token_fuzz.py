#!/usr/bin/env python3
"""Makes tests/golden/tokenizer/fuzz.jsonl.xz: 100,000 strings and checks of the ids that the reference gives them.

    pip install tokenizers==0.23.3; make_token_fuzz.py tests/golden/tokenizer

Lines: a head {"made_with", "seed"}; then per string [text, a, b], a and b the first 8 hex digits of the SHA-256 of
its ids as little-endian 32-bit words, with the file's own regex and with Qwen3.5's; after each 1,000 strings a line
{"sha256", "sha256_marks"} over all ids of these. Same seed, same strings (the Unicode tables are Python's own).
"""
import hashlib
import json
import lzma
import pathlib
import random
import sys
import unicodedata

import tokenizers

SEED, COUNT, BLOCK = 20251129, 100_000, 1_000
MARKS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
         r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

rng = random.Random(SEED)
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
BY_CLASS = {}
for point in POINTS:
    BY_CLASS.setdefault(unicodedata.category(chr(point))[0], []).append(chr(point))
UNASSIGNED = [chr(c) for c in POINTS if unicodedata.category(chr(c)) == "Cn"]
NEW_BLOCKS = [chr(c) for first, last in  # scripts of Unicode 10 to 16
              ((0x0860, 0x08FF), (0x1ABE, 0x1ACE), (0x105C0, 0x105F3), (0x10D00, 0x10D8F), (0x10E80, 0x10F89),
               (0x11240, 0x11241), (0x11380, 0x113E2), (0x11900, 0x119FF), (0x11A00, 0x11AAF), (0x11BC0, 0x11BF9),
               (0x11D00, 0x11DAF), (0x11F00, 0x11F5A), (0x13430, 0x13455), (0x16100, 0x16139), (0x16D40, 0x16D79),
               (0x1CCF0, 0x1CCF9), (0x1E030, 0x1E08F), (0x1E2C0, 0x1E2FF), (0x1E4D0, 0x1E5FF), (0x31350, 0x31360))
              for c in range(first, last + 1)]
COMPOSED = [chr(c) for c in POINTS if unicodedata.normalize("NFD", chr(c)) != chr(c)]
SCRIPTS = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x586), (0x5D0, 0x5EA),
           (0x620, 0x64A), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F), (0x1000, 0x109F),
           (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x1780, 0x17FF), (0x1E00, 0x1FFF), (0x3041, 0x30FF),
           (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x10400, 0x1044F), (0x1D400, 0x1D7FF), (0x20000, 0x20100)]
BLANKS = [chr(c) for c in (9, 10, 11, 12, 13, 32, 32, 32, 10, 13, 0x85, 0xA0, 0x1680, 0x180E, 0x2000, 0x2003, 0x200A, 0x200B,
                           0x2028, 0x2029, 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF, 0x1C, 0x1F)]
EMOJI = ["\U0001F469", "\U0001F468", "\U0001F467", "\u2764\ufe0f", "\U0001F525", "\U0001F3FD", "\u200d", "\u200d",
         "\U0001F1E9", "\U0001F1EA", "1\ufe0f\u20e3", "\U0001F3F4\U000E0067\U000E0062\U000E007F", "\U0001F600", "\ufe0f"]
ENDS = ["s", "S", "\u017f", "t", "T", "re", "RE", "rE", "ve", "Ve", "m", "M", "ll", "LL", "lL", "d", "D", "x", "r", "l"]
PUNCT = list("!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\u2019\u2026\u2014\u00ab\u3002")
CODE = ["def f(x):\n", "\treturn ", "    ", "for(;;){", "}\n", "x+=1;", "// ", "==", "!=", "->", "0x1F", "3.14e-5", "\r\n"]
WORDS = "the of and tokeniser hello World I'm don't we'll naive cafe\u0301 stra\u00dfe \u0130stanbul \ufb01ne 12345 2024-11-29".split()
ADDED = []  # filled from the file


def pick(items):
    return items[rng.randrange(len(items))]


def word():
    first, last = pick(SCRIPTS)
    return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 7)))


def marks():
    return pick([pick(BY_CLASS["L"]), "a", "e", "o", " ", "\u0915", "\u1100"]) + "".join(
        pick(BY_CLASS["M"]) if rng.random() < 0.5 else chr(rng.randint(0x300, 0x36F)) for _ in range(rng.randint(1, 5)))


def pile():
    return "q" + "".join(chr(rng.randint(0x300, 0x345)) for _ in range(rng.randint(16, 40)))


def jamo():
    return "".join(chr(rng.choice([rng.randint(0x1100, 0x1112), rng.randint(0x1161, 0x1175), rng.randint(0x11A8, 0x11C2)]))
                   for _ in range(rng.randint(1, 6)))


def control_token():
    token = pick(ADDED)
    if rng.random() < 0.3:  # nearly one
        cut = rng.randrange(len(token))
        token = pick([token[:cut], token[cut:], token[:cut] + pick([" ", "x", "|"]) + token[cut:], token.upper()])
    return pick(["", "", " ", "e", "<", "<|", "\n"]) + token + pick(["", "", "\u0338", "\u0301", " ", "\n\n", ">"])


def nfd():
    return unicodedata.normalize(pick(["NFD", "NFC", "NFKD"]), "".join(pick(COMPOSED) for _ in range(rng.randint(1, 4))))


def some(source, low=1, high=4):
    return lambda: "".join(pick(source) for _ in range(rng.randint(low, high)))


PARTS = [(word, 10), (marks, 6), (pile, 0.3), (jamo, 1), (control_token, 4), (nfd, 4), (some(BLANKS, 1, 6), 8),
         (lambda: pick(BLANKS) * rng.randint(1, 12), 3), (some(EMOJI, 1, 6), 3), (some(PUNCT, 1, 5), 5), (some(CODE), 3),
         (lambda: pick(["'", "'", "\u2019", "\u02bc"]) + pick(ENDS), 4), (some(WORDS), 4), (lambda: " " + pick(WORDS), 8),
         (some(BY_CLASS["N"]), 3), (lambda: str(rng.randint(0, 10 ** 6)), 3), (some(BY_CLASS["C"][:65]), 2),
         (some(UNASSIGNED), 2), (some(NEW_BLOCKS, 1, 6), 3), (some(BY_CLASS["S"]), 2), (some(BY_CLASS["Z"]), 1),
         (lambda: "".join(chr(pick(POINTS)) for _ in range(rng.randint(1, 6))), 3),
         (lambda: pick("ab =-\n") * rng.randint(20, 90), 0.2)]


def string():
    makers = rng.choices([p[0] for p in PARTS], [p[1] for p in PARTS], k=rng.choice([1, 1, 2, 2, 3, 3, 4, 5, 8]))
    return "".join(make() for make in makers)


def id_bytes(ids):
    return b"".join(i.to_bytes(4, "little") for i in ids)


def main():
    folder = pathlib.Path(sys.argv[1])
    data = json.loads(lzma.decompress((folder / "tokenizer.json.xz").read_bytes()))
    ADDED.extend(t["content"] for t in data["added_tokens"])
    own = tokenizers.Tokenizer.from_str(json.dumps(data))
    data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = MARKS
    other = tokenizers.Tokenizer.from_str(json.dumps(data))
    lines = [json.dumps({"made_with": "tokenizers " + tokenizers.__version__, "seed": SEED})]
    for _ in range(COUNT // BLOCK):
        sums = [hashlib.sha256(), hashlib.sha256()]
        for _ in range(BLOCK):
            text, heads = string(), []
            for tokenizer, total in zip((own, other), sums):
                ids = id_bytes(tokenizer.encode(text, add_special_tokens=False).ids)
                total.update(ids)
                heads.append(hashlib.sha256(ids).hexdigest()[:8])
            lines.append(json.dumps([text, *heads], ensure_ascii=False, separators=(",", ":")))
        lines.append(json.dumps({"sha256": sums[0].hexdigest(), "sha256_marks": sums[1].hexdigest()}))
    raw = ("\n".join(lines) + "\n").encode("utf-8")
    (folder / "fuzz.jsonl.xz").write_bytes(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
