#!/usr/bin/env python3
"""Unpacks the tokeniser data: unpack.py SOURCE_DIR OUT_DIR (a build step; the standard library alone)."""
import gzip
import json
import lzma
import pathlib
import sys

MARKS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
         r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

source, out = (pathlib.Path(a) for a in sys.argv[1:3])
text = lzma.decompress((source / "tokenizer.json.xz").read_bytes())
(out / "tokenizer.json").write_bytes(text)
data = json.loads(text)
data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = MARKS
# The older notation of merges, so that both are read.
data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
(out / "tokenizer_marks.json").write_text(json.dumps(data, ensure_ascii=False), "utf-8")
(out / "cases.jsonl").write_bytes(gzip.decompress((source / "cases.jsonl.gz").read_bytes()))
(out / "fuzz.jsonl").write_bytes(lzma.decompress((source / "fuzz.jsonl.xz").read_bytes()))
