"use strict";
// The text of a mark, at the pointer or by arrow keys. Without this script, the page has the titles of marks, and Tab.
const tip = document.querySelector(".tip");

function show(mark) {
  tip.textContent = mark ? mark.getAttribute("aria-label") : "";
  if (!mark) return;
  const box = mark.getBoundingClientRect();
  const width = tip.offsetWidth, height = tip.offsetHeight, middle = box.left + box.width / 2;
  const left = Math.max(8, Math.min(middle - width / 2, document.documentElement.clientWidth - width - 8));
  const above = box.top - height - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above < 4 ? box.bottom + 8 : above}px`;
}

for (const chart of document.querySelectorAll(".chart")) {
  const lines = [];
  for (const line of chart.querySelectorAll(".told")) {
    const marks = [...line.children];
    // Titles would show the same, only later; and Tab leads from chart to chart.
    for (const mark of marks) {
      mark.setAttribute("aria-label", mark.firstChild.textContent);
      mark.setAttribute("tabindex", "-1");
      mark.firstChild.remove();
    }
    if (marks.length) lines.push(marks);
  }
  lines.sort((one, other) => other[0].parentNode.matches(".means") - one[0].parentNode.matches(".means"));
  let line = 0, place = 0;
  for (const kind of ["pointerover", "pointerdown", "focusin"]) {
    chart.addEventListener(kind, (event) => show(event.target.closest(".told > *")));
  }
  for (const kind of ["pointerleave", "focusout"]) chart.addEventListener(kind, () => show(null));
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (event.key === "Escape") chart.focus();
    if (!step || !lines.length) return;
    event.preventDefault();
    if (document.activeElement !== chart) {
      line = (line + step[0] + lines.length) % lines.length;
      place += step[1];
    }
    place = Math.max(0, Math.min(place, lines[line].length - 1));
    lines[line][place].focus({ preventScroll: true });
  });
}
addEventListener("scroll", () => show(null), { passive: true });
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
