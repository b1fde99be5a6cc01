"""The program that the package brings along, and `headrace.serve`."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request

import pytest

import headrace
from headrace import _fetch_model, _program

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "golden" / "tiny" / "tiny_llama3_f16.gguf"


def has_program():
    try:
        return bool(_program.find())
    except FileNotFoundError:
        return False


with_a_program = pytest.mark.skipif(not has_program() or not TINY.is_file(), reason="no program, or no checkout")


def child(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", *arguments],
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(headrace.__file__).parents[1]), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:  # noqa: S310
        return answer.read().decode()


@with_a_program
def test_a_server_answers_until_it_is_stopped(capfd):
    with headrace.serve(TINY, port=0, served_model_name="tiny", max_requests=7, api_key=None) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert "<title>Headrace</title>" in ask(server.url)
        assert json.loads(ask(server.url + "v1/models"))["data"][0]["id"] == "tiny"
        answer = json.loads(ask(server.url + "v1/completions", {"prompt": "ab", "max_tokens": 3, "ignore_eos": True}))
        assert answer["usage"]["completion_tokens"] == 3
        with pytest.raises(TimeoutError):
            server.wait(timeout=0)
    assert server.wait() == 0
    assert server.url in capfd.readouterr().err  # the page's address is said


@with_a_program
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"bogus_option": 1}, ValueError, "--bogus-option"),
        ({"max_requests": 0}, ValueError, "--max-requests"),
        ({"host": "256.0.0.1"}, RuntimeError, "256.0.0.1"),
    ],
)
def test_options_are_those_of_the_program(options, error, text):
    with pytest.raises(error, match=text):
        headrace.serve(TINY, port=0, **options)


@with_a_program
def test_a_list_repeats_its_option():
    with headrace.serve(TINY, port=0, api_key=["a", "b"]) as server:
        for key, status in (("a", 200), ("b", 200), ("c", 401)):
            request = urllib.request.Request(server.url + "v1/models", headers={"Authorization": f"Bearer {key}"})
            try:
                found = urllib.request.urlopen(request, timeout=60).status  # noqa: S310
            except urllib.error.HTTPError as refused:
                found = refused.code
            assert found == status, key


@with_a_program
def test_the_module_becomes_the_program():
    process = child("serve", "-m", str(TINY), "--port", "0")
    try:
        assert "ready at http://127.0.0.1:" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
    tokens = child("tokenize", "-m", str(TINY), "ab")
    assert tokens.communicate()[0]
    assert tokens.returncode == 0
    assert child("bogus").wait() == 2


@pytest.mark.parametrize("command", ["serve", "generate"])
def test_a_missing_program_is_an_error_with_a_remedy(command, tmp_path):
    process = child(command, HEADRACE_PROGRAM=str(tmp_path / "none"))
    text = process.communicate()[1]
    assert process.returncode == 1
    assert f"there is no program {tmp_path / 'none'}" in text
    assert "HEADRACE_PROGRAM" in text


def test_another_file_than_the_published_model_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = _fetch_model.cache_folder() / _fetch_model.MODEL
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF")
    with pytest.raises(_fetch_model.FetchError, match="SHA-256"):
        _fetch_model.fetch()
    if has_program():
        with pytest.raises(RuntimeError, match="SHA-256"):
            headrace.serve(port=0)
        process = child("serve", "--port", "0", XDG_CACHE_HOME=str(tmp_path))
        assert "SHA-256" in process.communicate()[1]
        assert process.returncode == 1
