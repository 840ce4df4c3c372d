// The API reference, generated from the server's OpenAPI document.

import { get, whenTokenIsNeeded } from "./api.js";
import { byId, make } from "./dom.js";
import { askForToken } from "./token.js";

const WORDS = { string: "text", integer: "whole number", object: "object", array: "list" };
const METHODS = ["get", "post", "put", "patch", "delete"];

let schemas = {};
const linked = new Set(); // names of the types that are linked to; each has a section

const nameOf = (schema) => schema.$ref?.split("/").at(-1) ?? null;
const typeId = (name) => `type-${name}`;
const code = (text) => make("code", { text });

/** The type of a value as texts and links to types. */
function typeOf(schema) {
  const name = nameOf(schema);
  if (name !== null) {
    linked.add(name);
    return [make("a", { href: `#${typeId(name)}`, text: name })];
  }
  if (schema.const !== undefined) return [code(JSON.stringify(schema.const))];
  if (schema.enum) return joined(schema.enum.map((one) => [code(JSON.stringify(one))]));
  const several = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (several) {
    const number = several.some((one) => one.type === "number");
    return joined(several.filter((one) => !(number && one.type === "integer")).map(typeOf));
  }
  if (schema.prefixItems) return ["list (", ...joined(schema.prefixItems.map(typeOf), ", "), ")"];
  if (schema.type === "array" && schema.items) return ["list of ", ...inBrackets(schema.items)];
  const values = schema.additionalProperties;
  if (values && values !== true) return ["object with values ", ...inBrackets(values)];
  return [WORDS[schema.type] ?? schema.type ?? "anything"];
}

const joined = (parts, last = parts.length > 2 ? ", or " : " or ") =>
  parts.flatMap((part, place) => (place ? [place === parts.length - 1 ? last : ", ", ...part] : part));
const isNested = (schema) => schema.anyOf || schema.oneOf || schema.additionalProperties;
const inBrackets = (schema) => (isNested(schema) ? ["(", ...typeOf(schema), ")"] : typeOf(schema));

/** A paragraph of text with `code` in it. */
const worded = (text) => make("p", {}, ...text.split("`").map((part, place) => (place % 2 ? code(part) : part)));

const LIMITS = [
  ["minimum", "at least"],
  ["maximum", "at most"],
  ["minLength", "characters: at least"],
  ["maxLength", "characters: at most"],
  ["minItems", "values: at least"],
  ["maxItems", "values: at most"],
];

/** The notes about a value: required, limits, default, description. */
function notes(schema, asked, required, place = null) {
  const found = [place && `in the ${place}`, required && "required"];
  for (const [key, words] of LIMITS) if (schema[key] !== undefined && !schema.prefixItems) found.push(`${words} ${schema[key].toLocaleString("en")}`);
  if (asked && schema.default !== undefined && schema.default !== null) found.push(`default ${JSON.stringify(schema.default)}`);
  if (schema.description) found.push(schema.description);
  return found.filter(Boolean).join("; ");
}

function table(label, rows) {
  const heads = ["Name", "Type", "Notes"].map((text) => make("th", { scope: "col", text }));
  const lines = rows.map(([name, schema, more]) =>
    make("tr", {}, make("th", { scope: "row" }, code(name)), make("td", {}, ...typeOf(schema)), make("td", { text: more })),
  );
  return make("table", { "aria-label": label }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...lines));
}

/** A type's description and its table of properties; for other types, the type itself. */
function shape(label, schema, asked) {
  const whole = nameOf(schema) === null ? schema : schemas[nameOf(schema)];
  const parts = [whole.description ? worded(whole.description) : null];
  if (!whole.properties) return [...parts, make("p", {}, ...typeOf(whole))];
  const rows = Object.entries(whole.properties).map(([name, one]) => [name, one, notes(one, asked, asked && (whole.required ?? []).includes(name))]);
  return [...parts, table(label, rows)];
}

const exampleOf = (given) => given?.content?.["application/json"]?.example;

/** An example of a request, and the served bundle's answer to it. */
function examples(title, about) {
  const given = [["Example", exampleOf(about.requestBody)], ["Its answer", exampleOf(about.responses["200"])]];
  return given.flatMap(([head, value]) => (value === undefined ? [] : [make("h3", { text: head }), make("pre", { tabindex: "0", "aria-label": `${head}: ${title}` }, code(JSON.stringify(value, null, 1)))]));
}

const contentOf = (given) => given?.content?.["application/json"]?.schema ?? null;

function operation(method, path, about) {
  const title = `${method.toUpperCase()} ${path}`;
  const parameters = (about.parameters ?? []).map((one) => [one.name, one.schema, notes({ ...one.schema, description: one.description }, true, one.required, one.in)]);
  const body = contentOf(about.requestBody);
  const section = make(
    "section",
    { id: about.operationId, "aria-labelledby": `${about.operationId}-title` },
    make("h2", { id: `${about.operationId}-title` }, make("span", { class: "method", text: method.toUpperCase() }), " ", code(path)),
    worded(about.description ?? about.summary ?? ""),
  );
  if (parameters.length) section.append(make("h3", { text: "Parameters" }), table(`Parameters of ${title}`, parameters));
  if (body) section.append(make("h3", { text: "Body" }), ...shape(`Body of ${title}`, body, true).filter(Boolean));
  const errors = [];
  for (const [status, answer] of Object.entries(about.responses)) {
    const schema = contentOf(answer);
    if (!status.startsWith("2")) errors.push(make("dt", { text: status }), make("dd", {}, answer.description, ...(schema ? [": ", ...typeOf(schema)] : [])));
    else if (schema) section.append(make("h3", { text: `Answer ${status}` }), ...shape(`Answer of ${title}`, schema, false).filter(Boolean));
  }
  section.append(...examples(title, about));
  if (errors.length) section.append(make("details", {}, make("summary", { text: "Errors" }), make("dl", {}, ...errors)));
  return { section, link: make("li", {}, make("a", { href: `#${about.operationId}` }, make("span", { class: "method", text: method.toUpperCase() }), " ", path)) };
}

function typeSection(name) {
  const parts = shape(`Type ${name}`, schemas[name], false).filter(Boolean);
  return make("section", { id: typeId(name), "aria-labelledby": `${typeId(name)}-title` }, make("h3", { id: `${typeId(name)}-title` }, code(name)), ...parts);
}

async function start() {
  whenTokenIsNeeded(askForToken);
  const place = byId("reference");
  try {
    const found = await get("openapi.json");
    schemas = found.components?.schemas ?? {};
    byId("models").textContent = `version ${found.info.version}`;
    const all = Object.entries(found.paths).flatMap(([path, one]) => METHODS.filter((method) => one[method]).map((method) => operation(method, path, one[method])));
    const types = make("section", { id: "types", "aria-labelledby": "types-title" }, make("h2", { id: "types-title", text: "Types" }));
    for (const name of linked) types.append(typeSection(name)); // sections link to further types, which come too
    place.append(...all.map((one) => one.section), types);
    byId("contents").append(make("ul", {}, ...all.map((one) => one.link), make("li", {}, make("a", { href: "#types", text: "Types" }))));
    document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
  } catch (fault) {
    byId("trouble").textContent = fault.message;
  }
  place.removeAttribute("aria-busy");
}

start();
