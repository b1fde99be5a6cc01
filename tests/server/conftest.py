import openai
import pytest
from served import Server


def pytest_addoption(parser):
    parser.addoption("--program", required=True, help="headrace")
    parser.addoption("--model", required=True, help="a GGUF file with random weights")


@pytest.fixture(scope="session")
def start(request):
    """Starts a server with these arguments."""
    return lambda *arguments: Server(request.config.option.program, request.config.option.model, *arguments)


@pytest.fixture(scope="session")
def server(start):
    with start() as server:
        yield server


def client_of(server, **options):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60, **options)


@pytest.fixture(scope="session")
def client(server):
    with client_of(server) as client:
        yield client
