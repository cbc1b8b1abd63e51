// Heat maps: rows × columns of values and states on a canvas, with row labels beside it.

const ABSENT = " ";
const AXIS = 16;

// Return the cells of one row in a handy form. Members are decoded when they are first asked for.
function readCells(row, labels, outer) {
  const names = row.n;
  return {
    length: labels.length,
    labels,
    states: row.s,
    values: row.v || [],
    notes: row.notes || {},
    name(at) {
      if (row.literal) return row.literal[at] || "";
      if (names === undefined || this.states[at] === ABSENT) return "";
      if (typeof names === "number") return decodeName([names, ...outer, Number(labels[at])]);
      return decodeName(names[at]);
    },
    members(at) {
      const inner = row.members?.[at];
      if (!inner) return null;
      const own = typeof inner.l === "number" ? Array.from({ length: inner.l }, (_, number) => String(number)) : inner.l;
      return readCells(inner, own, [...outer, Number(labels[at])]);
    },
  };
}

function summarizeMembers(members) {
  const numbers = members.values.filter((value) => value !== null && value !== undefined).sort((one, two) => one - two);
  const middle = numbers.length >> 1;
  const median = numbers.length % 2 ? numbers[middle] : (numbers[middle - 1] + numbers[middle]) / 2;
  return { number: members.length, least: numbers[0], most: numbers[numbers.length - 1], median: numbers.length ? median : null };
}

// A calm cell has the colour of its value, any other that of its state.
const isCalm = (state) => !state || state.tone === "good" || state.tone === "quiet";

// Read a heat map: the value and the state of each cell, where the findings are, and the range of the values.
function readHeatMap(picture, findings) {
  const rows = picture.cells.map((row) => readCells(row, picture.columns, []));
  const counts = new Map(), ramped = new Set();
  let [least, most] = [Infinity, -Infinity];
  const take = (value) => {
    if (value === null || value === undefined || (picture.scale === "log" && value <= 0)) return;
    least = Math.min(least, value);
    most = Math.max(most, value);
  };
  const note = (letter, value) => {
    const state = stateAt(picture, letter);
    if (!state) return;
    counts.set(state.name, (counts.get(state.name) || 0) + 1);
    if (isCalm(state) && value !== null && value !== undefined) ramped.add(state.name);
  };
  const cells = rows.map((row, rowNumber) => Array.from({ length: row.length }, (_, column) => {
    if (row.states[column] === ABSENT) return null;
    const members = row.members(column);
    if (!members) {
      take(row.values[column]);
      note(row.states[column], row.values[column]);
      const name = row.name(column);
      return { row: rowNumber, column, value: row.values[column] ?? null, state: stateAt(picture, row.states[column]), note: row.notes[column], name, findings: findings.get(name) };
    }
    const summary = summarizeMembers(members);
    let worst = -1;
    const touched = [];
    for (let at = 0; at < members.length; at++) {
      take(members.values[at]);
      note(members.states[at], members.values[at]);
      worst = Math.max(worst, members.states.charCodeAt(at) - 97);
      if (findings.size) touched.push(...(findings.get(members.name(at)) || []));
    }
    return { row: rowNumber, column, value: summary.median, state: worst < 0 ? null : picture.states[worst], note: row.notes[column], name: row.name(column), members, summary, findings: touched.length ? [...new Set(touched)] : undefined };
  }));
  return { cells, counts, ramped, least, most };
}

function shareOf(picture, map, value) {
  if (value === null) return null;
  if (map.most === map.least) return 0.5;
  if (picture.scale !== "log") return (value - map.least) / (map.most - map.least);
  return value <= 0 ? 0 : Math.log(value / map.least) / Math.log(map.most / map.least);
}

function describeCell(picture, report, cell) {
  if (!cell) return [];
  const [rowLabel, columnLabel, memberLabel] = picture.labels;
  const state = cell.state ? cell.state.name : "";
  const lines = [cell.name || `${picture.rows[cell.row]}`, `${rowLabel} ${picture.rows[cell.row]}, ${columnLabel} ${picture.columns[cell.column]}`];
  if (cell.summary) {
    lines.push(`${plural(cell.summary.number, memberLabel)}${cell.value === null ? "" : `, ${picture.value}: ${formatNumber(cell.summary.least)} to ${formatNumber(cell.summary.most)}, median ${formatNumber(cell.value)}`}`);
  } else if (cell.value !== null) lines.push(`${picture.value}: ${formatNumber(cell.value)}`);
  if (state) lines.push(cell.summary ? `gravest: ${state}` : state);
  lines.push(cell.note || "", describeFindings(report, cell.findings));
  if (cell.summary) lines.push(`click or Enter opens the ${memberLabel}s`);
  return lines.filter(Boolean);
}

function drawHeatMap(figure, picture, context) {
  const map = readHeatMap(picture, context.findings);
  const { cells } = map;
  const [height, width] = [picture.rows.length, picture.columns.length];
  const labels = make("div", { class: "rows", "aria-hidden": "true" });
  const canvas = make("canvas", { "aria-hidden": "true" });
  const cursor = make("div", { class: "cursor", hidden: true });
  const inner = make("div", { class: "members" });
  let [cellWidth, cellHeight, at] = [8, 16, null];
  const hasMembers = cells.map((row) => row.some((cell) => cell?.members));

  const place = () => {
    cursor.hidden = at === null;
    if (at === null) return;
    Object.assign(cursor.style, { left: `${at[1] * cellWidth}px`, top: `${at[0] * cellHeight}px`, width: `${Math.max(cellWidth, 5)}px`, height: `${Math.max(cellHeight, 5)}px` });
  };
  const select = (row, column) => { at = [row, column]; place(); };
  const selected = () => (at === null ? null : cells[at[0]][at[1]]);
  const openMembers = (rowNumber) => {
    const row = cells[rowNumber];
    const own = [...new Set(row.flatMap((cell) => cell?.members?.labels || []))];
    const positions = new Map(own.map((label, number) => [label, number]));
    const part = {
      ...picture, title: `${picture.rows[rowNumber]}`, rows: own, labels: [picture.labels[2], picture.labels[1], ""],
      cells: own.map(() => ({ s: ABSENT.repeat(width), v: new Array(width).fill(null), names: new Array(width) })),
    };
    const letters = own.map(() => new Array(width).fill(ABSENT));
    row.forEach((cell, column) => {
      cell?.members?.labels.forEach((label, number) => {
        const line = positions.get(label);
        letters[line][column] = cell.members.states[number];
        part.cells[line].v[column] = cell.members.values[number] ?? null;
        part.cells[line].names[column] = cell.members.name(number);
      });
    });
    part.cells.forEach((line, number) => { line.s = letters[number].join(""); line.literal = line.names; });
    const close = make("button", { type: "button", onclick: () => { inner.replaceChildren(); stage.stage.focus(); } }, "Close");
    inner.replaceChildren(make("h4", {}, `${picture.rows[rowNumber]}: ${plural(own.length, picture.labels[2])} `, close));
    drawHeatMap(inner, part, { ...context, nested: true });
    const first = inner.querySelector(".stage");
    first.focus({ preventScroll: true });
    inner.scrollIntoView({ block: "nearest" });
  };
  const stage = makeStage(`${picture.title}: ${plural(height, "row")}, ${plural(width, "column")}`, {
    move(across, down) {
      const [row, column] = at || [0, -1];
      let [newRow, newColumn] = [Math.min(Math.max(row + down, 0), height - 1), Math.min(Math.max(column + across, 0), width - 1)];
      if (!at) [newRow, newColumn] = firstCell();
      select(newRow, newColumn);
      const box = stage.stage.parentElement;
      const left = newColumn * cellWidth;
      if (left < box.scrollLeft || left + cellWidth > box.scrollLeft + box.clientWidth) box.scrollLeft = left - box.clientWidth / 2;
    },
    pick(x, y) {
      const [row, column] = [Math.floor(y / cellHeight), Math.floor(x / cellWidth)];
      if (row < 0 || column < 0 || row >= height || column >= width || !cells[row][column]) return false;
      select(row, column);
      return true;
    },
    describe() {
      const cell = selected();
      if (cell) return describeCell(picture, context.report, cell);
      return at ? [picture.rows[at[0]], `${picture.labels[1]} ${picture.columns[at[1]]}`, "nothing here"] : [];
    },
    activate() {
      const cell = selected();
      if (cell?.members) openMembers(cell.row);
      else if (cell?.findings) goToFinding(context.number, cell.findings[0]);
    },
  });
  const firstCell = () => {
    for (const row of cells) for (const cell of row) if (cell?.findings) return [cell.row, cell.column];
    const row = cells.findIndex((line) => line.some(Boolean));
    return row < 0 ? [0, 0] : [row, cells[row].findIndex(Boolean)];
  };
  stage.stage.append(canvas, cursor);
  const field = make("div", { class: "field" }, stage.stage);
  const pair = make("div", { class: "pair" }, labels, field);
  const plot = make("div", { class: "plot" }, pair);
  const legend = makeLegend(picture, map.counts, map.ramped);
  const gradient = map.most >= map.least ? make("canvas", { "aria-hidden": "true" }) : null;
  if (!gradient && cells.some((row) => row.some((cell) => cell?.value === 0))) legend.list.prepend(make("li", {}, `${picture.value || "value"} 0 everywhere`));
  if (gradient) legend.list.prepend(make("li", {}, `${picture.value || "value"} ${formatNumber(map.least)}`, gradient, formatNumber(map.most), picture.scale === "log" ? " (logarithmic)" : ""));

  function redraw() {
    const room = Math.max(figure.clientWidth - 24, 200);
    const rowTexts = picture.rows.map((text, row) => (hasMembers[row] ? `${text} ▸` : text));
    const widestColumn = Math.max(...picture.columns.map((text) => text.length)) * 6 + 6;
    const labelWidth = measureLabels(rowTexts, room, Math.min(Math.max(1 - (0.6 * width * Math.min(widestColumn, 64)) / room, 0.42), 0.68));
    cellWidth = Math.min(Math.max((room - labelWidth - 8) / width, 6), width > 12 ? 30 : Math.max(30, Math.min(widestColumn, 160)));
    if (width > 400) cellWidth = Math.max((room - labelWidth - 8) / width, 2);
    if (width > 12 && cellWidth >= 6) cellWidth = Math.floor(cellWidth);
    cellHeight = height > 600 ? 4 : height > 120 ? 9 : 17;
    const [wide, high] = [cellWidth * width, cellHeight * height];
    pair.className = high > 600 ? "pair tall" : "pair";
    const brush = setUpCanvas(canvas, Math.ceil(wide), high + AXIS);
    const gap = cellWidth >= 8 && cellHeight >= 8 ? 1 : 0;
    for (const row of cells) for (const cell of row) {
      if (!cell) continue;
      const [x, y, w, h] = [cell.column * cellWidth, cell.row * cellHeight, cellWidth - gap, cellHeight - gap];
      if (isCalm(cell.state) && cell.value !== null) { brush.fillStyle = rampColour(shareOf(picture, map, cell.value)); brush.fillRect(x, y, w, h); }
      else fillTone(brush, cell.state ? cell.state.tone : "quiet", x, y, w, h);
      if (cell.findings) {
        brush.fillStyle = ink();
        brush.strokeStyle = ink();
        brush.lineWidth = 1.5;
        brush.strokeRect(x + 0.75, y + 0.75, Math.max(w - 1.5, 1), Math.max(h - 1.5, 1));
      }
    }
    brush.fillStyle = isDark() ? "#9daab8" : "#55606e";
    brush.font = "10px system-ui, sans-serif";
    const every = Math.max(1, Math.ceil(widestColumn / cellWidth));
    for (let column = 0; column < width; column += every) {
      const shown = fitText(brush, picture.columns[column], wide - column * cellWidth - 1);
      if (shown !== "…") brush.fillText(shown, column * cellWidth + 1, high + 12);
    }
    labels.style.width = `${labelWidth}px`;
    const step = Math.ceil(11 / cellHeight);
    labels.replaceChildren(...picture.rows.filter((_, row) => row % step === 0).map((text, number) => {
      const label = make("div", { title: text });
      label.append(hasMembers[number * step] ? make("button", { type: "button", tabindex: "-1", onclick: () => openMembers(number * step) }, shorten(rowTexts[number * step], labelWidth)) : shorten(text, labelWidth));
      label.style.height = `${Math.min(cellHeight * step, cellHeight * (height - number * step))}px`;
      return label;
    }));
    legend.redraw();
    if (gradient) fillRamp(setUpCanvas(gradient, 90, 10), 90, 10);
    place();
  }
  const counts = [...map.counts].map(([state, number]) => `${number.toLocaleString("en")} ${state}`).join(", ");
  figure.append(legend.list, plot, stage.readout);
  if (counts) stage.stage.setAttribute("aria-label", `${stage.stage.getAttribute("aria-label")} ${counts}.`);
  const tableColumns = [picture.labels[0], picture.labels[1], ...(picture.value ? [picture.value] : []), "state", "note", "tensor"];
  figure.append(makeTable(picture.title, tableColumns, function* () {
    for (const row of cells) for (const cell of row) {
      if (!cell) continue;
      const range = cell.summary && cell.value !== null ? `${formatNumber(cell.summary.least)} to ${formatNumber(cell.summary.most)}, median ${formatNumber(cell.value)}` : cell.value;
      yield [picture.rows[cell.row], picture.columns[cell.column], ...(picture.value ? [range] : []), cell.state?.name || "–", [cell.note, describeFindings(context.report, cell.findings).replace(" (click or Enter)", "")].filter(Boolean).join(" · ") || "–", cell.name || (cell.summary ? plural(cell.summary.number, picture.labels[2]) : "–")];
    }
  }), inner);
  redraw();
  context.redraws.push(redraw);
  if (context.nested) return;
  for (const row of cells) for (const cell of row) for (const finding of cell?.findings || []) {
    context.link(finding, () => { select(cell.row, cell.column); stage.say(); stage.stage.focus({ preventScroll: true }); stage.stage.scrollIntoView({ block: "center" }); });
  }
}
