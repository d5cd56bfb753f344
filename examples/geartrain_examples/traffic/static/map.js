// The street map: drawn from the places that the server knows, coloured by the levels of one minute.
import { decimal, element, many, speed, spot } from "./dom.js";

export const LEVELS = ["free", "congested", "silent"];
const WORDS = { free: "free", congested: "congested", silent: "silent: nothing passes any more" };
const MARGIN = 34;

// The mark of a level, so that no one needs the colour: a triangle for congested, a crossed circle for silent.
export function mark(level, x, y, size) {
  const group = element("g", { class: `symbol ${level}`, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${(size / 10).toFixed(3)})` });
  if (level === "congested") {
    group.append(element("path", { class: "face", d: "M0 -10L10 8H-10Z" }), element("path", { class: "ink", d: "M0 -4V2M0 5V5.4" }));
  } else if (level === "silent") {
    group.append(element("circle", { class: "face", r: 8.5 }), element("path", { class: "ink", d: "M-5.5 5.5L5.5 -5.5" }));
  }
  return group;
}

export function legend(host) {
  host.replaceChildren(...[...LEVELS, "unknown"].map((level) => {
    const item = document.createElement("span");
    item.className = "key";
    const svg = element("svg", { viewBox: "0 0 40 16", width: 40, height: 16, "aria-hidden": "true" });
    svg.append(element("path", { class: `street ${level}`, d: "M2 8H38", "stroke-width": level === "congested" ? 6 : 3 }));
    if (level !== "free" && level !== "unknown") svg.append(mark(level, 20, 8, 7));
    item.append(svg, level === "unknown" ? "not known yet" : level);
    return item;
  }));
}

const middleOf = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

export class StreetMap {
  constructor(host, reading) {
    this.host = host;
    this.readingPlace = reading;
    this.hint = reading.textContent;
    this.data = null;
    this.levels = new Map();
    this.chosen = null;
    this.onDraw = () => {};
  }

  show(data) {
    this.data = data;
    this.draw();
  }

  // The levels of a minute, by street; `time` is only for words.
  colour(streets, time) {
    this.time = time;
    this.levels = new Map(streets.map((row) => [row.edge, row]));
    for (const shape of this.shapes?.values() ?? []) this.paint(shape);
    if (this.chosen) this.read(this.chosen);
    if (this.svg) this.svg.setAttribute("aria-label", this.words());
  }

  words() {
    const numbers = LEVELS.map((level) => `${[...this.levels.values()].filter((row) => row.level === level).length} ${level}`);
    return `Map of ${many(this.data.streets.length, "street")}: ${numbers.join(", ")}`;
  }

  scale(width) {
    const xs = [], ys = [];
    for (const street of this.data.streets) {
      xs.push(street.at[0], street.at[2]);
      ys.push(street.at[1], street.at[3]);
    }
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const spanX = right - left || 1, spanY = high - low || 1;
    const most = Math.max(320, Math.min(760, window.innerHeight - 330));
    const factor = Math.min((width - 2 * MARGIN) / spanX, Math.max(most - 2 * MARGIN, 200) / spanY);
    const height = Math.max(200, spanY * factor + 2 * MARGIN);
    const x0 = (width - (right - left) * factor) / 2, y0 = (height - (high - low) * factor) / 2;
    return { width, height, x: (x) => x0 + (x - left) * factor, y: (y) => y0 + (high - y) * factor };
  }

  draw() {
    if (!this.data?.streets.length) return;
    const s = this.scale(Math.max(260, this.host.clientWidth));
    const svg = element("svg", { viewBox: `0 0 ${s.width} ${s.height.toFixed(0)}`, role: "img", tabindex: "0" });
    const lengths = this.data.streets.map(({ at }) => Math.hypot(s.x(at[2]) - s.x(at[0]), s.y(at[3]) - s.y(at[1]))).filter((l) => l > 0);
    const block = lengths.length ? middleOf(lengths) : 40;
    this.size = { block, lane: Math.max(1.6, Math.min(8, block * 0.06)), line: Math.max(1, Math.min(3.4, block * 0.035)) };
    this.size.crossing = this.size.lane + this.size.line + 1.5;
    this.places = this.data.crossings.map((one) => ({ name: one.name, x: s.x(one.x), y: s.y(one.y) }));
    const at = (x, y) => `${x.toFixed(0)} ${y.toFixed(0)}`;
    const crossings = new Map(this.places.map((one) => [at(one.x, one.y), one])); // a camera there is drawn there
    this.detectors = new Map(Object.entries(this.data.detectors).map(([name, [east, north]]) => {
      const x = s.x(east), y = s.y(north), near = crossings.get(at(x, y));
      return [name, near ? { x: near.x, y: near.y, crossing: near.name } : { x, y, crossing: null }];
    }));
    this.shapes = new Map();
    const layers = ["roads", "streets", "crossings", "trail", "symbols", "flags", "walker"];
    this.layer = Object.fromEntries(layers.map((name) => [name, element("g", { class: name })]));
    this.svg = svg;
    for (const street of this.data.streets) this.addStreet(street, s);
    this.addBlocks();
    this.addCrossings();
    svg.append(...layers.map((name) => this.layer[name]));
    svg.setAttribute("aria-label", this.words());
    for (const shape of this.shapes.values()) this.paint(shape);
    this.host.replaceChildren(svg);
    this.listen(svg);
    this.mark();
    this.onDraw();
  }

  addStreet(street, s) {
    const [x1, y1, x2, y2] = [s.x(street.at[0]), s.y(street.at[1]), s.x(street.at[2]), s.y(street.at[3])];
    const long = Math.hypot(x2 - x1, y2 - y1), { lane, crossing } = this.size;
    let line;
    if (long === 0) line = [x1 - 7, y1, x1 + 7, y1];
    else {
      const ux = (x2 - x1) / long, uy = (y2 - y1) / long; // traffic keeps to the right, and y grows downwards
      const room = Math.min(crossing, long * 0.25), dx = -uy * lane, dy = ux * lane;
      line = [x1 + ux * room + dx, y1 + uy * room + dy, x2 - ux * room + dx, y2 - uy * room + dy];
    }
    const d = `M${line[0].toFixed(1)} ${line[1].toFixed(1)}L${line[2].toFixed(1)} ${line[3].toFixed(1)}`;
    const middle = { x: (line[0] + line[2]) / 2, y: (line[1] + line[3]) / 2 };
    const path = element("path", { class: "street unknown", d });
    const road = element("path", { class: "road", d, "stroke-width": (2 * lane).toFixed(1), "data-edge": street.edge });
    const group = element("g", { class: "lane" });
    group.append(path);
    if (long > 0 && this.size.block >= 34) group.append(this.arrow(line)); // else arrows would hide their streets
    this.layer.roads.append(road);
    this.layer.streets.append(group);
    this.shapes.set(street.edge, { edge: street.edge, street, line, middle, group, path, symbol: null });
  }

  arrow([x1, y1, x2, y2]) {
    const turn = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI, size = Math.max(2.2, this.size.line * 1.5);
    const d = `M${-size} ${-size}L${size * 0.9} 0L${-size} ${size}`;
    return element("path", { class: "arrow", d, transform: `translate(${x2.toFixed(1)} ${y2.toFixed(1)}) rotate(${turn.toFixed(1)})` });
  }

  // Where cameras stand at the crossings of a grid: a faint way between neighbours that no street joins.
  addBlocks() {
    const manned = this.manned = new Set([...this.detectors.values()].map((one) => one.crossing).filter((name) => name !== null));
    const joined = new Set(this.data.streets.flatMap(({ from, to }) => [JSON.stringify([from, to]), JSON.stringify([to, from])]));
    for (const [along, across] of [["x", "y"], ["y", "x"]]) {
      const sorted = this.places.filter((one) => manned.has(one.name)).sort((a, b) => a[across] - b[across] || a[along] - b[along]);
      for (let i = 1; i < sorted.length; i += 1) {
        const a = sorted[i - 1], b = sorted[i];
        if (Math.abs(a[across] - b[across]) > 0.5 || b[along] - a[along] > 1.2 * this.size.block || joined.has(JSON.stringify([a.name, b.name]))) continue;
        this.layer.roads.append(element("path", { class: "block", d: `M${a.x} ${a.y}L${b.x} ${b.y}` }));
      }
    }
  }

  addCrossings() {
    const neighbours = new Map();
    for (const { from, to } of this.data.streets) {
      for (const [one, other] of [[from, to], [to, from]]) {
        if (one !== null) neighbours.set(one, (neighbours.get(one) ?? new Set()).add(other));
      }
    }
    const radius = this.size.lane + this.size.line * 0.5;
    for (const { name, x, y } of this.places) {
      const inner = (neighbours.get(name)?.size ?? 0) > 1 || this.manned.has(name);
      this.layer.crossings.append(element("circle", { class: inner ? "crossing" : "crossing outer", cx: x.toFixed(1), cy: y.toFixed(1), r: inner ? radius : radius * 0.6 }));
      if (inner && this.size.block >= 52) {
        const away = radius + 6;
        this.layer.crossings.append(element("text", { class: "crossing-name", x: (x - away).toFixed(1), y: (y - away).toFixed(1), "text-anchor": "end" }, name));
      }
    }
  }

  paint(shape) {
    const level = this.levels.get(shape.edge)?.level ?? "unknown";
    if (shape.level === level) return;
    shape.level = level;
    shape.path.setAttribute("class", `street ${level}`);
    shape.path.setAttribute("stroke-width", (this.size.line * (level === "congested" ? 2.1 : 1)).toFixed(1));
    shape.group.setAttribute("class", `lane ${level}`);
    shape.path.dataset.edge = shape.edge;
    shape.symbol?.remove();
    shape.symbol = null;
    if (level === "congested" || level === "silent") {
      shape.symbol = mark(level, shape.middle.x, shape.middle.y, Math.max(4, Math.min(9.5, this.size.block * 0.09)));
      this.layer.symbols.append(shape.symbol);
    }
  }

  // Flags where plates were seen that had just been elsewhere.
  flag(rows) {
    if (!this.layer) return;
    this.layer.flags.replaceChildren();
    for (const row of rows.slice(0, 30)) {
      const at = this.placeOf(row.to_detector), from = this.placeOf(row.from_detector);
      if (!at) continue;
      if (from) this.layer.flags.append(element("path", { class: "jump", d: `M${from.x} ${from.y}L${at.x} ${at.y}` }));
      const pin = element("g", { class: "pin", transform: `translate(${at.x.toFixed(1)} ${at.y.toFixed(1)})` });
      pin.append(element("path", { class: "pole", d: "M0 0V-17" }), element("path", { class: "cloth", d: "M0 -17L12 -13L0 -9Z" }), element("title", {}, `Fake plate ${row.vehicle}`));
      this.layer.flags.append(pin);
    }
  }

  // Where a camera is: at its crossing, in the middle of its street, or at its own place; null where nobody knows.
  placeOf(detector, edge = null) {
    const own = this.detectors.get(detector);
    if (own?.crossing) return own;
    const shape = this.shapes.get(edge) ?? this.shapes.get(detector) ?? this.shapes.get(spot(detector));
    return shape ? { ...shape.middle, crossing: null, shape } : own ?? null;
  }

  // The street that leads from one crossing to another, if there is one.
  between(from, to) {
    if (from === null || to === null) return undefined;
    return [...this.shapes.values()].find(({ street }) => street.from === from && street.to === to);
  }

  // Pointer and keys

  listen(svg) {
    const names = [...this.shapes.keys()].sort();
    svg.addEventListener("pointermove", (e) => this.choose(e.target.dataset?.edge ?? null));
    svg.addEventListener("pointerleave", () => { if (document.activeElement !== svg) this.choose(null); });
    svg.addEventListener("click", (e) => { if (e.target.dataset?.edge) this.choose(e.target.dataset.edge); });
    svg.addEventListener("blur", () => this.choose(null));
    svg.addEventListener("keydown", (e) => {
      const at = names.indexOf(this.chosen), last = names.length - 1;
      const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last, PageDown: at + 10, PageUp: at - 10 };
      if (e.key === "Escape") this.choose(null);
      if (!(e.key in next)) return;
      e.preventDefault();
      this.choose(names[Math.max(0, Math.min(last, next[e.key]))]);
    });
  }

  choose(edge) {
    if (edge === null && this.chosen === null) return;
    this.chosen = edge;
    this.mark();
    if (edge === null) this.readingPlace.textContent = this.hint;
    else this.read(edge);
  }

  mark() {
    for (const shape of this.shapes.values()) shape.group.classList.toggle("chosen", shape.edge === this.chosen);
  }

  read(edge) {
    const row = this.levels.get(edge), street = this.shapes.get(edge)?.street;
    const ends = street?.from != null ? `, from ${street.from} to ${street.to}` : "";
    const figures = row ? [WORDS[row.level], many(row.passes, "pass", "passes")] : ["not known in this minute"];
    if (row && row.mean_speed_mps !== null) figures.push(`mean ${speed(row.mean_speed_mps)}`);
    if (row && row.occupancy_pct !== null) figures.push(`loops occupied ${decimal(row.occupancy_pct, 1)} %`);
    this.readingPlace.textContent = `${edge}${ends}: ${figures.join(", ")}`;
    this.svg.setAttribute("aria-description", this.readingPlace.textContent);
  }
}
