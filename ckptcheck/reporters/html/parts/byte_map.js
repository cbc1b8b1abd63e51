// Byte maps: each file is a strip, wrapped over several lines where there are few files.

const LINE = 15;

function readFile(file) {
  const segments = [];
  let [end, at] = [0, 0];
  for (let number = 0; number < file.s.length; number++) {
    const begin = end + file.r[2 * number];
    end = begin + file.r[2 * number + 1];
    const template = file.n[at];
    const numbers = template < 0 ? 0 : data.templates[template].length - 1;
    segments.push({ begin, end, letter: file.s[number], code: file.n.slice(at, at + 1 + numbers), note: file.notes?.[number] });
    at += 1 + numbers;
  }
  return segments;
}

function drawByteMap(figure, picture, context) {
  const counts = new Map();
  const linesPerFile = picture.files.length === 1 ? 8 : picture.files.length <= 4 ? 4 : picture.files.length <= 12 ? 2 : 1;
  const largest = Math.max(...picture.files.map((file) => file.size), 1);
  const strips = picture.files.map((file) => drawStrip(file));
  const legend = makeLegend(picture, counts);
  figure.append(legend.list, make("div", { class: "plot" }, ...strips.map((strip) => strip.box)), ...[]);
  figure.append(makeTable(picture.title, ["file", "begin", "end", "bytes", "what", "tensor"], function* () {
    for (const [number, strip] of strips.entries()) for (const segment of strip.segments) {
      yield [picture.files[number].file, segment.begin, segment.end, segment.end - segment.begin, [stateAt(picture, segment.letter)?.name, segment.note].filter(Boolean).join(" · ") || "–", decodeName(segment.code) || "–"];
    }
  }));
  const redraw = () => { strips.forEach((strip) => strip.redraw()); legend.redraw(); };
  redraw();
  context.redraws.push(redraw);

  function drawStrip(file) {
    const segments = readFile(file);
    const canvas = make("canvas", { "aria-hidden": "true" });
    const cursor = make("div", { class: "cursor", hidden: true });
    let [width, selected] = [300, -1];
    // Where findings are: their tensors, else nothing.
    const touched = new Map();
    segments.forEach((segment, number) => {
      const state = stateAt(picture, segment.letter);
      if (state) counts.set(state.name, (counts.get(state.name) || 0) + 1);
      if (!context.findings.size || segment.code[0] < 0) return;
      const found = context.findings.get(decodeName(segment.code));
      if (found) touched.set(number, found);
    });
    const position = (offset) => (offset / Math.max(file.size, 1)) * width * linesPerFile;
    const boxes = (segment) => {
      let [from, to] = [position(segment.begin), position(segment.end)];
      to = Math.max(to, from + 1.5);
      const parts = [];
      for (let line = Math.floor(from / width); line < linesPerFile && line * width < to; line++) {
        const [x, end] = [Math.max(from - line * width, 0), Math.min(to - line * width, width)];
        if (end > x) parts.push([x, line * (LINE + 2), end - x, LINE]);
      }
      return parts;
    };
    const place = () => {
      cursor.hidden = selected < 0;
      if (selected < 0) return;
      const [x, y, w, h] = boxes(segments[selected])[0] || [0, 0, 2, LINE];
      Object.assign(cursor.style, { left: `${x}px`, top: `${y}px`, width: `${Math.max(w, 4)}px`, height: `${h}px` });
    };
    const stage = makeStage(`${file.file}: ${plural(segments.length, "segment")}, ${formatBytes(file.size)}`, {
      move(across, down) {
        const step = across || down;
        selected = Math.min(Math.max(selected < 0 ? (touched.keys().next().value ?? 0) : selected + step, 0), segments.length - 1);
        place();
      },
      pick(x, y) {
        const line = Math.min(Math.floor(y / (LINE + 2)), linesPerFile - 1);
        const offset = ((line * width + x) / (width * linesPerFile)) * file.size;
        const slack = file.size / (width * linesPerFile);
        let found = -1;
        // The last one that covers the byte is on top; a tiny one nearby wins, or nobody could point at it.
        for (let number = segments.length - 1; number >= 0 && found < 0; number--) {
          const { begin, end } = segments[number];
          if (begin - slack <= offset && offset < end + (end - begin < 2 * slack ? 2 * slack : 0)) found = number;
        }
        if (found >= 0) { selected = found; place(); }
        return found >= 0;
      },
      describe() {
        const segment = segments[selected];
        if (!segment) return [];
        return [
          decodeName(segment.code) || stateAt(picture, segment.letter)?.name || "",
          `bytes ${segment.begin.toLocaleString("en")} to ${segment.end.toLocaleString("en")} (${formatBytes(segment.end - segment.begin)})`,
          stateAt(picture, segment.letter)?.name, segment.note, describeFindings(context.report, touched.get(selected)),
        ].filter(Boolean);
      },
      activate() { if (touched.get(selected)) goToFinding(context.number, touched.get(selected)[0]); },
    });
    stage.stage.append(canvas, cursor);
    const label = make("div", { class: "label" }, `${file.file} · ${formatBytes(file.size)}`);
    const box = make("div", { class: "file" }, label, stage.stage, stage.readout);
    for (const [number, found] of touched) for (const finding of found) {
      context.link(finding, () => { selected = number; place(); stage.say(); stage.stage.focus({ preventScroll: true }); stage.stage.scrollIntoView({ block: "center" }); });
    }
    context.report.findings.forEach((finding, number) => {
      if (finding.file === file.file) context.link(number, () => { stage.stage.focus({ preventScroll: true }); stage.stage.scrollIntoView({ block: "center" }); });
    });
    function redraw() {
      const room = Math.max(figure.clientWidth - 24, 200);
      width = Math.max(room * (linesPerFile === 1 ? file.size / largest : 1), 24);
      const brush = setUpCanvas(canvas, width, linesPerFile * (LINE + 2));
      const drawOne = (segment, number) => {
        const state = stateAt(picture, segment.letter);
        const tone = state ? state.tone : "quiet";
        for (const [x, y, w, h] of boxes(segment)) {
          fillTone(brush, tone, x, y, Math.max(w, 1.5), h);
          if (tone === "good" && number % 2) { brush.fillStyle = isDark() ? "#ffffff1f" : "#00000017"; brush.fillRect(x, y, w, h); }
          if (touched.has(number)) { brush.fillStyle = ink(); brush.fillRect(x, y + h - 3, Math.max(w, 2), 3); }
        }
      };
      segments.forEach(drawOne);
      place();
    }
    return { box, segments, redraw };
  }
}
