#!/usr/bin/env python3
"""server/openapi.yaml beside the server: its paths, the fields of requests, and every property of the answers.

    check_openapi.py PROGRAM MODEL

Exit codes: 0 equal, 1 different, 77 PyYAML or jsonschema is missing.
"""

import json
import pathlib
import re
import sys
import tempfile
import unittest

from served import Server, write_with_context

try:
    import jsonschema
    import yaml
except ImportError as error:
    print(f"skipped: {error} (Debian: python3-yaml, python3-jsonschema)")
    sys.exit(77)

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "server"
DOCUMENT = yaml.safe_load((FOLDER / "openapi.yaml").read_text(encoding="utf-8"))
SCHEMAS = DOCUMENT["components"]["schemas"]
METHODS = {"get", "post", "put", "delete", "patch"}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "a"}]
TOOL = {"type": "function", "function": {"name": "f"}}
# With this seed the arguments end within max_tokens. One seed of a hundred does not.
CALL = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 100, "seed": 1}
# Any request that is answered.
VALID = {
    CHAT: {"messages": MESSAGES, "max_tokens": 2},
    TEXT: {"prompt": "ab", "max_tokens": 2},
    "/tokenize": {"prompt": "ab"},
    "/detokenize": {"tokens": [65, 66]},
}
# By operation: requests that together show every property of its answers.
EXAMPLES = {
    "createChatCompletion": [
        VALID[CHAT],
        VALID[CHAT] | {"logprobs": True, "top_logprobs": 2, "n": 2, "stop": "q", "return_token_ids": True},
        VALID[CHAT] | {"structured_outputs": {"regex": "a"}},
        VALID[CHAT] | {"stream": True, "return_token_ids": True},
        VALID[CHAT] | CALL,
        VALID[CHAT] | CALL | {"stream": True},
        VALID[CHAT] | {"stream": True, "logprobs": True, "top_logprobs": 1, "stream_options": {"include_usage": True}},
    ],
    "createCompletion": [
        VALID[TEXT] | {"echo": True, "return_token_ids": True},
        VALID[TEXT] | {"prompt": ["ab", [65]], "logprobs": 2},
        VALID[TEXT] | {"structured_outputs": {"regex": "a"}},
        VALID[TEXT] | {"stream": True, "return_token_ids": True},
        VALID[TEXT] | {"stream": True, "logprobs": 1, "stream_options": {"include_usage": True}},
    ],
    "tokenize": [VALID["/tokenize"]],
    "detokenize": [VALID["/detokenize"]],
    **{name: [None] for name in ["listModels", "retrieveModel", "health", "metrics", "engine", "openapi", "page"]},
}


def operations():
    for path, item in DOCUMENT["paths"].items():
        for method in METHODS & item.keys():
            yield path, method, item[method]


def resolved(node):
    """The schema with its references replaced, and the parts of allOf merged into one object."""
    if isinstance(node, list):
        return [resolved(element) for element in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = DOCUMENT
        for name in node["$ref"].removeprefix("#/").split("/"):
            target = target[name]
        return resolved(target)
    node = {key: resolved(value) for key, value in node.items()}
    if "allOf" in node:
        parts = node["allOf"]
        return {
            "type": "object",
            "properties": {name: rule for part in parts for name, rule in part["properties"].items()},
            "required": [name for part in parts for name in part.get("required", [])],
        }
    return node


def is_valid(schema, value):
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def closed(node):
    """The schema of an answer, with no property beside those that it lists."""
    if isinstance(node, list):
        return [closed(element) for element in node]
    if not isinstance(node, dict):
        return node
    more = {"additionalProperties": False} if "properties" in node and node.get("type") == "object" else {}
    return more | {key: closed(value) for key, value in node.items()}


def properties_of(schema, place=""):
    """The places of all properties below a schema: "choices[].message.role"."""
    for branch in schema.get("anyOf", []):
        yield from properties_of(branch, place)
    if "items" in schema:
        yield from properties_of(schema["items"], place + "[]")
    for name, rule in schema.get("properties", {}).items():
        yield f"{place}.{name}"
        yield from properties_of(rule, f"{place}.{name}")


def places_of(value, place=""):
    """The places of all properties of a value, written as properties_of() does."""
    if isinstance(value, list):
        for element in value:
            yield from places_of(element, place + "[]")
    elif isinstance(value, dict):
        for name, element in value.items():
            yield f"{place}.{name}"
            yield from places_of(element, f"{place}.{name}")


def request_schema(path):
    return resolved(DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"])


def fields_of_the_parser():
    """The names that the source looks up in a request."""
    pattern = re.compile(r'\b(?:find|set_whole|set_number|\w+_field)\([^",;]+, "(\w+)"')
    text = "".join(path.read_text() for path in sorted(FOLDER.glob("*.cc")) if not path.name.endswith("_test.cc"))
    return set(pattern.findall(text))


class OpenApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        model = write_with_context(ARGUMENTS[1], 8192, pathlib.Path(folder.name, "long.gguf"))
        cls.server = Server(ARGUMENTS[0], model, "--template", "qwen2.5", "--max-body-bytes", "65536")
        cls.addClassCleanup(cls.server.__exit__)

    def assert_valid(self, schema, value):
        errors = [f"{error.json_path}: {error.message}" for error in
                  jsonschema.Draft202012Validator(closed(schema)).iter_errors(value)]
        self.assertEqual(errors, [], value)

    def check(self, operation, status, headers, text):
        """The answer is as documented. Its JSON values by media type; those of the events of a stream."""
        self.assertIn(str(status), operation["responses"], text)
        response = resolved(operation["responses"][str(status)])
        for name, rule in response.get("headers", {}).items():
            self.assertTrue(is_valid(rule["schema"], headers[name]), f"{name}: {headers[name]}")
        media = headers["Content-Type"].split(";")[0]
        self.assertIn(media, response["content"])
        if media == "application/json":
            schema, values = response["content"][media]["schema"], [json.loads(text)]
        elif media == "text/event-stream":
            self.assertTrue(text.endswith("data: [DONE]\n\n"))
            schema = response["content"][media]["x-event"]
            values = [json.loads(event) for event in re.findall("^data: ({.*)$", text, re.M)]
        else:
            return media, {}, []
        for value in values:
            self.assert_valid(schema, value)
        return media, schema, values

    def test_every_operation_gives_the_documented_answer_and_all_of_it(self):
        self.assertEqual({operation["operationId"] for _, _, operation in operations()}, EXAMPLES.keys())
        for path, method, operation in operations():
            documented, seen = {}, {}
            for body in EXAMPLES[operation["operationId"]]:
                answer = self.server.ask(method.upper(), path.replace("{model}", "tiny"), body)
                self.assertEqual(answer[0], 200, answer[2])
                media, schema, values = self.check(operation, *answer)
                documented[media] = set(properties_of(schema))
                seen.setdefault(media, set()).update(place for value in values for place in places_of(value))
            for media, places in documented.items():
                self.assertEqual(places - seen[media], set(), f"{path}: documented, and not seen in {media}")
            self.assertEqual(documented.keys(), operation["responses"]["200"]["content"].keys())

    def test_the_paths_are_those_of_the_server(self):
        literals = set(re.findall(r'"(/[\w/.]*)"', (FOLDER / "service.cc").read_text()))
        known = {path.replace("{model}", "") for path in DOCUMENT["paths"]}
        self.assertEqual(literals - known, set())
        for path, method, _ in operations():
            other = "GET" if method == "post" else "POST"
            status, headers, _ = self.server.ask(other, path.replace("{model}", "tiny"))
            self.assertEqual((status, headers["Allow"]), (405, method.upper()), path)

    def test_the_fields_of_requests_are_those_of_the_parser(self):
        documented = {place.rsplit(".", 1)[1] for path in VALID for place in properties_of(request_schema(path))}
        self.assertEqual(documented ^ fields_of_the_parser(), set())

    def test_every_field_is_read_where_it_is_documented_and_ignored_elsewhere(self):
        wrong = [{"x": [1]}, [[{}]], -1e9]  # one of them is valid for no field
        everything = {name for path in VALID for name in request_schema(path)["properties"]}
        for path, valid in VALID.items():
            properties = request_schema(path)["properties"]
            for name in everything:
                value = next(value for value in wrong if not is_valid(properties.get(name, False), value))
                status, _, text = self.server.ask("POST", path, valid | {name: value})
                if name not in properties:
                    self.assertEqual(status, 200, f"{path}: {name} is not documented; {text}")
                    continue
                self.assertEqual(status, 400, f"{path}: {name}={value}: {text}")
                self.assertRegex(json.loads(text)["error"]["param"] or "", f"^{name}\\b", text)

    def test_the_bounds_of_numbers_are_the_documented_ones(self):
        for path in [CHAT, TEXT]:
            for name, rule in request_schema(path)["properties"].items():
                # Beside other fields, or where the model decides, not at the bounds.
                if "minimum" not in rule or name == "top_logprobs":
                    continue
                step = 1 if "integer" in rule["type"] else abs(rule["minimum"]) / 2 or 1e-3
                for value, status in [(rule["minimum"], 200), (rule["maximum"], 200), (rule["minimum"] - step, 400),
                                      (rule["maximum"] + max(step, 1), 400), (None, 200)]:
                    answer = self.server.ask("POST", path, VALID[path] | {name: value})
                    self.assertEqual(answer[0], status, f"{path}: {name}={value}: {answer[2]}")

    def test_errors_are_the_documented_ones(self):
        origin = {"Origin": "http://x.test"}
        huge = {"X": "x" * 20000}
        for path, method, operation in operations():
            target = path.replace("{model}", "tiny")
            cases = [(403, method, target, None, origin), (431, method, target, None, huge)]
            if "413" in operation["responses"]:
                cases += [(413, method, target, b" " * 70000, {}), (400, method, target, b"[]", {})]
            if "404" in operation["responses"]:
                other = {"model": "other"}
                cases.append((404, method, path.replace("{model}", "other"), VALID.get(path, {}) | other, {}))
            for status, method, target, body, headers in cases:
                answer = self.server.ask(method.upper(), target, body, headers)
                self.assertEqual(answer[0], status, (path, answer[2]))
                self.check(operation, *answer)

    def test_a_key_is_asked_for_where_it_is_documented(self):
        with Server(*ARGUMENTS, "--api-key", "k") as server:
            for path, method, operation in operations():
                answer = server.ask(method.upper(), path.replace("{model}", "tiny"), VALID.get(path))
                is_public = operation.get("security") == [{}]
                self.assertEqual(answer[0], 200 if is_public else 401, path)
                self.check(operation, *answer)


if __name__ == "__main__":
    ARGUMENTS = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1], verbosity=1)
