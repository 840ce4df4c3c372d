// The dialog that asks for a token.

import { byId, make } from "./dom.js";

/** Show the dialog with an error message (may be empty); returns a promise of the typed text. */
export function askForToken(wrong) {
  const dialog = byId("ask-token") ?? added();
  byId("token-error").textContent = wrong;
  byId("token").value = "";
  dialog.showModal();
  return new Promise((given) => {
    dialog.addEventListener("close", () => given(byId("token").value), { once: true });
  });
}

/** The dialog, added to the page; it cannot be cancelled. */
function added() {
  const form = make("form", { method: "dialog" },
    make("h2", { id: "token-title", text: "This server requires a token" }),
    make("p", { text: "The token is stored until this tab is closed, and sent only to this server." }),
    make("label", { for: "token", text: "Token" }),
    make("input", {
      id: "token", type: "password", autocomplete: "off", required: true, "aria-describedby": "token-error",
    }),
    make("p", { id: "token-error", class: "error", role: "alert" }),
    make("button", { class: "primary", text: "Continue" }));
  const dialog = make("dialog", {
    id: "ask-token", "aria-labelledby": "token-title", oncancel: (event) => event.preventDefault(),
  }, form);
  document.body.append(dialog);
  return dialog;
}
