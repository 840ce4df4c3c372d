// Explanation of a score: pairs and fields with signed bars, and parts specific to the model.

import { draw, make, plain, signed } from "./dom.js";

const SHOWN = 6;
const UNIFORM = 0.1; // greatest difference of uniform attention from equal weights, as a share of them
const METHODS = {
  terms: "Exact: a field’s own weight and half of each of its pairs; base and contributions add up to the score.",
  integrated_gradients: "Integrated gradients: what each field adds on the path from the model’s sample rows to this row.",
  occlusion: "The average decrease of the score when the field takes its value from a sample row.",
};

/** The explanation as elements; shown(field, value) returns a field's value as text, directions() the server's. */
export function whyView(why, style, shown, directions) {
  const score = style.text(style.logit ? why.score : why.prediction);
  const logit = why.prediction === why.score || style.logit ? "" : `, ${why.calibrated ? "calibrated from" : ""} a logit of ${plain(why.score, 3)}`.replace("  ", " ");
  const start = why.method === "terms" ? "the bias" : "the model’s sample rows";
  const given = why.fields.reduce((sum, one) => sum + one.contribution, 0);
  const rest = Math.abs(why.gap) >= 0.005 ? `, ${signed(why.gap)} left over` : "";
  const exact = why.pairs !== undefined;
  const attended = (why.pairs ?? []).filter((pair) => pair.attention !== undefined);
  const uniform = attended.length > 1 && attended.every((pair) => Math.abs(pair.attention * attended.length - 1) <= UNIFORM);
  const pairs = (why.pairs ?? why.measured_pairs ?? []).map((pair) => ({
    parts: pair.fields.map((name, side) => [name, shown(name, pair.values[side])]),
    value: exact ? pair.contribution : pair.effect,
    more: pair.attention === undefined || uniform ? null : `attention ${(100 * pair.attention).toFixed(0)} %`,
  }));
  const fields = why.fields.map((one) => ({ parts: [[one.field, shown(one.field, one.value)]], value: one.contribution, more: null }));
  const most = Math.max(...[...pairs, ...fields].map((row) => Math.abs(row.value)));
  const notes = [
    METHODS[why.method] ?? why.method,
    pairs.length ? (exact ? "Pairs are exact: the pair’s own term in the score." : "Pairs: the effect of both fields together minus the effects of each alone, measured against the model’s sample rows.") : "",
    uniform ? "Attention is uniform over the pairs, so it is not shown." : "",
  ];
  const curves = make("section", { class: "directions", hidden: true });
  directions().then(
    (effects) => fillDirections(curves, effects, why, style),
    () => {}, // the reasons stand without them
  );
  return [
    make("p", { class: "reason", text: style.logit ? why.sentence.replace(/^[^,]*/, score) : why.sentence }),
    make("p", { class: "note", text: "Green bars to the right raise the prediction, orange bars to the left lower it." }),
    make("div", { class: "columns" }, pairs.length ? bars("Pairs that mattered", pairs, most) : null, bars("Fields", fields, most)),
    curves,
    make(
      "details",
      { class: "figures" },
      make("summary", { text: "Figures in logits" }),
      make("p", { class: "sum" }, make("strong", { text: score }), `${logit}: ${plain(why.base, 2)} from ${start}, ${signed(given)} from the fields${rest}`),
      ...notes.filter(Boolean).map((text) => make("p", { class: "note", text })),
      why.levels ? levels(why, shown) : null,
    ),
  ];
}

/** Charts of the mean prediction by value, all on one scale, with the row's own value marked. */
function fillDirections(section, effects, why, style) {
  const every = effects.flatMap((one) => one.predictions);
  const [low, high] = [Math.min(...every), Math.max(...every)];
  if (!(high > low)) return;
  const share = (prediction) => (prediction - low) / (high - low);
  const own = new Map(why.fields.map((one) => [one.field, one.value]));
  const charts = effects.slice(0, SHOWN).map((one) => {
    const chart = one.numbers ? curve(one, share, own.get(one.field), style) : dots(one, share, own.get(one.field), style);
    return make("figure", {}, make("figcaption", { text: one.field }), chart);
  });
  section.replaceChildren(
    make("h3", { text: "Directions" }),
    make("p", { class: "note", text: `The prediction with each value, on average over the model’s sample rows: from ${style.text(low)} to ${style.text(high)} in every chart. This row’s own value is marked.` }),
    make("div", { class: "charts" }, ...charts),
  );
  section.hidden = false;
}

const WIDE = 200;
const TALL = 72;

function curve({ field, values, numbers, predictions }, share, own, style) {
  const [first, last] = [numbers[0], numbers.at(-1)];
  const x = (number) => 4 + ((Math.min(Math.max(number, first), last) - first) / (last - first)) * (WIDE - 8);
  const y = (prediction) => TALL - 4 - share(prediction) * (TALL - 8);
  const said = values.map((value, place) => `${value}: ${style.text(predictions[place])}`).join(", ");
  const drawing = draw("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-label": `${field}: ${said}` });
  drawing.append(draw("polyline", { points: numbers.map((number, place) => `${x(number)},${y(predictions[place])}`).join(" ") }));
  const number = own === undefined || own.trim() === "" ? NaN : Number(own);
  if (!Number.isNaN(number)) drawing.append(draw("line", { x1: x(number), x2: x(number), y1: 0, y2: TALL }));
  numbers.forEach((one, place) => {
    const dot = draw("circle", { cx: x(one), cy: y(predictions[place]), r: 3 });
    dot.append(draw("title", {}, `${values[place]}: ${style.text(predictions[place])}`));
    drawing.append(dot);
  });
  const ends = [0, values.length - 1].map((place) => make("span", { text: `${values[place]}: ${style.text(predictions[place])}` }));
  return make("div", {}, drawing, make("p", { class: "ends quiet" }, ...ends));
}

function dots({ values, predictions }, share, own, style) {
  const order = predictions.map((_, place) => place).sort((a, b) => predictions[b] - predictions[a]);
  const mine = new Set([own, ...(own ?? "").split(", ")]);
  const lines = order.map((place) => {
    const dot = make("span", { class: "dot" });
    dot.style.setProperty("--share", `${100 * share(predictions[place])}%`);
    const marked = mine.has(values[place]);
    return make("li", { class: marked ? "own" : null, "aria-current": marked && "true" }, make("span", { class: "words", title: values[place], text: values[place] }), make("span", { class: "rail", "aria-hidden": "true" }, dot), make("span", { class: "number", text: style.text(predictions[place]) }));
  });
  return make("ol", { class: "dots" }, ...lines);
}

function bars(heading, rows, most, note = null) {
  const lines = rows.map((row) => {
    const bar = make("span", { class: `signed ${row.value < 0 ? "down" : "up"}` });
    bar.style.setProperty("--share", `${(50 * Math.abs(row.value)) / (most || 1)}%`);
    const words = row.parts.flatMap(([name, value], side) => [
      side ? make("span", { class: "times", text: " × " }) : null,
      make("span", { class: "part", title: `${name}: ${value}` }, make("span", { class: "quiet", text: `${name} ` }), value),
    ]);
    return make(
      "li",
      {},
      make("span", { class: "words" }, ...words.filter(Boolean)),
      make("span", { class: "quiet", text: row.more ?? "" }),
      make("span", { class: "amount", text: signed(row.value) }),
      make("span", { class: "track", "aria-hidden": "true" }, bar),
    );
  });
  const list = make("ol", { class: "bars" }, ...lines.slice(0, SHOWN));
  const all =
    lines.length > SHOWN
      ? make("button", {
          type: "button",
          class: "link",
          text: `Show all ${lines.length}`,
          onclick: () => {
            list.append(...lines.slice(SHOWN));
            lines[SHOWN].tabIndex = -1;
            lines[SHOWN].focus({ preventScroll: true });
            all.remove();
          },
        })
      : null;
  return make("section", {}, make("h3", { text: heading }), list, all, note && make("p", { class: "note", text: note }));
}

function levels(why, shown) {
  const gates = [...why.user_gates, ...why.item_gates].map((gate) => ({
    parts: [[gate.field, shown(gate.field, gate.value)]],
    value: gate.effect,
    more: `gate ${(100 * gate.gate).toFixed(0)} %`,
  }));
  gates.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const sizes = (rows) => Math.max(...rows.map((row) => Math.abs(row.value)));
  const parts = why.levels.map((level) => ({
    parts: [[`level ${level.level}`, `user heads matched with item heads ${level.heads.map((head) => head.item_head + 1).join(", ")}`]],
    value: level.contribution,
    more: null,
  }));
  return make(
    "details",
    {},
    make("summary", { text: "IntTower’s levels and gates" }),
    make(
      "div",
      { class: "columns" },
      bars("Levels", parts, sizes(parts), "Exact: each level’s best matches of the user’s heads with the item’s."),
      bars("Gates", gates, sizes(gates), "The decrease of the score when the field’s gate is closed."),
    ),
  );
}
