// Curves, steps, histograms and bars as SVG; tables of texts as tables.

const FRAME = { left: 58, right: 14, top: 10, bottom: 34 };

function listTicks(least, most, isLog, number) {
  if (isLog) {
    const [from, to] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(most))];
    const step = Math.max(1, Math.ceil((to - from + 1) / number));
    const ticks = [];
    for (let power = from; power <= to; power += step) {
      for (const factor of to - from < 4 ? [1, 2, 5] : [1]) ticks.push(Number((factor * 10 ** power).toPrecision(3)));
    }
    const inside = ticks.filter((tick) => tick >= least && tick <= most);
    return inside.length > 1 ? inside : [least, most];
  }
  const rough = (most - least) / number || 1, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((value) => value >= rough);
  const ticks = [];
  for (let tick = Math.ceil(least / step) * step; tick <= most + step * 1e-6; tick += step) ticks.push(Math.abs(tick) < step * 1e-6 ? 0 : Number(tick.toPrecision(12)));
  return ticks;
}

// Draw lines over an x axis. positions: x of each value; texts: what each x is called.
function drawLines(figure, picture, context, { positions, texts, filled, isNumeric }) {
  const isLog = picture.scale === "log";
  const lines = picture.series.map((series, number) => ({
    ...series, number, shown: true,
    values: series.values.map((value) => (isLog && value !== null && value <= 0 ? null : value)),
    colour: () => (series.tone ? paint(series.tone) : (isDark() ? LIGHT_LINES : LINES)[number % LINES.length]),
    dash: DASHES[Math.floor(number / LINES.length) % DASHES.length],
    findings: (series.keys || []).map((code) => context.findings.get(decodeName(code))),
  }));
  let [selected, point, box, toX, toY, isChosen] = [0, 0, null, null, null, false];
  const chart = draw("svg", { "aria-hidden": "true" });
  const marksOf = (line, index) => picture.marks?.filter((mark) => mark[0] === line.name && mark[1] === index).map((mark) => mark[2]) || [];
  const cross = draw("circle", { r: 4, class: "mark", visibility: "hidden" });
  const place = () => {
    const value = lines[selected]?.values[point];
    const isThere = isChosen && value !== null && value !== undefined;
    cross.setAttribute("visibility", isThere ? "visible" : "hidden");
    if (isThere) { cross.setAttribute("cx", toX(positions[point])); cross.setAttribute("cy", toY(value)); }
  };
  const stage = makeStage(`${picture.title}: ${plural(lines.length, "line")} of ${plural(positions.length, "point")}`, {
    move(across, down) {
      isChosen = true;
      point = Math.min(Math.max(point + across, 0), positions.length - 1);
      const shown = lines.filter((line) => line.shown);
      const at = shown.indexOf(lines[selected]);
      selected = shown[Math.min(Math.max(at + Math.sign(down), 0), shown.length - 1)]?.number ?? 0;
      place();
    },
    pick(x, y) {
      let best = 900;
      const scale = box.width / (stage.stage.clientWidth || box.width);
      for (const line of lines) {
        if (!line.shown) continue;
        line.values.forEach((value, index) => {
          if (value === null) return;
          const away = (toX(positions[index]) - x * scale) ** 2 * (filled ? 0.2 : 1) + (filled ? 0 : (toY(value) - y * scale) ** 2);
          if (away < best) [best, selected, point] = [away, line.number, index];
        });
      }
      isChosen ||= best < 900;
      place();
      return best < 900;
    },
    describe() {
      const line = lines[selected];
      if (!line) return [];
      const value = line.values[point];
      const name = decodeName(line.keys?.[point]);
      return [line.name, `${picture.x_label || "x"} ${texts[point]}`, `${picture.y_label || "value"}: ${formatNumber(value)}`, ...marksOf(line, point), name, describeFindings(context.report, line.findings[point])].filter(Boolean);
    },
    activate() {
      const found = lines[selected]?.findings[point];
      if (found) goToFinding(context.number, found[0]);
    },
  });
  stage.stage.append(chart);
  const legend = make("ul", { class: "legend" });
  if (lines.length > 1) {
    for (const line of lines) {
      const sample = draw("svg", { width: 26, height: 10, "aria-hidden": "true" });
      sample.append(draw("line", { x1: 1, x2: 25, y1: 5, y2: 5, stroke: line.colour(), "stroke-width": 2.5, "stroke-dasharray": line.dash }));
      const button = make("button", { type: "button", "aria-pressed": "true" }, sample, line.name);
      button.addEventListener("click", () => { line.shown = !line.shown; button.setAttribute("aria-pressed", String(line.shown)); redraw(); });
      legend.append(make("li", {}, button));
      line.recolour = () => sample.firstChild.setAttribute("stroke", line.colour());
    }
  }

  function redraw() {
    box = { width: Math.max(figure.clientWidth - 20, 220), height: figure.clientWidth < 500 ? 210 : 290 };
    const values = lines.flatMap((line) => (line.shown ? line.values : [])).filter((value) => value !== null);
    let [least, most] = [Math.min(...values), Math.max(...values)];
    if (!values.length) [least, most] = isLog ? [1, 10] : [0, 1];
    if (filled) least = isLog ? least / 2 : Math.min(0, least);
    if (least === most) [least, most] = isLog ? [least / 2, most * 2] : [least - (Math.abs(least) || 1) * 0.1, most + (Math.abs(most) || 1) * 0.1];
    const [from, to] = [positions[0], positions[positions.length - 1]];
    const wide = box.width - FRAME.left - FRAME.right, high = box.height - FRAME.top - FRAME.bottom;
    toX = (value) => FRAME.left + (to === from ? 0.5 : (value - from) / (to - from)) * wide;
    const share = (value) => (isLog ? Math.log(value / least) / Math.log(most / least) : (value - least) / (most - least));
    toY = (value) => FRAME.top + (1 - share(value)) * high;
    chart.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    chart.setAttribute("width", box.width);
    chart.setAttribute("height", box.height);
    const parts = [];
    for (const tick of listTicks(least, most, isLog, 5)) {
      parts.push(draw("line", { x1: FRAME.left, x2: box.width - FRAME.right, y1: toY(tick), y2: toY(tick), class: "axis" }));
      parts.push(draw("text", { x: FRAME.left - 6, y: toY(tick) + 4, "text-anchor": "end" }, formatNumber(tick)));
    }
    const longest = Math.max(...texts.map((text) => String(text).length), 1) * 6.5 + 12;
    const every = Math.max(1, Math.ceil((longest * positions.length) / wide));
    const isLong = isNumeric && positions.length > 12;
    const ticks = isLong ? listTicks(from, to, false, Math.max(3.5, wide / 70)).map((x) => [x, formatNumber(x)]) : positions.map((x, index) => [x, String(texts[index])]).filter((_, index) => index % every === 0);
    for (const [x, text] of ticks) {
      const anchor = isLong || (x !== from && x !== to) ? "middle" : x === from ? "start" : "end";
      parts.push(draw("text", { x: toX(x), y: box.height - 18, "text-anchor": anchor }, text));
    }
    if (picture.x_label) parts.push(draw("text", { x: FRAME.left + wide / 2, y: box.height - 3, "text-anchor": "middle" }, picture.x_label));
    for (const line of lines) {
      line.recolour?.();
      if (!line.shown) continue;
      const pieces = [];
      let before = null;
      line.values.forEach((value, index) => {
        if (value === null && !filled) { before = null; return; }
        const [x, y] = [toX(positions[index]).toFixed(1), toY(value ?? least).toFixed(1)];
        if (before === null || line.dotted) pieces.push(`M${x} ${y}`);
        else if (picture.steps || filled) pieces.push(`H${x}V${y}`);
        else pieces.push(`L${x} ${y}`);
        before = index;
      });
      if (filled && pieces.length) {
        const path = `${pieces.join("")}V${toY(least).toFixed(1)}H${toX(positions[0]).toFixed(1)}Z`;
        parts.push(draw("path", { d: path, fill: line.colour(), "fill-opacity": 0.18, stroke: "none" }));
      }
      parts.push(draw("path", { d: pieces.join(""), fill: "none", stroke: line.colour(), "stroke-width": 1.8, "stroke-linejoin": "round", "stroke-dasharray": line.dash }));
      if (!filled) {
        line.values.forEach((value, index) => {
          const isAlone = line.dotted || ((line.values[index - 1] ?? null) === null && (line.values[index + 1] ?? null) === null);
          if (value !== null && (isAlone || line.values.length <= 12)) parts.push(draw("circle", { cx: toX(positions[index]), cy: toY(value), r: 2.5, fill: line.colour() }));
        });
      }
    }
    const written = [];
    for (const [name, index, text] of picture.marks || []) {
      const line = lines.find((one) => one.name === name);
      const value = line?.shown ? line.values[index] : null;
      if (value === null || value === undefined) continue;
      const isRight = toX(positions[index]) > box.width * 0.6;
      parts.push(draw("circle", { cx: toX(positions[index]), cy: toY(value), r: 5.5, class: "mark" }));
      const height = Math.max(toY(value) + 4, 12);
      if (written.some(([x, y]) => Math.abs(x - toX(positions[index])) < 160 && Math.abs(y - height) < 13)) continue;
      written.push([toX(positions[index]), height]);
      parts.push(draw("text", { x: toX(positions[index]) + (isRight ? -9 : 9), y: height, "text-anchor": isRight ? "end" : "start", class: "marktext" }, text));
    }
    chart.replaceChildren(...parts, cross);
    place();
  }
  const label = picture.y_label ? make("p", { class: "more" }, `${picture.y_label}${isLog ? ", logarithmic" : ""}`) : "";
  figure.append(label, make("div", { class: "plot" }, stage.stage), legend, stage.readout);
  figure.append(makeTable(picture.title, [picture.x_label || "x", ...lines.map((line) => line.name)], function* () {
    for (const [index, text] of texts.entries()) yield [String(text), ...lines.map((line) => [formatNumber(line.values[index]), ...marksOf(line, index)].join(" · "))];
  }));
  redraw();
  context.redraws.push(redraw);
  lines.forEach((line) => line.findings.forEach((found, index) => (found || []).forEach((finding) => {
    context.link(finding, () => { [selected, point, isChosen] = [line.number, index, true]; place(); stage.say(); stage.stage.focus({ preventScroll: true }); stage.stage.scrollIntoView({ block: "center" }); });
  })));
}

function drawCurves(figure, picture, context) {
  const isNumeric = picture.x.every((value) => typeof value === "number");
  drawLines(figure, picture, context, { positions: isNumeric ? picture.x : picture.x.map((_, index) => index), texts: picture.x.map((value) => (typeof value === "number" ? formatNumber(value) : value)), filled: false, isNumeric });
}

function drawHistogram(figure, picture, context) {
  // A bin's count holds from its lower edge to its upper one.
  const shown = { ...picture, series: picture.series.map((series) => ({ ...series, values: [...series.values, series.values[series.values.length - 1] ?? null] })) };
  drawLines(figure, shown, context, { positions: picture.edges, texts: picture.edges.map(formatNumber), filled: true, isNumeric: true });
}

function drawBars(figure, picture, context) {
  const [HIGH, GAP] = [20, 7];
  const longest = Math.max(...picture.bars.map((bar) => bar[2].reduce((sum, part) => sum + part[0], 0)), 1e-12);
  const counts = new Map();
  picture.bars.forEach((bar) => bar[2].forEach((part) => counts.set(part[1], (counts.get(part[1]) || 0) + 1)));
  const canvas = make("canvas", { "aria-hidden": "true" });
  const cursor = make("div", { class: "cursor", hidden: true });
  const labels = make("div", { class: "rows", "aria-hidden": "true" }, ...picture.bars.map((bar) => {
    const label = make("div", { title: bar[0] });
    label.style.height = `${HIGH + GAP}px`;
    return label;
  }));
  let [boxes, at] = [[], -1];
  const place = () => {
    cursor.hidden = !boxes[at];
    if (boxes[at]) Object.assign(cursor.style, { left: `${boxes[at].x}px`, top: `${boxes[at].y}px`, width: `${Math.max(boxes[at].w, 4)}px`, height: `${HIGH}px` });
  };
  const stage = makeStage(`${picture.title}: ${plural(picture.bars.length, "bar")}`, {
    move(across, down) {
      if (down && boxes[at]) {
        const next = boxes.findIndex((box) => box.row === boxes[at].row + down);
        if (next >= 0) at = next;
      } else at = Math.min(Math.max(at + (at < 0 ? 1 : across), 0), boxes.length - 1);
      place();
    },
    pick(x, y) {
      const found = boxes.findIndex((box) => y >= box.y && y < box.y + HIGH && x >= box.x && x < box.x + Math.max(box.w, 3));
      if (found >= 0) { at = found; place(); }
      return found >= 0;
    },
    describe() {
      const box = boxes[at];
      if (!box) return [];
      const bar = picture.bars[box.row];
      return [bar[0], `${box.part[1]}: ${formatNumber(box.part[0])} ${picture.unit}`, box.part[2], bar[1]].filter(Boolean);
    },
    activate() {},
  });
  stage.stage.append(canvas, cursor);
  const legend = makeLegend(picture, counts);
  figure.append(legend.list, make("div", { class: "plot" }, make("div", { class: "pair" }, labels, make("div", { class: "field" }, stage.stage))), stage.readout);
  figure.append(makeTable(picture.title, ["bar", "part", picture.unit || "length", "note"], function* () {
    for (const bar of picture.bars) for (const part of bar[2]) yield [bar[0], part[1], part[0], [part[2], bar[1]].filter(Boolean).join(" · ") || "–"];
  }));
  function redraw() {
    const room = Math.max(figure.clientWidth - 24, 200);
    const labelWidth = measureLabels(picture.bars.map((bar) => bar[0]), room, 0.46);
    labels.style.width = `${labelWidth}px`;
    picture.bars.forEach((bar, row) => { labels.children[row].textContent = shorten(bar[0], labelWidth); });
    const wide = room - labelWidth - 90;
    const brush = setUpCanvas(canvas, wide + 84, picture.bars.length * (HIGH + GAP));
    boxes = [];
    picture.bars.forEach((bar, row) => {
      let [x, sum] = [0, 0];
      for (const part of bar[2]) {
        const w = (part[0] / longest) * wide;
        fillTone(brush, toneOf(picture, part[1]), x, row * (HIGH + GAP), Math.max(w - 1, 1), HIGH);
        boxes.push({ x, y: row * (HIGH + GAP), w, row, part });
        [x, sum] = [x + w, sum + part[0]];
      }
      brush.fillStyle = ink();
      brush.font = "11px system-ui, sans-serif";
      brush.fillText(`${formatNumber(sum)} ${picture.unit}`, x + 5, row * (HIGH + GAP) + 14);
    });
    legend.redraw();
    place();
  }
  redraw();
  context.redraws.push(redraw);
}

function drawTextTable(figure, picture, context) {
  const body = make("tbody");
  const counts = new Map();
  for (const row of picture.rows) {
    body.append(make("tr", {}, ...row.map(([text, state, note, code], at) => {
      if (state) counts.set(state, (counts.get(state) || 0) + 1);
      const cell = make(at ? "td" : "th", at ? {} : { scope: "row" });
      if (state) cell.append(make("span", { class: `state t-${toneOf(picture, state)}` }, state), " ");
      const found = code ? context.findings.get(decodeName(code)) : undefined;
      cell.append(found ? make("a", { href: `#r${context.number + 1}-f${found[0]}` }, text) : text);
      if (note) cell.append(make("span", { class: "from" }, note));
      for (const finding of found || []) context.link(finding, () => { cell.tabIndex = -1; cell.scrollIntoView({ block: "center" }); cell.focus({ preventScroll: true }); });
      return cell;
    })));
  }
  const head = make("thead", {}, make("tr", {}, ...picture.columns.map((column) => make("th", { scope: "col" }, column))));
  const legend = makeLegend(picture, counts);
  context.redraws.push(legend.redraw);
  figure.append(legend.list, make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": picture.title }, make("table", { class: "texts" }, head, body)));
}
