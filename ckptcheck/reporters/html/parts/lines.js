// Curves, steps and histograms: uPlot draws them. It zooms, and its cross tells the values of all lines at once.

const LINE_HEIGHTS = { phone: 210, window: 290 };
const MOST_SPARSE = 12; // a line of up to so many points shows each of them

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

// The range of the y axis: what is shown, and a little room. A histogram stands on 0.
function chooseRange(least, most, isLog, filled) {
  if (!Number.isFinite(least) || !Number.isFinite(most)) return isLog ? [1, 10] : [0, 1];
  if (isLog) return least === most ? [least / 2, most * 2] : [filled ? least : least * 0.9, most * 1.1];
  if (least === most) return [Math.min(filled ? 0 : least, least - (Math.abs(least) || 1) * 0.1), most + (Math.abs(most) || 1) * 0.1];
  const room = (most - least) * 0.04;
  return [filled ? Math.min(0, least) : least >= 0 ? Math.max(0, least - room) : least - room, most + room];
}

// Draw lines over an x axis. positions: x of each value, ascending; texts: what each x is called.
function drawLines(figure, picture, context, { positions, texts, filled, isNumeric }) {
  const isLog = picture.scale === "log", isWhole = positions.every(Number.isInteger), isLong = isNumeric && positions.length > MOST_SPARSE;
  const lines = picture.series.map((series, number) => ({
    ...series, number, shown: true,
    values: series.values.map((value) => (isLog && value !== null && value <= 0 ? null : value)),
    colour: () => (series.tone ? paint(series.tone) : (isDark() ? LIGHT_LINES : LINES)[number % LINES.length]),
    dash: DASHES[Math.floor(number / LINES.length) % DASHES.length],
    findings: (series.keys || []).map((code) => context.findings.get(decodeName(code))),
  }));
  const marksOf = (line, index) => picture.marks?.filter((mark) => mark[0] === line.name && mark[1] === index).map((mark) => mark[2]) || [];
  const [first, last] = [positions[0], positions[positions.length - 1]];
  // An empty bin of a histogram is as low as the paper, no gap.
  const floor = isLog ? Math.min(...lines.flatMap((line) => line.values).filter((value) => value !== null), Infinity) / 2 : 0;
  const drawn = lines.map((line) => (filled && Number.isFinite(floor) ? line.values.map((value) => value ?? floor) : line.values));
  let [selected, point, isChosen, plot] = [0, 0, false, null];
  const ring = make("div", { class: "ring", hidden: true });
  const isWide = () => plot.scales.x.min <= first && plot.scales.x.max >= last;

  const placeRing = () => {
    const value = lines[selected]?.values[point];
    const [x, y] = [plot.valToPos(positions[point], "x"), plot.valToPos(value ?? 0, "y")];
    ring.hidden = !isChosen || value === null || value === undefined || x < -1 || x > plot.over.clientWidth + 1;
    Object.assign(ring.style, { left: `${x}px`, top: `${y}px` });
    return [x, y];
  };
  // Show the chosen point, and what the other lines are there.
  const place = () => {
    const { min, max } = plot.scales.x;
    if (isChosen && (positions[point] < min || positions[point] > max)) {
      const from = Math.min(Math.max(positions[point] - (max - min) / 2, first), last - (max - min));
      showRange(from, from + max - min);
    }
    const [left, top] = placeRing();
    plot.setCursor({ left, top });
  };
  const showRange = (min, max) => plot.batch(() => plot.setScale("x", { min, max }));
  const zoom = (factor) => {
    const { min, max } = plot.scales.x, middle = isChosen ? positions[point] : (min + max) / 2;
    const span = Math.min((max - min) * factor, last - first);
    if (span <= 0 || (factor < 1 && span < (last - first) / positions.length)) return;
    const from = Math.min(Math.max(middle - span / 2, first), last - span);
    showRange(from, from + span);
  };
  const stage = makeStage(`${picture.title}: ${plural(lines.length, "line")} of ${plural(positions.length, "point")}`, {
    help: "Arrow keys move, plus and minus zoom, 0 shows all, Enter follows.",
    keys: { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => showRange(first, last) },
    move(across, down) {
      isChosen = true;
      point = Math.min(Math.max(point + across, 0), positions.length - 1);
      const shown = lines.filter((line) => line.shown);
      const at = shown.indexOf(lines[selected]);
      selected = shown[Math.min(Math.max(at + Math.sign(down), 0), shown.length - 1)]?.number ?? 0;
      place();
    },
    pick(x, y) {
      const [left, top] = [x - plot.over.offsetLeft, y - plot.over.offsetTop];
      let best = filled ? Infinity : 900;
      let [from, to] = filled ? [0, 0] : [plot.posToIdx(left - 30), plot.posToIdx(left + 30)];
      if (filled) {
        const value = plot.posToVal(left, "x");
        while (to < positions.length - 2 && positions[to + 1] <= value) to++;
        from = to;
      }
      for (const line of lines) {
        if (!line.shown) continue;
        for (let index = from; index <= to; index++) {
          if (line.values[index] === null) continue;
          const away = (filled ? 0 : (plot.valToPos(positions[index], "x") - left) ** 2) + (plot.valToPos(line.values[index], "y") - top) ** 2;
          if (away < best) [best, selected, point, isChosen] = [away, line.number, index, true];
        }
      }
      placeRing();
      return filled ? best < Infinity : best < 900;
    },
    describe() {
      const line = lines[selected];
      if (!line) return [];
      const value = line.values[point];
      const x = filled ? `${texts[point]} to ${texts[Math.min(point + 1, texts.length - 1)]}` : texts[point];
      return [line.name, `${picture.x_label || "x"} ${x}`, `${picture.y_label || "value"}: ${formatNumber(value)}`, ...marksOf(line, point), decodeName(line.keys?.[point]), describeFindings(context.report, line.findings[point])].filter(Boolean);
    },
    activate() {
      const found = lines[selected]?.findings[point];
      if (found) goToFinding(context.number, found[0]);
    },
  });
  const whole = make("button", { type: "button", class: "whole", hidden: true, onclick: () => { showRange(first, last); stage.stage.focus({ preventScroll: true }); } }, "Show all");
  const legend = make("ul", { class: "legend" });
  if (lines.length > 1) {
    for (const line of lines) {
      const sample = draw("svg", { width: 26, height: 10, "aria-hidden": "true" });
      sample.append(line.dotted ? draw("circle", { cx: 13, cy: 5, r: 3, fill: line.colour() }) : draw("line", { x1: 1, x2: 25, y1: 5, y2: 5, stroke: line.colour(), "stroke-width": 2.5, "stroke-dasharray": line.dash.join(" ") }));
      line.now = make("span", { class: "now", "aria-hidden": "true" });
      const button = make("button", { type: "button", "aria-pressed": "true" }, sample, line.name, line.now);
      button.addEventListener("click", () => { line.shown = !line.shown; button.setAttribute("aria-pressed", String(line.shown)); plot.batch(() => plot.setSeries(line.number + 1, { show: line.shown })); placeRing(); });
      legend.append(make("li", {}, button));
      line.recolour = () => sample.firstChild.setAttribute(line.dotted ? "fill" : "stroke", line.colour());
    }
  }

  const soft = () => (isDark() ? "#9daab8" : "#55606e"), grid = { stroke: () => (isDark() ? "#2c3540" : "#dfe3e8"), width: 1, filter: (_, splits) => splits };
  const axis = { stroke: soft, font: "11px system-ui, sans-serif", labelFont: "11px system-ui, sans-serif", ticks: { show: false }, filter: (_, splits) => splits };
  const longest = Math.max(...texts.map((text) => String(text).length), 1) * 6.3;
  const isAlone = (line, index) => line.dotted || line.values.length <= MOST_SPARSE || ((line.values[index - 1] ?? null) === null && (line.values[index + 1] ?? null) === null);

  function chooseXTicks(_, __, min, max) {
    const room = plot.width - 80;
    if (isLong) return listTicks(min, max, false, Math.max(3.5, room / 70)).filter((tick) => !isWhole || Number.isInteger(tick));
    const inside = positions.filter((x) => x >= min && x <= max);
    const every = Math.max(1, Math.ceil((Math.min(longest, room / 2) + 12) * inside.length / room));
    return inside.filter((_, index) => index % every === 0);
  }
  const nameTicks = (_, splits) => splits.map((x) => (isLong ? formatNumber(x) : shortenEnd(String(texts[positions.indexOf(x)] ?? ""), (plot.width - 80) / 2)));

  // Circles with words, at what the reader should look at.
  function drawMarks() {
    const ratio = plot.ctx.canvas.width / plot.width, brush = plot.ctx, { left, top, width } = plot.bbox, written = [];
    brush.save();
    brush.font = `${11 * ratio}px system-ui, sans-serif`;
    [brush.strokeStyle, brush.fillStyle, brush.lineWidth] = [ink(), ink(), 1.5 * ratio];
    for (const [name, index, text] of picture.marks || []) {
      const line = lines.find((one) => one.name === name), value = line?.shown ? line.values[index] : null;
      if (value === null || value === undefined) continue;
      const [x, y] = [plot.valToPos(positions[index], "x", true), plot.valToPos(value, "y", true)];
      if (x < left - 1 || x > left + width + 1) continue;
      brush.beginPath();
      brush.arc(x, y, 5.5 * ratio, 0, 7);
      brush.stroke();
      const height = Math.max(y + 4 * ratio, top + 8 * ratio);
      if (written.some(([otherX, otherY]) => Math.abs(otherX - x) < 160 * ratio && Math.abs(otherY - height) < 13 * ratio)) continue;
      written.push([x, height]);
      const isRight = x > left + width * 0.6;
      brush.textAlign = isRight ? "right" : "left";
      const [start, room] = isRight ? [x - 9 * ratio, x - left - 9 * ratio] : [x + 9 * ratio, left + width - x - 9 * ratio];
      const shown = fitText(brush, text, room);
      Object.assign(brush, { strokeStyle: paper(), lineWidth: 4 * ratio, lineJoin: "round" }); // a rim of paper: lines do not cross the words
      brush.strokeText(shown, start, height);
      brush.fillText(shown, start, height);
      Object.assign(brush, { strokeStyle: ink(), lineWidth: 1.5 * ratio });
    }
    brush.restore();
  }

  const measure = () => ({ width: Math.max(figure.clientWidth - 20, 220), height: figure.clientWidth < 500 ? LINE_HEIGHTS.phone : LINE_HEIGHTS.window });
  const label = picture.y_label || (lines.length === 1 ? lines[0].name : "");
  figure.append(
    label ? make("p", { class: "more" }, `${label}${isLog ? ", logarithmic" : ""}`) : "",
    make("div", { class: "plot" }, stage.stage, whole), legend, stage.readout,
  );
  plot = new uPlot({
    ...measure(),
    padding: [8, isLong ? 18 : Math.min(Math.max(longest / 2 + 4, 14), 70), 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false, dist: 8 }, points: { size: 6 } },
    scales: {
      x: { time: false, range: (_, min, max) => (min === max ? [min - 0.5, max + 0.5] : [min, max]) },
      y: { distr: isLog ? 3 : 1, range: (_, min, max) => chooseRange(min, max, isLog, filled) },
    },
    axes: [
      { ...axis, grid: { show: false }, splits: chooseXTicks, values: nameTicks, size: 26, label: picture.x_label || undefined, labelSize: 16, labelGap: 0 },
      { ...axis, grid, splits: (_, __, min, max) => listTicks(min, max, isLog, 5), values: (_, splits) => splits.map(formatNumber), size: (_, values) => Math.max(...(values || []).map((text) => text.length * 6.3 + 14), isLong ? 30 : Math.min(longest / 2, 80), 40) },
    ],
    series: [{}, ...lines.map((line) => ({
      label: line.name, width: 1.8, stroke: line.colour, dash: line.dash, spanGaps: false,
      ...(filled ? { fill: () => `${line.colour()}2e`, fillTo: (self) => self.scales.y.min } : {}),
      paths: line.dotted ? () => null : filled || picture.steps ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear(),
      points: { show: !filled, size: 5.5, width: 0, fill: line.colour, filter: () => (filled ? [] : line.values).flatMap((value, index) => (value !== null && isAlone(line, index) ? [index] : [])) },
    }))],
    hooks: {
      draw: [drawMarks],
      setCursor: [(self) => {
        for (const line of lines) if (line.now) line.now.textContent = self.cursor.idx === null || self.cursor.idx === undefined || self.cursor.left < 0 ? "" : formatNumber(line.values[self.cursor.idx]);
      }],
      setScale: [(self, key) => { if (key === "x" && plot) { whole.hidden = isWide(); placeRing(); } }],
    },
  }, [positions, ...drawn], (self, start) => { plot = self; stage.stage.append(self.root); start(); });
  plot.over.append(ring);

  function redraw() {
    lines.forEach((line) => line.recolour?.());
    plot.batch(() => { plot.setSize(measure()); plot.redraw(false, true); });
    placeRing();
  }
  figure.append(makeTable(picture.title, [picture.x_label || "x", ...lines.map((line) => line.name)], function* () {
    for (const [index, text] of texts.entries()) yield [String(text), ...lines.map((line) => [formatNumber(line.values[index]), ...marksOf(line, index)].join(" · "))];
  }));
  context.redraws.push(redraw);
  lines.forEach((line) => line.findings.forEach((found, index) => (found || []).forEach((finding) => {
    context.link(finding, () => { [selected, point, isChosen] = [line.number, index, true]; place(); stage.say(); stage.stage.focus({ preventScroll: true }); stage.stage.scrollIntoView({ block: "center" }); });
  })));
}

const shortenEnd = (text, width) => (text.length * 6.3 > width ? `${text.slice(0, Math.max(Math.floor(width / 6.3) - 1, 3))}…` : text);

function drawCurves(figure, picture, context) {
  // Numbers that do not ascend, such as the steps of a run that began again, are drawn one after the other.
  const isNumeric = picture.x.every((value, index) => typeof value === "number" && (!index || value > picture.x[index - 1]));
  drawLines(figure, picture, context, { positions: isNumeric ? picture.x : picture.x.map((_, index) => index), texts: picture.x.map((value) => (typeof value === "number" ? formatNumber(value) : value)), filled: false, isNumeric });
}

function drawHistogram(figure, picture, context) {
  // A bin's count holds from its lower edge to its upper one.
  const shown = { ...picture, series: picture.series.map((series) => ({ ...series, values: [...series.values, series.values[series.values.length - 1] ?? null] })) };
  drawLines(figure, shown, context, { positions: picture.edges, texts: picture.edges.map(formatNumber), filled: true, isNumeric: true });
}
