// The page of headrace serve: two views, Chat and Engine.

import {getJson} from "./api.js";
import {startChat} from "./chat.js";
import {EngineView} from "./engine.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const engine = new EngineView();
const chat = startChat(showModel);

async function showModel() {
  const line = document.getElementById("model");
  try {
    const [model] = (await getJson("v1/models")).data;
    chat.model = model.id;
    line.textContent = model.max_model_len ? `${model.id}, context ${model.max_model_len}` : model.id;
  } catch (error) {
    line.textContent = error.message;
  }
}

function select(tab) {
  for (const other of tabs) {
    const isSelected = other === tab;
    other.setAttribute("aria-selected", isSelected);
    other.tabIndex = isSelected ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !isSelected;
  }
  engine.draw();
}

for (const tab of tabs) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    const other = tabs[1 - tabs.indexOf(tab)];
    select(other);
    other.focus();
  });
}

showModel();
engine.run();
