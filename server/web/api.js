// The server's API: requests, and the events of a stream.

const kMaxEventLength = 1 << 20;
const kPollTimeoutMs = 5000;

// The key lives in sessionStorage: it ends with the browser tab.
export function apiKey() {
  return sessionStorage.getItem("headrace-api-key") ?? "";
}

export function setApiKey(key) {
  sessionStorage.setItem("headrace-api-key", key);
}

function headers() {
  return apiKey() ? {Authorization: `Bearer ${apiKey()}`} : {};
}

// The text of a reply that is not 2xx: the server's own message where there is one.
async function errorOf(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not an error object, for example from a proxy: the status has to do.
  }
  const seconds = response.headers.get("Retry-After");
  return new Error(seconds ? `${message} (retry in ${seconds} s)` : message);
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it running?");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

export async function getJson(path) {
  const options = {headers: headers(), signal: AbortSignal.timeout(kPollTimeoutMs)};
  return (await request(path, options)).json();
}

// The data of server-sent events, one string each. A line may arrive in several parts.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    if (rest.length > kMaxEventLength) throw new Error("The server sent a line without an end.");
    for (const line of lines)
      if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}

// Parsed chunks of a streamed chat completion. Aborting `signal` throws an AbortError.
export async function* streamChat(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: {...headers(), "Content-Type": "application/json"},
    body: JSON.stringify({...body, stream: true, stream_options: {include_usage: true}}),
    signal,
  });
  for await (const data of eventsOf(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
  throw new Error("The connection ended before the answer did.");
}
