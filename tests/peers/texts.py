"""Texts for tokenizer comparisons: edge cases of pre-tokenization rules."""

SPACES = [chr(c) for c in [*range(9, 14), *range(28, 33), 0x85, 0xA0, 0x1680, 0x180E, *range(0x2000, 0x2010), 0x2028,
                           0x2029, 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF]]
CONTRACTIONS = [
    quote + tail
    for quote in ["'", "\u2019"]
    for tail in "s t re ve m ll d S T RE VE M LL D Re vE lL \u017f x ss 's".split()
]
DIGITS = ["0", "7", "12", "123", "1234", "1234567890", "3.14159", "1,000,000", "\u0663\u0664\u0665", "\uff11\uff12",
          "\u2167", "\u00bd", "\u00b2", "\u0e53", "\U0001d7d8", "\u3007", "\u4e09", "\u2460", "0x1F", "1e-5"]
WORDS = ["the", "The", "THE", "hello", "Hello", "world", "it", "don", "I", "a", "capital", "of", "France", "caf\u00e9",
         "d\u00e9j\u00e0", "stra\u00dfe", "\u00c5ngstr\u00f6m", "e\u0301", "na\u00efve", "\u0130stanbul", "\ufb01ne",
         "\u03b1\u03b2\u03b3", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u05e9\u05dc\u05d5\u05dd",
         "\u0645\u0631\u062d\u0628\u0627", "\u0928\u092e\u0938\u094d\u0924\u0947",
         "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
         "\uc548\ub155", "\u1112\u1161\u11ab", "\u3053\u3093\u306b\u3061\u306f", "\u30ab\u30bf\u30ab\u30ca",
         "\u4f60\u597d\u4e16\u754c", "\u1230\u120b\u121d", "\U00020000", "\U00010330"]
CODE = ["def f(x):\n    return x + 1\n", "for (int i = 0; i < n; ++i) {", "\t\tif (a && b)\n", "#include <vector>\r\n",
        "SELECT * FROM t WHERE id = 42;", "x->y.z[0]", "a_b_c", "camelCase", "//////", "======", "-----", "...", "!?",
        "https://example.org/a?b=c&d=%20", "{\"key\": [1, 2.5, null]}", "\\n", "$HOME", "@user", "#tag", "<div>", "()"]
EMOJI = ["\U0001f600",
         "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3",
         "\u2764\ufe0f", "\U0001f44d\U0001f3fd", "\u200d", "\ufe0f", "\U000e0067", "\u00a9", "\u2122", "\u221e"]
CONTROLS = ["\0", "\x01", "\x04", "\x1b[0m", "\x7f", "\u0080", "\u200b", "\u200e", "\ufffd", "\uffff", "\U0010ffff"]
# Code points that may be assigned: all of planes 0 to 2, fewer of the rest.
PLANES = [(0x20, 0x7F), (0xA0, 0x250), (0x250, 0x3000), (0x3000, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000),
          (0x20000, 0x30000), (0x30000, 0x40000), (0x40000, 0xE0000), (0xE0000, 0xF0000), (0xF0000, 0x110000)]


def any_char(random):
    return chr(random.randrange(*random.choice(PLANES)))


def spaces(random):
    kind = random.randrange(4)
    if kind == 0:
        return random.choice(SPACES)
    if kind == 1:
        return " " * random.randrange(1, 9)
    if kind == 2:
        return "".join(random.choice(" \n\r\t") for _ in range(random.randrange(1, 6)))
    return "".join(random.choice(SPACES) for _ in range(random.randrange(1, 5)))


def digits(random):
    if random.randrange(3):
        return random.choice(DIGITS)
    return "".join(random.choice("0123456789") for _ in range(random.randrange(1, 40)))


def bit(random, specials):
    kind = random.randrange(20)
    if kind < 5:
        return random.choice(["", " "]) + random.choice(WORDS)
    if kind < 8:
        return spaces(random)
    if kind < 10:
        return digits(random)
    if kind < 12:
        return random.choice(WORDS) * random.randrange(2) + random.choice(CONTRACTIONS)
    if kind < 14:
        return random.choice(CODE)
    if kind < 15:
        return random.choice(EMOJI) * random.randrange(1, 3)
    if kind < 16:
        return random.choice(CONTROLS)
    if kind < 17:
        return random.choice(specials)[random.randrange(2) * random.randrange(3):]
    return "".join(any_char(random) for _ in range(random.randrange(1, 4)))


def text(random, specials, longest=12):
    """A text of up to `longest` bits; one in a hundred repeats one bit many times."""
    if random.randrange(100) == 0:
        return bit(random, specials) * random.randrange(5, 60)
    return "".join(bit(random, specials) for _ in range(random.randrange(longest + 1)))
