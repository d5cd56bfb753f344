// The minutes of the run: a strip of how many streets were congested or silent, a slider under it, and play.
import { byId, count, day, element, minuteOf } from "./dom.js";

const HEIGHT = 54;
const THUMB = 18; // as in page.css, so that the bars stand above the slider's thumb
const STEP_MS = 600;
const PLAY = "M4 2.5v11l9-5.5z", PAUSE = "M3.5 2.5h3.2v11H3.5zM9.3 2.5h3.2v11H9.3z";

export class Timeline {
  constructor(onMinute) {
    this.onMinute = onMinute;
    this.minutes = [];
    this.at = -1;
    this.follows = true; // the newest minute is shown as it comes, until somebody chooses one
    this.timer = null;
    this.slider = byId("minute");
    this.slider.addEventListener("input", () => this.choose(Number(this.slider.value)));
    byId("play").addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    byId("strip").addEventListener("pointerdown", (e) => {
      const box = byId("strip").getBoundingClientRect(), last = this.minutes.length - 1;
      if (last < 0) return;
      const part = (e.clientX - box.left - THUMB / 2) / Math.max(1, box.width - THUMB);
      this.choose(Math.max(0, Math.min(last, Math.round(part * last))));
    });
  }

  get shown() { return this.minutes[this.at] ?? null; }

  // New minutes; true where the shown one is another or has other figures than before.
  update(minutes) {
    const before = JSON.stringify(this.shown);
    const keep = this.shown?.minute;
    this.minutes = minutes;
    this.slider.disabled = !minutes.length;
    this.slider.max = Math.max(0, minutes.length - 1);
    const found = minutes.findIndex((one) => one.minute === keep);
    this.at = this.follows || found < 0 ? minutes.length - 1 : found;
    this.draw();
    this.say();
    return JSON.stringify(this.shown) !== before;
  }

  choose(index, playing = false) {
    if (!playing) this.pause();
    this.at = index;
    this.follows = index === this.minutes.length - 1;
    this.say();
    this.onMinute();
  }

  chooseTime(time) {
    const index = this.minutes.findIndex((one) => one.minute.slice(0, 16) === time.slice(0, 16));
    if (index >= 0 && index !== this.at) this.choose(index);
  }

  play() {
    if (this.minutes.length < 2) return;
    if (this.at >= this.minutes.length - 1) this.choose(0);
    this.timer = setInterval(() => {
      if (this.at >= this.minutes.length - 1) this.pause();
      else this.choose(this.at + 1, true);
    }, STEP_MS);
    this.button("Pause", PAUSE);
    byId("sentence").setAttribute("aria-live", "off"); // nobody wants it read twice a second
  }

  pause() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = null;
    this.button("Play", PLAY);
    byId("sentence").setAttribute("aria-live", "polite");
  }

  button(label, shape) {
    byId("play").setAttribute("aria-label", label);
    byId("play").querySelector("path").setAttribute("d", shape);
  }

  say() {
    this.slider.value = Math.max(0, this.at);
    const one = this.shown;
    byId("clock").textContent = one ? minuteOf(one.minute) : "--:--";
    byId("clock").title = one ? day(one.minute) : "";
    if (one) this.slider.setAttribute("aria-valuetext", `${minuteOf(one.minute)}: ${one.congested} congested, ${one.silent} silent, ${one.passes} passes`);
    const cursor = byId("strip").querySelector(".cursor");
    if (cursor) cursor.setAttribute("x", (this.x(this.at) - this.wide / 2).toFixed(1));
  }

  x(index) {
    const width = Math.max(60, byId("strip").clientWidth), last = this.minutes.length - 1;
    return THUMB / 2 + (last > 0 ? (index / last) * (width - THUMB) : 0);
  }

  draw() {
    const host = byId("strip"), width = Math.max(60, host.clientWidth), n = this.minutes.length;
    if (!n) { host.replaceChildren(); return; }
    const svg = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" });
    const foot = HEIGHT - 15, top = 4;
    const bad = Math.max(4, ...this.minutes.map((one) => one.congested + one.silent));
    const passes = Math.max(1, ...this.minutes.map((one) => one.passes));
    const wide = Math.max(1, Math.min(14, (width - THUMB) / Math.max(1, n - 1) - 2));
    const shape = this.minutes.map((one, i) => `${this.x(i).toFixed(1)} ${(foot - (one.passes / passes) * (foot - top)).toFixed(1)}`);
    svg.append(element("path", { class: "flow", d: `M${this.x(0)} ${foot}L${shape.join("L")}L${this.x(n - 1)} ${foot}Z` }));
    svg.append(element("line", { class: "foot", x1: 0, x2: width, y1: foot, y2: foot }));
    this.wide = wide + 8;
    svg.append(element("rect", { class: "cursor", x: this.x(this.at) - this.wide / 2, y: 0, width: this.wide, height: foot, rx: 3 }));
    this.minutes.forEach((one, i) => {
      let y = foot;
      for (const level of ["congested", "silent"]) {
        const height = (one[level] / bad) * (foot - top);
        if (!height) continue;
        y -= height;
        svg.append(element("rect", { class: `bar ${level}`, x: (this.x(i) - wide / 2).toFixed(1), y: y.toFixed(1), width: wide.toFixed(1), height: height.toFixed(1) }));
      }
    });
    const labels = n < 3 ? [...new Set([0, n - 1])] : [0, (n - 1) >> 1, n - 1];
    labels.forEach((i) => {
      const anchor = n === 1 ? "start" : i === 0 ? "start" : i === n - 1 ? "end" : "middle";
      const x = i === 0 ? 0 : i === n - 1 ? width : this.x(i);
      svg.append(element("text", { class: "axis", x: x.toFixed(1), y: HEIGHT - 2, "text-anchor": anchor }, minuteOf(this.minutes[i].minute)));
    });
    host.title = `Bars: streets congested or silent (at most ${count(Math.max(...this.minutes.map((one) => one.congested + one.silent)))}); behind them: passes (at most ${count(passes)} a minute)`;
    host.replaceChildren(svg);
  }
}
