"use strict";
// Charts: every drawing is Vega's own work.
const options = { renderer: "svg", actions: false, tooltip: { theme: "custom" } };
const drawings = new WeakMap();
async function draw(place) {
  drawings.get(place)?.finalize();
  const spec = JSON.parse(document.getElementById(place.dataset.spec).textContent);
  drawings.set(place, await vegaEmbed(place, spec, options));
}
async function drawAll(places) {
  await Promise.all(places.map(draw));
  document.documentElement.dataset.drawn = document.querySelectorAll("[data-spec]").length;
}
drawAll([...document.querySelectorAll("[data-spec]")]);

// Tables: a button in each heading sorts by its column, and back again.
function sortRows(heading, descending) {
  for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const numeric = heading.classList.contains("number");
  const body = heading.closest("table").tBodies[0];
  const value = (row) => row.cells[heading.cellIndex].dataset.value;
  const compare = (a, b) => {
    if (value(a) === "" || value(b) === "") return (value(a) === "") - (value(b) === "");
    const order = numeric ? value(a) - value(b) : value(a).localeCompare(value(b), "en", { numeric: true });
    return descending ? -order : order;
  };
  body.append(...[...body.rows].sort(compare));
}
document.addEventListener("click", (event) => {
  const heading = event.target.closest(".sortable th button")?.closest("th");
  if (heading) sortRows(heading, heading.getAttribute("aria-sort") === "ascending");
});

// Light or dark: the system's choice, until the reader changes it.
const toggle = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
const label = () => { toggle.textContent = isDark() ? "Light" : "Dark"; };
toggle.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  label();
});
system.addEventListener("change", label);
label();
