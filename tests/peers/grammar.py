#!/usr/bin/env python3
"""Compares grammars with Python's json, re and `jsonschema`: random schemas and regular expressions.

    python tests/peers/grammar.py                 # texts of random tokens are valid, valid instances are accepted
    python tests/peers/grammar.py --time          # times of masks for 151,858 random tokens

A walk draws random tokens that the masks allow; each that ends must be valid. Random valid instances must match.
Instances with a random change must not match unless they are valid.

Exit codes: 0 equal, 1 something differs, 2 usage.
"""

import argparse
import json
import pathlib
import random
import re
import subprocess
import sys

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ["a", "ab", "name", "é", "x y", 'q"', "b"]
TEXTS = ["", "a", "ab", "é", 'say "x"\n', "日本", "\\", "\U0001f600", "/", "0", "long text of words"]
FORMATS = ["date", "date-time", "ipv4", "uuid", "email"]
STRINGS_OF = {
    "date": ["2024-01-31", "1999-12-01"],
    "date-time": ["2024-02-28T12:30:00Z"],
    "ipv4": ["127.0.0.1", "255.0.10.99"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "email": ["a.b@example.org"],
}
PATTERNS = {"^[a-c]{2,4}$": ["ab", "cabc"], "b+": ["b", "abbc"], "^\\d{3}-x": ["123-x", "007-xyz"]}


def schema_of(rng, depth):
    kinds = ["string", "length", "pattern", "format", "integer", "number", "boolean", "null", "enum", "const"]
    if depth > 0:
        kinds += ["object", "array", "anyOf"] * 3
    kind = rng.choice(kinds)
    low = rng.randint(-200, 200)
    high = low + rng.randint(0, 300)
    if kind == "length":
        least = rng.randint(0, 3)
        return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 4)}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(list(PATTERNS))}
    if kind == "format":
        return {"type": "string", "format": rng.choice(FORMATS)}
    if kind in ("integer", "number"):
        keys = rng.choice([(), ("minimum",), ("maximum",), ("minimum", "maximum"), ("exclusiveMinimum", "maximum")])
        return {"type": kind, **{key: high + 1 if "ax" in key else low for key in keys}}
    if kind == "enum":
        return {"enum": rng.sample([1, -2.5, None, True, "x", "é\n", [1, {"a": None}], {"k": []}], rng.randint(1, 4))}
    if kind == "const":
        return {"const": rng.choice(["only", 7, None, {"a": [1]}])}
    if kind == "anyOf":
        return {"anyOf": [schema_of(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if kind == "array":
        least = rng.randint(0, 2)
        bounds = rng.choice([{}, {"minItems": least}, {"minItems": least, "maxItems": least + rng.randint(0, 2)}])
        return {"type": "array", "items": schema_of(rng, depth - 1), **bounds}
    if kind == "object":
        names = rng.sample(NAMES, rng.randint(0, 4))
        others = rng.choice([{"additionalProperties": False}, {"additionalProperties": schema_of(rng, depth - 1)}])
        return {
            "type": "object",
            "properties": {name: schema_of(rng, depth - 1) for name in names},
            "required": [name for name in names if rng.random() < 0.5],
            **others,
        }
    return {"type": kind}


def instance_of(rng, schema):
    if "anyOf" in schema:
        return instance_of(rng, rng.choice(schema["anyOf"]))
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    kind = schema["type"]
    if kind == "string":
        if "pattern" in schema:
            return rng.choice(PATTERNS[schema["pattern"]])
        if "format" in schema:
            return rng.choice(STRINGS_OF[schema["format"]])
        if "maxLength" in schema:
            length = rng.randint(schema["minLength"], schema["maxLength"])
            return "".join(rng.choice('aé"\\\n日\U0001f600') for _ in range(length))
        return rng.choice(TEXTS)
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", schema.get("maximum", 100) - 100) + 1)
        high = max(low, schema.get("maximum", low + 1000))
        whole = rng.randint(low, high)
        if kind == "integer" or "maximum" in schema or rng.random() < 0.3:
            return whole
        return rng.choice([whole + 0.25, whole + 0.5] + ([1.5e-7, -2e30] if len(schema) == 1 else []))
    if kind == "array":
        least = schema.get("minItems", 0)
        return [instance_of(rng, schema["items"]) for _ in range(rng.randint(least, schema.get("maxItems", least + 2)))]
    if kind == "object":
        made = {
            name: instance_of(rng, value)
            for name, value in schema["properties"].items()
            if name in schema["required"] or rng.random() < 0.5
        }
        if schema["additionalProperties"] is not False and rng.random() < 0.5:
            made["other"] = instance_of(rng, schema["additionalProperties"])
        return made
    return rng.choice([True, False]) if kind == "boolean" else None


def text_of(rng, value):
    style = rng.choice([{}, {"indent": 2}, {"indent": 4}, {"separators": (",", ":")}])
    return json.dumps(value, ensure_ascii=False, **style)


def changed(rng, text):
    at = rng.randrange(len(text))
    return rng.choice([text[:at] + text[at + 1 :], text[:at] + rng.choice('"a1,:]} ') + text[at:], text[:at]])


def is_valid(validator, text):
    try:
        return validator.is_valid(json.loads(text))
    except ValueError:
        return False


class Pipe:
    def __init__(self, tool, vocabulary):
        self.process = subprocess.Popen([tool, vocabulary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def compare_schemas(pipe, seed, count):
    rng = random.Random(seed)
    wrong, counts = [], {"walks": 0, "valid instances": 0, "changed instances": 0}
    for i in range(count):
        schema = schema_of(rng, 3)
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        valid = [text_of(rng, instance_of(rng, schema)) for _ in range(10)]
        other = [changed(rng, text) for text in valid]
        answer = pipe.ask(form="json_schema", source=json.dumps(schema), texts=valid + other, walks=5, seed=i)
        if "error" in answer:
            wrong.append((schema, answer["error"]))
            continue
        wrong += [(schema, "walk", text) for text in answer["walks"] if not is_valid(validator, text)]
        accepted = answer["accepted"]
        wrong += [(schema, "instance", text) for text, ok in zip(valid, accepted) if not ok]
        invalid = [text for text, ok in zip(other, accepted[10:]) if ok and not is_valid(validator, text)]
        wrong += [(schema, "changed instance", text) for text in invalid]
        for name, number in zip(counts, (len(answer["walks"]), len(valid), len(other))):
            counts[name] += number
    return wrong, counts


def expression_of(rng, depth):
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(["a", "b", "é", ".", "[a-c]", "[^b]", "\\d", "\\.", "ab"])
    inner = expression_of(rng, depth - 1)
    return rng.choice(
        [
            f"({inner})" + rng.choice(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"]),
            f"(?:{inner}|{expression_of(rng, depth - 1)})",
            inner + expression_of(rng, depth - 1),
        ]
    )


def compare_expressions(pipe, seed, count):
    rng = random.Random(seed)
    wrong, counts = [], {"walks": 0, "texts": 0}
    for i in range(count):
        source = expression_of(rng, 4)
        texts = ["".join(rng.choice("abcé.1\n") for _ in range(rng.randint(0, 6))) for _ in range(40)]
        answer = pipe.ask(form="regex", source=source, texts=texts, walks=5, seed=i)
        matches = [re.fullmatch(source, text) is not None for text in texts]
        # Python's . and [^b] take ends of lines other than \n; Headrace's . does not.
        wrong += [(source, text) for text, a, b in zip(texts, answer["accepted"], matches) if a != b]
        wrong += [(source, "walk", text) for text in answer["walks"] if not re.fullmatch(source, text)]
        counts["walks"] += len(answer["walks"])
        counts["texts"] += len(texts)
    return wrong, counts


def timed_schemas():
    text = {"type": "string"}
    address = {"type": "object", "properties": {"street": text, "city": text}, "required": ["street", "city"]}
    person = {
        "name": text,
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": text, "maxItems": 10},
        "address": address,
    }
    node = {"name": text, "kind": {"enum": ["leaf", "branch"]}, "children": {"type": "array", "items": {"$ref": "#"}}}
    fields = {f"field_{i}": {"type": ["string", "integer", "boolean"][i % 3]} for i in range(100)}
    lengths = {"a": {"type": "string", "maxLength": 100}, "b": {"type": "string", "maxLength": 500}}

    def strict(properties, required=None):
        return {"type": "object", "properties": properties, "required": list(required or properties)}

    return {
        "any JSON": True,
        "a person, 5 properties": strict(person, ["name", "age"]),
        "recursive": strict(node),
        "100 properties": strict(fields),
        "maxLength 100 and 500": strict(lengths),
    }


def print_times(pipe):
    print("schema | compile | first walk: masks, mean, longest | next 50 walks: masks, mean, longest")
    for name, schema in timed_schemas().items():
        pair = [pipe.ask(form="json_schema", source=json.dumps(schema), walks=n, seed=1) for n in (1, 51)]
        first, all_walks = pair
        rest = all_walks["num_masks"] - first["num_masks"]
        mean = (all_walks["mask_us"] * all_walks["num_masks"] - first["mask_us"] * first["num_masks"]) / max(rest, 1)
        print(
            f"{name} | {first['compile_ms']:.1f} ms | {first['num_masks']}, {first['mask_us']:.0f} us, "
            f"{first['longest_us']:.0f} us | {rest}, {mean:.1f} us, {all_walks['longest_us']:.0f} us"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", default=str(ROOT / "build/cpu-only/tests/headrace_grammar_pipe"))
    parser.add_argument("--vocabulary", default=str(ROOT / "tests/golden/tokenizer_vocabulary.json"))
    parser.add_argument("--schemas", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time", action="store_true", help="print times of masks instead")
    args = parser.parse_args()
    if args.time:
        return print_times(Pipe(args.tool, "151858"))
    pipe = Pipe(args.tool, args.vocabulary)
    has_failed = False
    for name, compare in (("schemas", compare_schemas), ("regular expressions", compare_expressions)):
        wrong, counts = compare(pipe, args.seed, args.schemas)
        numbers = "".join(f"{n} {what}, " for what, n in counts.items())
        print(f"{args.schemas} {name}: {numbers}{len(wrong)} wrong")
        for case in wrong[:10]:
            print("  ", *case)
        has_failed |= bool(wrong)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
