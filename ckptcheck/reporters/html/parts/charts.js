// Bars on a canvas; tables of texts as tables.

function drawBars(figure, picture, context) {
  const [HIGH, GAP] = [20, 7];
  const longest = Math.max(...picture.bars.map((bar) => bar[2].reduce((sum, part) => sum + part[0], 0)), 1e-12);
  const counts = new Map();
  picture.bars.forEach((bar) => bar[2].forEach((part) => counts.set(part[1], (counts.get(part[1]) || 0) + 1)));
  const canvas = make("canvas", { "aria-hidden": "true" });
  const cursor = make("div", { class: "cursor", hidden: true });
  const labels = make("div", { class: "rows", "aria-hidden": "true" }, ...picture.bars.map((bar) => {
    const label = make("div", { title: bar[0] });
    Object.assign(label.style, { height: `${HIGH}px`, marginBottom: `${GAP}px` });
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

// A dotted name may break after its dots, and its pieces after their strokes.
const makeBreakable = (text) => text.split(/(?<=[._/])/).flatMap((part, at) => (at ? [make("wbr"), part] : [part]));

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
      if (note) cell.append(make("span", { class: "from" }, ...makeBreakable(note)));
      for (const finding of found || []) context.link(finding, () => { cell.tabIndex = -1; cell.scrollIntoView({ block: "center" }); cell.focus({ preventScroll: true }); });
      return cell;
    })));
  }
  const head = make("thead", {}, make("tr", {}, ...picture.columns.map((column) => make("th", { scope: "col" }, column))));
  const legend = makeLegend(picture, counts);
  context.redraws.push(legend.redraw);
  figure.append(legend.list, make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": picture.title }, make("table", { class: "texts" }, head, body)));
}
