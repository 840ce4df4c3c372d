// Helpers to create elements. Text is only ever inserted as text, never as HTML.

/** An element with properties, attributes (`aria-*`, `role`, ...), event listeners (`on...`) and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** An element of an SVG drawing. */
export function draw(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

export const byId = (id) => document.getElementById(id);

let made = 0;
export const newId = (start) => `${start}-${++made}`;

/** Whether two plain values are the same. */
export const same = (a, b) => JSON.stringify(a ?? null) === JSON.stringify(b ?? null);

/** `wait()` calls `call` once after a pause, however often it is called itself, unless `stop()` is called before. */
export function later(milliseconds, call) {
  let timer = 0;
  return {
    wait() {
      clearTimeout(timer);
      timer = setTimeout(call, milliseconds);
    },
    stop: () => clearTimeout(timer),
  };
}

const MINUS = "\u2212";
export const signed = (x, digits = 2) => (x < 0 ? MINUS : "+") + Math.abs(x).toFixed(digits);
export const plain = (x, digits) => (x < 0 ? MINUS : "") + Math.abs(x).toFixed(digits);
export const percent = (x) => `${(100 * x).toFixed(1)}\u00a0%`;
export const counted = (n) => n.toLocaleString("en");
export const few = (n, one, many) => `${counted(n)} ${n === 1 ? one : many}`;
