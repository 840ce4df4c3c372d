// The dialog that asks for a token.

import { byId } from "./dom.js";

/** Show the dialog with an error message (may be empty); returns a promise of the typed text. */
export function askForToken(wrong) {
  const dialog = byId("ask-token");
  dialog.addEventListener("cancel", stay);
  byId("token-error").textContent = wrong;
  byId("token").value = "";
  dialog.showModal();
  return new Promise((given) => {
    dialog.addEventListener("close", () => given(byId("token").value), { once: true });
  });
}

const stay = (event) => event.preventDefault();
