// The list of recommendations. An item keeps its row element, so that the row moves to its new place and stays open.

import { make, newId, percent, plain, signed } from "./dom.js";

const SHOWN = 5; // further columns shown of an item

/** The format of scores: a probability for the task "binary", else a number; "logit" for a logit. */
export function scoreStyle(task, range) {
  if (task === "binary") {
    return {
      text: percent,
      moved: (change) => signed(100 * change, 1),
      least: 0.0005,
      unit: "points",
      share: (x) => x,
    };
  }
  return {
    text: (x) => plain(x, 3),
    moved: (change) => signed(change, 3),
    logit: task === "logit",
    least: 0.0005,
    unit: "",
    share: (x, low, high) => {
      const [from, to] = range ?? [Math.min(low, 0), high];
      return to > from ? (x - from) / (to - from) : 1;
    },
  };
}

export function itemTitle(item, about) {
  const given = about.title === null ? null : item.fields[about.title];
  return given === null || given === undefined || given === "" ? item.id : String(given);
}

export function itemDetails(item, about) {
  const parts = itemTitle(item, about) === item.id ? [] : [item.id];
  for (const [column, value] of Object.entries(item.fields)) {
    if (column === about.column || column === about.title || value === null || value === "") continue;
    if (parts.length > SHOWN) break;
    const words = (Array.isArray(value) ? value.join(", ") : String(value)).replaceAll("|", ", ");
    parts.push(typeof value === "number" ? `${column} ${words}` : words);
  }
  return parts.join(" · ");
}

/** The list in `place`; open(id, panel) fills a row's panel when it opens, closed(id) is called when it closes. */
export function recommendationList(place, about, style, { open, closed }) {
  const rows = new Map();
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  function row(item) {
    const panel = make("div", { id: newId("why"), class: "why", hidden: true });
    const parts = {
      rank: make("span", { class: "rank" }),
      byScore: make("span", { class: "meta by-score" }),
      score: make("span", { class: "number" }),
      fill: make("span", { class: "fill" }),
      was: make("span", { class: "was", hidden: true }),
      delta: make("span", { class: "delta" }),
      places: make("span", { class: "places" }),
    };
    const title = itemTitle(item, about);
    const button = make(
      "button",
      { type: "button", class: "row", "aria-expanded": "false", "aria-controls": panel.id },
      parts.rank,
      make("span", { class: "name" }, make("span", { class: "title", text: title }), make("span", { class: "meta", text: itemDetails(item, about) }), parts.byScore),
      make("span", { class: "score" }, parts.score, make("span", { class: "bar" }, parts.fill, parts.was)),
      make("span", { class: "moved" }, parts.delta, parts.places),
      make("span", { class: "sign", "aria-hidden": "true" }),
    );
    const element = make("li", { class: "item" }, make("h2", {}, button), panel);
    element.dataset.id = item.id;
    button.addEventListener("click", () => toggle(item.id));
    return { element, button, panel, parts, title };
  }

  function toggle(id, wanted = null) {
    const one = rows.get(id);
    if (!one) return;
    const opened = wanted ?? one.panel.hidden;
    if (opened === !one.panel.hidden) return;
    one.panel.hidden = !opened;
    one.button.setAttribute("aria-expanded", String(opened));
    if (opened) open(id, one.panel);
    else closed(id);
  }

  /** Show scored items [{item, score}]; before: Map of id to {rank, score}, or null if there is nothing to compare. */
  function show(scored, before) {
    const tops = new Map([...rows].map(([id, one]) => [id, one.element.getBoundingClientRect().top]));
    const scores = scored.map((one) => one.score);
    const low = Math.min(...scores);
    const high = Math.max(...scores);
    const fresh = scored.map(({ item, score }, number) => {
      const one = rows.get(item.id) ?? row(item);
      rows.set(item.id, one);
      fill(one, item.by_score, item.id, number + 1, score, before, (x) => `${100 * Math.min(1, Math.max(0, style.share(x, low, high)))}%`);
      return one.element;
    });
    const focused = document.activeElement;
    const kept = new Set(fresh);
    for (const [id, one] of rows) {
      if (!kept.has(one.element)) {
        rows.delete(id);
        one.element.remove();
        if (!one.panel.hidden) closed(id);
      }
    }
    fresh.forEach((element, position) => {
      if (place.children[position] !== element) place.insertBefore(element, place.children[position] ?? null);
    });
    while (place.children.length > fresh.length) place.lastElementChild.remove();
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    if (!still.matches) move(tops);
    for (const [id, one] of rows) if (!one.panel.hidden) open(id, one.panel);
  }

  function move(tops) {
    for (const [id, one] of rows) {
      const came = tops.get(id);
      const by = came === undefined ? 0 : came - one.element.getBoundingClientRect().top;
      if (by) one.element.animate([{ transform: `translateY(${by}px)` }, { transform: "none" }], { duration: 280, easing: "ease-out" });
      else if (came === undefined && tops.size) one.element.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 280 });
    }
  }

  function fill(one, byScore, id, rank, score, before, width) {
    const { parts } = one;
    const moved = Boolean(byScore) && byScore !== rank; // by limits or pinned items
    parts.rank.textContent = rank;
    parts.byScore.textContent = moved ? `by score at ${byScore}` : "";
    parts.score.textContent = style.text(score);
    parts.fill.style.setProperty("--share", width(score));
    const was = before?.get(id) ?? null;
    const said = [`${rank}. ${one.title}`, style.text(score), ...(moved ? [parts.byScore.textContent] : [])];
    parts.was.hidden = was === null;
    if (before === null) {
      parts.delta.textContent = "";
      parts.places.textContent = "";
    } else if (was === null) {
      parts.delta.textContent = "";
      parts.delta.className = "delta";
      parts.places.textContent = "new";
      parts.places.className = "places up";
      said.push("new in the list");
    } else {
      const change = score - was.score;
      const risen = was.rank - rank;
      const flat = Math.abs(change) < style.least;
      parts.was.style.setProperty("--share", width(was.score));
      parts.delta.textContent = flat ? "±0" : style.moved(change);
      parts.delta.className = `delta ${flat ? "" : change > 0 ? "up" : "down"}`;
      parts.places.textContent = risen === 0 ? "=" : `${risen > 0 ? "▲" : "▼"} ${Math.abs(risen)}`;
      parts.places.className = `places ${risen === 0 ? "" : risen > 0 ? "up" : "down"}`;
      if (!flat) said.push(`${change > 0 ? "up" : "down"} ${style.moved(Math.abs(change)).slice(1)} ${style.unit}`.trim());
      if (risen) said.push(`was ${was.rank}`);
    }
    one.button.setAttribute("aria-label", said.join(", "));
  }

  return { show, toggle, openIds: () => [...rows].filter(([, one]) => !one.panel.hidden).map(([id]) => id), has: (id) => rows.has(id) };
}
