"""The web page of headrace serve in headless Chromium, against a server that answers as a test wants."""

import json
import threading
import time

import pytest
from fake_server import token
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

SECONDS = 30  # until a wait fails


class Page:
    def __init__(self, browser, server):
        self.browser = browser
        self.server = server

    def open(self):
        self.browser.get(self.server.url)
        self.browser.execute_script("sessionStorage.clear()")
        self.browser.get(self.server.url)
        self.console()
        return self

    def find(self, css):
        return self.browser.find_element(By.CSS_SELECTOR, css)

    def all(self, css):
        return self.browser.find_elements(By.CSS_SELECTOR, css)

    def texts(self, css):
        return self.browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", css
        )

    def wait(self, holds):
        end = time.monotonic() + SECONDS
        while not (found := holds()):
            assert time.monotonic() < end, f"never so; the page:\n{self.find('body').text}"
            time.sleep(0.02)
        return found

    def send(self, text):
        self.find("#question").send_keys(text, Keys.ENTER)

    def ask(self, text="Why?"):
        """Sends and waits for the end; the texts of all answers."""
        self.send(text)
        return self.ended()

    def ended(self):
        self.wait(lambda: self.find("#send").is_displayed())
        return self.texts(".answer")

    def set(self, css, text):
        field = self.find(css)
        field.clear()
        field.send_keys(text)

    def console(self):
        """What the browser complained of since the last call, but for refusals of the server."""
        lines = [entry["message"] for entry in self.browser.get_log("browser")]
        return [line for line in lines if "Failed to load resource" not in line]


@pytest.fixture
def page(browser, server):
    browser.set_window_size(1400, 900)
    page = Page(browser, server).open()
    yield page
    assert page.console() == []  # errors of scripts, breaches of the Content-Security-Policy


def engine_state(steps=3):
    return {
        "stats": {
            "running": 5, "waiting": 2, "preempted": 1, "finished": 77, "steps": 900 + steps, "preemptions": 4,
            "prompt_tokens": 5000, "generated_tokens": 1234,
        },
        "pages": {"total": 64, "free": 24, "used": 40},
        "prefix_cache": {"queries": 5000, "hits": 1000},
        "steps": [
            {"ms": 20 + i % 5, "ms_ago": 30 * (steps - i), "tokens": 12 + i, "generated": 8, "running": 5, "waiting": 2}
            for i in range(steps)
        ]
        + [{"ms": 0.01, "ms_ago": 1, "tokens": 0, "generated": 0, "running": 0, "waiting": 0}],
        "last_minute_ms": {
            "time_to_first_token": {"count": 9, "p50": 41.0, "p90": 55.0, "p99": 80.0},
            "inter_token_latency": {"count": 900, "p50": 21.5, "p90": 23.0, "p99": 30.25},
        },
        "connections": 6,
        "refused": 3,
    }  # fmt: skip


def test_all_requests_go_to_the_server(page, server):
    page.ask()
    loaded = page.browser.execute_script(
        "return performance.getEntries().map((e) => e.name).filter((name) => name.includes(':'))"
    )
    assert loaded and all(name.startswith(server.url) for name in loaded)
    assert page.find("#model").text == "fake-1b, context 2048"


@pytest.mark.parametrize("split", [None, 1, 7])
def test_an_answer_streams_and_is_measured(page, server, split):
    server.split = split
    server.chunks = [(text, None) for text in ("Caf", "é 水", " 🙂.")]
    server.gate = threading.Event()
    start = time.monotonic()
    page.send("Why?")
    page.wait(lambda: page.texts(".answer") == ["Caf"])
    seconds_to_first = time.monotonic() - start
    assert page.find("#stop").is_displayed() and not page.find("#send").is_displayed()
    assert page.find(".answer").get_attribute("aria-busy") == "true"
    time.sleep(0.5)
    server.gate.set()
    assert page.ended() == ["Café 水 🙂."]
    assert page.find(".answer").get_attribute("aria-busy") is None
    ttft, tokens, speed = page.find(".notes").text.split(" · ")
    assert 0 <= float(ttft.removeprefix("TTFT ").removesuffix(" ms")) <= 1000 * seconds_to_first + 1
    assert tokens == "3 tokens"
    assert 0 < float(speed.removesuffix(" tokens/s")) <= 2 / 0.5  # two tokens after the first


def test_the_conversation_and_the_controls_are_sent(page, server):
    values = {"temperature": "0", "top_p": "0.5", "top_k": "7", "min_p": "0.1", "repetition_penalty": "1.2",
              "max_tokens": "9", "seed": "42"}  # fmt: skip
    for name, value in values.items():
        page.set(f"#{name}", value)
    page.set("#system", "Be brief.")
    page.ask("One?")
    page.ask("Two?")
    body = server.bodies[1]
    assert {name: body[name] for name in values} == {name: float(value) for name, value in values.items()}
    assert body["model"] == "fake-1b" and body["stream"] is True and "logprobs" not in body
    assert [(m["role"], m["content"]) for m in body["messages"]] == [
        ("system", "Be brief."), ("user", "One?"), ("assistant", "Hello, world."), ("user", "Two?"),
    ]  # fmt: skip
    page.find("#reset").click()
    page.find("#regenerate").click()
    page.wait(lambda: len(server.bodies) == 3)
    page.ended()
    again = server.bodies[2]
    assert [m["content"] for m in again["messages"]] == ["One?", "Hello, world.", "Two?"]
    assert again["temperature"] == 0.7 and "seed" not in again
    page.find("#clear").click()
    assert page.ask("Three?") == ["Hello, world."]
    assert [m["content"] for m in server.bodies[3]["messages"]] == ["Three?"]


def test_a_control_out_of_range_sends_nothing(page, server):
    page.set("#top_p", "1.5")
    page.send("Why?")
    time.sleep(0.3)
    assert server.bodies == [] and page.find("#question").get_attribute("value") == "Why?"


def test_stop_ends_the_request_and_keeps_the_text(page, server):
    server.chunks = [(f"{i} ", None) for i in range(1000)]
    server.seconds = 0.05
    page.send("Count.")
    page.wait(lambda: "2" in page.texts(".answer")[0])
    page.find("#stop").click()
    (answer,) = page.ended()
    page.wait(lambda: server.num_disconnects == 1)
    assert answer.startswith("0 1 2") and "Stopped." in page.find(".notes").text
    server.chunks, server.seconds = [("Fine.", None)], 0
    assert page.ask("Go on?")[1] == "Fine."
    assert server.bodies[1]["messages"][1]["content"].strip() == answer.strip()


def error(message):
    return json.dumps({"error": {"message": message}}).encode()


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        ((400, {}, error('"top_p" must be a number <b>')), '"top_p" must be a number <b>'),
        ((429, {"Retry-After": "1"}, error("busy")), "busy (retry in 1 s)"),
        ((502, {}, b"<html>"), "502 Bad Gateway"),
    ],
)
def test_a_refusal_shows_the_servers_message(page, server, refusal, text):
    server.refusal = refusal
    page.ask("One?")
    assert page.find(".error[role=alert]").text == text
    server.refusal = None
    page.ask("Two?")
    # A turn without an answer is no part of the conversation.
    assert [m["content"] for m in server.bodies[-1]["messages"]] == ["Two?"]


@pytest.mark.parametrize(
    ("tail", "text"),
    [
        ('data: {"error": {"message": "no memory for the step"}}\n\n', "no memory for the step"),
        ("", "The connection ended before the answer did."),
    ],
)
def test_an_error_in_a_stream_is_shown_under_the_text(page, server, tail, text):
    server.tail = tail
    assert page.ask() == ["Hello, world."]
    assert page.find(".error").text == text


def test_a_limit_is_named(page, server):
    server.finish_reason = "length"
    page.ask()
    assert page.find(".notes").text.endswith("Cut off at the limit of tokens.")


def test_text_is_never_markup(page, server):
    html = "<img src=x onerror=alert(1)> <script>alert(2)</script>"
    server.chunks = [(f"{html}\n\n``", None), ("`html\n<b>", None), (f"\n\n{html}\n```\nEnd & <i>.", None)]
    page.ask(html)
    assert page.find(".question").text == html
    assert page.texts(".answer > p") == [html, "End & <i>."]
    assert page.texts(".answer > pre > code") == [f"<b>\n\n{html}"]
    assert page.all("#log img, #log script, #log b, #log i") == []


def test_tokens_have_probabilities_and_alternatives(page, server):
    half = [("Hello", -0.6931), ("Bye", -2.3026)]
    water = "水".encode()
    server.chunks = [
        ("Hello", [token("Hello", -0.6931, half)]),
        (" 水", [token(" ", -0.01), token(water[:2], -0.05), token(water[2:], -0.001)]),
        (" <b>", [token(" <b>", -4, [(" the", -0.1)]), token("<|end|>", -0.1)]),
    ]
    page.find("#probabilities").click()
    assert page.ask() == ["Hello 水 <b>"]
    assert server.bodies[0]["logprobs"] is True and server.bodies[0]["top_logprobs"] == 5
    assert page.texts(".token") == ["Hello", " ", "水", " <b>"]
    assert [one.get_attribute("class") for one in page.all(".token")] == [
        "token p2", "token p4", "token p4", "token p0",
    ]  # fmt: skip
    ActionChains(page.browser).move_to_element(page.all(".token")[0]).perform()
    assert page.texts("#popover tr") == ["Hello50.00 %", "Bye10.00 %"]
    assert page.texts("#popover .chosen th") == ["Hello"]
    ActionChains(page.browser).move_to_element(page.find("h1")).perform()
    page.wait(lambda: not page.find("#popover").is_displayed())

    page.browser.execute_script("document.querySelector('.token[tabindex=\"0\"]').focus()")
    focused = page.browser.switch_to.active_element
    assert page.find("#popover").is_displayed() and focused.get_attribute("aria-describedby") == "popover"
    ActionChains(page.browser).send_keys(Keys.ARROW_RIGHT * 2).perform()
    assert len(page.all("#popover table")) == 2  # both parts of the character
    ActionChains(page.browser).send_keys(Keys.ARROW_RIGHT).perform()
    assert page.texts("#popover tr") == ["␣<b>1.83 %", "␣the90.48 %"]
    ActionChains(page.browser).send_keys(Keys.ESCAPE).perform()
    assert not page.find("#popover").is_displayed()
    page.find("#probabilities").click()
    assert page.all(".token") == [] and page.texts(".answer") == ["Hello 水 <b>"]


def test_the_key_is_sent_and_ends_with_the_tab(page, server):
    server.api_key = "secret"
    page.ask()
    assert page.find(".error").text == "no valid API key"
    page.find("#api-key").send_keys("secret", Keys.TAB)
    page.wait(lambda: page.find("#model").text.startswith("fake-1b"))
    page.find("#regenerate").click()
    page.wait(lambda: server.bodies)
    assert page.ended() == ["Hello, world."]
    stored = page.browser.execute_script("return [Object.values(sessionStorage), localStorage.length, document.cookie]")
    assert stored == [["secret"], 0, ""]


def open_engine(page):
    page.find("#chat-tab").send_keys(Keys.ARROW_RIGHT)
    assert page.find("#engine").is_displayed() and not page.find("#chat").is_displayed()


def legend(page, title):
    """{series: value} of a chart."""
    return page.browser.execute_script(
        "const chart = [...document.querySelectorAll('.chart')]"
        ".find((one) => one.querySelector('h2').firstChild.data === arguments[0]);"
        "return Object.fromEntries([...chart.querySelectorAll('.series li')]"
        ".map((li) => [li.firstChild.data, li.querySelector('b').textContent]));",
        title,
    )


def test_the_engine_view_shows_the_state(page, server):
    server.engine = engine_state()
    open_engine(page)
    page.wait(lambda: legend(page, "Batch") == {"answers": "8", "prompts": "6"})
    counts = dict(zip(page.texts("#counts dt"), page.texts("#counts dd"), strict=True))
    assert counts["Running"] == "5" and counts["Finished"] == "77" and counts["Refused"] == "3"
    assert legend(page, "Step time") == {"time": "22"}
    assert legend(page, "Sequences") == {"running": "5", "waiting": "2", "preempted": "1"}
    assert legend(page, "KV pages") == {"in use": "40", "shared": "–", "free": "24"}
    assert legend(page, "TTFT") == {"p50": "41", "p90": "55", "p99": "80"}
    assert legend(page, "ITL") == {"p50": "21.5", "p90": "23", "p99": "30.3"}
    server.engine = engine_state() | {"pages": {"total": 64, "free": 24, "used": 40, "shared": 15}}
    page.wait(lambda: legend(page, "KV pages") == {"in use": "25", "shared": "15", "free": "24"})
    assert "in use 25, shared 15, free 24" in page.find("svg[aria-label^='KV pages']").get_attribute("aria-label")


def test_rates_are_differences_of_counts(page, server):
    start = time.monotonic()

    def state():
        seconds = time.monotonic() - start
        now = engine_state()
        now["stats"] |= {"prompt_tokens": 5000 + 100 * seconds, "generated_tokens": 1000 * seconds}
        now["prefix_cache"] = {"queries": 5000 + 100 * seconds, "hits": 1000 + 75 * seconds}
        return now

    server.engine = state
    open_engine(page)
    page.wait(lambda: legend(page, "Prefix cache hits") == {"hit rate": "75"})
    rates = legend(page, "Throughput")
    assert 800 < float(rates["answers"].removesuffix("k")) < 1200 and 80 < float(rates["prompts"]) < 120


def test_absent_fields_are_dashes(page, server):
    server.engine = {"stats": {}, "steps": []}
    open_engine(page)
    page.wait(lambda: server.paths.count("/v1/engine") > 2)
    assert set(page.texts("#counts dd")) == {"–"} and set(page.texts(".series b")) == {"–"}


def test_an_engine_that_does_not_answer_is_named_and_comes_back(page, server):
    server.api_key = "secret"
    open_engine(page)
    page.wait(lambda: page.find("#engine-status").text == "no valid API key")
    server.api_key, server.engine = None, engine_state()
    page.wait(lambda: page.find("#engine-status").text == "" and legend(page, "Batch")["answers"] == "8")


def test_pointing_at_a_chart_shows_the_values_there(page, server):
    server.engine = engine_state(200)
    open_engine(page)
    page.wait(lambda: legend(page, "Batch")["prompts"] == "203")
    ActionChains(page.browser).move_to_element(page.find(".chart svg")).perform()
    for _ in range(2):  # the next state of the engine does not move it
        assert 80 < int(legend(page, "Batch")["prompts"]) < 110  # of 4 to 203
        num_polls = server.paths.count("/v1/engine")
        page.wait(lambda: server.paths.count("/v1/engine") > num_polls + 1)
    ActionChains(page.browser).move_to_element(page.find("h1")).perform()
    page.wait(lambda: legend(page, "Batch")["prompts"] == "203")


@pytest.mark.parametrize("width", [400, 800, 1400])
def test_nothing_is_cut_off(page, server, width):
    page.browser.set_window_size(width, 800)
    page.browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        server.engine = engine_state(200)
        server.chunks = [("word" * 100 + "\n```\n" + "code " * 100 + "\n```", None)]
        page.ask("why" * 200)
        if width < 880:
            page.find("#settings-toggle").click()
        assert page.find("#temperature").is_displayed()
        for select in (lambda: None, lambda: open_engine(page)):
            select()
            wide = page.browser.execute_script(
                "const right = (e) => e.getBoundingClientRect().right;"
                "return [...document.querySelectorAll('body *')].filter((e) => !e.closest('pre, .visually-hidden'))"
                ".filter((e) => right(e) > Math.min(innerWidth, right(e.closest('.chart, #log') ?? e)) + 0.5)"
                ".map((e) => e.outerHTML)"
            )
            assert wide == []
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
