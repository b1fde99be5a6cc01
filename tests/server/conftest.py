import openai
import pytest
from served import Server, write_with_context


def pytest_addoption(parser):
    parser.addoption("--program", required=True, help="headrace")
    parser.addoption("--model", required=True, help="a GGUF file with random weights")


@pytest.fixture(scope="session")
def start(request):
    """Starts a server with these arguments."""
    program, model = request.config.option.program, request.config.option.model
    return lambda *arguments, model=model: Server(program, model, *arguments)


@pytest.fixture(scope="session")
def long_model(request, tmp_path_factory):
    """The model with a context of 16,384 tokens: its vocabulary has little more than bytes."""
    path = tmp_path_factory.mktemp("model") / "long.gguf"
    return write_with_context(request.config.option.model, 16384, path)


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
