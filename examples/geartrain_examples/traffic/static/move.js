// The step that moves while the flow runs over a slow link: where it stands, and what the link carries.
import { ask, byId, count, decimal, element, many, Refused, tag } from "./dom.js";

const HEIGHT = 96, LEFT = 58, RIGHT = 10, TOP = 20, FOOT = 20;
const NONE_YET = 503, NO_SUCH = 404;

const bytes = (number) => (number >= 1000 ? `${decimal(number / 1000, 1)} kB` : `${count(Math.round(number))} B`);
const kept = (one) => (one ? `${many(one.cells, "cell")}, ${bytes(one.bytes)}` : "not told yet");

export class Move {
  constructor() {
    this.plan = null;
    this.told = null;
    this.isThere = true; // until the server says that nothing moves in this run
  }

  async poll() {
    if (!this.isThere) return;
    try {
      this.told = await ask("api/move");
    } catch (error) {
      if (!(error instanceof Refused) || (error.status !== NONE_YET && error.status !== NO_SUCH)) throw error;
      this.isThere = error.status === NONE_YET;
      return;
    }
    byId("move").hidden = false;
    this.show();
    this.draw();
  }

  get place() {
    const { asked_at_s: asked, moved_at_s: moved } = this.told;
    return moved !== null ? "edge" : asked !== null ? "way" : "cloud";
  }

  show() {
    const { step, link, devices, cloud, behind_entries: behind } = this.told, place = this.place;
    byId("move-sentence").textContent = sentence(this.told, place);
    byId("move-link").textContent = link.now
      ? `now ${bytes(link.now.bytes_per_s)}/s of ${bytes(link.most_bytes_per_s)}/s · ${bytes(link.waiting_bytes)} wait on devices · ${count(behind)} log entries behind in Spark`
      : "";
    const moving = new Set(this.told.steps), edge = this.plan?.edge ?? [], centre = this.plan?.cloud ?? [];
    chips("move-edge", edge.filter((one) => !moving.has(one)), place === "edge" ? this.told.steps : [], step);
    chips("move-cloud", centre.filter((one) => !moving.has(one)), place === "edge" ? [] : this.told.steps, step, place === "way");
    byId("move-wire").textContent = place === "way" ? `⟵ state of ${step}` : place === "edge" ? `rows of ${step} ⟶` : "all that the sources give ⟶";
    byId("move-wire").parentElement.classList.toggle("moving", place === "way");
    byId("move-kept").textContent = `Keeps of ${step}: ${kept(cloud)}`;
    byId("move-devices").replaceChildren(...devices.map((one) => tag("li", "", device(one, step))));
    rates(link);
  }

  draw() {
    const points = this.told?.points ?? [], host = byId("move-charts");
    if (points.length < 2) return;
    const few = 0.3 * (this.told.link.before?.records_per_s ?? 0); // while the state is on its way, hardly a record is read
    const width = Math.max(240, Math.floor(Math.min(host.clientWidth, 1400) / (host.clientWidth > 700 ? 2 : 1)) - 8);
    host.replaceChildren(
      chart(this.told, width, "Bytes a second on the links of all devices", (one) => one.bytes_per_s, bytes),
      chart(this.told, width, "Bytes on the link for each record that a device reads", (one) => (one.records_per_s > few ? one.record_bytes : null), (number) => decimal(number, 1)),
    );
  }
}

function sentence({ step, link, asked_at_s: asked, moved_at_s: moved, at_s: now, devices }, place) {
  if (place === "cloud") return `Step ${step} runs in the data centre: everything that it reads crosses the link.`;
  if (place === "way") {
    const there = devices.filter((one) => one.runs_step || one.finished).length;
    return `Step ${step} is on its way to the devices, for ${count(Math.round(now - asked))} s by now: ${there} of ${many(devices.length, "device")} have it, with what the data centre kept of it.`;
  }
  const saved = link.before && link.after && link.before.record_bytes > 0 ? Math.round(100 * (1 - link.after.record_bytes / link.before.record_bytes)) : null;
  const says = saved === null ? "" : ` A record takes ${saved} % fewer bytes of the link: the first ${count(Math.round(link.after.seconds))} s after that, against the last ${count(Math.round(link.before.seconds))} s before${link.is_settled ? "" : ". The figure still changes"}.`;
  return `Step ${step} runs on the devices, ${count(Math.round(moved - asked))} s after it was told to move.${says}`;
}

function device(one, step) {
  const where = one.runs_step ? `runs ${step} and keeps ${kept(one.kept)}` : one.awaits_state ? `waits for the state of ${step}` : `sends what ${step} reads`;
  return `${one.device} ${one.finished ? "has read all its input; it " : ""}${where}`;
}

function chips(id, steps, moved, chief, faint = false) {
  const made = steps.map((one) => tag("span", "step", one));
  made.push(...moved.map((one) => tag("span", `step moves${one === chief ? " chief" : ""}${faint ? " faint" : ""}`, one)));
  byId(id).replaceChildren(...made);
}

function rates(link) {
  const head = document.createElement("tr");
  head.append(...["", "on the link", "records read", "bytes a record"].map((one) => tag("th", "", one)));
  const lines = [["before the move", link.before], ["after it", link.after]].map(([name, one]) => {
    const line = document.createElement("tr");
    const texts = one ? [`${bytes(one.bytes_per_s)}/s`, `${count(Math.round(one.records_per_s))}/s`, decimal(one.record_bytes, 2)] : ["–", "–", "–"];
    line.append(tag("th", "", name), ...texts.map((text) => tag("td", "number", text)));
    return line;
  });
  byId("move-rates").replaceChildren(head, ...lines);
}

function chart(told, width, title, value, words) {
  const { points, asked_at_s: asked, moved_at_s: moved } = told;
  const svg = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": title });
  const last = Math.max(1, points[points.length - 1].at_s, moved ?? 0), first = points[0].at_s;
  const most = Math.max(...points.map((one) => value(one) ?? 0), 1e-9), bottom = HEIGHT - FOOT;
  const x = (at) => LEFT + ((at - first) / Math.max(1e-9, last - first)) * (width - LEFT - RIGHT);
  const y = (number) => bottom - (number / most) * (bottom - TOP);
  svg.append(element("text", { class: "axis", x: LEFT, y: 11 }, title));
  if (asked !== null) {
    const from = x(Math.max(first, asked)), to = x(moved ?? last);
    svg.append(element("rect", { class: "way", x: from, y: TOP, width: Math.max(2, to - from), height: bottom - TOP }));
    svg.append(element("text", { class: "axis", x: from + 3, y: TOP + 10 }, moved === null ? "moving" : "move"));
  }
  svg.append(element("line", { class: "foot", x1: LEFT, x2: width - RIGHT, y1: bottom, y2: bottom }));
  const path = points.map((one, n) => {
    const number = value(one);
    if (number === null) return "";
    return `${n && value(points[n - 1]) !== null ? "L" : "M"}${x(one.at_s).toFixed(1)} ${y(number).toFixed(1)}`;
  });
  svg.append(element("path", { class: "rate", d: path.join("") }));
  for (const number of [0, most]) svg.append(element("text", { class: "axis end", x: LEFT - 5, y: y(number) + 4 }, words(number)));
  svg.append(element("text", { class: "axis", x: LEFT, y: HEIGHT - 5 }, `${count(Math.round(first))} s`));
  svg.append(element("text", { class: "axis end", x: width - RIGHT, y: HEIGHT - 5 }, `${count(Math.round(last))} s of the run`));
  return svg;
}
