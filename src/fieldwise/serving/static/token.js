// The box that asks for a token.

import { byId } from "./dom.js";

/** Ask with what was wrong with the last one; gives what was typed. */
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
