"""Word lists behind the demo model's training conversations, and the invented names. Standard library only."""

NAMES = """Mira Tom Ada Leo Nora Ivan Lina Omar Ruth Kai Vera Hugo Elsa Finn Zoe Max Anna Ben Clara Dan Eva Gus Hana Jon Kim
Lars Maya Nils Olga Paul Rosa Sam Tara Ugo Wim Yara Igor Cleo Bo Pia Alice Bob Carol David Emma Frank Grace Henry Ines
Jack Karl Laura Maria Noah Oscar Peter Quinn Rita Sara Tim Uma Victor Wendy Xenia Yusuf Zara John Mary James Linda
Michael Sophie Thomas Julia Daniel Amy Robert Lucy George Ella William Jane""".split()

CITIES = """Oslo Paris Rome Lima Cairo Delhi Kyoto Bern Quito Dublin Madrid Vienna Prague Lagos Hanoi Porto Turin Ghent
Basel Bergen London Berlin Tokyo Athens Lisbon Boston Sydney Geneva Milan Seoul""".split()

CAPITALS = {"France": "Paris", "Italy": "Rome", "Norway": "Oslo", "Spain": "Madrid", "Portugal": "Lisbon",
            "Germany": "Berlin", "Austria": "Vienna", "Greece": "Athens", "Ireland": "Dublin", "Japan": "Tokyo",
            "Peru": "Lima", "Egypt": "Cairo", "England": "London", "Sweden": "Stockholm", "Finland": "Helsinki",
            "Denmark": "Copenhagen", "Poland": "Warsaw", "Hungary": "Budapest", "Canada": "Ottawa", "Cuba": "Havana",
            "Russia": "Moscow", "China": "Beijing", "Kenya": "Nairobi", "Chile": "Santiago", "Belgium": "Brussels",
            "Vietnam": "Hanoi", "Iceland": "Reykjavik", "Mexico": "Mexico City", "India": "New Delhi",
            "Turkey": "Ankara", "Brazil": "Brasilia", "Australia": "Canberra", "the United States": "Washington",
            "the Netherlands": "Amsterdam", "Switzerland": "Bern", "Scotland": "Edinburgh", "Argentina": "Buenos Aires"}

ANIMALS = {  # name: legs, sound, young, home, food
    "cat": (4, "meows", "kitten", "a house", "fish"), "dog": (4, "barks", "puppy", "a kennel", "meat"),
    "cow": (4, "moos", "calf", "a barn", "grass"), "horse": (4, "neighs", "foal", "a stable", "hay"),
    "sheep": (4, "bleats", "lamb", "a fold", "grass"), "pig": (4, "oinks", "piglet", "a sty", "roots"),
    "duck": (2, "quacks", "duckling", "a pond", "weeds"), "hen": (2, "clucks", "chick", "a coop", "grain"),
    "owl": (2, "hoots", "owlet", "a hollow tree", "mice"), "lion": (4, "roars", "cub", "a den", "meat"),
    "wolf": (4, "howls", "pup", "a den", "meat"), "bee": (6, "buzzes", "larva", "a hive", "nectar"),
    "frog": (4, "croaks", "tadpole", "a pond", "flies"), "mouse": (4, "squeaks", "pinkie", "a hole", "seeds"),
    "goat": (4, "bleats", "kid", "a pen", "leaves"), "fox": (4, "yelps", "kit", "a burrow", "mice"),
    "bear": (4, "growls", "cub", "a cave", "honey"), "crow": (2, "caws", "chick", "a nest", "worms"),
    "snake": (0, "hisses", "hatchling", "a hole", "mice"),
    "spider": (8, "makes no sound", "spiderling", "a web", "flies")}

MIX = {("red", "yellow"): "orange", ("blue", "yellow"): "green", ("red", "blue"): "purple", ("red", "white"): "pink",
       ("black", "white"): "grey", ("blue", "white"): "light blue", ("red", "green"): "brown"}

UNITS = {("seconds", "minute"): 60, ("minutes", "hour"): 60, ("hours", "day"): 24, ("days", "week"): 7,
         ("months", "year"): 12, ("years", "decade"): 10, ("years", "century"): 100, ("metres", "kilometre"): 1000,
         ("centimetres", "metre"): 100, ("millimetres", "centimetre"): 10, ("grams", "kilogram"): 1000,
         ("millilitres", "litre"): 1000, ("kilograms", "tonne"): 1000, ("items", "dozen"): 12, ("sheets", "ream"): 500,
         ("cents", "euro"): 100, ("weeks", "year"): 52, ("days", "year"): 365, ("days", "leap year"): 366,
         ("bits", "byte"): 8}

THINGS = {"the sky on a clear day": "blue", "the sky": "blue", "grass": "green", "snow": "white", "coal": "black",
          "a ripe lemon": "yellow", "a ripe tomato": "red", "an orange": "orange", "a lime": "green",
          "a raven": "black", "blood": "red", "a sunflower": "yellow", "chocolate": "brown", "milk": "white",
          "a flamingo": "pink", "ash": "grey", "the sun": "yellow", "a banana": "yellow"}

OPPOSITES = """hot cold, big small, old young, up down, left right, day night, open closed, full empty, fast slow, light dark,
wet dry, high low, long short, happy sad, hard soft, early late, rich poor, strong weak, true false, near far, loud quiet,
first last, good bad, thick thin"""
OPPOSITES = [tuple(pair.split()) for pair in OPPOSITES.split(",")]

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
PLACES = """forest valley harbour village garden meadow castle market mill island desert mountain library lighthouse
orchard""".split()
ADJECTIVES = "brave small clever shy old curious lazy proud gentle hungry quiet lucky".split()
OBJECTS = "lamp key map bell ring coin book flute kite basket mirror stone rope hat compass boat".split()
COLOURS = "red blue green yellow black white orange purple brown grey pink".split()
WEATHER = "sunny cloudy rainy windy foggy stormy snowy clear".split()
HOBBIES = "chess music football painting cooking hiking reading sailing dancing gardening".split()
JOBS = "baker teacher nurse pilot farmer tailor miner sailor doctor painter".split()
GOODS = "apples books coins stones eggs cards pens cups".split()
FOODS = "pizza rice soup bread cheese fish salad cake pasta honey".split()

# Subjects the model is too small for, so that it says so.
TOPICS = """physics chemistry history philosophy politics economics biology astronomy football results, stock prices, black holes,
quantum physics, world war two, machine learning, climate change, the moon landing, ancient Rome, the human brain, tax law,
medieval music, modern art, volcanoes, dinosaurs, electric cars, the internet, vaccines, democracy, gravity, evolution,
poetry, opera, cricket, basketball, photography, architecture, psychology, geology, the ocean, deep space, robots,
trains, aeroplanes, computers, programming languages, databases, the stock market, movies, famous actors, video games,
the news, the president, the prime minister, religion, mathematics, geometry, calculus, statistics, medicine,
law school, fashion, wine, coffee, tea, cars, bridges, rivers, earthquakes"""
TOPICS = [t.strip() for t in TOPICS.replace("\n", " ").split(",")]
TOPICS = [w for t in TOPICS for w in (t.split() if t.startswith(("physics chem",)) else [t])]

SYLLABLES = """ba be bi bo da de di do fa fe ga go ha he jo ka ke ki ko la le li lo lu ma me mi mo na ne ni no pa pe po ra
re ri ro sa se si so ta te ti to tu va ve vi vo wa we ya yo za ze""".split()
TAILS = ["", "", "n", "r", "s", "l", "m", "th", "nd", "x", "k"]
ONSETS = "b c d f g h j k l m n p q r s t v w x z ch sh st br tr gr kr pl fl gl th ph wh sk dr".split()
VOWELS = "a e i o u a e i o u ai ea ou ia oo y".split()
CODAS = ["", "", "", "n", "r", "s", "l", "m", "t", "ck", "sh", "nd", "rt", "ss", "ll", "ng", "x"]


def invented(r):
    """A made-up name: half from plain syllables, half from wilder letter groups."""
    if r.random() < 0.5:
        return ("".join(r.choice(SYLLABLES) for _ in range(r.choice([2, 2, 3]))) + r.choice(TAILS)).capitalize()
    parts = (r.choice(ONSETS) + r.choice(VOWELS) + r.choice(CODAS) for _ in range(r.choice([1, 2, 2, 3])))
    return "".join(parts).capitalize()


def name(r, share=0.3):
    """A name from the list, or an invented one, so that copying must not rest on known words."""
    return invented(r) if r.random() < share else r.choice(NAMES)


def a(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def cap(text):
    return text[0].upper() + text[1:]
