// Saves a picture as PNG: what stands in its figure now (the range, the lines that are shown, the scheme), on one canvas.

const SAVED_SCALE = 2, SAVED_MARGIN = 16, MOST_SAVED_PIXELS = 16000; // browsers refuse larger canvases

// Return what to draw, with places relative to the window: canvases, samples of lines, words, and the lines of tables.
function listMarks(figure) {
  const marks = [];
  const isLeftOut = (element) => element.closest("noscript, details, .readout, .cursor, .ring, .findings, [aria-pressed='false']")
    || (element.closest("button") && !element.closest(".legend, .rows"));
  const add = (element, box, paintAt) => { if (box && box.width > 0 && box.height > 0) marks.push({ box, style: getComputedStyle(element), paintAt }); };
  for (const element of figure.querySelectorAll("canvas, svg > *, td, th, .state")) {
    if (isLeftOut(element)) continue;
    const box = (element.ownerSVGElement || element).getBoundingClientRect();
    add(element, box, (brush, x, y, style) => {
      if (element.tagName === "CANVAS") brush.drawImage(element, x, y, box.width, box.height);
      else if (element.ownerSVGElement) paintSample(brush, element, x, y);
      else if (element.matches(".state")) { brush.strokeStyle = style.color; brush.strokeRect(x, y, box.width, box.height); }
      else if (parseFloat(style.borderBottomWidth)) { brush.fillStyle = style.borderBottomColor; brush.fillRect(x, y + box.height - 1, box.width, 1); }
    });
  }
  const walker = document.createTreeWalker(figure, NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (isLeftOut(node.parentElement)) continue;
    for (const word of node.data.matchAll(/\S+/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const box = range.getClientRects()[0];
      add(node.parentElement, box, (brush, x, y, style) => {
        brush.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
        brush.fillStyle = style.color;
        brush.fillText(word[0], x, y + box.height / 2);
      });
    }
  }
  return marks;
}

// The sample of a line in a legend: a line or a point.
function paintSample(brush, shape, x, y) {
  const read = (name) => Number(shape.getAttribute(name));
  brush.beginPath();
  if (shape.tagName === "circle") {
    brush.fillStyle = shape.getAttribute("fill");
    brush.arc(x + read("cx"), y + read("cy"), read("r"), 0, 7);
    brush.fill();
    return;
  }
  brush.save();
  brush.strokeStyle = shape.getAttribute("stroke");
  brush.lineWidth = read("stroke-width");
  brush.setLineDash((shape.getAttribute("stroke-dasharray") || "").split(" ").filter(Boolean).map(Number));
  brush.moveTo(x + read("x1"), y + read("y1"));
  brush.lineTo(x + read("x2"), y + read("y2"));
  brush.stroke();
  brush.restore();
}

function paintFigure(figure) {
  figure.dataset.saving = "yes"; // what scrolls stands there whole
  const marks = listMarks(figure);
  const edge = (side, choose) => choose(...marks.map((mark) => mark.box[side]));
  const [left, top, right, bottom] = [edge("left", Math.min), edge("top", Math.min), edge("right", Math.max), edge("bottom", Math.max)];
  const [width, height] = [right - left + 2 * SAVED_MARGIN, bottom - top + 2 * SAVED_MARGIN];
  const scale = Math.min(SAVED_SCALE, MOST_SAVED_PIXELS / Math.max(width, height));
  const canvas = make("canvas", { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
  const brush = canvas.getContext("2d");
  brush.scale(scale, scale);
  brush.fillStyle = paper();
  brush.fillRect(0, 0, width, height);
  brush.textBaseline = "middle";
  for (const { box, style, paintAt } of marks) paintAt(brush, box.left - left + SAVED_MARGIN, box.top - top + SAVED_MARGIN, style);
  delete figure.dataset.saving;
  return canvas;
}

function makeSaveButton(figure, title) {
  const save = () => paintFigure(figure).toBlob((image) => {
    if (!image) { button.textContent = "Save as PNG: too large for this browser"; return; }
    const address = URL.createObjectURL(image);
    make("a", { href: address, download: `${title.replace(/[^\w.-]+/g, "-").slice(0, 80)}.png` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  });
  const button = make("button", { type: "button", class: "save", "aria-label": `Save as PNG: ${title}`, onclick: save }, "Save as PNG");
  return button;
}
