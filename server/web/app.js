"use strict";

const conversation = [];

function addParagraph(role, text) {
  const paragraph = document.createElement("p");
  paragraph.className = role;
  paragraph.textContent = text;
  document.getElementById("messages").append(paragraph);
  return paragraph;
}

// Calls onText with each piece of the answer.
async function streamAnswer(messages, onText) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify({messages, stream: true}),
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (buffer + value).split("\n");
    buffer = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      onText(event.choices[0]?.delta.content ?? "");
    }
  }
}

document.getElementById("form").addEventListener("submit", async (submit) => {
  submit.preventDefault();
  const input = document.getElementById("question");
  conversation.push({role: "user", content: input.value});
  addParagraph("user", input.value);
  input.value = "";
  const paragraph = addParagraph("assistant", "");
  try {
    await streamAnswer(conversation, (text) => { paragraph.textContent += text; });
    conversation.push({role: "assistant", content: paragraph.textContent});
  } catch (error) {
    conversation.pop();
    paragraph.textContent = error.message;
  }
});
