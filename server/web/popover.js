// What the model could have said instead of a token: shown on hover and on focus.

const kMargin = 8;  // pixels from the window's edge

function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  return value > 0 && value < 0.01 ? "< 0.01 %" : `${value.toFixed(2)} %`;
}

// Blanks would be invisible.
function visible(text) {
  return text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "(no text)";
}

function rowOf(token, isChosen) {
  const row = document.createElement("tr");
  if (isChosen) row.className = "chosen";
  const name = document.createElement("th");
  name.scope = "row";
  name.textContent = visible(token.token);
  const meter = document.createElement("progress");
  meter.max = 1;
  meter.value = Math.exp(token.logprob);
  meter.setAttribute("aria-hidden", "true");
  const bar = document.createElement("td");
  bar.append(meter);
  const value = document.createElement("td");
  value.textContent = percent(token.logprob);
  row.append(name, bar, value);
  return row;
}

// The chosen token first, if it is not among the most likely ones.
function tableOf(token) {
  const table = document.createElement("table");
  const top = token.top_logprobs ?? [];
  const chosen = top.findIndex((other) => other.token === token.token && other.logprob === token.logprob);
  if (chosen < 0) table.append(rowOf(token, true));
  top.forEach((other, i) => table.append(rowOf(other, i === chosen)));
  return table;
}

function place(popover, token) {
  const box = token.getClientRects()[0];
  const {offsetWidth: width, offsetHeight: height} = popover;
  const left = Math.min(box.left, document.documentElement.clientWidth - width - kMargin);
  const below = box.bottom + kMargin;
  const isAbove = below + height > window.innerHeight && box.top > height + kMargin;
  popover.style.left = `${Math.max(left, kMargin)}px`;
  popover.style.top = `${isAbove ? box.top - height - kMargin : below}px`;
}

// One token of an answer is in the tab order; the arrow keys move on.
function move(token, isForward) {
  const tokens = [...token.closest(".answer").querySelectorAll(".token")];
  const next = tokens[tokens.indexOf(token) + (isForward ? 1 : -1)];
  if (!next) return;
  token.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

export function watchTokens(log, popover) {
  const hide = () => {
    popover.hidden = true;
    log.querySelector("[aria-describedby=popover]")?.removeAttribute("aria-describedby");
  };
  const show = (event) => {
    const token = event.target.closest(".token");
    if (!token) return;
    hide();
    popover.replaceChildren(...token.run.tokens.map(tableOf));
    popover.hidden = false;
    token.setAttribute("aria-describedby", "popover");
    place(popover, token);
  };
  for (const type of ["mouseover", "focusin"]) log.addEventListener(type, show);
  for (const type of ["mouseout", "focusout", "scroll"]) log.addEventListener(type, hide);
  log.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const token = event.target.closest(".token");
    if (!token || (event.key !== "ArrowRight" && event.key !== "ArrowLeft")) return;
    event.preventDefault();
    move(token, event.key === "ArrowRight");
  });
}
