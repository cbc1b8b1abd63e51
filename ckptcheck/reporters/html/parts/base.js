// What all pictures share: data, names, colours, patterns, the tip, keyboard, tables.

const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const tip = document.getElementById("tip");

// Okabe and Ito's colours, which the colour-blind tell apart, a little muted; every tone but the calm ones has a pattern as well.
// Lines have lighter colours on dark paper; the ramp is cividis. PALETTE is palette.json, which the static pictures have too.
const { TONES, LINES, LIGHT_LINES, DASHES, RAMP } = PALETTE;
const PATTERNS = { notice: "line", change: "dot", warn: "slash", bad: "cross", gone: "hollow" };

let printing = false;
const isDark = () => !printing && root.dataset.scheme === "dark";
const paint = (tone) => TONES[isDark() ? "dark" : "light"][tone];
const ink = () => (isDark() ? "#e4e9ef" : "#1a1f26");
const paper = () => (isDark() ? "#11151b" : "#ffffff");

const colourCache = new Map();
const DARKEST = 0.14; // on dark paper the ramp begins here: its first colours would look like the paper
function rampColour(share) {
  const inside = Math.min(Math.max(share, 0), 1);
  const key = Math.round((isDark() ? DARKEST + (1 - DARKEST) * inside : inside) * 180);
  if (!colourCache.has(key)) {
    const at = (key / 180) * (RAMP.length - 1), low = Math.min(Math.floor(at), RAMP.length - 2), part = at - low;
    const mix = [1, 3, 5].map((digit) => {
      const [one, two] = [RAMP[low], RAMP[low + 1]].map((text) => parseInt(text.slice(digit, digit + 2), 16));
      return Math.round(one + (two - one) * part);
    });
    colourCache.set(key, `rgb(${mix})`);
  }
  return colourCache.get(key);
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== ""));
  return element;
}

const SVG = "http://www.w3.org/2000/svg"; // the name of a language, no address that is asked for
function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A name is the number of a template and the numbers that stand in it.
function decodeName(code) {
  if (!code || code[0] < 0) return "";
  const pieces = data.templates[code[0]];
  let name = pieces[0];
  for (let at = 1; at < pieces.length; at++) name += code[at] + pieces[at];
  return name;
}

function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e12) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2).replace(/\.?0+e/, "e") : String(Number(value.toPrecision(4)));
}

const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// Fill a box in the way of a tone.
function fillTone(context, tone, x, y, width, height) {
  const pattern = PATTERNS[tone];
  context.fillStyle = paint(tone);
  context.fillRect(x, y, width, height);
  if (!pattern || width < 5 || height < 5) {
    if (pattern === "hollow") { context.fillStyle = isDark() ? "#b58ad0" : "#6a1b9a"; context.fillRect(x, y, width, height); }
    return;
  }
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.lineWidth = 1.4;
  context.strokeStyle = pattern === "hollow" ? (isDark() ? "#b58ad0" : "#6a1b9a") : isDark() ? "#0b0e12" : "#ffffff";
  context.fillStyle = context.strokeStyle;
  context.beginPath();
  const mid = [x + width / 2, y + height / 2], arm = Math.min(width, height) / 2 - 1.2;
  if (pattern === "cross") {
    context.moveTo(mid[0] - arm, mid[1] - arm); context.lineTo(mid[0] + arm, mid[1] + arm);
    context.moveTo(mid[0] + arm, mid[1] - arm); context.lineTo(mid[0] - arm, mid[1] + arm);
  } else if (pattern === "slash") {
    for (let at = -height; at < width; at += 6) { context.moveTo(x + at, y + height); context.lineTo(x + at + height, y); }
  } else if (pattern === "line") {
    context.moveTo(x, mid[1]); context.lineTo(x + width, mid[1]);
  } else if (pattern === "dot") {
    context.arc(mid[0], mid[1], Math.min(arm, 2), 0, 7); context.fill();
  } else {
    context.setLineDash([3, 2]);
    context.rect(x + 1, y + 1, width - 2, height - 2);
  }
  context.stroke();
  context.restore();
}

function setUpCanvas(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 16000 / Math.max(width, height));
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// The labels beside rows: as wide as the longest, but the picture keeps some room. One that is too long loses ".weight" and its
// start: what tells it from its neighbours stands at its end.
const LETTER = 6.7;
const measureLabels = (texts, room, share) => Math.min(Math.max(...texts.map((text) => text.length), 1) * LETTER + 6, room * share);
function shorten(text, width) {
  const most = Math.max(Math.floor((width - 4) / LETTER), 4);
  const own = text.length > most ? text.replace(/\.weight( ▸)?$/, "$1") : text;
  return own.length > most ? `…${own.slice(1 - most)}` : own;
}
// A text on a canvas that ends with … where the room ends.
function fitText(brush, text, room) {
  let shown = text;
  while (shown.length > 1 && brush.measureText(shown).width > room) shown = `${shown.slice(0, shown.endsWith("…") ? -2 : -1)}…`;
  return shown;
}

function fillRamp(context, width, height) {
  for (let x = 0; x < width; x++) { context.fillStyle = rampColour(x / (width - 1)); context.fillRect(x, 0, 1, height); }
}

function makeSwatch(tone, hasRamp) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const redraw = () => {
    const context = setUpCanvas(canvas, 14, 14);
    if (hasRamp) fillRamp(context, 14, 14); else fillTone(context, tone, 0, 0, 14, 14);
    if (tone !== "gone") { context.strokeStyle = isDark() ? "#ffffff33" : "#00000033"; context.strokeRect(0.5, 0.5, 13, 13); }
  };
  redraw();
  return { canvas, redraw };
}

// The states that occur, each with its sign. counts: state → how often; ramped: states whose cells have the colours of their values.
function makeLegend(picture, counts, ramped = new Set()) {
  const list = make("ul", { class: "legend" }), swatches = [];
  for (const state of picture.states || []) {
    if (!counts.get(state.name)) continue;
    const swatch = makeSwatch(state.tone, ramped.has(state.name));
    swatches.push(swatch.redraw);
    const meaning = state.meaning ? `: ${state.meaning}` : "";
    list.append(make("li", {}, swatch.canvas, `${state.name}${meaning} (${counts.get(state.name).toLocaleString("en")})`));
  }
  return { list, redraw: () => swatches.forEach((one) => one()) };
}

const toneOf = (picture, name) => (picture.states || []).find((state) => state.name === name)?.tone || "quiet";
const stateAt = (picture, letter) => (letter === "-" || letter === " " ? null : picture.states[letter.charCodeAt(0) - 97]);

// Lines of a tip: the first one is a name.
function showTip(lines, x, y) {
  tip.replaceChildren(make("b", {}, lines[0] || ""), lines.slice(1).filter(Boolean).map((line) => `\n${line}`).join(""));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18}px`;
}
const hideTip = () => { tip.hidden = true; };

// A table behind a picture, made when a reader opens it.
const MOST_TABLE_ROWS = 2000;
function makeTable(title, columns, listRows) {
  const details = make("details", { class: "table" }, make("summary", {}, "Show as a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const body = make("tbody"), rows = [];
    let left = 0;
    for (const row of listRows()) if (rows.length < MOST_TABLE_ROWS) rows.push(row); else left++;
    const classOf = columns.map((_, at) => (at && rows.some((row) => typeof row[at] === "number") ? "number" : false));
    for (const row of rows) {
      body.append(make("tr", {}, ...row.map((value, at) => (at
        ? make("td", { class: classOf[at] }, typeof value === "number" ? formatNumber(value) : value ?? "–")
        : make("th", { scope: "row" }, String(value ?? "–"))))));
    }
    const head = make("thead", {}, make("tr", {}, ...columns.map((column, at) => make("th", { scope: "col", class: classOf[at] }, column))));
    details.append(
      make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": title }, make("table", {}, head, body)),
      left ? make("p", { class: "more" }, `… and ${plural(left, "more row")}`) : "",
    );
  });
  return details;
}

// A stage: what takes the focus and the pointer of a picture, and says aloud what is under them.
// move(across, down): select a neighbour; pick(x, y): select what is there; describe(): lines about the selection; activate(): follow
// it; keys: {key: function} of further keys, which help names.
function makeStage(label, { move, pick, describe, activate, keys = {}, help = "Arrow keys move, Enter follows." }) {
  const readout = make("p", { class: "readout", "aria-live": "polite" }, "");
  const stage = make("div", { class: "stage", tabindex: "0", role: "group", "aria-roledescription": "picture", "aria-label": `${label}. ${help}` });
  const say = () => {
    const lines = describe();
    readout.replaceChildren(lines.length ? make("b", {}, lines[0] || "") : "", lines.slice(1).filter(Boolean).map((line) => ` · ${line}`).join(""));
    return lines;
  };
  stage.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-1e9, 0], End: [1e9, 0] }[event.key];
    if (step) { move(...step); say(); event.preventDefault(); }
    else if (event.key === "Enter" || event.key === " ") { activate(); event.preventDefault(); }
    else if (event.key === "Escape") hideTip();
    else if (keys[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) { keys[event.key](); event.preventDefault(); }
  });
  stage.addEventListener("focus", () => { if (stage.matches(":focus-visible")) { move(0, 0); say(); } });
  stage.addEventListener("pointermove", (event) => {
    const box = stage.getBoundingClientRect();
    if (pick(event.clientX - box.left, event.clientY - box.top)) showTip(say(), event.clientX, event.clientY);
    else hideTip();
  });
  stage.addEventListener("pointerleave", hideTip);
  stage.addEventListener("click", (event) => {
    const box = stage.getBoundingClientRect();
    if (pick(event.clientX - box.left, event.clientY - box.top)) activate();
  });
  return { stage, readout, say };
}

// The findings of a report, by the name of the tensor that they are about.
function indexFindings(report) {
  const byName = new Map();
  report.findings.forEach((finding, number) => {
    for (const code of finding.names) {
      const name = decodeName(code);
      if (!byName.has(name)) byName.set(name, []);
      byName.get(name).push(number);
    }
  });
  return byName;
}

function goToFinding(reportNumber, number) {
  const element = document.getElementById(`r${reportNumber + 1}-f${number}`);
  if (!element) return;
  document.querySelectorAll(".finding.lit").forEach((other) => other.classList.remove("lit"));
  element.classList.add("lit");
  element.scrollIntoView({ block: "center" });
  element.focus({ preventScroll: true });
  hideTip();
}
const describeFindings = (report, numbers) => (numbers?.length
  ? `${plural(numbers.length, "finding")}: ${[...new Set(numbers.map((number) => report.findings[number].code))].join(", ")} (click or Enter)`
  : "");
