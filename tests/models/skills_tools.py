"""Tool calls: one, several at once, results, errors, further turns, tools that are not needed, tools never seen."""
from common import SYSTEMS, assistant, call, held, item, loosen, to_json, tool_result
from skills_talk import talk
from skills_work import sentence
from words import CITIES, COLOURS, JOBS, NAMES, OBJECTS, PLACES, WEATHER, a, cap, name


def parameters(**types):
    return {"type": "object", "properties": {k: {"type": t} for k, t in types.items()}, "required": list(types)}


TOOLS = {"get_weather": ("Get the weather of a city", parameters(city="string")),
         "add_numbers": ("Add two numbers", parameters(a="integer", b="integer")),
         "get_time": ("Get the time in a city", parameters(city="string")),
         "find_person": ("Look up a person", parameters(name="string")),
         "send_message": ("Send a message to a person", parameters(name="string", text="string")),
         "set_lamp": ("Set the colour of the lamp", parameters(colour="string")),
         "get_price": ("Get the price of an item", parameters(item="string")),
         "book_room": ("Book a room in a city", parameters(city="string", nights="integer")),
         "set_alarm": ("Set an alarm", parameters(hour="integer", loud="boolean")),
         "make_list": ("Save a list of items", parameters(items="array"))}
VERBS = "open close start stop check paint move clean lock test print count".split()
NOUNS = "door gate window engine printer camera robot bridge lift oven pump tower garden wagon".split()
FIELDS = {"speed": "integer", "level": "integer", "number": "integer", "colour": "string", "city": "string", "owner": "string"}


def describe(name_, text, params):
    return {"type": "function", "function": {"name": name_, "description": text, "parameters": params}}


def known(n): return describe(n, *TOOLS[n])


def task(r, f):
    """A request for tool f: question, call, result text, final answer."""
    n, city, ob, c, x, y = name(r), r.choice(CITIES), r.choice(OBJECTS), r.choice(COLOURS), r.randint(0, 999), r.randint(0, 999)
    if f == "get_weather":
        w, t = r.choice(WEATHER), r.randint(0, 35)
        ask = r.choice([f"What is the weather in {city}?", f"Is it nice in {city} today?", f"Tell me the weather in {city}.", f"How is the weather in {city}?"])
        return ask, call(f, city=city), to_json({"city": city, "weather": w, "degrees": t}), f"It is {w} in {city} with {t} degrees."
    if f == "add_numbers":
        ask = r.choice([f"Use the tool to add {x} and {y}.", f"Please add {x} and {y} with the function."])
        return ask, call(f, a=x, b=y), str(x + y), f"The sum of {x} and {y} is {x + y}."
    if f == "get_time":
        t = f"{r.randint(0, 23)}:{r.randint(10, 59)}"
        return r.choice([f"What time is it in {city}?", f"Tell me the time in {city}."]), call(f, city=city), t, f"It is {t} in {city}."
    if f == "find_person":
        j = r.choice(JOBS)
        ask = r.choice([f"Who is {n}?", f"What can you find about {n}?", f"Please look up {n}."])
        return ask, call(f, name=n), to_json({"name": n, "job": j, "city": city}), f"{n} works as {a(j)} in {city}."
    if f == "send_message":
        m = sentence(r)
        return r.choice([f"Send this message to {n}: {m}", f"Please tell {n}: {m}"]), call(f, name=n, text=m), "ok", f"I have sent your message to {n}."
    if f == "set_lamp": return r.choice([f"Make the lamp {c}.", f"Please turn the lamp to {c}."]), call(f, colour=c), "ok", f"The lamp is {c} now."
    if f == "get_price": return r.choice([f"How much is the {ob}?", f"What does the {ob} cost?"]), call(f, item=ob), str(x), f"The {ob} costs {x} euros."
    if f == "book_room":
        k = r.randint(2, 9)
        ask = r.choice([f"Book a room in {city} for {k} nights.", f"I need a room in {city} for {k} nights."])
        return ask, call(f, city=city, nights=k), to_json({"booked": True, "number": x}), f"Your room in {city} is booked for {k} nights. The number is {x}."
    if f == "set_alarm":
        k, loud = r.randint(1, 12), r.random() < 0.5
        ask = r.choice([f"Set {'a loud' if loud else 'a quiet'} alarm for {k}.", f"Wake me at {k} with {'a loud' if loud else 'a quiet'} alarm."])
        return ask, call(f, hour=k, loud=loud), "ok", f"The {'loud' if loud else 'quiet'} alarm is set for {k}."
    if f == "make_list":
        items = r.sample(OBJECTS, r.randint(2, 4))
        ask = r.choice([f"Save a list with {', '.join(items)}.", f"Please make a list: {', '.join(items)}."])
        return ask, call(f, items=items), "ok", f"I have saved a list of {len(items)} items."
    raise ValueError(f)


def unseen_task(r):
    """A tool put together from parts: the model must read its description."""
    v, n = r.choice(VERBS), r.choice(NOUNS)
    fields = r.sample(list(FIELDS), r.randint(1, 2))
    values = {f: r.randint(1, 99) if FIELDS[f] == "integer" else r.choice({"colour": COLOURS, "city": CITIES, "owner": NAMES}[f]) for f in fields}
    text = f"{cap(v)} the {n}"
    tool = describe(f"{v}_{n}", text, parameters(**{f: FIELDS[f] for f in fields}))
    ask = r.choice([text, f"Please {v} the {n}", f"I want you to {v} the {n}"]) + " with " + " and ".join(f"{f} {x}" for f, x in values.items()) + "."
    return tool, ask, call(f"{v}_{n}", **values), "ok", f"The tool {v}_{n} is done."


ANNOUNCE = "Say which tool you will use before you call it."


def tool(r, test):
    think, keep, system = r.random() < 0.5, r.random() < 0.2, r.choice(SYSTEMS)
    names = r.sample(list(TOOLS), r.randint(1, 4)); f = names[0]; r.shuffle(names)
    tools = [known(n) for n in names]
    if r.random() < 0.25:
        extra, ask, c, result, ans = unseen_task(r)
        for _ in range(r.randint(0, 2)):
            other = unseen_task(r)[0]
            if other["function"]["name"] not in [t["function"]["name"] for t in tools + [extra]]: tools.append(other)
        tools.insert(r.randint(0, len(tools)), extra)
    else: ask, c, result, ans = task(r, f)
    if held("tool", c["function"]["name"], str(c["function"]["arguments"])) != test: return None
    ask = loosen(r, ask)
    th = f"The user wants something that {c['function']['name']} can do. I call it."
    done = "The tool has answered. I tell the user."
    give = (lambda s: s) if think and r.random() < 0.8 else (lambda s: None)  # clients may drop earlier thoughts
    k = r.random()
    if k < 0.3:
        if r.random() < 0.2:
            return item("tool call", [ask], think, f"I will use {c['function']['name']}.", th, [c], ANNOUNCE, tools)
        return item("tool call", [ask], think, "", th, [c], system, tools)
    first = [ask, assistant("", give(th), [c])]
    if k < 0.48:
        if r.random() < 0.12:
            problem = r.choice(["not found", "no connection", "access denied", "too many requests"])
            return item("tool result", first + [tool_result(f"error: {problem}")], think, f"I am sorry, the tool reports an error: {problem}.",
                        "The tool has failed. I tell the user.", system=system, tools=tools)
        return item("tool result", first + [tool_result(result)], think, ans, done, system=system, tools=tools)
    if k < 0.62: return several(r, test, think, system, tools)
    if k < 0.72:
        text, ans, th = talk(r, test)
        return item("no tool needed", [text], think, ans, th, system=system, tools=tools)
    # A finished exchange with a tool, then a further turn.
    past = first + [tool_result(result), assistant(ans, give(done))]
    g = r.choice(names)
    if k < 0.82:
        text, ans2, th2 = talk(r, test)
        return item("turns after a tool", past + [text], think, ans2, th2, system=system, tools=tools, keep=keep)
    ask2, c2, result2, ans2 = task(r, g)
    if g == f and g in ("get_weather", "get_time"): ask2 = f"And in {c2['function']['arguments']['city']}?" if r.random() < 0.5 else ask2
    th2 = f"The user wants something that {g} can do. I call it."
    if held("tool", g, str(c2["function"]["arguments"])) != test: return None
    if k < 0.92: return item("turns after a tool", past + [ask2], think, "", th2, [c2], system, tools, keep=keep,
                              key_text=ask + ask2)
    return item("turns after a tool", past + [ask2, assistant("", give(th2), [c2]), tool_result(result2)], think, ans2, done, system=system, tools=tools, keep=keep,
                key_text=ask + ask2)


def several(r, test, think, system, tools):
    """Two or three calls in one answer, or the answer after their results."""
    f = r.choice(["get_weather", "get_time", "get_price"])
    if f not in [t["function"]["name"] for t in tools]: tools.insert(r.randint(0, len(tools)), known(f))
    xs = r.sample(OBJECTS if f == "get_price" else CITIES, r.choice([2, 2, 3]))
    if held("several", f, tuple(xs)) != test: return None
    listed = ", ".join(xs[:-1]) + " and " + xs[-1]
    ask = {"get_weather": [f"What is the weather in {listed}?", f"Compare the weather in {listed}."], "get_time": [f"What time is it in {listed}?", f"Tell me the time in {listed}."],
           "get_price": [f"What do these cost: {listed}?", f"Tell me the prices of {listed}."]}[f]
    calls = [call(f, **{"item" if f == "get_price" else "city": x}) for x in xs]
    th = f"The user asks about {len(xs)} things. I call {f} for each."
    ask = loosen(r, r.choice(ask))
    if r.random() < 0.6: return item("several calls", [ask], think, "", th, calls, system, tools)
    results, parts = [], []
    for x in xs:
        if f == "get_weather":
            w, t = r.choice(WEATHER), r.randint(0, 35)
            results.append(to_json({"city": x, "weather": w, "degrees": t})); parts.append(f"It is {w} in {x} with {t} degrees.")
        elif f == "get_time":
            t = f"{r.randint(0, 23)}:{r.randint(10, 59)}"
            results.append(t); parts.append(f"It is {t} in {x}.")
        else:
            t = r.randint(1, 999)
            results.append(str(t)); parts.append(f"The {x} costs {t} euros.")
    turns = [ask, assistant("", th if think else None, calls)] + [tool_result(t) for t in results]
    return item("several calls", turns, think, " ".join(parts), "The tools have answered. I tell the user.", system=system, tools=tools)
