// Small multiples: the same picture of several reports, with one scale for all; each name leads to the large one.

const [SMALL_WIDTH, SMALL_HEIGHT] = [220, 96];

function drawSmallMultiples(figure, picture, context) {
  const parts = picture.parts.map(([label, report, number]) => ({ label, report, number, picture: data.reports[report].pictures[number] }));
  const grid = make("div", { class: "multiples" });
  const [least, most] = rangeOf(parts);
  const redraws = parts.map((part) => {
    const canvas = make("canvas", { role: "img", "aria-label": `${picture.title}: ${part.label}. ${describePart(part)}` });
    const link = make("a", { href: `#r${part.report + 1}-p${part.number}` }, part.label);
    const box = make("div", { class: "multiple" }, link, canvas);
    canvas.addEventListener("pointermove", (event) => showTip([part.label, describePart(part)], event.clientX, event.clientY));
    canvas.addEventListener("pointerleave", hideTip);
    grid.append(box);
    return () => (part.picture.kind === "heat" ? drawSmallHeatMap : drawSmallCurves)(canvas, part, least, most);
  });
  const states = parts.find((part) => part.picture.states)?.picture.states;
  const counts = new Map();
  parts.forEach((part) => countStates(part).forEach((number, name) => counts.set(name, (counts.get(name) || 0) + number)));
  const legend = makeLegend({ states }, counts, most >= least ? new Set((states || []).filter(isCalm).map((state) => state.name)) : undefined);
  const scale = most >= least ? make("p", { class: "more" }, `${parts[0].picture.value || parts[0].picture.y_label || "value"}: ${formatNumber(least)} to ${formatNumber(most)}`) : "";
  figure.append(legend.list, scale, grid);
  figure.append(makeTable(picture.title, ["target", "what"], function* () { for (const part of parts) yield [part.label, describePart(part)]; }));
  const redraw = () => { redraws.forEach((one) => one()); legend.redraw(); };
  redraw();
  context.redraws.push(redraw);
}

const readPart = (part) => (part.map ||= readHeatMap(part.picture, new Map()));
const countStates = (part) => (part.picture.kind === "heat" ? readPart(part).counts : new Map());

function describePart(part) {
  if (part.picture.kind === "heat") {
    const map = readPart(part);
    const states = [...map.counts].map(([name, number]) => `${number.toLocaleString("en")} ${name}`);
    return [...states, ...(map.most >= map.least ? [`${part.picture.value || "value"} ${formatNumber(map.least)} to ${formatNumber(map.most)}`] : [])].join(", ");
  }
  const values = listValues(part.picture);
  return values.length ? `${plural(part.picture.series.length, "line")}, ${formatNumber(Math.min(...values))} to ${formatNumber(Math.max(...values))}` : "no values";
}

function listValues(picture) {
  const values = [];
  for (const series of picture.series) for (const value of series.values) if (value !== null && !(picture.scale === "log" && value <= 0)) values.push(value);
  return values;
}

function rangeOf(parts) {
  let [least, most] = [Infinity, -Infinity];
  for (const part of parts) {
    const map = part.picture.kind === "heat" ? readPart(part) : listValues(part.picture).reduce((range, value) => ({ least: Math.min(range.least, value), most: Math.max(range.most, value) }), { least, most });
    [least, most] = [Math.min(least, map.least), Math.max(most, map.most)];
  }
  return [least, most];
}

function drawSmallHeatMap(canvas, part, least, most) {
  const map = readPart(part), [height, width] = [part.picture.rows.length, part.picture.columns.length];
  const cellWidth = Math.min(SMALL_WIDTH / width, 14), cellHeight = Math.min(SMALL_HEIGHT / height, 10);
  const brush = setUpCanvas(canvas, SMALL_WIDTH, SMALL_HEIGHT);
  for (const row of map.cells) for (const cell of row) {
    if (!cell) continue;
    const [x, y] = [cell.column * cellWidth, cell.row * cellHeight];
    const [w, h] = [Math.max(cellWidth - (cellWidth > 4 ? 1 : 0), 0.7), Math.max(cellHeight - (cellHeight > 4 ? 1 : 0), 0.7)];
    if (isCalm(cell.state) && cell.value !== null) { brush.fillStyle = rampColour(shareOf(part.picture, { least, most }, cell.value)); brush.fillRect(x, y, w, h); }
    // what is wrong stays large enough to be found
    else fillTone(brush, cell.state ? cell.state.tone : "quiet", x, y, isCalm(cell.state) ? w : Math.max(w, 3), isCalm(cell.state) ? h : Math.max(h, 3));
  }
}

function drawSmallCurves(canvas, part, least, most) {
  const brush = setUpCanvas(canvas, SMALL_WIDTH, SMALL_HEIGHT);
  const isLog = part.picture.scale === "log";
  const [top, bottom] = least === most ? [most + 1, least - 1] : [most, least];
  const share = (value) => (isLog && bottom > 0 ? Math.log(value / bottom) / Math.log(top / bottom) : (value - bottom) / (top - bottom));
  part.picture.series.forEach((series, number) => {
    brush.strokeStyle = series.tone ? paint(series.tone) : (isDark() ? LIGHT_LINES : LINES)[number % LINES.length];
    brush.lineWidth = 1.2;
    brush.beginPath();
    let isOpen = false;
    series.values.forEach((value, index) => {
      if (value === null || (isLog && value <= 0)) { isOpen = false; return; }
      const x = 2 + (index / Math.max(series.values.length - 1, 1)) * (SMALL_WIDTH - 4), y = 2 + (1 - share(value)) * (SMALL_HEIGHT - 4);
      if (isOpen) brush.lineTo(x, y); else brush.moveTo(x, y);
      isOpen = true;
    });
    brush.stroke();
  });
}
