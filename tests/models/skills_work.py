"""Skills with one right answer: sums, numbers, JSON, code, editing a text, finding a fact in a long text."""
from common import SYSTEMS, held, item, loosen, norm, to_json
from words import (ADJECTIVES, ANIMALS, CITIES, COLOURS, GOODS, HOBBIES, JOBS, NAMES, OBJECTS, PLACES, WEATHER, a, cap, invented,
                   name)


# ---- sums: 0 to 99, and with a worked thought up to 999 -------------------------------------------------------------
COLUMNS = ["Ones", "Tens", "Hundreds"]


def column_work(x, y, op):
    """Adding or subtracting column by column, as learnt at school; x >= y for a subtraction."""
    lines, carry = [], 0
    width = max(len(str(x)), len(str(y)))
    for i in range(width):
        p, q, last = x // 10**i % 10, y // 10**i % 10, i == width - 1
        if op == "+":
            z = p + q + carry
            line = f"{COLUMNS[i]}: {p} + {q}" + (" + 1" if carry else "") + f" = {z}."
            carry = int(z > 9)
            if carry and not last: line += f" Write {z % 10}, carry 1."
        else:
            top = f"{p} - 1" if carry else f"{p}"
            if p - carry >= q:
                line, carry = f"{COLUMNS[i]}: {top} - {q} = {p - carry - q}.", 0
            else:
                z = 10 + p - carry
                line, carry = f"{COLUMNS[i]}: {top} is less than {q}. Borrow 1: {z} - {q} = {z - q}.", 1
        lines.append(line)
    return "\n".join(lines)


def sum_thought(x, y, op):
    z = x + y if op == "+" else x - y
    if z < 0:
        return f"I need {x} - {y}.\n{x} is less than {y}, so the result is negative. I need {y} - {x}.\n{column_work(y, x, '-')}\nSo the result is {z}."
    return f"I need {x} {op} {y}.\n{column_work(x, y, op)}\nSo the result is {z}."


PLUS = ["What is {x} + {y}?", "What is {x} plus {y}?", "Add {y} to {x}.", "Add {x} and {y}.", "What is the sum of {x} and {y}?", "{x} plus {y}",
        "What do you get if you add {x} and {y}?", "Can you add {x} and {y}?", "{x}+{y}", "{x} + {y}", "{x} + {y} =", "{x}+{y}=?"]
MINUS = ["What is {x} - {y}?", "What is {x} minus {y}?", "Subtract {y} from {x}.", "Take {y} away from {x}.", "{x} minus {y}", "{x}-{y}", "{x} - {y}",
         "{x} - {y} =", "What do you get if you subtract {y} from {x}?", "Can you subtract {y} from {x}?"]
EITHER = ["What's {x} {op} {y}?", "Work out {x} {op} {y}.", "{x} {op} {y} = ?", "Please calculate {x} {op} {y}.", "How much is {x} {op} {y}?",
          "Calculate {x} {op} {y}.", "Please work out {x} {op} {y} for me.", "I need the result of {x} {op} {y}.", "Tell me {x} {op} {y}."]


def arith(r, test):
    op, big, think = r.choice("+-"), r.random() < 0.3, r.random() < 0.5
    if big:
        x, y = r.randint(0, 999), r.randint(0, 999)
        if r.random() < 0.2: x, y = x // 100 * 100, y // 10 * 10
        if max(x, y) < 100: return None
    elif r.random() < 0.2: x, y = r.randint(0, 20), r.randint(0, 20)
    else: x, y = r.randint(0, 99), r.randint(0, 99)
    if op == "-" and y > x and r.random() < (1.0 if big else 0.9): x, y = y, x
    if held("sum", op, min(x, y), max(x, y)) != test: return None
    z = x + y if op == "+" else x - y
    if r.random() < 0.8 or z < 0:
        text = r.choice((PLUS if op == "+" else MINUS) + EITHER).format(x=x, y=y, op=op)
        ans = f"{x} {op} {y} = {z}."
    else:
        n, o = name(r), r.choice(GOODS)
        text = f"{n} has {x} {o} and " + r.choice([f"gets {y} more.", f"finds {y} more."] if op == "+" else [f"gives away {y}.", f"loses {y}."])
        text += f" How many {o} does {n} have now?"
        ans = f"{n} has {z} {o} now."
    skill = ("sums to 999" if big else "sums to 99") + (", thinking" if think else ", thinking off")
    if big and not think: ans = column_work(x, y, op) + "\n" + ans  # too hard in one go: the answer shows the work
    return item(skill, [loosen(r, text)], think, ans, sum_thought(x, y, op), system=r.choice(SYSTEMS))


TIMES = ["What is {x} times {y}?", "What is {x} * {y}?", "Multiply {x} by {y}.", "{x} * {y}", "{x} times {y}", "How much is {x} times {y}?",
         "Work out {x} * {y}.", "{x} * {y} = ?", "What's {x} x {y}?", "Calculate {x} * {y}."]
OVER = ["What is {x} / {y}?", "What is {x} divided by {y}?", "Divide {x} by {y}.", "{x} / {y}", "How much is {x} / {y}?", "Work out {x} / {y}."]


def numbers(r, test):
    """Tables up to 12 (the wording is held out, not the product), three numbers, numbers that are too large, comparing, odd and
    even, counting, sorting."""
    k, think = r.random() * 1.25 - 0.25, r.random() < 0.4
    if k < -0.12:
        x, y, z = (r.randint(0, r.choice([9, 20])) for _ in range(3))
        text = r.choice(["What is {} + {} + {}?", "{}+{}+{}", "{} + {} + {}", "Add {}, {} and {}.", "What is the sum of {}, {} and {}?", "Work out {} + {} + {}."]).format(x, y, z)
        ans = f"{x} + {y} = {x + y}, and {x + y} + {z} = {x + y + z}."
        th, key = "I add the first two numbers, then the third.", ("three", x, y, z)
    elif k < 0:
        if r.random() < 0.6:
            op, x, y = r.choice("+-"), r.randint(1000, 10 ** r.randint(4, 7)), r.randint(1, 10 ** r.randint(1, 6))
            if r.random() < 0.3: x, y = x // 1000 * 1000, y // 1000 * 1000
            if r.random() < 0.3: x, y = y, x
            text, ans = r.choice((PLUS if op == "+" else MINUS) + EITHER).format(x=x, y=y, op=op), "I am sorry, I only work with numbers up to 999."
            th = "A number is larger than 999. That is too much for me."
        else:
            x, y = r.randint(13, 999), r.randint(2, 999)
            if r.random() < 0.5: x, y = y, x
            text, ans = r.choice(TIMES).format(x=x, y=y), "I am sorry, I only know the tables up to 12."
            th = "A number is larger than 12. That is too much for me."
        key = ("large", norm(text))
    elif k < 0.45:
        x, y = r.randint(0, 12), r.randint(0, 12)
        if k < 0.3: text, ans = r.choice(TIMES).format(x=x, y=y), f"{x} * {y} = {x * y}."
        else:
            y = max(y, 1)
            text, ans = r.choice(OVER).format(x=x * y, y=y), f"{x * y} / {y} = {x}."
        th = "I know this from the tables. " + ans
        key = ("tables", norm(text))
    elif k < 0.62:
        x, y = r.randint(0, 999), r.randint(0, 999)
        if r.random() < 0.5: x, y = x % 100, y % 100
        if x == y: return None
        small = r.random() < 0.5
        text = r.choice(["Which is smaller, {x} or {y}?", "Which number is smaller: {x} or {y}?", "Is {x} or {y} the smaller number?"] if small else
                        ["Which is larger, {x} or {y}?", "Which number is bigger: {x} or {y}?", "Is {x} or {y} the larger number?"]).format(x=x, y=y)
        p, q = (min(x, y), max(x, y)) if small else (max(x, y), min(x, y))
        ans = f"{p} is {'smaller' if small else 'larger'} than {q}."
        th, key = f"I compare {x} and {y}. " + ans, ("compare", min(x, y), max(x, y))
    elif k < 0.72:
        x = r.randint(0, 999)
        text = r.choice(["Is {x} even or odd?", "Is {x} an even number?", "Is {x} odd?", "Tell me if {x} is even or odd."]).format(x=x)
        ans = f"{x} is {'odd' if x % 2 else 'even'}."
        th, key = f"The last digit of {x} is {x % 10}.", ("odd", x)
    elif k < 0.86:
        x, n = r.randint(0, 89), r.randint(2, 10)
        if r.random() < 0.1: x, n = 1, r.randint(2, 19)
        text, down = r.choice(([("Count to {y}.", 0), ("Please count to {y}.", 0), ("Can you count to {y}?", 0)] if x == 1 else []) + [("Count from {x} to {y}.", 0), ("Please count from {x} up to {y}.", 0), ("Count down from {y} to {x}.", 1), ("List the numbers from {x} to {y}.", 0)])
        text = text.format(x=x, y=x + n)
        row = list(range(x, x + n + 1))
        ans = ", ".join(map(str, row[::-1] if down else row)) + "."
        th, key = f"There are {n + 1} numbers.", ("count", x, n)
    else:
        row = r.sample(range(100), r.randint(3, 5))
        text = r.choice(["Sort these numbers: {}.", "Put these numbers in order: {}.", "Sort {} from small to large."]).format(", ".join(map(str, row)))
        ans = ", ".join(map(str, sorted(row))) + "."
        th, key = f"The smallest is {min(row)} and the largest is {max(row)}.", ("sort", *sorted(row))
    if held("numbers", key) != test: return None
    return item("numbers", [loosen(r, text)], think, ans, th, system=r.choice(SYSTEMS))


# ---- JSON -----------------------------------------------------------------------------------------------------------
def jsons(r, test):
    n, age, city, hobby, job = name(r, 0.5), r.randint(1, 99), r.choice(CITIES), r.choice(HOBBIES), r.choice(JOBS)
    k = r.randint(0, 8)
    if k >= 7: return json_of_pairs(r, test)
    if k == 0:
        text = r.choice(["Write JSON for a person called {n}, aged {age}, who lives in {city}.", "Make a JSON object: name {n}, age {age}, city {city}.",
                         "{n} is {age} years old and lives in {city}. Give me that as JSON.", "Write a JSON object for {n}, {age}, from {city}."])
        d, key = {"name": n, "age": age, "city": city}, (n, age)
    elif k == 1:
        text = r.choice(["Write JSON for {n}, who works as {aj} in {city} and likes {hobby}.", "Make a JSON object: name {n}, job {job}, city {city}, hobby {hobby}."])
        d, key = {"name": n, "job": job, "city": city, "hobby": hobby}, (n, city, job)
    elif k == 2:
        goods, price = r.sample(OBJECTS, r.randint(2, 4)), r.randint(1, 99)
        text = r.choice(["Make JSON for an order by {n} with the items {goods} and the total {price}.", "{n} orders {goods} for {price} euros in total. Write it as JSON."])
        text = text.replace("{goods}", ", ".join(goods)).replace("{price}", str(price))
        d, key = {"customer": n, "items": goods, "total": price}, tuple(goods)
    elif k == 3:
        ob, c, stock = r.choice(OBJECTS), r.choice(COLOURS), r.choice([True, False])
        text = r.choice([f"Write JSON for a {c} {ob} with the price {age} that is " + ("in stock." if stock else "not in stock."),
                         f"Make a JSON object: item {ob}, colour {c}, price {age}, in stock {'yes' if stock else 'no'}."])
        d, key = {"item": ob, "colour": c, "price": age, "in_stock": stock}, (ob, c, age)
    elif k == 4:
        who = [n] + [name(r, 0.5) for _ in range(r.randint(1, 3))]
        if len(set(who)) < len(who): return None
        text = r.choice(["Make a JSON array of these names: {}.", "Write the names {} as a JSON list.", "Give me a JSON array with {}."]).format(", ".join(who))
        d, key = who, tuple(who)
    elif k == 5:
        who = [(n, age), (name(r, 0.5), r.randint(1, 99))]
        text = r.choice(["Write a JSON list of two people: {} is {} and {} is {}.", "Make JSON for these people: {}, {} years old, and {}, {} years old."])
        text = text.format(*who[0], *who[1])
        d, key = [{"name": x, "age": y} for x, y in who], (n, who[1][0])
    else:
        other = name(r, 0.5)
        text = r.choice(["Write JSON for a letter from {n} to {o} about {h}.", "Make a JSON object for a message: sender {n}, receiver {o}, subject {h}."]).format(n=n, o=other, h=hobby)
        d, key = {"from": n, "to": other, "subject": hobby}, (n, other)
    if held("json", k, key) != test: return None
    text = text.format(n=n, age=age, city=city, hobby=hobby, job=job, aj=a(job))
    lines = r.random() < 0.35
    if lines: text += r.choice([" Use one line per key.", " Indent it."])
    thought = "The keys are " + ", ".join(d) + "." if isinstance(d, dict) else f"The list has {len(d)} entries."
    return item("json", [text], r.random() < 0.25, to_json(d, 2 if lines else None), thought, system=r.choice(SYSTEMS))


KEYS = """name age city colour size price weight owner title year author country job hobby animal food drink day month street number phone
email status level score points width height length speed first_name last_name id type kind count total active open done""".split()


def json_of_pairs(r, test):
    """Keys and values named in the question."""
    keys = r.sample(KEYS, r.randint(1, 4))
    if r.random() < 0.3: keys[0] = r.choice([invented(r).lower(), "key", "hello", "test"])
    if len(set(keys)) < len(keys): return None
    value = lambda: r.choice([r.randint(0, 99), r.randint(0, 9999), name(r, 0.4), r.choice(CITIES), r.choice(COLOURS), r.choice(OBJECTS), True, False, invented(r).lower()])
    d = {k: value() for k in keys}
    said = [f"{k} {to_json(v) if isinstance(v, bool) else v}" for k, v in d.items()]
    listed = ", ".join(said[:-1]) + " and " + said[-1] if len(said) > 1 else said[0]
    text = r.choice(["Write a JSON object with {}.", "Give me JSON with {}.", "Make a JSON object with {}.", "JSON with {}, please.", "Write JSON with {}.",
                     "I need a JSON object with {}.", "Can you write a JSON object with {}?", "Create JSON with {}."]).format(listed)
    if held("pairs", str(d)) != test: return None
    lines = r.random() < 0.3
    if lines: text += r.choice([" Use one line per key.", " Indent it."])
    return item("json", [text if lines else loosen(r, text)], r.random() < 0.25, to_json(d, 2 if lines else None), "The keys are " + ", ".join(d) + ".", system=r.choice(SYSTEMS))


# ---- code -----------------------------------------------------------------------------------------------------------
OPS = {"sum": "+", "difference": "-", "product": "*"}
VARS = "a b x y m n p q u v left right first second count total".split()
FUNCS = "add_all compute get_value work_out run_it helper combine make_it find_it step solve check_it measure".split()


def block(lang, text): return f"```{ {'Python': 'python', 'C': 'c', 'JavaScript': 'javascript'}[lang] }\n{text}\n```"


def function(lang, f, x, y, ex):
    if lang == "Python": return f"def {f}({x}, {y}):\n    return {ex}"
    if lang == "C": return f"int {f}(int {x}, int {y}) {{\n    return {ex};\n}}"
    return f"function {f}({x}, {y}) {{\n    return {ex};\n}}"


def say(lang, what):
    if lang == "Python": return f'print("{what}")'
    if lang == "C": return f'#include <stdio.h>\n\nint main(void) {{\n    printf("{what}\\n");\n    return 0;\n}}'
    return f'console.log("{what}");'


def code(r, test):
    lang, k = r.choice(["Python", "C", "JavaScript"]), r.randint(0, 7)
    (x, y), f, c = r.sample(VARS, 2), r.choice(FUNCS), r.randint(2, 99)
    key = (lang, k, x, y, f)
    if k < 4:
        if k == 0:
            o = r.choice(list(OPS)); what = f"the {o} of {x} and {y}"; ex = f"{x} {OPS[o]} {y}"
        elif k == 1:
            what = f"the larger of {x} and {y}"; ex = f"{x} if {x} > {y} else {y}" if lang == "Python" else f"{x} > {y} ? {x} : {y}"
        elif k == 2: what, ex = f"{x} times {c} plus {y}", f"{x} * {c} + {y}"
        else: what, ex = f"whether {x} is less than {y}", f"{x} < {y}"
        text = r.choice(["Write a {l} function {f} that returns {u}.", "Please write {f} in {l}. It should return {u}.", "I need a function {f} in {l} that returns {u}."]).format(l=lang, f=f, u=what)
        body, th = function(lang, f, x, y, ex), f"The function is {f} with {x} and {y}. It returns {ex}."
    elif k == 4:
        what = r.choice(["Hello, world!", "Hello!", f"Hello, {name(r)}!", f"Good day, {name(r)}!"])
        text = r.choice(["Write a {l} program that prints \"{w}\".", "Print \"{w}\" in {l}.", "Show me how to print \"{w}\" in {l}."]).format(l=lang, w=what)
        if r.random() < 0.15: what, text = "Hello, world!", r.choice(["Write hello world in {l}.", "Show me hello world in {l}.", "Hello world in {l}, please."]).format(l=lang)
        key, body, th = norm(text), say(lang, what), f"The program prints {what}"
        if "world in" in key and test: return None
        if "world in" in key: key = None
    elif k == 7:
        verb, op = r.choice([("add", "+"), ("subtract", "-"), ("multiply", "*"), ("divide", "/")])
        text = r.choice(["Write a {l} function to {v} two numbers.", "Write a function in {l} to {v} two numbers.", "How do I {v} two numbers in {l}?",
                         "Show me {l} code to {v} two numbers.", "Write {l} code to {v} two numbers.", "I need a {l} function that can {v} two numbers."])
        text = r.choice(["", "Hi! ", "Hello. ", "Please help me: ", "Here is a task: ", "One question: "]) + text.format(l=r.choice([lang, lang.lower()]), v=verb)
        key, body, th = norm(text), function(lang, verb, "a", "b", f"a {op} b"), f"The function is {verb} with a and b. It returns a {op} b."
    elif k == 5:
        lo, hi = r.randint(0, 9), r.randint(10, 99)
        text = r.choice(["Write a {l} loop that prints the numbers from {lo} to {hi}.", "Print the numbers {lo} to {hi} in {l}."]).format(l=lang, lo=lo, hi=hi)
        head = {"Python": f"for {x} in range({lo}, {hi + 1}):\n    print({x})", "C": f"for (int {x} = {lo}; {x} <= {hi}; {x}++) {{\n    printf(\"%d\\n\", {x});\n}}",
                "JavaScript": f"for (let {x} = {lo}; {x} <= {hi}; {x}++) {{\n    console.log({x});\n}}"}[lang]
        text += f" Call the variable {x}."
        key, body, th = (lang, lo, hi, x), head, f"The loop runs from {lo} to {hi}."
    else:
        z = r.choice([v for v in VARS if v not in (x, y)])
        ex = r.choice(["{x} + {y}", "{x} * {y} - {x}", "{x} * {x} + {y}", "({x} - {y}) * 2"])
        before, body = (function(lang, f, p, y, ex.format(x=p, y=y)) for p in (x, z))
        text = r.choice([f"Rename {x} to {z} in this code:", f"Please rename the variable {x} to {z}:"]) + "\n\n" + block(lang, before)
        key, th = (lang, f, x, y, z), f"I write the code with {z} in place of {x}."
    if key is not None and held("code", k, key) != test: return None
    return item("code", [text], r.random() < 0.25, block(lang, body), th, system=r.choice(SYSTEMS))


# ---- editing and finding --------------------------------------------------------------------------------------------
def sentence(r):
    n, ob, c, pl, an = name(r), r.choice(OBJECTS), r.choice(COLOURS), r.choice(PLACES), r.choice(list(ANIMALS))
    k = r.randint(0, 11)
    if k == 0: return f"{n} put the {c} {ob} in the {pl}."
    if k == 1: return f"The {an} slept near the {pl}."
    if k == 2: return f"It was {r.choice(WEATHER)} in {r.choice(CITIES)} that day."
    if k == 3: return f"{n} bought {r.randint(2, 99)} {r.choice(GOODS)} at the market."
    if k == 4: return f"{n} works as {a(r.choice(JOBS))} in {r.choice(CITIES)}."
    if k == 5: return f"A {c} {ob} was lying on the table."
    if k == 6: return f"{n} enjoys {r.choice(HOBBIES)} with {name(r)}."
    if k == 7: return f"The {r.choice(ADJECTIVES)} {an} looked at the {c} {ob}."
    if k == 8: return f"Nobody went to the {pl} after the {r.choice(['storm', 'party', 'game', 'meal'])}."
    if k == 9: return f"{n} told a story about {a(an)} and {a(ob)}."
    if k == 10: return f"The {pl} opens at {r.randint(1, 12)} and closes at {r.randint(1, 12)}."
    return f"{n} wrote a letter to {name(r)} about the {an}."


def edit(r, test):
    if r.random() < 0.15: return repeat(r, test)
    ss = [sentence(r) for _ in range(r.choice([1, 2, 3, 4, 5, 6, 8, 10]))]
    text = " ".join(ss)
    if held("edit", text) != test: return None
    k, th = r.randint(0, 8), "I work on the given text."
    if k <= 1: ask, ans = r.choice(["Repeat this text exactly:", "Copy the following text:", "Write this again, word for word:", "Copy this passage:"]), text
    elif k <= 3:
        x = r.choice([w.strip(".") for w in text.split()])
        y = r.choice([name(r), r.choice(OBJECTS), r.choice(COLOURS)])
        ans = " ".join(y + ("." if w.endswith(".") else "") if w.strip(".") == x else w for w in text.split())
        ask, th = r.choice([f"Replace the word {x} by {y} in this text:", f"Change {x} to {y} in the following text:"]), f"I write the text with {y} in place of {x}."
    elif k == 4: ask, ans = r.choice(["Make a numbered list of these sentences:", "Number the sentences of this text:"]), "\n".join(f"{i + 1}. {s}" for i, s in enumerate(ss))
    elif k == 5: ask, ans = r.choice(["Give me only the last sentence of this text:", "What is the last sentence here?"]), ss[-1]
    elif k == 6: ask, ans = r.choice(["Give me only the first sentence of this text:", "What is the first sentence here?"]), ss[0]
    elif k == 7:
        extra = sentence(r)
        ask, ans = r.choice([f"Add the sentence \"{extra}\" at the end of this text:", f"Put \"{extra}\" after this text:"]), text + " " + extra
    else: ask, ans = r.choice(["Make a bullet list of these sentences:", "Write each sentence as a bullet point:"]), "\n".join(f"- {s}" for s in ss)
    return item("edit", [ask + "\n\n" + text], r.random() < 0.2, ans, th, system=r.choice(SYSTEMS))


LOOSE = """the a an cat dog sat on mat my your is are was very big small house tree likes to go and or but with from this that we you they
run jumps quick brown fox over lazy it he she hello world one two three today tomorrow never always red blue good bad time day""".split()


def repeat(r, test):
    """Say a few words again; they need not make sense."""
    k = r.random()
    if k < 0.4: text = sentence(r)
    else:
        words = [r.choice(LOOSE) if r.random() < 0.7 else r.choice([invented(r), invented(r).lower(), r.choice(OBJECTS), str(r.randint(0, 999)), r.choice(CITIES)])
                 for _ in range(r.randint(1, 9))]
        text = " ".join(words) + r.choice(["", "", ".", "!"])
        if k < 0.7: text = cap(text)
    if held("repeat", text) != test: return None
    ask = r.choice(["Repeat after me: {}", "Say: {}", "Say \"{}\"", "Repeat: {}", "Please repeat \"{}\"", "Write \"{}\"", "Please say this: {}", "Type this: {}"])
    return item("edit", [ask.format(text)], r.random() < 0.2, text, "I work on the given text.", system=r.choice(SYSTEMS))


WORDS_MAX = 1720  # with these sentences about 2,000 tokens


def fact_in_text(r):
    """(name of the thing, the sentence that tells it, the question)."""
    k = r.randint(0, 4)
    if k == 0:
        key = f"the {r.choice(COLOURS)} {r.choice(['door', 'box', 'safe', 'gate'])}"
        return key, f"The code for {key} is {r.randint(0, 9999):04d}.", f"What is the code for {key}?"
    if k == 1:
        key = f"the secret word of {name(r)}"
        return key, f"{cap(key)} is {r.choice(OBJECTS)}-{r.choice(COLOURS)}.", f"What is {key}?"
    if k == 2:
        key = f"the meeting with {name(r)}"
        return key, f"{cap(key)} is at {r.randint(1, 12)}:{r.choice(['00', '15', '30', '45'])} in {r.choice(CITIES)}.", f"When and where is {key}?"
    if k == 3:
        key = f"the phone number of {name(r)}"
        return key, f"{cap(key)} is {r.randint(100, 999)}-{r.randint(0, 9999):04d}.", f"What is {key}?"
    key = f"the password for the {r.choice(PLACES)}"
    return key, f"{cap(key)} is {name(r, 1.0)}.", f"What is {key}?"


def recall(r, test, words_max=WORDS_MAX, words_min=0):
    words_wanted = min(words_max, int(10 ** r.uniform(1.2, 3.24)) if r.random() < 0.75 else r.randint(500, WORDS_MAX))
    words_wanted = max(words_min, words_wanted)
    ss, words = [], 0
    while words < words_wanted:
        ss.append(sentence(r)); words += len(ss[-1].split()) + 1
    told = {}
    for _ in range(r.randint(1, 4)):
        key, tells, asks = fact_in_text(r)
        told.setdefault(key, (tells, asks))
    told = list(told.values())
    if held("recall", told[0]) != test: return None
    for tells, _ in told: ss.insert(r.randint(0, len(ss)), tells)
    text, (ans, ask) = " ".join(ss), told[0]
    text = r.choice([text + "\n\n" + ask, "Read this text:\n\n" + text + "\n\n" + ask, f"Here are some notes.\n\n{text}\n\nQuestion: {ask}"])
    return item("recall", [text], r.random() < 0.2, ans, "I look for it in the text. " + ans, system=r.choice(SYSTEMS))
