"""vLLM's engine without a server, for serving_cuda.py: loads random weights once and replays traces. Its results go to
--out as JSON lines, {"trace": name, "seconds": s, "first": [s of each request], "between": [s]}; what vLLM prints goes
to standard error."""

import argparse
import json
import os
import pathlib
import time

# Without FlashInfer the sampler of PyTorch is vLLM's own choice, but it must be told.
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")

import torch
from vllm.model_executor.model_loader import weight_utils


def normal_weights(param, *_, **__):
    """Matrices are normal(0, 0.02) and vectors one, as Headrace's random models; vLLM's own lie within 0.001. Here and
    not in main(), because the engine's process imports this file anew."""
    if torch.is_floating_point(param):
        param.data.normal_(0, 0.02) if param.ndim > 1 else param.data.fill_(1)


weight_utils.initialize_single_dummy_weight = normal_weights


def make_engine(options):
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    wanted = {"max_num_batched_tokens": options.batch_tokens} if options.batch_tokens else {}
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(options.config), skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16",
            max_model_len=options.context, enable_prefix_caching=False, **wanted,
        ),
        UsageContext.LLM_CLASS,  # the limits of a step are those of vllm.LLM
    )  # fmt: skip


def replay(engine, name, requests, vocab):
    from vllm import SamplingParams, TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    due, last, first, between = {}, {}, [], []
    waiting = list(enumerate(sorted(requests, key=lambda request: request["timestamp"])))[::-1]
    begin = time.perf_counter()
    now = lambda: time.perf_counter() - begin
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[-1][1]["timestamp"] / 1e3 <= now():
            index, request = waiting.pop()
            tokens = [((index + 1) * 104729 + i * 7919 + 17) % vocab for i in range(request["input_length"])]
            params = SamplingParams(
                temperature=0, max_tokens=request["output_length"], ignore_eos=True, detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )  # fmt: skip
            key = f"{name}-{index}"
            due[key] = request["timestamp"] / 1e3
            engine.add_request(key, TokensPrompt(prompt_token_ids=tokens), params)
        if not engine.has_unfinished_requests():
            time.sleep(max(0, waiting[-1][1]["timestamp"] / 1e3 - now()))
            continue
        outputs, time_of_step = engine.step(), now()
        for output in outputs:
            if not output.outputs[0].token_ids:
                continue
            key = output.request_id
            if key in last:
                between.append(time_of_step - last[key])
            else:
                first.append(time_of_step - due[key])
            last[key] = time_of_step
    return {"trace": name, "seconds": now(), "first": first, "between": between}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=pathlib.Path, required=True, help="folder of a config.json")
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--batch-tokens", type=int, default=0, help="0: vLLM's default")
    parser.add_argument("--rest", type=float, default=4, help="seconds before each trace")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("traces", type=pathlib.Path, nargs="+")
    options = parser.parse_args()
    vocab = json.loads((options.config / "config.json").read_text())["vocab_size"]
    begin = time.perf_counter()
    engine = make_engine(options)
    short = {"timestamp": 0, "input_length": 100, "output_length": 8}
    replay(engine, "first", [short], vocab)
    with options.out.open("w") as out:
        print(json.dumps({"start_seconds": time.perf_counter() - begin}), file=out, flush=True)
        replay(engine, "warm-up", [short] * 64, vocab)
        for path in options.traces:
            time.sleep(options.rest)
            requests = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
            print(json.dumps(replay(engine, path.stem, requests, vocab)), file=out, flush=True)


if __name__ == "__main__":
    main()
