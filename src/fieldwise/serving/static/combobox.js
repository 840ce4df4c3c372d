import { make, newId } from "./dom.js";

/**
 * A text input with suggestions (an ARIA combobox with a listbox).
 *
 * search(text, signal) returns [{value, text, more}]; choose(value) is called with the marked suggestion's value, or
 * with the typed text if no suggestion is marked.
 */
export function combobox({ id, label = null, placeholder = "", search, choose, keep = false }) {
  const listId = newId("options");
  const list = make("ul", { id: listId, role: "listbox", class: "options", hidden: true, "aria-label": label ?? "Suggestions" });
  const input = make("input", {
    id,
    type: "text",
    role: "combobox",
    placeholder,
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
    "aria-label": label,
    "aria-autocomplete": "list",
    "aria-expanded": "false",
    "aria-controls": listId,
  });
  let options = [];
  let marked = -1;
  let asking = null;
  let chosen = "";

  function close() {
    asking?.abort();
    list.hidden = true;
    list.replaceChildren();
    options = [];
    mark(-1);
    input.setAttribute("aria-expanded", "false");
  }

  function mark(position) {
    marked = position;
    [...list.children].forEach((item, number) => item.setAttribute("aria-selected", String(number === position)));
    const item = list.children[position];
    if (item) {
      input.setAttribute("aria-activedescendant", item.id);
      item.scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  }

  async function open(text) {
    asking?.abort();
    asking = new AbortController();
    const { signal } = asking;
    let found;
    try {
      found = await search(text, signal);
    } catch {
      return; // replaced by a newer text, or an error that choosing will show
    }
    if (signal.aborted || document.activeElement !== input) return;
    options = found;
    list.replaceChildren(
      ...found.map((option, number) =>
        make(
          "li",
          { id: newId("option"), role: "option", "aria-selected": "false", onclick: () => take(options[number].value) },
          make("span", { text: option.text }),
          option.more ? make("span", { class: "quiet", text: option.more }) : null,
        ),
      ),
    );
    mark(-1);
    list.hidden = !found.length;
    input.setAttribute("aria-expanded", String(found.length > 0));
  }

  function take(value) {
    close();
    chosen = keep ? value : "";
    input.value = chosen;
    choose(value);
  }

  input.addEventListener("input", () => open(input.value.trim()));
  input.addEventListener("focus", () => input.select());
  input.addEventListener("click", () => list.hidden && open(keep && input.value === chosen ? "" : input.value.trim()));
  input.addEventListener("blur", () => {
    close();
    if (keep) input.value = chosen;
  });
  input.addEventListener("keydown", async (event) => {
    const { key } = event;
    if (key === "ArrowDown" || key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) await open(keep && input.value === chosen ? "" : input.value.trim());
      if (!options.length) return;
      const step = key === "ArrowDown" ? 1 : -1;
      mark(marked < 0 ? (step > 0 ? 0 : options.length - 1) : (marked + step + options.length) % options.length);
    } else if (key === "Enter") {
      event.preventDefault();
      const text = input.value.trim();
      if (marked >= 0) take(options[marked].value);
      else if (text) take(options.length === 1 ? options[0].value : text);
    } else if (key === "Escape") {
      if (!list.hidden) event.preventDefault();
      close();
      if (keep) input.value = chosen;
    }
  });
  list.addEventListener("pointerdown", (event) => event.preventDefault()); // keeps the focus on the input

  return {
    input,
    element: make("div", { class: "combobox" }, input, list),
    set value(text) {
      chosen = text;
      input.value = text;
    },
  };
}
