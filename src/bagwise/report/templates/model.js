"use strict";

// The scatters of known against predicted shares, the search for a bag, tables that sort, and the theme.
// Text from the data only ever becomes textContent, never markup.

const root = document.documentElement;
const data = JSON.parse(document.getElementById("scatter-data").textContent);
const tip = document.getElementById("tip");
const UNIT = 1e4; // shares come in hundredths of a percent
const MARGIN = { left: 56, right: 22, top: 8, bottom: 38 };
const REACH = 16; // pixels within which a pointer finds a bag

const panels = [...document.querySelectorAll("canvas[data-class]")].map((canvas) => {
  const { label, known, predicted } = data.classes[Number(canvas.dataset.class)];
  const all = known.concat(predicted);
  const low = all.reduce((a, b) => Math.min(a, b), UNIT);
  const high = all.reduce((a, b) => Math.max(a, b), 0);
  const air = Math.max(0.05 * (high - low), 50);
  return {
    canvas, label, known, predicted,
    low: Math.max(0, low - air), high: Math.min(UNIT, high + air),
    still: document.createElement("canvas"), // everything but the highlighted bag
  };
});
let active = null; // number of the highlighted bag
let matches = null; // numbers of the bags that were searched for

const percent = (share) => `${(share / 100).toFixed(1)} %`;

// A custom property holds light-dark(...) as written; only a property that is used has a colour.
function colour(name) {
  tip.style.outlineColor = `var(--${name})`;
  const found = getComputedStyle(tip).outlineColor;
  tip.style.outlineColor = "";
  return found;
}

function ticks(low, high) {
  const least = (high - low) / 5;
  const step = [50, 100, 200, 500, 1000, 2000, 5000].find((s) => s >= least);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}

function place(panel) {
  const { clientWidth: width, clientHeight: height } = panel.canvas;
  const scale = (value) => (value - panel.low) / (panel.high - panel.low);
  panel.x = (value) => MARGIN.left + scale(value) * (width - MARGIN.left - MARGIN.right);
  panel.y = (value) => height - MARGIN.bottom - scale(value) * (height - MARGIN.top - MARGIN.bottom);
}

function mark(pen, x, y, heldOut, radius) {
  pen.beginPath();
  if (heldOut) {
    const r = radius * 1.5;
    pen.moveTo(x, y - r);
    pen.lineTo(x + r, y);
    pen.lineTo(x, y + r);
    pen.lineTo(x - r, y);
    pen.closePath();
  } else {
    pen.arc(x, y, radius, 0, 2 * Math.PI);
  }
}

function drawStill(panel, colours) {
  place(panel);
  const { clientWidth: width, clientHeight: height } = panel.canvas;
  const density = window.devicePixelRatio || 1;
  for (const canvas of [panel.canvas, panel.still]) {
    canvas.width = Math.round(width * density);
    canvas.height = Math.round(height * density);
  }
  const pen = panel.still.getContext("2d");
  pen.scale(density, density);
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  pen.lineWidth = 1;
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  for (const at of ticks(panel.low, panel.high)) {
    pen.strokeStyle = colours.line;
    pen.beginPath();
    pen.moveTo(MARGIN.left, panel.y(at));
    pen.lineTo(right, panel.y(at));
    pen.moveTo(panel.x(at), MARGIN.top);
    pen.lineTo(panel.x(at), bottom);
    pen.stroke();
    pen.fillStyle = colours.soft;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.fillText(`${at / 100} %`, MARGIN.left - 6, panel.y(at));
    pen.textAlign = "center";
    pen.textBaseline = "top";
    pen.fillText(`${at / 100} %`, panel.x(at), bottom + 6);
  }
  pen.textBaseline = "bottom";
  pen.fillText("predicted", (MARGIN.left + right) / 2, height);
  pen.save();
  pen.translate(1, (MARGIN.top + bottom) / 2);
  pen.rotate(-Math.PI / 2);
  pen.textBaseline = "top";
  pen.fillText("known", 0, 0);
  pen.restore();
  pen.strokeStyle = colours.soft;
  pen.setLineDash([2, 3]);
  pen.beginPath();
  pen.moveTo(panel.x(panel.low), panel.y(panel.low));
  pen.lineTo(panel.x(panel.high), panel.y(panel.high));
  pen.stroke();
  pen.setLineDash([]);

  const count = data.bags.length;
  const radius = count > 1000 ? 2 : count > 200 ? 2.6 : 3.4;
  // held-out bags are few: they go on top
  for (const heldOut of [0, 1]) {
    pen.fillStyle = heldOut ? colours.two : colours.one;
    for (let bag = 0; bag < count; bag++) {
      if (data.heldOut[bag] !== heldOut) continue;
      pen.globalAlpha = matches === null ? (count > 1000 ? 0.45 : 0.7) : matches.has(bag) ? 1 : 0.08;
      mark(pen, panel.x(panel.predicted[bag]), panel.y(panel.known[bag]), heldOut, radius);
      pen.fill();
    }
  }
  pen.globalAlpha = 1;
}

function show(panel, colours) {
  const pen = panel.canvas.getContext("2d");
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, panel.canvas.width, panel.canvas.height);
  pen.drawImage(panel.still, 0, 0);
  if (active === null) return;
  const density = window.devicePixelRatio || 1;
  pen.scale(density, density);
  mark(pen, panel.x(panel.predicted[active]), panel.y(panel.known[active]), data.heldOut[active], 5.5);
  pen.fillStyle = data.heldOut[active] ? colours.two : colours.one;
  pen.fill();
  pen.strokeStyle = colours.ink;
  pen.lineWidth = 2;
  pen.stroke();
}

const readColours = () => Object.fromEntries(["ink", "soft", "line", "one", "two"].map((name) => [name, colour(name)]));

function redraw() {
  const colours = readColours();
  for (const panel of panels.filter(({ canvas }) => canvas.clientWidth > 0)) {
    drawStill(panel, colours);
    show(panel, colours);
  }
}

function line(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}

function activate(bag, panel) {
  if (bag === active && bag === null) return;
  active = bag;
  const colours = readColours();
  for (const each of panels) show(each, colours);
  tip.hidden = bag === null;
  if (bag === null) return;
  tip.replaceChildren(
    line("b", data.bags[bag]),
    line("span", `${data.sizes[bag].toLocaleString("en")} rows, ${data.heldOut[bag] ? "held out" : "trained on"}`),
    line("span", `known ${percent(panel.known[bag])}`),
    line("span", `predicted ${percent(panel.predicted[bag])}`),
  );
  const box = panel.canvas.getBoundingClientRect();
  const left = box.left + panel.x(panel.predicted[bag]) + 14;
  const top = box.top + panel.y(panel.known[bag]) + 14;
  const room = root.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(left, room))}px`;
  tip.style.top = `${Math.min(top, window.innerHeight - tip.offsetHeight - 8)}px`;
}

function nearest(panel, x, y) {
  let best = null;
  let least = REACH * REACH;
  for (let bag = 0; bag < data.bags.length; bag++) {
    if (matches !== null && !matches.has(bag)) continue;
    const distance = (panel.x(panel.predicted[bag]) - x) ** 2 + (panel.y(panel.known[bag]) - y) ** 2;
    if (distance < least) [best, least] = [bag, distance];
  }
  return best;
}

for (const panel of panels) {
  const follow = (event) => {
    const box = panel.canvas.getBoundingClientRect();
    activate(nearest(panel, event.clientX - box.left, event.clientY - box.top), panel);
  };
  panel.canvas.addEventListener("pointermove", follow);
  panel.canvas.addEventListener("pointerdown", follow);
  panel.canvas.addEventListener("pointerleave", () => activate(null, panel));
  panel.canvas.addEventListener("blur", () => activate(null, panel));
  panel.canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") activate(null, panel);
    if (step === undefined) return;
    event.preventDefault();
    const bags = matches === null || matches.size === 0 ? [...data.bags.keys()] : [...matches];
    activate(bags.at((bags.indexOf(active) + (active === null && step < 0 ? 0 : step)) % bags.length), panel);
  });
}

const find = document.getElementById("find");
find.addEventListener("input", () => {
  const wanted = find.value.trim().toLowerCase();
  matches = null;
  if (wanted) matches = new Set([...data.bags.keys()].filter((bag) => data.bags[bag].toLowerCase().includes(wanted)));
  const count = matches?.size ?? 0;
  document.getElementById("found").textContent = matches === null ? "" : `${count.toLocaleString("en")} found`;
  redraw();
});

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.firstElementChild.addEventListener("click", () => {
      const upward = head.getAttribute("aria-sort") === "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", upward ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const compare = (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
      const byNumber = (a, b) => Number(value(a)) - Number(value(b));
      const isNumber = "value" in table.tBodies[0].rows[0].cells[column].dataset;
      const rows = [...table.tBodies[0].rows].sort(isNumber ? byNumber : compare);
      table.tBodies[0].append(...(upward ? rows : rows.reverse()));
    });
  });
}

const theme = document.getElementById("theme");
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";

function nameTheme() {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.hidden = false;
}

theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
  redraw();
});
prefersDark.addEventListener("change", () => {
  nameTheme();
  redraw();
});

// Paper is white: the canvases must be drawn anew, everything else follows the style.
let themeOnScreen;
window.addEventListener("beforeprint", () => {
  themeOnScreen = root.dataset.theme;
  root.dataset.theme = "light";
  redraw();
});
window.addEventListener("afterprint", () => {
  if (themeOnScreen === undefined) delete root.dataset.theme;
  else root.dataset.theme = themeOnScreen;
  redraw();
});

nameTheme();
for (const element of document.querySelectorAll(".needs-script")) element.hidden = false;
new ResizeObserver(redraw).observe(document.querySelector(".panels"));
