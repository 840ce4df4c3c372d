// Explanation of a score: pairs and fields with signed bars, and parts specific to the model.

import { make, plain, signed } from "./dom.js";

const SHOWN = 6;
const METHODS = {
  terms: "Exact: a field’s own weight and half of each of its pairs; base and contributions add up to the score.",
  integrated_gradients: "Integrated gradients: what each field adds on the path from the model’s sample rows to this row.",
  occlusion: "The average decrease of the score when the field takes its value from a sample row.",
};

/** The explanation as elements; shown(field, value) returns a field's value as text. */
export function whyView(why, style, shown) {
  const score = style.text(style.logit ? why.score : why.prediction);
  const logit = why.prediction === why.score || style.logit ? "" : `, ${why.calibrated ? "calibrated from" : ""} a logit of ${plain(why.score, 3)}`.replace("  ", " ");
  const start = why.method === "terms" ? "the bias" : "the model’s sample rows";
  const given = why.fields.reduce((sum, one) => sum + one.contribution, 0);
  const rest = Math.abs(why.gap) >= 0.005 ? `, ${signed(why.gap)} left over` : "";
  const exact = why.pairs !== undefined;
  const pairs = (why.pairs ?? why.measured_pairs ?? []).map((pair) => ({
    parts: pair.fields.map((name, side) => [name, shown(name, pair.values[side])]),
    value: exact ? pair.contribution : pair.effect,
    more: pair.attention === undefined ? null : `attention ${(100 * pair.attention).toFixed(0)} %`,
  }));
  const fields = why.fields.map((one) => ({ parts: [[one.field, shown(one.field, one.value)]], value: one.contribution, more: null }));
  const most = Math.max(...[...pairs, ...fields].map((row) => Math.abs(row.value)));
  return [
    make("p", { class: "sum" }, make("strong", { text: score }), `${logit}: ${plain(why.base, 2)} from ${start}, ${signed(given)} from the fields${rest}`),
    make(
      "div",
      { class: "columns" },
      pairs.length
        ? bars(
            "Pairs that mattered",
            pairs,
            most,
            exact
              ? "Exact: the pair’s own term in the score."
              : "The effect of both fields together minus the effects of each alone, measured against the model’s sample rows.",
          )
        : null,
      bars("Fields", fields, most, METHODS[why.method] ?? why.method),
    ),
    why.levels ? levels(why, shown) : null,
  ].filter((one) => one !== null);
}

function bars(heading, rows, most, note) {
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
  return make("section", {}, make("h3", { text: heading }), list, all, make("p", { class: "note", text: note }));
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
