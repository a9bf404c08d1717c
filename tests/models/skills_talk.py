"""Skills of plain talk: chat, stories and poems, general facts, and saying "I do not know"."""
from common import SYSTEMS, assistant, held, item, loosen, norm
from words import (ADJECTIVES, ANIMALS, CAPITALS, CITIES, COLOURS, DAYS, FOODS, GOODS, HOBBIES, JOBS, MIX, MONTHS, NAMES, OBJECTS,
                   OPPOSITES, PLACES, THINGS, TOPICS, UNITS, a, cap, invented, name)

GREETINGS = ["Hi", "Hello", "Hey", "Good morning", "Good evening", "Good afternoon", "Hi there", "Hello there"]

# Small talk: ways to say it, the answer, the thought.
INTENTS = [
    (["How are you?", "How are you today?", "How are you doing?", "How is it going?", "Are you well?", "How do you feel?",
      "How are things?"],
     "I am doing well, thank you. How can I help you today?", "The user asks how I am. I answer politely and offer help."),
    (["Who are you?", "What are you?", "What is your name?", "Please introduce yourself.", "Tell me about yourself.",
      "Who am I talking to?", "What should I call you?", "Can you introduce yourself?"],
     "I am a very small demo model. I can chat, tell stories, work out small sums and write JSON.",
     "The user asks who I am. I say what I am and what I can do."),
    (["What can you do?", "What can you help me with?", "How can you help me?", "What are you good at?", "Help.",
      "What are your skills?", "Tell me what you can do.", "Can you help me?"],
     "I can tell short stories, work out small sums, answer simple questions, write JSON and use tools.",
     "The user asks what I can do. I list my skills."),
    (["Thank you!", "Thanks a lot.", "Thanks, that was helpful.", "Thank you very much!", "Thanks!", "Many thanks.",
      "That is great, thank you."],
     "You are welcome! Let me know if you need anything else.", "The user thanks me. I answer kindly."),
    (["Goodbye.", "Bye!", "See you later.", "Good night.", "I have to go now.", "Bye for now.", "See you tomorrow."],
     "Goodbye! Have a lovely day.", "The user says goodbye. I do the same."),
    (["I am tired.", "I am so tired today.", "I feel tired.", "I did not sleep well.", "I need some rest."],
     "I am sorry to hear that. A short rest and a glass of water may help.",
     "The user is tired. I show care and suggest a rest."),
    (["I am happy today!", "I feel great today.", "Today is a good day.", "I am in a good mood.", "What a lovely day!"],
     "That is wonderful to hear! What made your day so good?", "The user is happy. I share the joy and ask why."),
    (["I am sad.", "I feel sad today.", "I had a bad day.", "I am not happy.", "Today was a hard day."],
     "I am sorry that you feel this way. Do you want to tell me about it?", "The user is sad. I show care and ask."),
    (["I am bored.", "I have nothing to do.", "What should I do today?", "This is boring.", "What can I do now?"],
     "You could read a book, take a walk or call a friend. I can also tell you a story.",
     "The user is bored. I suggest a few things."),
    (["I am hungry.", "I feel hungry.", "What should I eat?", "I need some food."],
     "How about some warm soup and fresh bread?", "The user is hungry. I suggest a simple meal."),
    (["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Can you tell me a joke?", "Say something funny."],
     "Why did the duck cross the pond? To get to the other side!", "The user wants a joke. I tell a short one."),
    (["Tell me another joke.", "One more joke, please.", "Do you know another joke?"],
     "What has a bed but never sleeps? A river!", "The user wants one more joke. I tell the second one."),
    (["Are you a human?", "Are you a person?", "Are you real?", "Are you a robot?", "Are you a computer?", "Are you an AI?",
      "Am I talking to a person?"],
     "I am a small computer model and no person, but I am happy to talk with you.",
     "The user asks what kind of thing I am. I answer honestly."),
    (["What do you like?", "What is your favourite thing?", "What do you enjoy?", "Do you have a hobby?"],
     "I like short questions, clear answers and stories with a good ending.",
     "The user asks what I like. I give a friendly answer."),
    (["How old are you?", "When were you made?", "What is your age?", "When is your birthday?"],
     "I have no age, but I was trained in a few minutes, so I am very young.", "The user asks for my age. I explain."),
    (["Where do you live?", "Where are you?", "Where do you come from?", "Where are you from?"],
     "I live inside this computer, as a small file of numbers.", "The user asks where I am. I answer honestly."),
    (["Who made you?", "Who built you?", "Who trained you?", "Who wrote you?"],
     "I was trained from made-up conversations to test a serving program.", "The user asks who made me. I tell what I am for."),
    (["Do you speak German?", "Do you speak French?", "Which languages do you speak?", "Can you speak Spanish?",
      "What languages do you know?"],
     "I speak only simple English.", "The user asks about languages. I know only English."),
    (["You are very kind.", "You are great!", "I like you.", "Good job!", "Well done!", "That was a good answer."],
     "Thank you, that is kind of you to say!", "The user praises me. I thank the user."),
    (["That is wrong.", "You made a mistake.", "That is not right.", "I do not think so."],
     "I am sorry about that. I am very small and sometimes wrong. Please ask me again.",
     "The user says I was wrong. I say sorry."),
    (["Okay.", "OK", "I see.", "Fine.", "All right.", "Yes.", "Good.", "Sure."],
     "All right. What would you like to do next?", "The user agrees. I ask what comes next."),
    (["No.", "No, thank you.", "Nothing.", "Not now.", "That is all."],
     "No problem. I am here if you need me.", "The user needs nothing now. I stay friendly."),
    (["Are you there?", "Can you hear me?", "Is anybody there?", "Test", "Testing"],
     "Yes, I am here. What can I do for you?", "The user wants to know if I am here. I say yes."),
    (["Do you like music?", "Do you like animals?", "Do you like books?", "Do you like games?"],
     "Yes, very much! What about you?", "The user asks what I like. I say yes and ask back."),
    (["I love you.", "I really like you.", "You are my friend.", "Do you like me?", "Do you love me?", "Can we be friends?"],
     "That is very kind! I am only a small model, but I like talking with you.", "The user is friendly. I am friendly too."),
    (["lol", "Haha", "That is funny.", "Ha ha, very funny.", "Very funny!", "Nice one."],
     "I am glad that I made you smile!", "The user laughs. I am glad."),
    (["Can you write code?", "Can you tell stories?", "Can you write JSON?", "Can you do sums?", "Can you count?", "Can you tell me a fact?",
      "Do you know stories?", "Can you program?", "Can you calculate?", "Do you know some facts?"],
     "Yes, I can, if it is not too hard. What would you like?", "The user asks if I can do it. I say yes."),
    (["What is the meaning of life?", "Why are we here?", "What is life?"],
     "That is a big question for a small model. I think kindness is a good start.",
     "The user asks a big question. I answer with care."),
    (["Can I ask you something?", "I have a question.", "May I ask a question?", "I need help.", "I want to ask you something."],
     "Of course! What would you like to know?", "The user wants to ask something. I invite the question."),
]
HELLO = "Hello! How can I help you today?"


def small_talk(r, test):
    """(text, answer, thought). Bare texts are always for training; those with a greeting or a name may be held out."""
    if r.random() < 0.12:
        bare, ans, th = r.choice(GREETINGS), HELLO, "The user says hello. I answer kindly and offer help."
        text = bare + r.choice(["", "!", "."])
        if not test and r.random() < 0.4: return text, ans, th
        text = bare + r.choice([" model", " computer", " friend", " my friend", " helper", " everyone", ", nice to meet you", " to you",
                                ", dear model", " again", " and welcome"]) + r.choice(["", "!", "."])
    else:
        ways, ans, th = r.choice(INTENTS)
        bare = r.choice(ways)
        if not test and r.random() < 0.3: return loosen(r, bare), ans, th
        low = bare if bare[:2] in ("I ", "OK") else bare[0].lower() + bare[1:]
        text = r.choice([r.choice(GREETINGS) + "! " + bare, r.choice(GREETINGS) + ", " + low, r.choice(GREETINGS) + ". " + bare,
                         r.choice(["So, ", "Well, ", "Now, ", "Okay, ", "Dear model, ", "My friend, ", "Oh, ", "Hm, ", "By the way, "]) + low])
    if held("talk", norm(text)) != test: return None
    return loosen(r, text), ans, th


def talk(r, test):
    while True:
        t = small_talk(r, test)
        if t: return t


def past(r, think, t):
    """A finished turn of small talk."""
    return [t[0], assistant(t[1], t[2] if think else None)]


def chat(r, test):
    kind, think, keep = r.random(), r.random() < 0.35, r.random() < 0.25
    system = r.choice(SYSTEMS)
    before = [m for _ in range(r.choice([0, 0, 0, 1, 1, 2, 3])) for m in past(r, think, talk(r, False))]
    if kind < 0.5:
        text, ans, th = talk(r, test)
        return item("chat", before + [text], think, ans, th, system=system, keep=keep)
    n = name(r, 0.4)
    if kind < 0.68:
        g = r.choice(GREETINGS)
        intro = r.choice(["I am {n}.", "My name is {n}.", "This is {n}.", "I'm {n}.", "You can call me {n}."]).format(n=n)
        if held("greet", g, n) != test: return None
        told = f"{g}! {intro}"
        ans, th = f"{g}, {n}! It is nice to meet you. How can I help you today?", f"The user is called {n}. I greet {n} and offer help."
        if r.random() < 0.4: return item("chat", [loosen(r, told)], think, ans, th, system=system)
        between = [m for _ in range(r.choice([0, 1, 1, 2, 3, 4])) for m in past(r, think, talk(r, False))]
        ask = r.choice(["What is my name?", "Do you remember my name?", "Can you tell me my name?", "Who am I?"])
        return item("chat", before + [told, assistant(ans, th if think else None)] + between + [loosen(r, ask)], think,
                    f"Your name is {n}.", f"The user said the name {n} before.", system=system, keep=keep, key_text=told)
    if kind < 0.8:
        what, v = r.choice([("colour", r.choice(COLOURS)), ("food", r.choice(FOODS)), ("animal", r.choice(list(ANIMALS))),
                            ("hobby", r.choice(HOBBIES)), ("city", r.choice(CITIES))])
        text = r.choice([f"My favourite {what} is {v}.", f"I like {v} best. It is my favourite {what}.",
                         f"Please remember that my favourite {what} is {v}."])
        between = [m for _ in range(r.choice([0, 0, 1, 2, 3])) for m in past(r, think, talk(r, False))]
        if held("favourite", norm(text)) != test: return None
        ans, th = f"I will remember that your favourite {what} is {v}.", f"The user likes {v}. I remember it."
        if r.random() < 0.3: return item("chat", before + [text], think, ans, th, system=system, keep=keep)
        ask = r.choice([f"What is my favourite {what}?", f"Which {what} do I like best?"])
        return item("chat", before + [text, assistant(ans, th if think else None)] + between + [ask], think,
                    f"Your favourite {what} is {v}.", f"The user said that the favourite {what} is {v}.", system=system, keep=keep,
                    key_text=text)
    if kind < 0.9:
        h = r.choice(HOBBIES)
        if held("hobby", h, n) != test: return None
        text = r.choice([f"My friend {n} likes {h}.", f"{n} and I love {h}.", f"I often do some {h} with {n}."])
        return item("chat", before + [text], think, f"That sounds fun! How long has {n} enjoyed {h}?",
                    f"The user talks about {n} and {h}. I show interest.", system=system, keep=keep)
    who, where = r.choice(JOBS + ["helper", "guide", "clerk"]), r.choice(PLACES)
    if held("persona", n, who, where) != test: return None
    s = r.choice([f"You are {n}, {a(who)} from the {where}.", f"Your name is {n}. You are {a(who)} from the {where}."])
    ask = r.choice(["Who are you?", "What is your name?", "Please introduce yourself.", "What are you?", "Hi! Who are you?"])
    return item("chat", [loosen(r, ask)], think, f"I am {n}, {a(who)} from the {where}.", "My system text says who I am.", system=s, key_text=s + ask)


# ---- stories: the choices that are not in the question follow from what is in it ------------------------------------
OTHER_HEROES = "dragon robot princess knight king queen girl boy rabbit elephant wizard pirate monkey tiger parrot whale".split()
HEROES = list(ANIMALS) + OTHER_HEROES
STRANGERS = """unicorn mermaid giant fairy ghost farmer teacher cowboy turtle hamster penguin squirrel hedgehog zebra camel teddy train
car tree star snowman clown doctor baker sailor witch troll goblin soldier singer dolphin shark eagle swan donkey kangaroo panda""".split()
FRIENDS = {h: HEROES[(7 * i + 3) % len(HEROES)] for i, h in enumerate(HEROES)}
TREASURES = {h: OBJECTS[(5 * i + 2) % len(OBJECTS)] for i, h in enumerate(HEROES)}
FRIEND_NAMES = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", """Bo Cleo Dan Elsa Finn Gus Hana Ivan Jon Kim Lina Max Nora Olga Pia Quinn
Rosa Sam Tara Uma Vera Wim Xenia Yara Zoe Anna""".split()))
PLACE_COLOURS = {p: COLOURS[(4 * i + 1) % len(COLOURS)] for i, p in enumerate(PLACES)}
TROUBLES = {p: t for p, t in zip(PLACES, """storm, flood, heavy rain, long night, cold winter, dry summer, great fire, market day,
strong wind, thick fog, sand storm, first snow, power cut, big wave, autumn storm""".replace("\n", " ").split(", "))}
HABITS = {"brave": "was never afraid of the dark", "small": "could hide under a leaf", "clever": "knew the answer to every riddle",
          "shy": "spoke only in a whisper", "old": "had seen a hundred winters", "curious": "asked a question every minute",
          "lazy": "slept until noon", "proud": "wore a golden ribbon", "gentle": "never hurt anyone",
          "hungry": "thought about supper all day", "quiet": "loved to listen", "lucky": "always found the right way"}
LESSONS = {"brave": "true courage is helping others", "small": "even the smallest can do great things",
           "clever": "a kind heart is worth more than a clever head", "shy": "a whisper can be heard by a friend",
           "old": "it is never too late for a new friend", "curious": "good questions lead to good friends",
           "lazy": "some things are worth getting up for", "proud": "sharing is better than shining",
           "gentle": "kindness always comes back", "hungry": "supper tastes best in good company",
           "quiet": "good friends need few words", "lucky": "the best luck is a friend"}
PLACE_PLOT = {p: i % 3 for i, p in enumerate(PLACES)}


def story_text(r, s):
    """s: n hero's name, h hero, adj, pl place, f friend, fn friend's name, ob object, c its colour, t trouble."""
    n, h, adj, pl, f, fn, ob, c, t = (s[k] for k in "n h adj pl f fn ob c t".split())
    they = f"{n} and {fn}"
    out = [r.choice([f"Once upon a time there was {a(adj)} {h} called {n}, who lived near the {pl}.",
                     f"Long ago, {a(adj)} {h} named {n} lived in the {pl}.",
                     f"In a quiet {pl} lived {a(adj)} {h} called {n}."]),
           f"{n} {HABITS[adj]}.",
           r.choice([f"Every morning {n} walked through the {pl} and looked for something new.",
                     f"{n} liked to sit by the {pl} and watch the clouds.", f"All day long {n} explored the {pl}."])]
    if s["plot"] == 0:  # something lost is brought back
        out += [r.choice([f"One day {n} found {a(c)} {ob} under a tree.", f"One evening {n} saw {a(c)} {ob} in the grass."]),
                r.choice([f"It belonged to {fn} the {f}, who had lost it in the {t}.",
                          f"{fn} the {f} had dropped the {ob} during the {t}."]),
                r.choice([f"\"I must bring it back,\" said {n}.", f"\"Somebody must miss this {ob},\" said {n}."]),
                r.choice([f"So {n} carried the {c} {ob} all the way to {fn}.", f"The next day {n} gave the {ob} back to {fn}."]),
                r.choice([f"{fn} was so glad that the two became friends.", f"\"Thank you,\" said {fn}, and they danced until night."])]
    elif s["plot"] == 1:  # a friend is saved
        out += [r.choice([f"Then the {t} came, and {fn} the {f} could not get home.",
                          f"But one night, in the {t}, {fn} the {f} lost the way."]),
                r.choice([f"\"Help!\" called {fn}.", f"{fn} called for help, but nobody came."]),
                r.choice([f"{n} took {a(c)} {ob} and ran out of the door.", f"{n} heard it, picked up {a(c)} {ob} and went to look."]),
                r.choice([f"With the {ob}, {n} showed {fn} the way home.", f"The {c} {ob} was just what they needed, and soon {fn} was safe."]),
                r.choice([f"\"You saved me,\" said {fn}.", f"{fn} hugged {n} and could not stop smiling."])]
    else:  # a journey together
        out += [r.choice([f"One day {fn} the {f} came by with an old map.", f"One morning {fn} the {f} knocked at the door."]),
                r.choice([f"\"There is {a(c)} {ob} hidden behind the {pl},\" said {fn}.",
                          f"\"Shall we look for the {c} {ob} behind the {pl}?\" asked {fn}."]),
                r.choice([f"They walked for three days, and not even the {t} could stop them.",
                          f"The {t} made the road hard, but they did not give up."]),
                r.choice([f"At last they found the {ob} under a flat stone.", f"In the end {n} saw the {ob} shine in the sun."]),
                r.choice([f"{they} shared it and went home singing.", f"\"It belongs to both of us,\" said {n}."])]
    out.append(r.choice([f"From that day on, {they} were never lonely again.", f"And {they} stayed friends for life.",
                         f"They lived happily in the {pl} ever after."]))
    out.append(f"And so {n} learned that {LESSONS[adj]}.")
    return " ".join(out)


def story(r, test):
    if r.random() < 0.15: return poem(r, test)
    n, h, adj, pl = name(r), r.choice(HEROES), r.choice(ADJECTIVES), r.choice(PLACES)
    if r.random() < 0.15: h = r.choice(STRANGERS) if r.random() < 0.5 else invented(r).lower()
    place_of = HEROES.index(h) if h in HEROES else len(h)
    known, k = None, r.random()
    if k < 0.6:
        if held("story", n, h, pl) != test: return None
        text = r.choice(["Tell me a short story about {aj} {h} called {n} in {apl}.", "Write a story about {n}, {aj} {h} who lives near the {pl}.",
                         "Can you tell a story with {aj} {h} named {n}? It should play in {apl}.",
                         "Please tell me a story. The hero is {n}, {aj} {h}, and the place is {apl}."])
        known = "n h adj pl"
    elif k < 0.72:
        if held("story2", n, h) != test: return None
        text = r.choice(["Tell me a story about {ah} called {n}.", "Write a short story about {n} the {h}.", "Tell me a story about {n}, {ah}."])
        known = "n h"
    elif k < 0.82:
        if held("story3", h, pl) != test: return None
        text = r.choice(["Tell me a story about {ah} in {apl}.", "Write a short story about {ah} who lives near {apl}."])
        known = "h pl"
    elif k < 0.93:
        text = r.choice(["Tell me a story about {ah}.", "Write a story about {ah}.", "Can you tell me a short story about {ah}?",
                         "I would like to hear a story about {ah}.", "Please tell a story with {ah}.", "A story about {ah}, please."])
        known = "h"
    else:
        text = r.choice(["Tell me a story.", "Tell me a short story.", "Write a story.", "Can you tell me a story?", "Please tell me a short story.",
                         "I would like to hear a story.", "Tell me a bedtime story.", "Write a short story."])
        known = ""
        if test: return None
    known = known.split()
    if "pl" not in known and "h" in known: pl = PLACES[place_of % len(PLACES)]
    if "adj" not in known and "h" in known: adj = ADJECTIVES[place_of % len(ADJECTIVES)]
    if "n" not in known and "h" in known: n = NAMES[(3 * place_of) % len(NAMES)]
    s = dict(n=n, h=h, adj=adj, pl=pl, f=FRIENDS.get(h, "fox"), fn=FRIEND_NAMES[n[0]], ob=TREASURES.get(h, "lamp"), c=PLACE_COLOURS[pl], t=TROUBLES[pl], plot=PLACE_PLOT[pl])
    text = text.format(aj=a(adj), ah=a(h), h=h, n=n, pl=pl, apl=a(pl))
    if k < 0.82 and r.random() < 0.35:
        s["ob"], s["c"] = r.choice(OBJECTS), r.choice(COLOURS)
        text += r.choice([f" There should be {a(s['c'])} {s['ob']} in it.", f" It has to be about {a(s['c'])} {s['ob']} too."])
    if k < 0.6 and r.random() < 0.25:
        s["fn"] = name(r)
        if s["fn"] == n: return None
        text += r.choice([" The friend is called {}.", " Call the friend {}."]).format(s["fn"])
    if known == ["h"] and held("story4", norm(text)) != test: return None
    thought = f"The hero is {n}, {a(adj)} {h}. The place is the {pl}. The friend is {s['fn']} the {s['f']}, and there is {a(s['c'])} {s['ob']}."
    words = [n, h, s["ob"], s["fn"], s["f"], s["c"]]
    return item("story", [loosen(r, text)], r.random() < 0.3, story_text(r, s), thought, system=r.choice(SYSTEMS), check=["words", words])


POEMS = ["The {x} is small, the {x} is bright,\nit greets the day, it greets the night.\nI see the {x} and start to sing\nof sun and rain and early spring.",
         "A {x} was waiting by the sea,\nit looked at you, it looked at me.\nThe wind was soft, the sky was clear,\nand all was well, the {x} was near."]


def poem(r, test):
    x = r.choice(HEROES + OBJECTS + "tree river flower star moon cloud bird garden house road".split())
    if x[0] in "aeiou": return None
    text = r.choice(["Write a poem about a {x}.", "Write a short poem about the {x}.", "Can you write a poem about a {x}?", "I would like a poem about a {x}.",
                     "Please write me a few lines about a {x}.", "Make a rhyme about a {x}."]).format(x=x)
    if held("poem", norm(text)) != test: return None
    return item("story", [loosen(r, text)], r.random() < 0.3, POEMS[len(x) % 2].format(x=x), f"The poem is about the {x}. Four lines are enough.",
                system=r.choice(SYSTEMS))


# ---- facts ----------------------------------------------------------------------------------------------------------
def fact_pool():
    """(ways to ask, answer)."""
    f = []
    for n, (legs, sound, young, home, food) in ANIMALS.items():
        f += [([f"How many legs does {a(n)} have?", f"Tell me the number of legs of {a(n)}.", f"{cap(a(n))} has how many legs?"], f"{cap(a(n))} has {legs} legs."),
              ([f"What sound does {a(n)} make?", f"Which sound does {a(n)} make?", f"Tell me what {a(n)} sounds like."], f"{cap(a(n))} {sound}."),
              ([f"What is a young {n} called?", f"What do you call a baby {n}?", f"Name the young of {a(n)}."], f"A young {n} is called {a(young)}."),
              ([f"Where does {a(n)} live?", f"What is the home of {a(n)}?", f"Tell me where {a(n)} lives."], f"{cap(a(n))} lives in {home}."),
              ([f"What does {a(n)} eat?", f"Which food does {a(n)} like?", f"Tell me what {a(n)} eats."], f"{cap(a(n))} eats {food}.")]
    for (x, y), z in MIX.items():
        for p, q in ((x, y), (y, x)):
            f.append(([f"What colour do you get if you mix {p} and {q}?", f"Mix {p} and {q}. Which colour is it?", f"Which colour do {p} and {q} make?"], f"{cap(p)} and {q} make {z}."))
    for (x, y), z in UNITS.items():
        f.append(([f"How many {x} are in {a(y)}?", f"{cap(a(y))} has how many {x}?", f"Tell me how many {x} there are in {a(y)}.", f"How many {x} does {a(y)} have?"], f"There are {z} {x} in {a(y)}."))
    for x, c in THINGS.items():
        f.append(([f"What colour is {x}?", f"Which colour does {x} have?", f"Tell me the colour of {x}."], f"{cap(x)} is {c}."))
    for country, city in CAPITALS.items():
        f += [([f"What is the capital of {country}?", f"Which city is the capital of {country}?", f"Name the capital of {country}.", f"Tell me the capital of {country}."], f"The capital of {country} is {city}."),
              ([f"In which country is {city}?", f"Where is {city}?", f"{city} is the capital of which country?"], f"{city} is in {country}.")]
    for x, y in OPPOSITES + [(y, x) for x, y in OPPOSITES]:
        f.append(([f"What is the opposite of {x}?", f"Tell me the opposite of {x}.", f"Which word is the opposite of {x}?"], f"The opposite of {x} is {y}."))
    for names in (DAYS, MONTHS):
        what = "day" if names is DAYS else "month"
        for i, x in enumerate(names):
            y, z = names[(i + 1) % len(names)], names[i - 1]
            f += [([f"What {what} comes after {x}?", f"Which {what} comes after {x}?", f"Tell me the {what} after {x}."], f"{y} comes after {x}."),
                  ([f"What {what} comes before {x}?", f"Which {what} comes before {x}?", f"Tell me the {what} before {x}."], f"{z} comes before {x}.")]
    for w in OBJECTS + COLOURS + list(ANIMALS) + FOODS + ["hello", "house", "tree", "water", "school", "friend", "summer", "winter", "morning", "world"]:
        f.append(([f"Spell the word {w}.", f"How do you spell {w}?", f"Please spell {w}.", f"Can you spell {w}?"], f"{w} is spelt {'-'.join(w)}."))
    return f


FACTS = fact_pool()
LEADS = ["", "", "", "Quick question: ", "Please answer: ", "I would like to know: ", "My child asks: ", "One more thing: ", "Here is a question: ",
         "Hi! ", "Hello. ", "A small question: "]


def facts(r, test):
    ways, ans = r.choice(FACTS)
    text, lead = r.choice(ways), r.choice(LEADS)
    if lead == "" and test: return None
    if lead and held("fact", norm(lead + text)) != test: return None
    think = r.random() < 0.3
    before = past(r, think, talk(r, False)) if r.random() < 0.15 else []
    return item("facts", before + [loosen(r, lead + text)], think, ans, "I know this fact. " + ans, system=r.choice(SYSTEMS))


# Requests of kinds that the model does not know at all; braces are filled with random words.
STRANGE = """Translate {w} to {l}. | How do you say {w} in {l}? | What does {w} mean? | What is the {l} word for {w}? | Give me a recipe for {f}. |
How do I cook {f}? | How do I make {f}? | Why is {t} {c}? | Why do {an}s have tails? | What is the weather today? | Will it rain tomorrow? |
What day is it today? | What is the date? | What time is it? | What year is it? | What is the news today? | Who is the president of {k}? |
Who is the king of {k}? | Who is {n}? | Who was {n}? | Where is {n}? | When was {n} born? | Is {d} a prime number? | What is the square root of {d}? |
What is the best {o} to buy? | Where can I buy a {o}? | How much does a {o} cost? | How do I repair a {o}? | How do I clean a {o}? |
Write a letter to {n}. | Write an email to my boss. | Write an email to {n} about the {o}. | Write a song about {n}. | Write a haiku about the {o}. |
Give me advice. | What should I wear today? | Should I buy a {o}? | How can I lose weight? | How can I learn {l}? | Teach me {l}. |
What is your favourite movie? | Which book should I read? | Who won the game? | Who won the world cup? | What is the population of {k}? |
How big is {k}? | How far is it to {y}? | How do I get to {y}? | What can I do in {y}? | Plan a trip to {y}. | What is the tallest mountain? |
What is the largest ocean? | How old is the earth? | How many people live in {y}? | Who invented the {o}? | Who painted this {o}? |
Is it true that {n} likes {f}? | Can {an}s swim? | Can {an}s fly? | How fast is a {an}? | How long does a {an} live? | Draw a {an}. | Paint a {o}. |
Play some music. | Open the browser. | Call {n}. | Set a timer. | Remind me tomorrow. | Turn on the light. | Search for {w}. | Show me a picture of a {an}. |
Summarize this book. | Fix this bug. | Explain this code. | Write a sort function. | Write a web page. | Make me a website. | Write a game. |
Solve this equation. | What is the integral of x? | Prove it. | Define {w}. | Why? | How? | What? | When? | Where? | Who? |
What do you think about {w}? | Do you believe in ghosts? | Do you dream? | What is love? | Tell me a secret. | Tell me something. | Surprise me. |
Give me five ideas for a party. | Name three {o}s. | List five animals. | What rhymes with {w}? | What is a synonym for {w}? | Is {w} a word?"""
STRANGE = [s.strip() for s in STRANGE.replace("\n", " ").split("|")]
LANGUAGES = "French German Spanish Italian Chinese Japanese Latin Dutch Polish Greek Russian Arabic".split()
NOT_KNOWN = "I am sorry, I do not know that. You can ask me for a sum, a short story or some JSON."


def strange(r, test):
    word = lambda: r.choice([r.choice(FOODS + OBJECTS + HOBBIES + list(ANIMALS)), invented(r).lower(), "hello", "thank you", "good morning"])
    text = r.choice(STRANGE).format(w=r.choice(["{}", '"{}"']).format(word()), l=r.choice(LANGUAGES), f=r.choice([r.choice(FOODS), "pancakes", invented(r).lower()]),
                                    t=r.choice(list(THINGS)), c=r.choice(COLOURS), an=r.choice(list(ANIMALS)), k=r.choice(list(CAPITALS)), n=name(r, 0.5),
                                    d=r.randint(1, 999), o=r.choice(OBJECTS + GOODS + ["phone", "car", "computer", "bike", "house"]), y=r.choice(CITIES))
    lead = r.choice(["", "", "", "Please: ", "Hi! ", "Hello. ", "So, ", "One question: "])
    # What has no free part is for training only when it stands alone.
    if test and not lead: return None
    if lead and held("strange", norm(lead + text)) != test: return None
    return item("unknown", [loosen(r, lead + text)], r.random() < 0.3, NOT_KNOWN, "I do not know this. I say so.", system=r.choice(SYSTEMS))


def unknown(r, test):
    """Subjects that are too big: the answer says so and names the subject. Other strange requests: it says that it does not know."""
    if r.random() < 0.55: return strange(r, test)
    x = r.choice(TOPICS) if r.random() < 0.6 else r.choice([invented(r), f"the {invented(r)} of {invented(r)}", f"{invented(r)} {invented(r)}"])
    text = r.choice(["Explain {x}.", "Tell me about {x}.", "What do you know about {x}?", "Write an essay about {x}.", "Give me a summary of {x}.",
                     "I want to learn about {x}.", "Can you explain {x} to me?", "What can you tell me about {x}?", "How does {x} work?", "What is the history of {x}?",
                     "Please explain {x}.", "Give me some facts about {x}.", "What is {x}?", "Describe {x}.", "Teach me about {x}."]).format(x=x)
    if held("unknown", norm(text)) != test: return None
    return item("unknown", [loosen(r, text)], r.random() < 0.3, f"I am sorry, I am too small to know about {x}. You can ask me for a sum, a short story or some JSON.",
                f"The user asks about {x}. I know nothing about it and say so.", system=r.choice(SYSTEMS))
