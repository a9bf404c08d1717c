#!/usr/bin/env python3
"""Training data: items from generate.py, the byte-level BPE, token rows. Needs numpy and tokenizers.

data.py --work DIR --items 700000 [--entries 4000 | --tokenizer FILE]
Writes tokenizer.json and data.npz (rows of 513 and 2049 ids with their loss weights) and, last, done.json.
"""
import argparse, json, multiprocessing as mp, os, re, time
import numpy as np
import generate

# The 33 added tokens in their published order; those in PLAIN stay visible in decoded text.
SPECIAL = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call>
</tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response>
</tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod>
<tts_text_bos_single> <|audio_pad|>""".split()
PLAIN = set("""<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
<tool_response> </tool_response> <think> </think>""".split())
REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LENGTHS = (512, 2048)
BPE_ITEMS, PART, PROMPT_WEIGHT, ANSWER_WEIGHT = 40000, 2000, 1, 10


def make(job):
    count, seed = job
    return [(i["prompt"], i["answer"]) for i in generate.items(count, seed)]


def train_tokenizer(texts, entries):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(REGEX), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.post_processor = processors.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False)
    t.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False)
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=entries, show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_tokens([AddedToken(s, special=s not in PLAIN, normalized=False) for s in SPECIAL])
    assert t.token_to_id(SPECIAL[0]) == entries and t.get_vocab_size() == entries + len(SPECIAL)
    return t


def pack(tokens, weights, length):
    """Rows of length + 1 ids. Each starts with a fresh item; the last item is cut."""
    rows, row_weights, r, w, n = [], [], [], [], 0
    for t, x in zip(tokens, weights):
        if len(t) > length: continue
        r.append(t); w.append(x); n += len(t)
        if n > length:
            rows.append(np.concatenate(r)[:length + 1]); row_weights.append(np.concatenate(w)[:length + 1])
            r, w, n = [], [], 0
    return np.stack(rows), np.stack(row_weights)


def prepare(work, count, entries, tokenizer=None):
    t = [time.time()]
    with mp.Pool(os.cpu_count()) as pool:
        jobs = [(min(PART, count - i), 1000 + i // PART) for i in range(0, count, PART)]
        docs = [d for part in pool.imap(make, jobs) for d in part]
    t.append(time.time())
    marks = re.compile("|".join(map(re.escape, SPECIAL)))
    if tokenizer:
        from tokenizers import Tokenizer
        tok = Tokenizer.from_file(tokenizer)
    else: tok = train_tokenizer((x for p, q in docs[:BPE_ITEMS] for x in marks.split(p + q) if x), entries)
    tok.save(work + "/tokenizer.json")
    t.append(time.time())
    end = tok.token_to_id("<|endoftext|>")
    tokens, weights = [], []
    for i in range(0, len(docs), 50000):  # prompt and answer apart, as at inference
        part = docs[i:i + 50000]
        for p, q in zip(*(tok.encode_batch_fast([d[k] for d in part], add_special_tokens=False) for k in (0, 1))):
            tokens.append(np.array(p.ids + q.ids + [end], dtype=np.int16))
            weights.append(np.array([PROMPT_WEIGHT] * len(p.ids) + [ANSWER_WEIGHT] * len(q.ids) + [1], dtype=np.int8))
    t.append(time.time())
    out = {}
    for n in LENGTHS:
        out[f"t{n}"], out[f"w{n}"] = pack(tokens, weights, n)
    np.savez(work + "/data.npz", **out)
    t.append(time.time())
    sizes = [len(x) for x in tokens]
    info = {"items": len(docs), "entries": entries, "tokens": sum(sizes), "mean": round(float(np.mean(sizes)), 1), "longest": max(sizes),
            "rows": {n: len(out[f"t{n}"]) for n in LENGTHS},
            "seconds": {k: round(t[i + 1] - t[i], 1) for i, k in enumerate(["generate", "bpe", "encode", "pack"])}}
    json.dump(info, open(work + "/done.json", "w"))
    print(json.dumps({"data": info}), flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--work", required=True)
    ap.add_argument("--items", type=int, default=700000)
    ap.add_argument("--entries", type=int, default=4000)
    ap.add_argument("--tokenizer", help="take this one instead of training one")
    o = ap.parse_args()
    os.makedirs(o.work, exist_ok=True)
    prepare(o.work, o.items, o.entries, o.tokenizer)
