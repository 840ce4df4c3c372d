import { get, post, whenTokenIsNeeded } from "./api.js";
import { combobox } from "./combobox.js";
import { byId, counted, few, later, make, same } from "./dom.js";
import { fieldControl } from "./fields.js";
import { itemDetails, itemTitle, recommendationList, scoreStyle } from "./list.js";
import { askForToken } from "./token.js";
import { whyView } from "./why.js";

const PAUSE = 150; // milliseconds to wait after the last key press

let about = null;
let style = null;
let list = null;
let userBox = null;
const controls = new Map(); // by the field names in the server's errors
const filters = new Map(); // by item column
const titles = new Map(); // of items, by id

let base = {}; // the fields' values before any change, by column
let own = new Set(); // columns of the user's own row
let position = null; // the user's position among all users
let taken = false; // whether the form has the user's values
const state = { user: null, changed: {}, where: {}, limits: {}, pinned: {}, leave: "positive", k: 10, open: null };

// The request

const inForm = (field) => (about.items === null || field.role !== "item") && field.column !== about.users?.column;
const valueOf = (column) => (column in state.changed ? state.changed[column] : (base[column] ?? null));
const history = () => about.fields.filter((field) => field.role !== "item" && field.items);

/** The values of a request in addition to the user's own. */
function context(changed) {
  const found = {};
  for (const field of about.fields) {
    if (about.items !== null && field.role === "item") continue;
    if (field.column in changed) found[field.column] = changed[field.column];
    else if (!own.has(field.column)) found[field.column] = base[field.column] ?? null;
  }
  return found;
}

const seen = () => (state.leave ? [...new Set(history().flatMap((field) => valueOf(field.column) ?? []))] : []);
const leftAtFirst = () => !about.items?.seen || about.items.exclude_seen;
/** The request's option to leave out items of the user's rows, if the server has them. */
const excluding = () => (about.items.seen && state.user !== null ? { exclude_seen: state.leave } : {});
const who = () => (state.user === null ? {} : { user: state.user });

function request(changed, k) {
  return { ...who(), context: context(changed), k, prerank: Math.max(about.limits.prerank, state.k), where: state.where, exclude: seen(), ...excluding(), limits: state.limits, pinned: state.pinned };
}

// The state in the page's URL

function write(push = false) {
  const query = new URLSearchParams();
  if (state.user !== null) query.set("user", state.user);
  if (Object.keys(state.changed).length) query.set("context", JSON.stringify(state.changed));
  for (const name of ["where", "limits", "pinned"]) if (Object.keys(state[name]).length) query.set(name, JSON.stringify(state[name]));
  if (state.leave !== leftAtFirst()) query.set("leave", LEAVE.find(([, value]) => value === state.leave)[0]);
  if (state.k !== 10) query.set("k", state.k);
  if (state.open !== null) query.set("why", state.open);
  const text = query.toString();
  window.history[push ? "pushState" : "replaceState"](null, "", text ? `?${text}` : location.pathname);
  written = location.search;
}
let written = null;

function read() {
  const query = new URLSearchParams(location.search);
  state.user = about.users === null ? null : query.get("user");
  state.changed = columnsOf(query.get("context"), new Set(about.fields.map((field) => field.column)));
  const columns = new Set((about.items?.columns ?? []).map((column) => column.name));
  state.where = columnsOf(query.get("where"), columns);
  state.limits = columnsOf(query.get("limits"), columns);
  state.pinned = columnsOf(query.get("pinned"), new Set(Array.from({ length: mostItems() }, (_, place) => String(place + 1))));
  const leave = LEAVE.find(([name, value]) => name === query.get("leave") && leavable(value));
  state.leave = leave ? leave[1] : leftAtFirst();
  const k = Number(query.get("k") ?? 10);
  state.k = Number.isInteger(k) && k >= 1 ? Math.min(k, mostItems()) : Math.min(10, mostItems());
  state.open = query.get("why");
}

/** The known columns of an object in the URL; empty if it is invalid, since anybody may have written the URL. */
function columnsOf(text, known) {
  try {
    const found = JSON.parse(text ?? "{}");
    return Object.fromEntries(Object.entries(found).filter(([column]) => known.has(column)));
  } catch {
    return {};
  }
}

const mostItems = () => Math.min(about.items?.count ?? 1, about.limits.k);

// Sending requests and showing answers

let asking = null;
let before = { key: null, ranks: null };

async function update() {
  if (!taken) return choose(state.user, false);
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  busy(true);
  forget();
  try {
    await (about.items === null ? score(signal) : recommend(signal));
  } catch (fault) {
    if (signal.aborted) return;
    tell(fault);
  }
  if (!signal.aborted) busy(false);
}
const waited = later(PAUSE, update);

function soon() {
  busy(true);
  waited.wait();
}

const busy = (is) => byId("list").setAttribute("aria-busy", String(is));

const scoreOf = (item) => item.prediction ?? item.prerank_score;

async function recommend(signal) {
  const changed = hasChanges();
  const now = post("v1/recommend", request(state.changed, state.k), signal);
  const asked = request(ownUser(), Math.min(mostItems(), Math.max(about.limits.prerank, state.k)));
  const key = JSON.stringify(asked);
  if (changed && before.key !== key) {
    const [then] = await Promise.all([post("v1/recommend", asked, signal), now]);
    before = { key, ranks: new Map(then.items.map((item, place) => [item.id, { rank: place + 1, score: scoreOf(item) }])) };
  }
  const answer = await now;
  if (signal.aborted) return;
  degraded(answer);
  for (const item of answer.items) titles.set(item.id, itemTitle(item, about.items));
  const ranks = changed ? before.ranks : null;
  list.show(answer.items.map((item) => ({ item, score: scoreOf(item) })), ranks);
  if (state.open !== null) list.has(state.open) ? list.toggle(state.open, true) : ((state.open = null), write());
  const milliseconds = Object.values(answer.milliseconds).reduce((sum, one) => sum + one, 0);
  const { candidates, filtered, preranked } = answer.counts;
  const left = filtered < candidates ? `${counted(filtered)} of ${few(candidates, "item", "items")}` : few(candidates, "item", "items");
  const stages = [left, ...(preranked === undefined ? [] : [counted(preranked)]), answer.items.length];
  byId("cost").textContent = `${stages.join(" → ")} in ${milliseconds.toFixed(0)} ms`;
  byId("rules").replaceChildren(...answer.changed.map((text) => make("li", { text })));
  empty(answer);
  announce(answer, ranks);
}

/** Say why a list is empty, with a button for each way on. */
function empty(answer) {
  if (answer.items.length) return byId("single").replaceChildren();
  const left = answer.seen || seen().length;
  const filtered = Object.keys(state.where).length > 0;
  const ways = [];
  if (filtered) ways.push(["Remove the filters", () => (state.where = {})]);
  if (left && state.leave === true && leavable("positive")) ways.push([`Leave out only ${words("positive")}`, () => (state.leave = "positive")]);
  if (left) ways.push(["Leave out nothing", () => (state.leave = false)]);
  const why = left ? `${few(answer.seen || left, "item is", "items are")} left out: ${words(state.leave)}` : "no item passes the filters";
  byId("single").replaceChildren(
    make(
      "div",
      { class: "empty" },
      make("p", { text: `No item to recommend: ${why}.${left && filtered ? " No other item passes the filters." : ""}` }),
      ...ways.map(([text, go]) =>
        make("button", {
          type: "button",
          text,
          onclick: () => {
            go();
            for (const filter of filters.values()) filter.set();
            write();
            update();
          },
        }),
      ),
    ),
  );
}

// What to leave out, by its name in the URL.
const LEAVE = [
  ["positive", "positive"],
  ["seen", true],
  ["nothing", false],
];
const leavable = (value) => value !== "positive" || Boolean(about.items?.positive);
function words(value) {
  if (!value) return "nothing";
  if (!about.items.seen) return `the items of ${history()[0].name}`;
  const rule = about.items.positive;
  return value === true ? "every item of the user’s rows" : `the user’s items ${rule.startsWith("“") ? "where" : "with"} ${rule}`;
}

const used = (count) => (count ? ` Left out: ${few(count, "item", "items")} (${words(state.leave)}).` : "");

function announce(answer, ranks) {
  const { items } = answer;
  const name = state.user === null ? "" : ` for ${state.user}`;
  if (!items.length) return say(`No recommendations${name}`);
  const moved = ranks === null ? 0 : items.filter((item, place) => ranks.get(item.id)?.rank !== place + 1).length;
  const first = `First: ${itemTitle(items[0], about.items)}, ${style.text(scoreOf(items[0]))}.`;
  byId("meaning").textContent = ranks === null ? intro + used(answer.seen) : `The marks and numbers next to the scores compare with ${compared()}.`;
  say(`${few(items.length, "recommendation", "recommendations")}${name}. ${first}${ranks === null ? "" : ` ${moved} moved.`}`);
}

function say(text) {
  byId("status").textContent = text;
}

/** Without a catalogue: score the row in the form. */
async function score(signal) {
  const row = (changed) => Object.fromEntries(about.fields.map(({ column }) => [column, column in changed ? changed[column] : (base[column] ?? null)]));
  const changed = hasChanges();
  const rows = changed ? [row(state.changed), row(ownUser())] : [row(state.changed)];
  const [scores, why] = await Promise.all([
    post("v1/predict", { rows }, signal),
    post("v1/explain", { rows: rows.slice(0, 1), pairs: true }, signal),
  ]);
  if (signal.aborted) return;
  degraded(scores);
  const of = (prediction, label) => prediction[about.labels.length > 1 ? `${label.name}.prediction` : "prediction"];
  const cards = about.labels.map((label) => {
    const written = scoreStyle(label.task, label.range);
    const value = of(scores.predictions[0], label);
    const change = changed ? value - of(scores.predictions[1], label) : 0;
    const moved = changed && Math.abs(change) >= written.least;
    return make(
      "p",
      { class: "card" },
      make("span", { text: meaning(label) }),
      make("strong", { class: "number", text: written.text(value) }),
      make("span", { class: `delta ${change > 0 ? "up" : "down"}`, text: moved ? written.moved(change) : "" }),
    );
  });
  byId("single").replaceChildren(...cards, make("div", { class: "why" }, ...whyView(why.explanations[0], style, shownValue, directions)));
  say(`${meaning(about.labels[0])}: ${style.text(of(scores.predictions[0], about.labels[0]))}`);
}

let explaining = null;
let forgetAbsent = () => {};
let effects = null;

/** The directions of the fields, requested once. */
function directions() {
  effects ??= get("v1/effects").then(
    (found) => found.effects,
    (fault) => {
      effects = null; // the next explanation asks again
      throw fault;
    },
  );
  return effects;
}

async function openWhy(id, panel) {
  if (state.open !== id) {
    const last = state.open;
    state.open = id;
    if (last !== null) list.toggle(last, false);
    state.open = id;
    write();
  }
  const body = { ...who(), context: context(state.changed), items: [id], pairs: true };
  const key = JSON.stringify(body);
  if (panel.dataset.asked === key) return;
  panel.dataset.asked = key;
  explaining?.abort();
  explaining = new AbortController();
  panel.style.minHeight = `${panel.offsetHeight}px`; // nothing below moves while the reasons for other values go
  panel.replaceChildren(make("p", { class: "quiet waiting", text: "Computing the explanation…" }));
  try {
    const { explanations } = await post("v1/explain", body, explaining.signal);
    if (panel.dataset.asked !== key) return;
    const found = make("div", { class: "similar" });
    const near = about.items.tower && make("button", { type: "button", text: "Similar items", "aria-expanded": "false", onclick: () => similar(id, found, near) });
    panel.replaceChildren(...whyView(explanations[0], style, shownValue, directions), ...(near ? [near, found] : []));
  } catch (fault) {
    if (panel.dataset.asked !== key) return;
    delete panel.dataset.asked;
    const again = make("button", { type: "button", text: "Try again", onclick: () => openWhy(id, panel) });
    panel.replaceChildren(make("p", { class: "error", role: "alert", text: fault.message }), again);
  }
  panel.style.minHeight = "";
}

/** Below the list: choose an item, and read why it is not in it. */
function buildAbsent() {
  const answer = make("p", { "aria-live": "polite" });
  const box = combobox({
    id: "absent-item",
    placeholder: "an item that is missing",
    keep: true,
    search: catalogue.search,
    choose: async (item) => {
      answer.textContent = "";
      try {
        answer.textContent = (await post("v1/why-not", { ...request(state.changed, state.k), item })).sentence;
      } catch (fault) {
        answer.textContent = fault.message;
      }
    },
  });
  byId("absent").append(make("label", { for: "absent-item", text: "Why is an item not in the list?" }), box.element, answer);
  byId("absent").hidden = false;
  return () => (answer.textContent = "");
}

async function similar(id, place, button) {
  if (button.getAttribute("aria-expanded") === "true") {
    button.setAttribute("aria-expanded", "false");
    return place.replaceChildren();
  }
  try {
    const { items } = await get(`v1/items/${encodeURIComponent(id)}/similar`, { k: 5 });
    button.setAttribute("aria-expanded", "true");
    place.replaceChildren(
      make(
        "ol",
        {},
        ...items.map((item) =>
          make(
            "li",
            {},
            make("span", { class: "name" }, make("span", { class: "title", text: itemTitle(item, about.items) }), make("span", { class: "meta", text: itemDetails(item, about.items) })),
            make("span", { class: "number", text: item.similarity.toFixed(2) }),
          ),
        ),
      ),
      make("p", { class: "note", text: "Sorted by similarity: the mean over the item’s heads of the highest cosine." }),
    );
  } catch (fault) {
    place.replaceChildren(make("p", { class: "error", role: "alert", text: fault.message }));
  }
}

/** A field's value as explanations show it: items by their titles. */
function shownValue(name, value) {
  const field = about.fields.find((one) => one.name === name);
  if (field?.role === "item" && field.column === about.items?.column) return catalogue.name(value);
  return field?.items ? value.split(", ").map(catalogue.name).join(", ") : value;
}

// Errors, shown next to their cause

/** Show the warnings of an answer that lacks a store's values. */
function degraded(answer) {
  byId("trouble").replaceChildren(...(answer.degraded ?? []).map((one) => make("p", { text: one.message })));
}

function forget() {
  forgetAbsent(); // the answer is about the list before
  for (const control of controls.values()) control.fail("");
  userFails("");
}

function userFails(message) {
  if (!userBox) return;
  byId("user-error").textContent = message;
  if (message) userBox.input.setAttribute("aria-invalid", "true");
  else userBox.input.removeAttribute("aria-invalid");
}

function tell(fault) {
  const field = (fault.field ?? "").replace(/^rows\[\d+\]|^user(?=\.)/, "context");
  const control = controls.get(field) ?? controls.get(field.replace(/\[.*$/, ""));
  if (field === "user" && userBox) userFails(fault.message);
  else if (control) {
    control.fail(fault.message);
    if (matchMedia("(max-width: 55rem)").matches) byId("more").open = true;
  } else {
    const again = make("button", { type: "button", text: "Try again", onclick: update });
    byId("trouble").replaceChildren(make("p", { text: fault.message }), again);
  }
  say(fault.message);
}

// The form

/** The user typed into the form, where the server knows no users; it is no change to another user's values. */
const ownUser = () => Object.fromEntries(Object.entries(state.changed).filter(([column]) => state.user === null && about.fields.some((field) => field.user && field.column === column)));
const hasChanges = () => Object.keys(state.changed).length > Object.keys(ownUser()).length;

function change(column, value) {
  if (same(value, base[column])) delete state.changed[column];
  else state.changed[column] = value;
  refresh();
  write();
  soon();
}

function refresh() {
  for (const { column } of about.fields) controls.get(`context.${column}`)?.set(valueOf(column), base[column] ?? null);
  const changes = Object.keys(state.changed).length;
  byId("changes").textContent = changes ? `${changes} changed` : "";
  byId("reset").disabled = !changes;
}

const catalogue = {
  async search(typed, signal) {
    const { items } = await get("v1/items", { search: typed, limit: 8 }, signal);
    for (const item of items) titles.set(item.id, itemTitle(item, about.items));
    return items.map((item) => ({ value: item.id, text: itemTitle(item, about.items), more: itemDetails(item, about.items) }));
  },
  name: (id) => titles.get(id) ?? id,
  /** Request the titles of ids that have none yet; returns whether there are new ones. */
  async learn(ids) {
    const unknown = [...new Set(ids)].filter((id) => !titles.has(id)).slice(0, 100);
    if (!unknown.length || about.items.title === null) return false;
    for (const id of unknown) titles.set(id, id);
    try {
      const { items } = await get("v1/items", { id: unknown, limit: 100 });
      for (const item of items) titles.set(item.id, itemTitle(item, about.items));
      return items.length > 0;
    } catch {
      return false; // the ids are shown instead
    }
  },
};

const isList = (field) => field.cell === "list";
const GROUPS = [
  ["User’s fields", (field) => field.role === "user" && !isList(field)],
  ["Context", (field) => field.role === "context" && !isList(field)],
  ["Item’s fields", (field) => field.role === "item" && !isList(field)],
  ["Lists", isList],
];

function buildFields() {
  for (const [heading, belongs] of GROUPS) {
    const fields = about.fields.filter((field) => belongs(field) && inForm(field));
    if (!fields.length) continue;
    const group = make("fieldset", {}, make("legend", { text: heading }));
    for (const field of fields) {
      const control = fieldControl(field, (value) => change(field.column, value), field.items ? catalogue : null);
      controls.set(`context.${field.column}`, control);
      group.append(control.element);
    }
    byId("fields").append(group);
  }
}

function buildFilters() {
  const place = byId("filters");
  place.hidden = false;
  const k = fieldControl({ name: "How many", cell: "number" }, (value) => {
    if (value === null) return;
    state.k = value;
    write();
    soon();
  });
  controls.set("k", k);
  place.append(k.element);
  filters.set("", { set: () => k.set(state.k, state.k) });
  if (about.items.seen || history().length) {
    const offered = LEAVE.filter(([, value]) => leavable(value));
    const leave = make("select", { id: "leave" }, ...offered.map(([value, which]) => make("option", { value, text: words(which) })));
    leave.addEventListener("change", () => {
      state.leave = LEAVE.find(([name]) => name === leave.value)[1];
      write();
      update();
    });
    place.append(make("div", { class: "field" }, make("label", { for: "leave", text: "Leave out" }), leave));
    filters.set(" ", { set: () => (leave.value = LEAVE.find(([, value]) => value === state.leave)[0]) });
  }
  buildRules(place);
  for (const { name, values } of about.items.columns) {
    if (!values || values.length < 2) continue;
    const control = fieldControl(
      { name, cell: "list", values, max_length: null },
      (chosen) => {
        if (chosen.length) state.where[name] = chosen;
        else delete state.where[name];
        control.set(chosen, chosen);
        write();
        update();
      },
    );
    filters.set(name, { set: () => control.set(state.where[name] ?? [], state.where[name] ?? []) });
    controls.set(`where.${name}`, control);
    place.append(control.element);
  }
}

/** Controls of the list's rules: a limit for each column with few values, and items pinned from the first place on. */
function buildRules(place) {
  const changed = (name, value) => {
    state[name] = value;
    filters.get(`${name} `).set();
    write();
    soon();
  };
  const pinned = fieldControl(
    { name: "Pinned first", cell: "list", values: [], max_length: null },
    (ids) => changed("pinned", Object.fromEntries([...new Set(ids)].map((id, number) => [number + 1, id]))),
    catalogue,
  );
  filters.set("pinned ", { set: () => pinned.set(Object.values(state.pinned), Object.values(state.pinned)) });
  place.append(pinned.element);
  const limits = new Map();
  for (const { name, values } of about.items.columns) {
    if (!values || values.length < 2) continue;
    const limit = fieldControl({ name: `At most of one ${name}`, cell: "number" }, (value) => {
      const { [name]: _, ...others } = state.limits;
      changed("limits", value === null ? others : { ...others, [name]: value });
    });
    limits.set(name, limit);
    controls.set(`limits.${name}`, limit);
    place.append(limit.element);
  }
  filters.set("limits ", { set: () => limits.forEach((limit, name) => limit.set(state.limits[name] ?? null, state.limits[name] ?? null)) });
}

/** Make a user's own values the base values. */
async function take(user, wanted) {
  const found = user === null ? { fields: {}, context: {}, position: null } : await get(`v1/users/${encodeURIComponent(user)}`);
  if (!wanted()) return;
  base = Object.fromEntries(about.fields.map(({ column, usual }) => [column, column in found.fields ? found.fields[column] : column in found.context ? found.context[column] : usual]));
  own = new Set(about.fields.map((field) => field.column).filter((column) => column in found.fields));
  position = found.position;
  for (const { column } of about.fields) if (same(state.changed[column], base[column])) delete state.changed[column];
  taken = true;
}

let choosing = 0;

/** Show a user's list; of the user before nothing stays, neither changed values nor, if this one is unknown, the list. */
async function choose(user, push = true) {
  const turn = ++choosing;
  asking?.abort();
  waited.stop();
  busy(true);
  forget();
  if (user !== state.user) state.changed = {};
  state.user = user;
  taken = false;
  if (userBox && user !== null) userBox.value = user;
  try {
    await take(user, () => turn === choosing);
  } catch (fault) {
    if (turn === choosing) nobody(fault, push);
    return;
  }
  if (turn !== choosing) return;
  refresh();
  write(push);
  await update();
}

/** Show that there is no list for the chosen user. */
function nobody(fault, push) {
  base = {};
  own = new Set();
  position = null;
  list?.show([], null);
  byId("rules").replaceChildren();
  state.open = null;
  byId("cost").textContent = "";
  byId("meaning").textContent = intro;
  const known = Boolean(about.users.count);
  const text = fault.status === 404 ? `No list: this server does not know the user “${state.user}”. Choose another${known ? ", or press Next" : ""}.` : "No list: the user’s values could not be read.";
  byId("single").replaceChildren(make("p", { class: "empty", text }));
  refresh();
  write(push);
  busy(false);
  tell(fault);
}

async function step(offset) {
  busy(true);
  try {
    const { users } = await get("v1/users", { offset: offset % about.users.count, limit: 1 });
    await choose(users[0]);
  } catch (fault) {
    busy(false);
    tell(fault);
  }
}

function buildUsers() {
  userBox = combobox({
    id: "user",
    placeholder: about.users.count === null ? "a user’s id" : `search ${few(about.users.count, "user", "users")}`,
    keep: true,
    search: async (text, signal) => {
      const { users } = await get("v1/users", { search: text, limit: 8 }, signal);
      return users.map((user) => ({ value: user, text: user }));
    },
    choose: (user) => choose(user),
  });
  const error = make("p", { id: "user-error", class: "error" });
  userBox.input.setAttribute("aria-describedby", error.id);
  byId("user-place").append(userBox.element, error);
  const listed = Boolean(about.users.count);
  for (const id of ["next", "random"]) byId(id).hidden = !listed;
  byId("next").addEventListener("click", () => step((position ?? -1) + 1));
  byId("random").addEventListener("click", () => step(Math.floor(Math.random() * about.users.count)));
}

// The start

/** The sentence on item columns that change from row to row of the log; empty if there are none. */
function latest(columns) {
  return columns.length ? ` Each item has the latest ${columns.join(", ")} of its rows.` : "";
}

/** The meaning of a label's prediction in words, with the label's name if there are several labels. */
function meaning(label) {
  return about.labels.length > 1 ? `“${label.name}”: ${label.meaning}` : label.meaning;
}

function introduce() {
  const { model, items, labels } = about;
  const ranker = items === null || items.ranked ? model.name : null;
  byId("models").textContent =
    items === null
      ? `Scored by ${model.name}`
      : `${few(items.count, "item", "items")}, ${items.tower === null ? `all ranked by ${ranker}` : ranker ? `pre-ranked by ${items.tower.name}, ranked by ${ranker}` : `ranked by ${items.tower.name}`}`;
  byId("models").title = `bundle ${model.digest.slice(0, 12)}`;
  byId("heading").textContent = items === null ? "Score a row" : "Recommendations";
  document.title = `${byId("heading").textContent} · fieldwise`;
  if (items === null) intro = `Change a field to see its effect on the ${labels.map(meaning).join("; the ")}.`;
  else intro = `Best first, by ${items.ranked ? `the ${meaning(labels[0])}` : `${items.tower.name}’s logit`}. Open an item to see why.${latest(items.varying)}`;
  byId("meaning").textContent = intro;
  explainFigures();
  const from = about.users === null ? "the usual values" : "the user’s own values";
  byId("reset").textContent = `Reset to ${from}`;
}

/** Explain probabilities, contributions and the model's test metrics to readers who do not know these terms. */
function explainFigures() {
  const { model, labels, items } = about;
  const scored = items === null || items.ranked;
  const said = [];
  if (scored && labels[0].task === "binary") said.push(`A score of 80 % (${labels[0].meaning}) means that about 80 of 100 such cases are expected to be positive.`);
  if (!scored) said.push("A logit orders items; it is not a probability.");
  if (labels[0].task === "binary") said.push("A contribution of +0.69 doubles the odds, −0.69 halves them, and 0 changes nothing.");
  if (scored) said.push(...model.quality.map((words) => `On test rows: ${words}`));
  byId("quality").hidden = !said.length;
  byId("quality").querySelector("ul").replaceChildren(...said.map((text) => make("li", { text })));
}

let intro = "";
const compared = () => (state.user !== null ? `${state.user}’s own values` : ["the usual values", ...Object.values(ownUser())].join(" for "));

async function start() {
  whenTokenIsNeeded(askForToken);
  byId("asked").addEventListener("submit", (event) => event.preventDefault());
  byId("more").open = !matchMedia("(max-width: 55rem)").matches;
  try {
    about = await get("v1/about");
  } catch (fault) {
    return tell(fault);
  }
  introduce();
  read();
  const main = about.labels[0];
  style = about.items === null || about.items.ranked ? scoreStyle(main.task, main.range) : scoreStyle("logit", null);
  byId("who").hidden = about.users === null;
  if (about.users !== null) buildUsers();
  buildFields();
  if (about.items !== null) {
    buildFilters();
    forgetAbsent = buildAbsent();
    list = recommendationList(byId("list"), about.items, style, {
      open: openWhy,
      closed: (id) => {
        if (state.open === id) {
          state.open = null;
          write();
        }
      },
    });
  }
  byId("reset").addEventListener("click", () => {
    state.changed = {};
    refresh();
    write();
    update();
  });
  window.addEventListener("popstate", () => {
    if (location.search === written) return; // a link within the page
    read();
    for (const id of list?.openIds() ?? []) if (id !== state.open) list.toggle(id, false);
    show(false);
  });
  await show(false);
}

/** Show the current state; if no user is chosen, that of the first user. */
async function show(push) {
  for (const filter of filters.values()) filter.set();
  let { user } = state;
  if (user === null && about.users?.count) {
    try {
      [user] = (await get("v1/users", { limit: 1 })).users;
    } catch (fault) {
      return tell(fault);
    }
  }
  state.user = user;
  await choose(user, push);
}

start();
