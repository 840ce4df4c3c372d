// Input controls of fields: a choice if a category has few values, else text; numbers; lists for bags and histories.

import { combobox } from "./combobox.js";
import { make, newId, same } from "./dom.js";

const OTHER = "\u0000other";
const ABSENT = "\u0000absent";

/**
 * The control of a field. It calls change(value) with null, a text, a number or a list of texts.
 *
 * items: the catalogue's {search(text, signal), name(id)}, for lists of items.
 */
export function fieldControl(field, change, items = null) {
  const id = newId("field");
  const error = make("p", { id: `${id}-error`, class: "error" });
  const control =
    field.cell === "number"
      ? number(id, change)
      : field.cell === "list"
        ? several(id, field, change, items)
        : field.cell === "vector"
          ? numbers(id, change)
        : field.values
          ? choice(id, field.values, change)
          : text(id, change);
  const mark = make("span", { class: "changed", text: "changed", hidden: true });
  const element = make(
    "div",
    { class: "field" },
    make("div", { class: "label" }, make("label", { for: id, text: field.name }), mark),
    control.element,
    error,
  );
  const input = control.input;
  input.setAttribute("aria-describedby", error.id);
  return {
    element,
    set(value, original) {
      control.set(value);
      mark.hidden = same(value, original);
    },
    fail(message) {
      error.textContent = message;
      if (message) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    },
  };
}

function text(id, change) {
  const input = make("input", { id, type: "text", placeholder: "not known", spellcheck: "false" });
  input.addEventListener("input", () => change(input.value === "" ? null : input.value));
  return { input, element: input, set: (value) => setText(input, value) };
}

function numbers(id, change) {
  const input = make("input", { id, type: "text", placeholder: "numbers, not known", spellcheck: "false" });
  input.addEventListener("input", () => {
    const values = input.value.split(/[\s,]+/).filter(Boolean).map(Number);
    change(values.length ? values : null);
  });
  return { input, element: input, set: (value) => setText(input, value ? value.join(", ") : value) };
}

function number(id, change) {
  const input = make("input", { id, type: "number", step: "any", placeholder: "not known" });
  input.addEventListener("input", () => {
    if (!input.validity.badInput) change(input.value === "" ? null : Number(input.value));
  });
  return { input, element: input, set: (value) => setText(input, value) };
}

function setText(input, value) {
  const shown = value ?? "";
  if (document.activeElement !== input || String(shown) === "") {
    if (input.value !== String(shown)) input.value = shown;
  }
}

function choice(id, values, change) {
  const select = make("select", { id });
  for (const value of values) select.append(make("option", { value, text: value }));
  select.append(make("option", { value: ABSENT, text: "(not known)" }), make("option", { value: OTHER, text: "Another value…" }));
  const free = make("input", { type: "text", "aria-label": "Another value", hidden: true, spellcheck: "false" });
  select.addEventListener("change", () => {
    free.hidden = select.value !== OTHER;
    if (!free.hidden) free.focus();
    else change(select.value === ABSENT ? null : select.value);
  });
  free.addEventListener("input", () => change(free.value === "" ? null : free.value));
  function set(value) {
    if (document.activeElement === free) return;
    const known = value === null || values.includes(String(value));
    select.value = value === null ? ABSENT : known ? String(value) : OTHER;
    free.hidden = known;
    free.value = known ? "" : String(value);
  }
  return { input: select, element: make("div", { class: "choice" }, select, free), set };
}

function several(id, field, change, items) {
  let value = [];
  const chips = make("ul", { class: "chips", "aria-label": `${field.name}: values` });
  const read = field.max_length;
  const adding = combobox({
    id,
    placeholder: items ? "add a title" : "add a value",
    choose: (one) => change([...value, one]),
    search: async (typed, signal) => {
      if (items) return items.search(typed, signal);
      const start = typed.toLowerCase();
      const left = (field.values ?? []).filter((one) => !value.includes(one) && one.toLowerCase().startsWith(start));
      return left.slice(0, 12).map((one) => ({ value: one, text: one }));
    },
  });
  function remove(position) {
    change(value.filter((_, other) => other !== position));
    (chips.querySelectorAll("button")[position] ?? adding.input).focus();
  }
  function show() {
    chips.replaceChildren(
      ...value.map((one, position) => {
        const name = items ? items.name(one) : one;
        const unread = read !== null && position < value.length - read;
        return make(
          "li",
          { class: unread ? "unread" : null, title: unread ? `the model reads the last ${read}` : null },
          make("span", { text: name }),
          make("button", { type: "button", "aria-label": `Remove ${name}`, text: "×", onclick: () => remove(position) }),
        );
      }),
    );
    chips.hidden = !value.length;
  }
  function set(next) {
    value = next ?? [];
    show();
    items?.learn(value).then((learnt) => learnt && show());
  }
  return { input: adding.input, element: make("div", { class: "several" }, chips, adding.element), set };
}
