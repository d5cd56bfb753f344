// The lists that grow while the city drives: over-speed at a camera, between two, and plates used twice.
import { ask, byId, clock, count, kmh, many, metres, speed, spot, tag } from "./dom.js";

const KEPT = 500; // rows of each list, the newest by event time
const SHOWN = 150;
const NAMES = ["overspeed", "sections", "fakes"];
const EMPTY = {
  overspeed: "Nobody was too fast so far.",
  sections: "Nobody was too fast between two cameras so far, as far as their places are known.",
  fakes: "No plate was seen in two places at once so far, as far as the cameras' places are known.",
};

// 00:00:08Z is before 00:00:08.5Z.
const instant = (row) => row.time.replace("Z", "");
const newestFirst = (a, b) => (instant(a) < instant(b) ? 1 : instant(a) > instant(b) ? -1 : 0);

const between = (row) => `${spot(row.from_detector)} – ${spot(row.to_detector)}`;
const impossible = (row) => row.distance_m !== undefined && (row.speed_mps === null || 3.6 * row.speed_mps > 200);

const COLUMNS = {
  overspeed: [["Time", (r) => clock(r.time)], ["Plate", null], ["Street", (r) => r.edge], ["Speed", (r) => speed(r.speed_mps)]],
  sections: [["Time", (r) => clock(r.time)], ["Plate", null], ["From – to", between], ["Speed", (r) => speed(r.speed_mps)]],
  fakes: [["Time", (r) => clock(r.time)], ["Plate", null], ["From – to", (r) => `${between(r)}, ${metres(r.distance_m)}`],
    ["Would be", (r) => (r.speed_mps === null ? "in both at once" : `${kmh(r.speed_mps)} km/h`)]],
};

export class Lists {
  constructor(onPlate) {
    this.onPlate = onPlate;
    this.limits = {};
    this.shown = "overspeed";
    this.lists = Object.fromEntries(NAMES.map((name) => [name, { rows: [], next: null, total: 0, fresh: new Set() }]));
    for (const name of NAMES) {
      byId(`tab-${name}`).addEventListener("click", () => this.choose(name));
      byId(`tab-${name}`).addEventListener("keydown", (e) => {
        const turn = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
        if (!turn) return;
        e.preventDefault();
        const other = NAMES[(NAMES.indexOf(name) + turn + NAMES.length) % NAMES.length];
        this.choose(other);
        byId(`tab-${other}`).focus();
      });
    }
  }

  get fakes() { return this.lists.fakes.rows; }

  // Ask for what was written since the last time; true where a list has grown.
  async poll() {
    const answers = await Promise.all(NAMES.map(async (name) => [name, await this.since(name)]));
    let grown = false;
    for (const [name, rows] of answers) {
      const list = this.lists[name];
      if (!rows.length) continue;
      grown = true;
      list.fresh = new Set(list.rows.length ? rows : []);
      list.rows = [...rows, ...list.rows].sort(newestFirst).slice(0, KEPT);
      byId(`tab-${name}`).querySelector(".count").textContent = count(list.total);
      if (name === this.shown) this.draw();
    }
    if (grown) this.suggest();
    else if (!byId("list").firstChild) this.draw();
    return grown;
  }

  async since(name) {
    const list = this.lists[name];
    let rows = [], more = true;
    while (more) {
      const answer = await ask(`api/${name}?${list.next === null ? `last=${KEPT}` : `since=${list.next}`}`);
      rows = [...rows, ...answer.rows].sort(newestFirst).slice(0, KEPT);
      list.next = answer.next;
      list.total = answer.count;
      more = answer.more;
    }
    return rows;
  }

  choose(name) {
    this.shown = name;
    for (const one of NAMES) {
      byId(`tab-${one}`).setAttribute("aria-selected", String(one === name));
      byId(`tab-${one}`).tabIndex = one === name ? 0 : -1;
    }
    byId("list").setAttribute("aria-labelledby", `tab-${name}`);
    byId("list").scrollTop = 0;
    this.draw();
  }

  draw() {
    const name = this.shown, list = this.lists[name], columns = COLUMNS[name];
    byId("list-note").textContent = this.note(name, list);
    if (!list.rows.length) {
      byId("list").replaceChildren(tag("p", "soft", EMPTY[name]));
      return;
    }
    const table = tag("table", name), head = tag("tr");
    head.append(...columns.map(([title]) => tag("th", "", title)));
    const body = tag("tbody");
    for (const row of list.rows.slice(0, SHOWN)) {
      const line = tag("tr", list.fresh.has(row) ? "fresh" : "");
      for (const [title, words] of columns) line.append(words ? tag("td", title === "Speed" || title === "Would be" ? "number" : "", words(row)) : this.plate(row));
      body.append(line);
    }
    const top = tag("thead");
    top.append(head);
    table.append(top, body);
    byId("list").replaceChildren(table);
  }

  plate(row) {
    const cell = tag("td", "plates"), button = tag("button", "plate", row.vehicle);
    button.type = "button";
    button.title = `Show the way of ${row.vehicle}`;
    button.addEventListener("click", () => this.onPlate(row.vehicle));
    if (impossible(row)) cell.append(tag("span", "flag", "⚑ "));
    cell.append(button);
    return cell;
  }

  note(name, list) {
    const limits = { overspeed: this.limits.limit_mps && `${kmh(this.limits.limit_mps)} km/h`, sections: this.limits.section_limit_kmh && `${count(this.limits.section_limit_kmh)} km/h`, fakes: "200 km/h" };
    const above = limits[name] ? `faster than ${limits[name]}` : "faster than the limit";
    const part = list.total > SHOWN ? `; the newest ${SHOWN} of ${count(list.total)} are listed` : "";
    return list.total ? `${many(list.total, name === "overspeed" ? "pass" : "leg", name === "overspeed" ? "passes" : "legs")} ${above}${part}.` : "";
  }

  // Plates to choose from when somebody types: first the fake ones.
  suggest() {
    const plates = [...new Set([...this.lists.fakes.rows, ...this.lists.overspeed.rows].map((row) => row.vehicle))].slice(0, 60);
    byId("plates").replaceChildren(...plates.map((plate) => {
      const option = tag("option");
      option.value = plate;
      return option;
    }));
  }
}
