"""Metrics for comparing logits, computed in float64, in blocks of positions."""

import numpy

BLOCK = 128


def log_softmax(logits):
    logits = numpy.asarray(logits, numpy.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(axis=-1, keepdims=True))


def scored_positions(num_tokens, window):
    """Positions whose next token is in the same window; the last one of a window has none."""
    return [i for i in range(num_tokens - 1) if (i + 1) % window]


def next_logprobs(logits, tokens, window):
    """[scored positions] log-probability of the token that follows."""
    positions = numpy.array(scored_positions(len(tokens), window))
    following = numpy.array(tokens)[positions + 1]
    parts = []
    for start in range(0, len(positions), BLOCK):
        block = positions[start : start + BLOCK]
        rows = log_softmax(logits[block])
        parts.append(rows[numpy.arange(len(block)), following[start : start + BLOCK]])
    return numpy.concatenate(parts)


def perplexity(logprobs):
    return float(numpy.exp(-numpy.mean(logprobs)))


def compare(logits, reference, tokens, window):
    """(KL(reference || logits) of every position, summary metrics)."""
    divergences, agreements, largest, squares = [], 0, 0.0, 0.0
    for start in range(0, len(reference), BLOCK):
        ours = numpy.asarray(logits[start : start + BLOCK], numpy.float64)
        theirs = numpy.asarray(reference[start : start + BLOCK], numpy.float64)
        log_q, log_p = log_softmax(ours), log_softmax(theirs)
        divergences.append((numpy.exp(log_p) * (log_p - log_q)).sum(axis=-1))
        agreements += int((ours.argmax(axis=-1) == theirs.argmax(axis=-1)).sum())
        difference = ours - theirs
        largest = max(largest, float(numpy.abs(difference).max()))
        squares += float((difference**2).sum())
    divergences = numpy.concatenate(divergences)
    return divergences, {
        "mean_kl": float(divergences.mean()),
        "max_kl": float(divergences.max()),
        "max_kl_position": int(divergences.argmax()),
        "top1_agreement": agreements / len(reference),
        "perplexity": perplexity(next_logprobs(logits, tokens, window)),
        "max_logit_difference": largest,
        "rms_logit_difference": (squares / reference.size) ** 0.5,
    }


def top_two(logits):
    """(token, logit) of the largest and the second largest; ties: the lower token first."""
    first = int(logits.argmax())
    rest = logits.copy()
    rest[first] = -numpy.inf
    second = int(rest.argmax())
    return (first, float(logits[first])), (second, float(logits[second]))


def as_float32_text(value):
    """JSON text of a number that round-trips a float32."""
    return float(f"{float(value):.9g}")
