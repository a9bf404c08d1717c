#!/usr/bin/env python3
"""Writes the model card, DIR/README.md, from train.json, scores.json and overlap.json of that folder.

card.py --model DIR
"""
import argparse, json

CARD = """---
license: apache-2.0
language: en
pipeline_tag: text-generation
---
# Demo model

A very small, really trained language model of the `qwen3_5_text` architecture, with its MTP layer. It exists so that a
serving program can be tried and tested end to end on any computer: it chats, tells short stories, works out small sums,
answers simple questions, writes JSON and small pieces of code, copies and edits a passage, finds a fact in a text of up
to 2,000 tokens and calls tools. It knows nothing else, and says so when it notices.

## What it is

| | |
| --- | --- |
| layers | 8: three gated delta net layers, then one full-attention layer, twice; MLP 512 |
| width | 256; attention: 2 query heads and 1 key-value head of 256, 64 of them rotary, theta 1e7 |
| delta net | 2 key heads, 4 value heads, 128 wide, convolution over 4 |
| vocabulary | 4,000 byte-level BPE entries and 33 added tokens = 4,033, padded to 4,096; tied embedding |
| MTP | one layer, trained together with the rest, three chained drafts |
| weights | bf16, two shards |

{bytes}

## Data and training

All text comes from the small grammars of `tests/models/` (no third-party text): {items:,} conversations, {tokens:,} tokens.
About a third of the names are invented, so copying must not rest on known words. {steps:,} steps of 65,536 tokens
({seen:,} tokens) on one H200 took {training:.0f} seconds, after {start_up:.0f} seconds for data, tokeniser and compilation: 60% of
the steps at 512 tokens, the rest at 2,048. Muon on the matrices, AdamW on the rest, bf16 products over fp32 weights.

Chat template: thoughts of turns before the last question are dropped unless `preserve_thinking` is true;
`enable_thinking` false answers at once. Thinking is on by default and makes sums safer.

## Scores

Greedy answers on held-out items (one key in ten never occurs in training: the pair of numbers, the names, the text of the
question), these bf16 weights computed in fp32. Right means: the answer after the thought equals the expected one
character by character, tool calls included; for stories all the names and things of the question kept, 5 to 16 closed
sentences, none twice. "In training" counts test items whose question text also occurs among the training questions.

{scores}

Recall by the length of the prompt:

{recall}

## MTP match

How many of the model's own greedy answer tokens the MTP layer drafts right, as shares of all positions: the first draft,
the first two, the first three. 1 + the sum is the number of tokens a round with three drafts.

{mtp}

Logits of this model in transformers (fp32, eager) and in the training code differ by at most {parity:.1e} of their range.

## Limits

- English of the grammars only. Other questions get "I am sorry, I do not know that." at best, nonsense at worst; wordings far
  from the trained ones can fail too ("Hi, I'm Sarah", "Thank you so much for your help!", a poem about a word without an article).
- Sums: two numbers up to 999 (above 99 the work is shown, in the thought or in the answer), three numbers up to 20, tables up to
  12. Larger numbers are declined.
- Facts are limited to the lists in `tests/models/words.py`.
- Invented names are now and then misspelt in JSON.
- `max_position_embeddings` is 4,096, training rows had 2,048 tokens; see the last row of the recall table.
- Greedy stories about the same hero are alike; sample at temperature 0.7 to 1 for variety. The first draft of the MTP layer is
  nearly always right under greedy decoding, so rejected drafts need sampled requests or drafts that are wrong on purpose.

## Licence

Apache-2.0, as the project it belongs to. How to make it again: `tests/models/README.md`.
"""


def table(head, rows):
    line = lambda cells: "| " + " | ".join(map(str, cells)) + " |"
    return "\n".join([line(head), line(["---"] * len(head))] + [line(r) for r in rows])


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", required=True)
    o = ap.parse_args()
    train, scores, seen = (json.load(open(f"{o.model}/{n}.json")) for n in ("train", "scores", "overlap"))
    of = lambda v: f"{v[0]}/{v[1]}"
    text = CARD.format(
        bytes=table(["part", "parameters", "bytes"], [(p, f"{n:,}", f"{b:,}") for p, n, b in train["bytes"]]),
        items=train["data"]["items"], tokens=train["data"]["tokens"], steps=train["steps"], seen=train["tokens"],
        training=train["training_s"], start_up=train["start_up_s"],
        scores=table(["skill", "right", "in training"], [(k, of(v), seen[k]) for k, v in scores["scores"].items()]),
        recall=table(["prompt tokens", "right"], [(k, of(v)) for k, v in scores["recall"].items()]),
        mtp=table(["skill", "1 draft", "2 drafts", "3 drafts", "tokens a round"],
                  [(k, *(f"{x:.3f}" for x in v), f"{1 + sum(v):.2f}") for k, v in scores["mtp"].items()]),
        parity=scores["transformers"]["difference"])
    with open(o.model + "/README.md", "w") as f: f.write(text)


if __name__ == "__main__":
    main()
