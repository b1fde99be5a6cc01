// The chat: turns of a question and an answer, kept in memory only.

import {AnswerView, TokenRuns} from "./answer.js";
import {apiKey, setApiKey, streamChat} from "./api.js";
import {watchTokens} from "./popover.js";

const kNumAlternatives = 5;
const kNumbers = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];
const kFinished = {length: "Cut off at the limit of tokens.", stopped: "Stopped.", abort: "Ended by the server."};

const find = (id) => document.getElementById(id);

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

class Turn {
  constructor(question) {
    this.question = question;
    this.element = element("div", "turn");
    this.answerElement = element("div", "answer");
    this.view = new AnswerView(this.answerElement);
    this.error = element("p", "error");
    this.error.setAttribute("role", "alert");
    this.notes = element("p", "notes");
    this.element.append(element("p", "question", question), this.answerElement, this.error, this.notes);
    this.reset();
  }

  reset() {
    this.answer = "";
    this.runs = new TokenRuns();
    this.view.clear();
    this.error.textContent = "";
    this.notes.textContent = "";
  }

  draw(hasProbabilities) {
    this.view.draw(this.answer, hasProbabilities ? this.runs.placed(this.answer) : []);
    const token = this.answerElement.querySelector(".token");
    if (token && !this.answerElement.querySelector(".token[tabindex='0']")) token.tabIndex = 0;
  }
}

// What an answer cost, as seen from this page.
class Timing {
  start = performance.now();
  first = null;
  last = null;

  addToken() {
    this.last = performance.now();
    this.first ??= this.last;
  }

  // numTokens: null if unknown.
  text(numTokens) {
    if (this.first === null) return [];
    const parts = [`TTFT ${Math.round(this.first - this.start)} ms`];
    if (numTokens !== null) parts.push(`${numTokens} tokens`);
    const seconds = (this.last - this.first) / 1000;
    if (numTokens > 1 && seconds > 0) parts.push(`${((numTokens - 1) / seconds).toFixed(1)} tokens/s`);
    return parts;
  }
}

class Chat {
  #turns = [];
  #aborter = null;
  #isDrawing = false;
  model = "";  // id; "": not known yet

  constructor() {
    watchTokens(find("log"), find("popover"));
    find("composer").addEventListener("submit", (event) => this.#submit(event));
    find("question").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      find("composer").requestSubmit();
    });
    find("stop").addEventListener("click", () => this.#aborter?.abort());
    find("regenerate").addEventListener("click", () => this.#run(this.#turns.at(-1)));
    find("clear").addEventListener("click", () => this.#clear());
    find("probabilities").addEventListener("change", () => this.#showProbabilities());
    this.#updateButtons();
  }

  #submit(event) {
    event.preventDefault();
    const question = find("question").value;
    if (this.#aborter || question.trim() === "" || !find("settings").reportValidity()) return;
    find("question").value = "";
    find("empty").hidden = true;
    const turn = new Turn(question);
    this.#turns.push(turn);
    find("log").append(turn.element);
    this.#run(turn);
  }

  #clear() {
    this.#aborter?.abort();
    for (const turn of this.#turns) turn.element.remove();
    this.#turns = [];
    find("empty").hidden = false;
    this.#updateButtons();
    find("question").focus();
  }

  #showProbabilities() {
    find("legend").hidden = !find("probabilities").checked;
    for (const turn of this.#turns) {
      turn.view.clear();
      turn.draw(find("probabilities").checked);
    }
  }

  #updateButtons() {
    const isBusy = this.#aborter !== null;
    find("send").hidden = isBusy;
    find("stop").hidden = !isBusy;
    find("regenerate").disabled = isBusy || this.#turns.length === 0;
    find("clear").disabled = this.#turns.length === 0;
  }

  // Turns without an answer (refused, stopped at once) are no part of the conversation that the model sees.
  #body(turn) {
    const messages = [];
    if (find("system").value !== "") messages.push({role: "system", content: find("system").value});
    for (const {question, answer} of this.#turns.filter((other) => other !== turn && other.answer !== ""))
      messages.push({role: "user", content: question}, {role: "assistant", content: answer});
    messages.push({role: "user", content: turn.question});
    const body = {messages};
    if (this.model) body.model = this.model;
    for (const name of kNumbers)
      if (find(name).value !== "") body[name] = find(name).valueAsNumber;
    if (find("probabilities").checked) Object.assign(body, {logprobs: true, top_logprobs: kNumAlternatives});
    return body;
  }

  async #run(turn) {
    const aborter = this.#aborter = new AbortController();
    turn.reset();
    turn.answerElement.setAttribute("aria-busy", "true");  // a screen reader reads the answer when it has ended
    this.#updateButtons();
    const timing = new Timing();
    const end = {reason: "", numTokens: null};
    try {
      for await (const chunk of streamChat(this.#body(turn), aborter.signal)) this.#take(turn, chunk, timing, end);
    } catch (error) {
      if (error.name === "AbortError") end.reason = "stopped";
      else turn.error.textContent = error.message;
    }
    if (end.numTokens === null && turn.runs.numTokens > 0) end.numTokens = turn.runs.numTokens;
    const note = kFinished[end.reason];
    turn.notes.textContent = [...timing.text(end.numTokens), ...(note ? [note] : [])].join(" · ");
    turn.draw(find("probabilities").checked);
    turn.answerElement.removeAttribute("aria-busy");
    if (this.#aborter === aborter) this.#aborter = null;
    this.#updateButtons();
    this.#scroll(turn);
  }

  #take(turn, chunk, timing, end) {
    if (chunk.usage) end.numTokens = chunk.usage.completion_tokens;
    const choice = chunk.choices[0];
    if (!choice) return;
    for (const token of choice.logprobs?.content ?? []) turn.runs.add(token);
    if (choice.delta.content) {
      timing.addToken();
      turn.answer += choice.delta.content;
      this.#drawSoon(turn);
    }
    end.reason = choice.finish_reason ?? end.reason;
  }

  // Once a frame, however fast the tokens come.
  #drawSoon(turn) {
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      turn.draw(find("probabilities").checked);
      this.#scroll(turn);
    });
  }

  // Follows the answer, unless the reader has scrolled up.
  #scroll(turn) {
    const log = find("log");
    const kNear = 120;
    if (turn === this.#turns.at(-1) && log.scrollHeight - log.scrollTop - log.clientHeight < kNear)
      log.scrollTop = log.scrollHeight;
  }
}

// onKey: called when the API key has changed. Returns the chat.
export function startChat(onKey) {
  const chat = new Chat();
  const settings = find("settings");
  settings.addEventListener("submit", (event) => event.preventDefault());
  find("settings-toggle").addEventListener("click", () => {
    const isOpen = settings.classList.toggle("open");
    find("settings-toggle").setAttribute("aria-expanded", isOpen);
  });
  find("reset").addEventListener("click", () => {
    for (const id of [...kNumbers, "system"]) find(id).value = find(id).defaultValue;
  });
  find("api-key").value = apiKey();
  find("api-key").addEventListener("change", (event) => {
    setApiKey(event.target.value.trim());
    onKey();
  });
  return chat;
}
