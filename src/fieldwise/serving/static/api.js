// Requests to the server. An error has its message, the part of the request that it names, and the HTTP status.

export class ApiError extends Error {
  constructor(message, field, status) {
    super(message);
    this.field = field;
    this.status = status;
  }
}

const KEY = "fieldwise-token";
let askForToken = async () => "";
let asked = null; // the pending question for a token, shared by all requests that wait for it

/** Set the function that asks for a token: it receives an error message and returns a promise of the token. */
export function whenTokenIsNeeded(ask) {
  askForToken = ask;
}

export async function get(path, parameters = {}, signal = null) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) for (const one of [value].flat()) query.append(name, one);
  const text = query.toString();
  return ask(text ? `${path}?${text}` : path, { signal });
}

export async function post(path, body, signal = null) {
  return ask(path, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
    signal,
  });
}

async function ask(path, options) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(token === null ? {} : { Authorization: `Bearer ${token}` }) };
    let answer;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch (fault) {
      if (fault.name === "AbortError") throw fault;
      throw new ApiError("the server does not answer: is it still running?", null, 0);
    }
    if (answer.status === 401) {
      if (sessionStorage.getItem(KEY) === token) {
        asked ??= askForToken(token === null ? "" : "The server did not accept this token.").finally(() => (asked = null));
        sessionStorage.setItem(KEY, await asked);
      }
      continue;
    }
    const content = await answer.json().catch(() => null);
    if (answer.ok) return content;
    const error = content?.error ?? { message: `the server answered with status ${answer.status}`, field: null };
    throw new ApiError(error.message, error.field, answer.status);
  }
}
