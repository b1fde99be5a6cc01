"""Calls in one plan cache, and each on its own."""

import itertools

import numpy as np

import headrace


def result_of(call):
    """The result of a call in comparable form: arrays, or the error."""
    try:
        results = call()
    except (TypeError, ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    results = results if isinstance(results, tuple) else (results,)
    plain = (x.detach().double().numpy() if hasattr(x, "detach") else x for x in results)
    return [None if x is None else np.asarray(x, np.float64) for x in plain]


def are_same(a, b):
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return len(a) == len(b) and all(
        x is y is None or (x is not None and y is not None and np.array_equal(x, y, equal_nan=True))
        for x, y in zip(a, b, strict=True)
    )


def alone(call):
    headrace.cache_clear()
    return result_of(call)


def check_both_orders(first, second):
    """Each of two calls gives what it gives alone, in either order and twice. Returns what they give."""
    wanted = {first: alone(first), second: alone(second)}
    for order in itertools.permutations((first, second)):
        headrace.cache_clear()
        for call in (*order, *order):
            assert are_same(result_of(call), wanted[call])
    return wanted[first], wanted[second]
