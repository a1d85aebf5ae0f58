"use strict";
// Every second: the status of unfinished runs, and the report about all runs if it changed.
const state = document.getElementById("state");
const parts = { "/now": { place: document.getElementById("now"), show: showTables }, "/body": { place: document.getElementById("main"), show: showBody } };

// Keeps what the reader chose: how tables are sorted, and where the focus is.
function showTables(place, next) {
  for (const table of place.querySelectorAll("table[aria-labelledby]")) {
    const sorted = table.querySelector("th[aria-sort]");
    const same = next.querySelector(`table[aria-labelledby="${table.getAttribute("aria-labelledby")}"]`);
    const heading = sorted && same?.rows[0]?.cells[sorted.cellIndex];
    if (heading) sortRows(heading, sorted.getAttribute("aria-sort") === "descending");
  }
  const focused = document.activeElement;
  const path = place.contains(focused) && focused.closest("th") ? [focused.closest("table").getAttribute("aria-labelledby"), focused.closest("th").cellIndex] : null;
  const scrolled = new Map([...place.querySelectorAll(".scroll")].map((one) => [one.getAttribute("aria-labelledby"), one.scrollLeft]));
  place.replaceChildren(...next.childNodes);
  for (const one of place.querySelectorAll(".scroll")) one.scrollLeft = scrolled.get(one.getAttribute("aria-labelledby")) ?? 0;
  if (path) place.querySelector(`table[aria-labelledby="${path[0]}"]`)?.rows[0]?.cells[path[1]]?.querySelector("button")?.focus();
}

// Charts whose data did not change stay as they are, with the choices that they listen to; others are drawn again in place.
async function showBody(place, next) {
  const changed = [];
  const chosen = new Map([...place.querySelectorAll("select[id]")].map((choice) => [choice.id, choice.value]));
  for (const choice of next.querySelectorAll("select[id]")) {
    const old = document.getElementById(choice.id);
    if (!old) continue;
    if (old.innerHTML === choice.innerHTML) choice.replaceWith(old);
    else changed.push(...choice.closest("section").querySelectorAll("[data-spec]"));
  }
  const again = new Set(changed.map((one) => one.id));
  const drawn = [];
  for (const fresh of next.querySelectorAll("[data-spec]")) {
    const old = document.getElementById(fresh.id);
    const same = old && document.getElementById(old.dataset.spec).textContent === next.querySelector(`[id="${fresh.dataset.spec}"]`).textContent;
    if (old) { old.style.minHeight = `${old.offsetHeight}px`; fresh.replaceWith(old); }
    if (!same || again.has(fresh.id)) drawn.push(fresh.id);
  }
  for (const old of place.querySelectorAll("[data-spec]")) drawings.get(old)?.finalize();  // charts that are no more
  const at = scrollY;
  showTables(place, next);
  scrollTo({ top: at, behavior: "instant" });
  await drawAll(drawn.map((id) => document.getElementById(id)));
  for (const one of place.querySelectorAll("[data-spec]")) one.style.minHeight = "";
  for (const choice of place.querySelectorAll("select[id]")) {  // Vega begins with the first
    if ([...choice.options].some((option) => option.value === chosen.get(choice.id))) choice.value = chosen.get(choice.id);
    choice.dispatchEvent(new Event("change"));
  }
}

async function refresh(address) {
  const part = parts[address];
  const answer = await fetch(address, { cache: "no-store", headers: part.version ? { "If-None-Match": part.version } : {} });
  if (answer.status === 304) return;
  if (!answer.ok) throw new Error(await answer.text());
  const next = new DOMParser().parseFromString(await answer.text(), "text/html").body;
  await part.show(part.place, next);
  part.version = answer.headers.get("ETag");
}

async function follow() {
  try {
    for (const address of Object.keys(parts)) await refresh(address);
    state.textContent = `Live, as of ${new Date().toLocaleTimeString()}`;
    document.documentElement.dataset.live = "yes";
  } catch (fault) {
    state.textContent = "The program that serves this page has ended, or cannot be reached: nothing here changes any more.";
    document.documentElement.dataset.live = "no";
  }
  setTimeout(follow, 1000);
}
follow();
