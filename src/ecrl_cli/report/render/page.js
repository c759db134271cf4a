"use strict";
const root = document.documentElement;
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// What the address says after its #: either the name of a place, or the filter and the theme as a query.
const KEYS = ["q", "suite", "arm", "seed", "verdict"];
const said = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
let state = said();
const keep = () => history.replaceState(null, "", `#${state}`);

// Tables: a button in each head sorts; what has no value stays last.
const sortable = (within) => {
  for (const head of all("table.sortable > thead th", within)) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
  }
};
const compare = (down) => ([x], [y]) => {
  if (x === "" || y === "") return (x === "") - (y === "");
  const order = isNaN(x) || isNaN(y) ? x.localeCompare(y, "en") : x - y;
  return down ? -order : order;
};
const sort = (head) => {
  const table = head.closest("table");
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of all("th[aria-sort]", table.tHead)) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const keyed = [...table.tBodies[0].rows].map((row) => [row.cells[head.cellIndex]?.dataset.value ?? "", row]);
  table.tBodies[0].append(...keyed.sort(compare(down)).map(([, row]) => row));
};

// Folded parts are plain text until they are opened: 72 runs cost nothing before they are read.
const fill = (details) => {
  const sleeping = details.querySelector(":scope > noscript");
  if (!sleeping) return;
  const made = document.createElement("div");
  made.innerHTML = sleeping.textContent;
  sleeping.replaceWith(...made.childNodes);
  enhance(details);
  if (details.querySelector(".box")) filter();
};
document.addEventListener("toggle", (event) => event.target.open && fill(event.target), true);

// Figures: what a mark's <title> says is shown beside it, over the pointer and with the arrow keys alike.
const tip = document.getElementById("tip");
const hide = () => tip.classList.remove("shown");
const marks = (figure) => {
  const found = all(".mark", figure);
  for (const mark of found) {
    const title = mark.querySelector(":scope > title");
    if (!title) continue;
    mark.setAttribute("aria-label", title.textContent);
    mark.setAttribute("role", "img");
    mark.setAttribute("tabindex", "-1");
    title.remove();
  }
  return found;
};
const show = (mark) => {
  const box = mark.getBoundingClientRect();
  tip.textContent = mark.getAttribute("aria-label");
  tip.classList.add("shown");
  const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), root.clientWidth - tip.offsetWidth - 8);
  const above = box.top - tip.offsetHeight - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 4 ? above : Math.min(box.bottom + 8, innerHeight - tip.offsetHeight - 4)}px`;
};
const figureOf = (element) => element.closest?.("svg.marked");
let resting = ""; // where the pointer is: an element that moves under it says pointerover too, and is not looked at before the pointer moves
let seen = null;
const rest = ({ clientX, clientY }) => `${Math.round(clientX)},${Math.round(clientY)}`;
const over = (event) => {
  if (event.type === "pointerover" && rest(event) === resting) return;
  [resting, seen] = [rest(event), event.target];
  const figure = figureOf(event.target);
  if (figure) marks(figure);
  const mark = figure && event.target.closest(".mark");
  if (mark) show(mark);
  else hide();
};
document.addEventListener("pointerover", over);
document.addEventListener("pointerdown", over);
document.addEventListener("pointermove", (event) => (event.target === seen ? (resting = rest(event)) : over(event)), { passive: true });
const follow = () => (document.activeElement.matches(".mark") && tip.classList.contains("shown") ? show(document.activeElement) : hide());
document.addEventListener("scroll", follow, { passive: true, capture: true });
document.addEventListener("focusin", ({ target }) => (target.matches(".mark") ? show(target) : hide()));
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
const read = (event, figure) => {
  const found = marks(figure);
  const at = found.indexOf(event.target);
  const to = event.key === "Home" ? 0 : event.key === "End" ? found.length - 1 : event.key in STEPS ? at + STEPS[event.key] : null;
  if (to === null || !found.length) return;
  event.preventDefault();
  found[Math.min(Math.max(to, 0), found.length - 1)].focus({ preventScroll: false });
};

// The filter: every row, run and folded part that knows what it is of.
const form = document.getElementById("filter");
const text = new WeakMap();
const textOf = (item) => {
  if (!text.has(item)) {
    const words = all("th, td:not(.num), summary b", item).map((cell) => cell.textContent);
    text.set(item, [...Object.values(item.dataset), ...words].join(" ").toLowerCase());
  }
  return text.get(item);
};
const filter = () => {
  if (!form) return;
  for (const key of KEYS) if (form.elements[key]) form.elements[key].value = state.get(key) ?? "";
  const words = (state.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = KEYS.slice(1).filter((key) => state.get(key));
  for (const item of all(".f"))
    item.hidden = !(wanted.every((key) => !(key in item.dataset) || item.dataset[key] === state.get(key)) && words.every((word) => textOf(item).includes(word)));
  for (const box of all(".box")) {
    const [rows, shown] = [all(".f", box).length, all(".f:not([hidden])", box).length];
    box.hidden = !shown;
    const count = box.querySelector(".caption span");
    if (count) count.textContent = shown < rows ? `${shown} of ${rows} rows` : `${rows} rows`;
  }
  const active = words.length > 0 || wanted.length > 0;
  if (active) for (const fold of all("details.rest")) fold.open = true;
  const runs = all("details.run");
  const left = runs.filter((run) => !run.hidden).length;
  form.elements.found.value = `${left} of ${runs.length} run${runs.length === 1 ? "" : "s"}${left ? "" : ": nothing is left, Esc clears"}`;
  form.querySelector("button").hidden = !active;
};
const choose = () => {
  for (const key of KEYS) {
    const value = form.elements[key]?.value ?? "";
    if (value) state.set(key, value);
    else state.delete(key);
  }
  keep();
  filter();
};
const clear = () => {
  for (const key of KEYS) state.delete(key);
  keep();
  filter();
};

const theme = document.getElementById("theme");
const dress = () => {
  const wanted = state.get("theme");
  if (["light", "dark"].includes(wanted)) root.dataset.theme = wanted;
  else delete root.dataset.theme;
};
const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

const enhance = (within) => {
  sortable(within);
  for (const title of all("svg .mark > title", within)) {
    let figure = title.closest("svg");
    while (figure.parentElement.closest("svg")) figure = figure.parentElement.closest("svg");
    if (figure.classList.contains("marked")) continue;
    figure.classList.add("marked");
    figure.setAttribute("tabindex", "0");
    figure.setAttribute("role", "group");
  }
};
const visit = () => {
  if (location.hash.includes("=")) {
    state = said();
    dress();
    filter();
    return;
  }
  const target = document.getElementById(location.hash.slice(1));
  if (!(target instanceof HTMLDetailsElement)) return;
  fill(target);
  for (let fold = target; fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target.hidden = false;
  target.closest(".box").hidden = false;
  target.querySelector("summary").focus({ preventScroll: true });
  target.scrollIntoView();
};

document.addEventListener("click", ({ target }) => {
  const head = target.closest("th");
  if (target.closest("th button")) sort(head);
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape") {
    if (tip.classList.contains("shown")) hide();
    else if (form) clear();
  } else if (event.key === "/" && !typing && form && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    form.elements.q.focus();
  } else {
    const figure = figureOf(event.target);
    if (figure) read(event, figure);
  }
});
addEventListener("hashchange", visit);
let opened = [];
addEventListener("beforeprint", () => {
  const few = all("details.run").length <= 8;
  opened = all("details:not([open])").filter((d) => !d.hidden && (few || !d.matches(".run, .rest") || (d.matches(".run") && d.dataset.verdict !== "valid")));
  for (const details of opened) {
    fill(details);
    details.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
});
if (form) {
  form.hidden = false;
  form.addEventListener("input", choose);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    clear();
    form.elements.q.focus();
  });
}
theme.hidden = false;
theme.addEventListener("click", () => {
  state.set("theme", isDark() ? "light" : "dark");
  keep();
  dress();
});
enhance(document);
dress();
filter();
visit();
