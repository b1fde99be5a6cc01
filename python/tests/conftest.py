"""Shared by the tests: seeded data, devices. The same files run on machines with and without a GPU."""

import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("headrace", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="the tests that train, minutes")


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")
    config.addinivalue_line("markers", "slow: takes minutes; skipped without --slow")


def pytest_collection_modifyitems(config, items):
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; pass --slow"))


def pytest_report_header():
    import headrace

    names = [f"{d.name} ({d.description})" for d in headrace.devices()]
    versions = [f"{m} {sys.modules[m].__version__}" for m in ("numpy", "torch", "transformers") if m in sys.modules]
    return f"headrace {headrace.__version__} on {', '.join(names)}; {', '.join(versions)}"


@pytest.fixture
def rng():
    return np.random.default_rng(20260)
