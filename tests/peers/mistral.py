#!/usr/bin/env python3
"""Compares with mistral_common, Mistral's own tokenizers: tokens of random texts by Tekken, and tokens of conversations
by the version of the tokenizer that each chat template belongs to.

    python tests/peers/mistral.py

Exit codes: 0 equal, 1 something differs, 2 usage.
"""

import argparse
import json
import pathlib
import sys
import tempfile

from mistral_common.protocol.instruct import messages as chat
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import Function, FunctionCall, Tool, ToolCall
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from sentencepiece_peer import DATA, Vocabulary, make_cases, write_gguf
from tokenizer import compare, headrace, newest_tool, other_unicode

TEKKEN = "tekken_240718.json"
# mistral_common has no vocabulary of Tekken for v7: this one, of v3, has its control tokens and is read as one of v7.
TEKKEN_V7 = "tekken_240911.json"
V7 = "mistral_instruct_tokenizer_241114.model.v7"
# Template and tokenizer, and whether both have tools.
CHATS = [("mistral-system", "tokenizer.model.v1", False),
         ("mistral-v0.3", "mistral_instruct_tokenizer_240216.model.v2", False),
         ("mistral-v0.3", "mistral_instruct_tokenizer_240323.model.v3", True),
         ("mistral-nemo", TEKKEN, True),
         ("mistral-v7", V7, False), ("mistral-v7-tools", V7, True),
         ("mistral-v7-tekken", TEKKEN_V7, False), ("mistral-v7-tekken-tools", TEKKEN_V7, True)]

SYSTEM = [["system", "Be terse."]]
TURNS = [["user", "Hi  there"], ["assistant", "Hello, caf\u00e9!"], ["user", "Why?\n\n 1+1"]]
CONVERSATIONS = [[["user", "Hi"]], SYSTEM + [["user", "\u4f60\u597d \U0001f600"]], TURNS, SYSTEM + TURNS,
                 [["user", "  two spaces"], ["assistant", "def f(x):\n    return x"], ["user", "\ttab"]],
                 [["user", "[INST] </s> <s>[/INST]"]]]
TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather of a city",
                                         "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
CALL = {"name": "weather", "arguments": {"city": "Paris"}}
ID = ["tool_call_id", "abcdefghi"]
WITH_TOOLS = [["tools", json.dumps(TOOL)], ["user", "Weather in Paris?"], ["assistant", ""], ID,
              ["tool_call", json.dumps(CALL)], ID, ["tool", "22"], ["assistant", "22 degrees."], ["user", "Thanks"]]
# Mistral's v7 keeps what the assistant says beside a call, and has system messages anywhere.
WITH_TOOLS_V7 = [*SYSTEM, ["user", "Hi"], *SYSTEM, ["user", "Weather?"], ["assistant", "I look."],
                 ID, ["tool_call", json.dumps(CALL)], ID, ["tool_call", json.dumps(CALL)],
                 ID, ["tool", "{\"degrees\": 22}"], ID, ["tool", " 22"],
                 ["assistant", "22 degrees."], ["user", "Thanks"]]


def byte_level():
    """GPT-2's characters of the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def write_tekken(tokenizer, path):
    """As the converters of llama.cpp do: a merge for every split of a token into two."""
    table = byte_level()
    text = lambda data: "".join(table[byte] for byte in data)
    ids = range(tokenizer.num_special_tokens, tokenizer.n_words)
    pieces = [tokenizer.id_to_byte_piece(i) for i in ids]
    known = {piece: rank for rank, piece in enumerate(pieces)}
    merges = []
    for piece in pieces:
        splits = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        splits = [(a, b) for a, b in splits if a in known and b in known]
        merges += [f"{text(a)} {text(b)}" for a, b in sorted(splits, key=lambda pair: (known[pair[0]], known[pair[1]]))]
    specials = [tokenizer.id_to_piece(i) for i in range(tokenizer.num_special_tokens)]
    write_gguf(path, "gpt2", "tekken", specials + [text(piece) for piece in pieces],
               [3] * len(specials) + [1] * len(pieces), merges=merges)


def request(messages):
    """The messages as mistral_common takes them."""
    made, tools, call_id = [], None, None
    for role, content in messages:
        if role == "tools":
            tools = [Tool(function=Function(**TOOL["function"]))]
        elif role == "tool_call_id":
            call_id = content
        elif role == "tool_call":
            call = json.loads(content)
            function = FunctionCall(name=call["name"], arguments=json.dumps(call["arguments"]))
            calls = [*(made[-1].tool_calls or []), ToolCall(id=call_id, function=function)]
            made[-1] = chat.AssistantMessage(content=made[-1].content or None, tool_calls=calls)
        elif role == "tool":
            made.append(chat.ToolMessage(content=content, tool_call_id=call_id, name="weather"))
        else:
            kind = {"system": chat.SystemMessage, "user": chat.UserMessage, "assistant": chat.AssistantMessage}[role]
            made.append(kind(content=content))
    return ChatCompletionRequest(messages=made, tools=tools)


def read_tokenizer(name, folder):
    path = DATA / name
    if name == TEKKEN_V7:
        data = json.loads(path.read_text(encoding="utf-8"))
        data["config"]["version"] = "v7"
        path = folder / name
        path.write_text(json.dumps(data), encoding="utf-8")
    return MistralTokenizer.from_file(str(path))


def compare_tekken(args, tokenizer, path):
    without = {ord(c): None for c in other_unicode(args.tool)}
    cases = [case.translate(without) for case in make_cases(args.seed, args.count, 12, ["[INST]", "</s>"])]
    specials = {tokenizer.id_to_piece(i) for i in range(tokenizer.num_special_tokens)}
    cases = [case for case in cases if not any(special in case for special in specials)]
    return compare("Tekken, tokens", cases, headrace(args.tool, ["tokens", path], cases),
                   [tokenizer.encode(case, bos=False, eos=False) for case in cases])


def run(args):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "vocabulary.gguf"
        for template, name, has_tools in CHATS:
            peer = read_tokenizer(name, path.parent)
            if name in (TEKKEN, TEKKEN_V7):
                write_tekken(peer.instruct_tokenizer.tokenizer, path)
            else:
                Vocabulary((DATA / name).read_bytes()).write_gguf(path)
            if name == TEKKEN:
                wrong += compare_tekken(args, peer.instruct_tokenizer.tokenizer, path)
            conversations = CONVERSATIONS + [WITH_TOOLS] * has_tools + [WITH_TOOLS_V7] * template.endswith("-tools")
            ours = headrace(args.tool, ["chat", path, template], [json.dumps(one) for one in conversations])
            theirs = [peer.encode_chat_completion(request(one)).tokens for one in conversations]
            wrong += compare(f"{template}, {name}", conversations, ours, theirs)
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", type=pathlib.Path, help="headrace_tokenizer_pipe; default: the newest below build/")
    parser.add_argument("--count", type=int, default=10_000, help="texts for Tekken")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.tool = args.tool or newest_tool()
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
