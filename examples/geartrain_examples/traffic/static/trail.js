// One vehicle: its last passes in words, and its way over the map, walked from the oldest pass to the newest.
import { byId, clock, day, element, kmh, many, metres, speed, spot, tag } from "./dom.js";

const LEG_MS = 500;
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function straight(points) {
  const d = `M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`;
  return { d, points };
}

export class Trail {
  constructor(map, timeline) {
    this.map = map;
    this.timeline = timeline;
    this.found = null;
    this.legs = [];
    this.limit = null;
    map.onDraw = () => this.redraw();
  }

  show(found) {
    this.found = found;
    this.describe();
    this.build();
    this.walk();
  }

  fail(sentence) {
    this.stop();
    this.found = null;
    this.clear();
    byId("trace").replaceChildren(tag("p", "wrong", sentence));
  }

  clear() {
    this.legs = [];
    this.map.layer?.trail.replaceChildren();
    this.map.layer?.walker.replaceChildren();
  }

  // Words

  describe() {
    const { vehicle, passes, fakes, overspeed } = this.found;
    const head = tag("div", "trace-head");
    const again = tag("button", "", "Walk again");
    again.type = "button";
    again.id = "again";
    again.addEventListener("click", () => this.walk());
    const name = tag("p", "vehicle", vehicle);
    head.append(name, again);
    const parts = [head];
    if (fakes.length) parts.push(this.warning(fakes));
    const counted = `Its last ${many(passes.length, "pass", "passes")}${overspeed.length ? `, too fast at ${many(overspeed.length, "camera")}` : ""}, on ${day(passes[0].time)}:`;
    parts.push(tag("p", "soft", counted));
    const list = tag("ol", "passes");
    const fast = new Set(overspeed.map((one) => `${one.time} ${one.detector}`));
    this.items = passes.map((one, i) => {
      const item = tag("li", "");
      const button = tag("button", "pass");
      button.type = "button";
      button.append(tag("span", "when", clock(one.time)), tag("span", "where", one.edge), tag("span", "how", speed(one.speed_mps)));
      if (fast.has(`${one.time} ${one.detector}`)) button.append(tag("span", "over", "▲ too fast"));
      if (this.fakeLeg(i)) item.classList.add("jumped");
      button.addEventListener("click", () => { this.stop(); this.reach(i); this.timeline.chooseTime(one.time); });
      item.append(button);
      list.append(item);
      return item;
    });
    parts.push(list);
    byId("trace").replaceChildren(...parts);
  }

  warning(fakes) {
    const box = tag("p", "fake"), one = fakes[fakes.length - 1];
    const seconds = (Date.parse(one.time) - Date.parse(one.from_time)) / 1000;
    const took = seconds > 0 ? `${seconds < 120 ? many(Math.round(seconds * 10) / 10, "second") : many(Math.round(seconds / 60), "minute")} later` : "at the same moment";
    const pace = one.speed_mps === null ? "" : `, which would be ${kmh(one.speed_mps)} km/h`;
    box.append(tag("strong", "", "⚑ Fake plate."), ` Seen at ${spot(one.from_detector)} and, ${took}, at ${spot(one.to_detector)}, ${metres(one.distance_m)} away${pace}.`);
    if (fakes.length > 1) box.append(` Caught ${many(fakes.length, "time")} in all.`);
    return box;
  }

  fakeLeg(i) {
    const { passes, fakes } = this.found;
    if (i === 0) return false;
    const a = passes[i - 1], b = passes[i];
    return fakes.some((one) => one.from_time === a.time && one.time === b.time && one.from_detector === a.detector && one.to_detector === b.detector);
  }

  // The way

  build() {
    this.clear();
    const layer = this.map.layer?.trail;
    if (!layer || !this.found) return;
    const places = this.found.passes.map((one) => this.map.placeOf(one.detector, one.edge));
    this.stops = places.map((place, i) => {
      if (!place) return null;
      const dot = element("circle", { class: "stop", cx: place.x.toFixed(1), cy: place.y.toFixed(1), r: 4 });
      dot.append(element("title", {}, `${i + 1}: ${clock(this.found.passes[i].time)} ${this.found.passes[i].edge}`));
      return dot;
    });
    for (let i = 1; i < places.length; i += 1) {
      const a = places[i - 1], b = places[i];
      if (!a || !b) { this.legs.push(null); continue; }
      const fake = this.fakeLeg(i);
      const way = fake ? null : this.way(a, b);
      const { d, points } = straight(way ?? [[a.x, a.y], [b.x, b.y]]);
      const path = element("path", { class: `leg ${fake ? "fake" : way ? "seen" : "gap"}`, d });
      const under = element("path", { class: fake ? "leg-under fake" : "leg-under", d });
      this.legs.push({ path, under, points, fake });
    }
    this.walker = element("g", { class: "walker" });
    this.walker.append(element("circle", { r: 8 }), element("text", { y: -13, "text-anchor": "middle" }, this.found.vehicle.slice(0, 24)));
    layer.append(...this.legs.flatMap((leg) => (leg ? [leg.under] : [])), ...this.legs.flatMap((leg) => (leg ? [leg.path] : [])));
    layer.append(...this.stops.filter(Boolean));
    this.map.layer.walker.append(this.walker);
  }

  // The streets between two places, or null where nobody knows how the vehicle went.
  way(a, b) {
    if (a.shape && b.shape && a.shape.street.to !== null && a.shape.street.to === b.shape.street.from) {
      const [, , x1, y1] = a.shape.line, [x2, y2] = b.shape.line;
      return [[a.x, a.y], [x1, y1], [x2, y2], [b.x, b.y]];
    }
    return this.map.between(a.crossing, b.crossing) ? [[a.x, a.y], [b.x, b.y]] : null;
  }

  // A new size of the map: the same way, walked to its end.
  redraw() {
    if (!this.found) return;
    this.stop();
    this.build();
    this.reach(this.found.passes.length - 1);
  }

  stop() {
    cancelAnimationFrame(this.frame);
  }

  walk() {
    this.stop();
    const last = this.found.passes.length - 1;
    if (still() || last === 0 || !this.map.layer) { this.reach(last); return; }
    const start = performance.now();
    const step = (now) => {
      const done = Math.min(last, (now - start) / LEG_MS);
      this.reach(done);
      if (done < last) this.frame = requestAnimationFrame(step);
    };
    this.reach(0);
    this.frame = requestAnimationFrame(step);
  }

  // Show the walk at `done` passes after the first, 1.5 is half way between the second and the third.
  reach(done) {
    const at = Math.floor(done), part = done - at;
    this.legs.forEach((leg, i) => {
      const shown = i < done ? "visible" : "hidden";
      leg?.path.setAttribute("visibility", shown);
      leg?.under.setAttribute("visibility", shown);
    });
    this.stops?.forEach((dot, i) => {
      dot?.setAttribute("visibility", i <= done ? "visible" : "hidden");
      dot?.setAttribute("class", i === at ? "stop now" : "stop");
    });
    this.items.forEach((item, i) => {
      if (i === at) item.setAttribute("aria-current", "step"); else item.removeAttribute("aria-current");
      if (i === at && item.parentElement) item.parentElement.scrollTop = item.offsetTop - item.parentElement.clientHeight / 2;
    });
    const leg = this.legs[at], stop = this.stops?.[at];
    let point = null;
    if (leg && part > 0) point = along(leg.points, part);
    else if (stop) point = [Number(stop.getAttribute("cx")), Number(stop.getAttribute("cy"))];
    if (leg && part > 0) for (const one of [leg.path, leg.under]) one.setAttribute("d", straight(upTo(leg.points, part)).d);
    this.legs.forEach((one, i) => {
      if (one && i !== at) for (const path of [one.path, one.under]) path.setAttribute("d", straight(one.points).d);
    });
    if (!this.walker) return;
    this.walker.setAttribute("visibility", point ? "visible" : "hidden");
    if (point) this.walker.setAttribute("transform", `translate(${point[0].toFixed(1)} ${point[1].toFixed(1)})`);
    this.walker.setAttribute("class", leg?.fake && part > 0 ? "walker fake" : "walker");
  }
}

function upTo(points, part) {
  const lengths = points.slice(1).map(([x, y], i) => Math.hypot(x - points[i][0], y - points[i][1]));
  let left = part * lengths.reduce((sum, one) => sum + one, 0);
  const found = [points[0]];
  for (let i = 0; i < lengths.length; i += 1) {
    const [x1, y1] = points[i], [x2, y2] = points[i + 1];
    if (left <= lengths[i]) {
      const share = lengths[i] ? left / lengths[i] : 1;
      return [...found, [x1 + (x2 - x1) * share, y1 + (y2 - y1) * share]];
    }
    left -= lengths[i];
    found.push(points[i + 1]);
  }
  return found;
}

const along = (points, part) => upTo(points, part).pop();
