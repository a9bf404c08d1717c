"""Adds up one log of `meson test` (testlog.json, one test a line): names what failed or was skipped, with the end of
its output, and prints `PASSED FAILED SKIPPED` as its last line. A TAP program counts one by one.

    python3 tests/tools/tally.py build/meson-logs/testlog.json
"""

import json
import re
import sys

RESULT = re.compile(r"^(not ok|ok)\b(.*)$")
TAIL_LINES = 60


def tap(test):
    """(name, 'passed' | 'failed' | 'skipped') of each result line of a TAP program."""
    for line in test["stdout"].splitlines():
        m = RESULT.match(line)
        if not m:
            continue
        rest = m.group(2)
        # A directive other than the plain result is a test that did not run or was excused: neither is a success.
        directive = re.search(r"#\s*(skip|todo)\b", rest, re.I)
        state = "skipped" if directive else "failed" if m.group(1) == "not ok" else "passed"
        yield rest.strip(" -"), state


def whole(test, parts):
    """The state of the program itself where its parts do not already tell it."""
    states = {state for _, state in parts}
    if test["result"] in ("OK", "EXPECTEDFAIL"):
        return None if parts else "passed"
    if test["result"] == "SKIP":
        return None if "skipped" in states else "skipped"
    return None if "failed" in states else "failed"


def show(test, name, state):
    print(f"--- {state}: {test['name']}: {name}")


def tail(test):
    for part in ("stdout", "stderr"):
        lines = (test.get(part) or "").splitlines()[-TAIL_LINES:]
        print("\n".join(f"    {line}" for line in lines))


def tally(path):
    count = {"passed": 0, "failed": 0, "skipped": 0}
    with open(path, encoding="utf-8", errors="replace") as f:
        tests = [json.loads(line) for line in f]
    for test in tests:
        test["stdout"] = test.get("stdout") or ""
        parts = list(tap(test))
        end = whole(test, parts)
        if end:
            parts.append((f"ended with {test['result']}, status {test['returncode']}", end))
        for name, state in parts:
            count[state] += 1
            if state != "passed":
                show(test, name, state)
        if any(state == "failed" for _, state in parts):
            tail(test)
    return count, len(tests)


def main():
    try:
        count, tests = tally(sys.argv[1])
    except OSError as e:
        print(f"--- failed: no log of this suite: {e}")
        count, tests = {"passed": 0, "failed": 1, "skipped": 0}, 1
    if tests == 0:
        print("--- failed: this suite has no tests")
        count["failed"] += 1
    print(count["passed"], count["failed"], count["skipped"])


main()
