// The text of an answer: paragraphs and code blocks, each a run of tokens. Text is only ever set as text.

const kFence = /^\s*```(.*)$/;
// Lower bounds of the tints p1, p2, p3 and p4.
const kTints = [0.1, 0.3, 0.6, 0.9];

// [{kind: "text" or "code", start, end, language}]: offsets into the text. Blank lines and fences belong to no block.
export function blocksOf(text) {
  const blocks = [];
  let block = null;
  let start = 0;
  for (const line of text.split("\n")) {
    const end = start + line.length;
    const fence = kFence.exec(line);
    if (fence) {
      const isEnd = block?.kind === "code";
      block = isEnd ? null : {kind: "code", start: end + 1, end: end + 1, language: fence[1].trim()};
      if (!isEnd) blocks.push(block);
    } else if (block?.kind === "code") {
      block.end = end;
    } else if (line.trim() === "") {
      block = null;
    } else {
      if (!block) blocks.push(block = {kind: "text", start, end, language: ""});
      block.end = end;
    }
    start = end + 1;
  }
  return blocks;
}

// Joins the server's tokens to runs of whole characters: a character may be spread over several tokens.
export class TokenRuns {
  #runs = [];  // [{piece, tokens}]
  #decoder = new TextDecoder("utf-8", {ignoreBOM: true});
  #pending = [];

  add(token) {
    this.#pending.push(token);
    const piece = token.bytes
      ? this.#decoder.decode(new Uint8Array(token.bytes), {stream: true}) : token.token;
    if (piece === "") return;
    this.#runs.push({piece, tokens: this.#pending});
    this.#pending = [];
  }

  get numTokens() {
    return this.#pending.length + this.#runs.reduce((sum, run) => sum + run.tokens.length, 0);
  }

  // [{start, end, tokens}], offsets into the text. Tokens that are no part of it (end of text, a stop string) are left
  // out. A tokenizer may drop a blank: that of the text's first token, or those of tokens that are decoded alone.
  placed(text) {
    const placed = [];
    let end = 0;
    for (const {piece, tokens} of this.#runs) {
      const candidates = [[end, piece], [end + 1, piece], [end, piece.slice(1)]];
      const found = candidates.find(([at, part]) => part !== "" && text.startsWith(part, at));
      if (!found) continue;
      placed.push({start: end, end: found[0] + found[1].length, tokens});
      end = placed.at(-1).end;
    }
    return placed;
  }
}

function tintOf(run) {
  const logprob = run.tokens.reduce((sum, token) => sum + token.logprob, 0);
  return kTints.filter((bound) => Math.exp(logprob) >= bound).length;
}

function tokenElement(run, text) {
  const element = document.createElement("span");
  element.className = `token p${tintOf(run)}`;
  element.tabIndex = -1;
  element.textContent = text;
  element.run = run;
  return element;
}

// Fills `parent` with text[start, end): as spans of tokens where there are any.
function fill(parent, text, start, end, runs) {
  let done = start;
  for (const run of runs) {
    const from = Math.max(run.start, start);
    const to = Math.min(run.end, end);
    if (from >= to) continue;
    parent.append(tokenElement(run, text.slice(from, to)));
    done = to;
  }
  if (done < end) parent.append(text.slice(done, end));
}

function blockElement(block, text, runs) {
  const content = document.createElement(block.kind === "code" ? "code" : "p");
  fill(content, text, block.start, Math.min(block.end, text.length), runs);
  if (block.kind === "text") return content;
  const element = document.createElement("pre");
  element.tabIndex = 0;  // it may scroll
  element.setAttribute("aria-label", block.language ? `Code: ${block.language}` : "Code");
  element.append(content);
  return element;
}

// Draws an answer that grows: blocks that did not change keep their elements, and with them the focus.
export class AnswerView {
  #parent;
  #blocks = [];

  constructor(parent) {
    this.#parent = parent;
  }

  // runs: [] without token probabilities.
  draw(text, runs) {
    const blocks = blocksOf(text);
    const isSame = (block, i) =>
      block.kind === this.#blocks[i]?.kind && block.start === this.#blocks[i].start &&
      block.end === this.#blocks[i].end;
    let kept = 0;
    while (kept < blocks.length && isSame(blocks[kept], kept)) ++kept;
    while (this.#parent.children.length > kept) this.#parent.lastElementChild.remove();
    for (const block of blocks.slice(kept)) this.#parent.append(blockElement(block, text, runs));
    this.#blocks = blocks;
  }

  clear() {
    this.#parent.replaceChildren();
    this.#blocks = [];
  }
}
