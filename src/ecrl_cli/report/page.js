"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column];
        return cell ? cell.dataset.value ?? cell.textContent.trim() : "";
      };
      const body = table.tBodies[0];
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return (down ? -1 : 1) * x.localeCompare(y, "en", { numeric: false }) * (isNaN(x) || isNaN(y) ? 1 : 0) || (down ? y - x : x - y) || 0;
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
const runs = [...document.querySelectorAll("details.run")];
if (runs.length > 8) {
  const field = document.createElement("input");
  field.className = "filter";
  field.type = "search";
  field.placeholder = "Filter runs by name or verdict";
  field.setAttribute("aria-label", field.placeholder);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const run of runs) run.hidden = !words.every((word) => run.dataset.text.toLowerCase().includes(word));
  });
  document.querySelector("#runs .lead").after(field);
}
const open = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", open);
open();
addEventListener("beforeprint", () => runs.forEach((run) => (run.open = true)));
