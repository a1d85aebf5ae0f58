"use strict";
// Charts: every drawing is Vega's own work.
const options = { renderer: "svg", actions: false, tooltip: { theme: "custom" } };
const drawn = [...document.querySelectorAll("[data-spec]")].map((place) => {
  const spec = JSON.parse(document.getElementById(place.dataset.spec).textContent);
  return vegaEmbed(place, spec, options);
});
Promise.all(drawn).then(() => { document.documentElement.dataset.drawn = drawn.length; });

// Tables: a button in each heading sorts by its column, and back again.
function sortBy(heading) {
  const descending = heading.getAttribute("aria-sort") === "ascending";
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
for (const button of document.querySelectorAll(".sortable th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

// Light or dark: as the system has it, until somebody chooses.
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
