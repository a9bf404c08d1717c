"""Makes one table of several that were measured with one drafter each: merge.py OUT ABOUT FILE.. The least of each figure stands, since
what else a machine did only added to it, and figures never fall."""

import json
import sys


def least(lists):
    v = [min(x) for x in zip(*lists)]
    for i in reversed(range(len(v) - 1)):
        v[i] = min(v[i], v[i + 1])
    return "[" + ", ".join(f"{x:g}" for x in v) + "]"


def main():
    out, about, *files = sys.argv[1:]
    tables = []
    for path in files:
        with open(path, encoding="utf-8") as f:
            tables.append(json.load(f))
    if len({(t["device"], t["shape"]) for t in tables}) != 1:
        sys.exit("wanted tables of one device and shape")
    kinds = sorted({k for t in tables for k in t["draft_ms"]})
    drafts = ",\n              ".join(f'"{k}": {least([t["draft_ms"][k] for t in tables if k in t["draft_ms"]])}' for k in kinds)
    with open(out, "w", encoding="utf-8") as f:
        f.write(f'{{"railyard_costs": 1,\n "device": {json.dumps(tables[0]["device"])},\n "shape": {json.dumps(tables[0]["shape"])},\n'
                f' "about": {json.dumps(about)},\n "rows_ms": {least([t["rows_ms"] for t in tables])},\n "draft_ms": {{{drafts}}}}}\n')


main()
