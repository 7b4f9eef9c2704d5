"use strict";
// The value of a mark, at the pointer or by arrow keys. Without this script, the page still has titles and tables.
const tip = document.querySelector(".tip");
let here = null;

function show(mark) {
  if (here) here.classList.remove("here");
  here = mark;
  tip.textContent = mark ? mark.dataset.tip : "";
  if (!mark) return;
  mark.classList.add("here");
  const box = (mark.querySelector(".point, .dot, .crash") || mark).getBoundingClientRect();
  const width = tip.offsetWidth, height = tip.offsetHeight, middle = box.left + box.width / 2;
  const left = Math.max(8, Math.min(middle - width / 2, document.documentElement.clientWidth - width - 8));
  const above = box.top - height - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above < 4 ? box.bottom + 8 : above}px`;
}

for (const chart of document.querySelectorAll(".chart")) {
  // The script shows what titles would show too, only later.
  for (const title of chart.querySelectorAll(".mark > title")) title.remove();
  const lines = [...chart.querySelectorAll(".series")].map((line) => [...line.querySelectorAll(".mark")]).filter((marks) => marks.length);
  const isMean = (marks) => Boolean(marks[0].querySelector(".point"));
  lines.sort((one, other) => isMean(other) - isMean(one)); // arrow keys meet means before single runs
  let line = 0, place = 0;
  for (const kind of ["pointerover", "pointerdown"]) {
    chart.addEventListener(kind, (event) => show(event.target.closest(".mark")));
  }
  chart.addEventListener("pointerleave", () => show(null));
  chart.addEventListener("blur", () => show(null));
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (event.key === "Escape") show(null);
    if (!step || !lines.length) return;
    event.preventDefault();
    if (here && chart.contains(here)) {
      line = (line + step[0] + lines.length) % lines.length;
      place += step[1];
    }
    place = Math.max(0, Math.min(place, lines[line].length - 1));
    show(lines[line][place]);
  });
}
addEventListener("scroll", () => show(null), { passive: true });
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
