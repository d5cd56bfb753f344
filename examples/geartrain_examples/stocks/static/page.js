// The page of the stock demo: asks /api for one report and draws it. Whatever comes from a table is set as text,
// never as markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const locale = "en-GB";
const state = { symbols: [], report: null, asked: 0 };

function element(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function tag(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Words

function money(value) {
  const digits = Math.abs(value) >= 1 || value === 0 ? 2 : 6;
  return value.toLocaleString(locale, { minimumFractionDigits: Math.min(2, digits), maximumFractionDigits: digits });
}

const percent = (fraction) => `${(100 * fraction).toLocaleString(locale, { minimumFractionDigits: 1, maximumFractionDigits: 1 })} %`;

// 2008-10-10T00:00:00Z is a day; any other time of a day is shown too.
const moment = (text) => text.replace("T00:00:00Z", "").replace("T", " ").replace("Z", "");

function duration(seconds) {
  const units = [["year", 31556952], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
  const [name, size] = seconds >= 2 * 31556952 ? units[0] : units.find(([unit, s]) => unit !== "year" && seconds >= s) || units[4];
  const count = name === "year" ? Math.round((10 * seconds) / size) / 10 : Math.round(seconds / size);
  return `${count.toLocaleString(locale)} ${name}${count === 1 ? "" : "s"}`;
}

function sentence(r) {
  const where = r.period === "all" ? "in all its prices" : `in ${r.period}`;
  if (r.drawdown === 0) return `${r.symbol} never fell below an earlier price ${where}.`;
  const end = r.recovered_time
    ? `and was back at its peak on ${moment(r.recovered_time)}, ${duration(r.recovery_s)} after the trough.`
    : `and was not back at its peak by ${moment(r.last_time)}.`;
  return `The worst fall of ${r.symbol} ${where}: from ${money(r.peak)} on ${moment(r.peak_time)} down to ` +
    `${money(r.trough)} on ${moment(r.trough_time)}, a loss of ${money(r.drawdown)} or ${percent(r.drawdown_fraction)}, ${end}`;
}

// The text in pieces, so that no line breaks inside of a date.
function unbroken(text) {
  return text.split(/(\d{4}-\d\d(?:-\d\d)?)/).map((part, i) => (i % 2 ? tag("span", "date", part) : part));
}

function figures(r) {
  const fallen = r.drawdown > 0;
  return [
    ["fall", "Depth", money(r.drawdown), `${percent(r.drawdown_fraction)} of the peak`],
    ["", "Peak", money(r.peak), moment(r.peak_time)],
    ["", "Trough", money(r.trough), moment(r.trough_time)],
    ["", "Time under water", fallen ? duration(r.under_water_s) : "none", !fallen ? "it never fell" : r.recovered_time ? "peak to recovery" : "peak to last price"],
    [r.recovered_time ? "good" : "", "Time to recover", r.recovered_time ? duration(r.recovery_s) : fallen ? "not yet" : "none",
      r.recovered_time ? moment(r.recovered_time) : fallen ? `until ${moment(r.last_time)}` : "nothing to recover"],
    ["", "Largest relative fall", percent(r.worst_fraction), `of ${r.prices.toLocaleString(locale)} ${r.prices === 1 ? "price" : "prices"}`],
  ];
}

// Charts

function ticks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i += 1) found.push(i * step);
  return found;
}

function timeTicks(from, to, width) {
  const most = Math.max(2, Math.floor(width / 90));
  const day = 86400000;
  const years = (to - from) / (365.25 * day);
  const found = [];
  const push = (time, text) => { if (time >= from && time <= to) found.push([time, text]); };
  if (years > 2) {
    const step = Math.ceil(years / most);
    const first = new Date(from).getUTCFullYear();
    for (let y = first; Date.UTC(y, 0) <= to; y += step) push(Date.UTC(y, 0), String(y));
  } else if (years > 0.2) {
    const step = Math.ceil((years * 12) / most);
    const start = new Date(from);
    for (let m = start.getUTCMonth(), y = start.getUTCFullYear(); Date.UTC(y, m) <= to; m += step) {
      push(Date.UTC(y, m), new Date(Date.UTC(y, m)).toISOString().slice(0, 7));
    }
  } else if (to - from > 2 * day) {
    const step = Math.max(1, Math.ceil((to - from) / day / most)) * day;
    for (let t = Math.ceil(from / day) * day; t <= to; t += step) push(t, new Date(t).toISOString().slice(0, 10));
  } else {
    const step = (to - from) / most || 1;
    for (let t = from; t <= to; t += step) push(t, new Date(t).toISOString().slice(11, 16));
  }
  return found;
}

function scales(host, values, height, includeZero) {
  const width = Math.max(280, host.clientWidth || 800);
  const box = { left: 62, right: width - 14, top: 26, bottom: height - 26 };
  const { times } = state.report.series;
  const from = Date.parse(times[0]), to = Date.parse(times[times.length - 1]);
  let low = Math.min(...values), high = Math.max(...values);
  if (includeZero) { low = Math.min(low, 0); high = Math.max(high, 0); }
  if (low === high) { low -= Math.abs(low) * 0.05 || 1; high += includeZero ? 0 : Math.abs(high) * 0.05 || 1; }
  else { const room = (high - low) * (includeZero ? 0.06 : 0.12); low -= room; if (!includeZero) high += room / 2; }
  const x = (time) => to === from ? (box.left + box.right) / 2 : box.left + ((time - from) / (to - from)) * (box.right - box.left);
  const y = (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top);
  return { width, height, box, from, to, low, high, x, y };
}

function frame(s, label) {
  const svg = element("svg", { viewBox: `0 0 ${s.width} ${s.height}`, role: "img", tabindex: "0", "aria-label": label });
  for (const value of ticks(s.low, s.high, 4)) {
    svg.append(element("line", { class: "grid", x1: s.box.left, x2: s.box.right, y1: s.y(value), y2: s.y(value) }));
    svg.append(element("text", { class: "axis", x: s.box.left - 8, y: s.y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const [time, text] of timeTicks(s.from, s.to, s.width)) {
    const edge = s.x(time) < s.box.left + 30 ? "start" : s.x(time) > s.box.right - 30 ? "end" : "middle";
    svg.append(element("text", { class: "axis", x: s.x(time), y: s.height - 8, "text-anchor": edge }, text));
  }
  return svg;
}

const short = (value) => Math.abs(value) >= 1e5
  ? value.toLocaleString(locale, { notation: "compact", maximumFractionDigits: 1 })
  : Number(value.toPrecision(10)).toLocaleString(locale, { maximumFractionDigits: 6 });

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function drawPrice() {
  const r = state.report, host = byId("price"), { times, prices } = r.series;
  const s = scales(host, prices.concat([r.peak, r.trough]), 330, false);
  const svg = frame(s, `Price of ${r.symbol}. ${sentence(r)}`);
  if (r.drawdown > 0) {
    const end = s.x(Date.parse(r.recovered_time || r.last_time)), start = s.x(Date.parse(r.peak_time));
    svg.append(element("rect", { class: "band", x: start, y: s.box.top, width: Math.max(1, end - start), height: s.box.bottom - s.box.top }));
  }
  const points = times.map((t, i) => [s.x(Date.parse(t)), s.y(prices[i])]);
  svg.append(element("path", { class: "price", d: path(points) }));
  if (points.length === 1) svg.append(element("circle", { class: "dot", cx: points[0][0], cy: points[0][1], r: 4 }));
  if (r.drawdown > 0) marks(svg, s, r);
  host.replaceChildren(svg);
  follow(host, svg, s, prices, (i) => `${moment(times[i])}  ${money(prices[i])}`);
}

function marks(svg, s, r) {
  const all = [["peak", r.peak_time, r.peak, -1], ["trough", r.trough_time, r.trough, 1]];
  if (r.recovered_time) all.push(["recovery", r.recovered_time, r.peak, -1]);
  const taken = [];
  for (const [kind, time, value, side] of all) {
    const cx = s.x(Date.parse(time)), cy = s.y(value);
    const d = side < 0 ? "M0 0L-5 -9L5 -9Z" : "M0 0L-5 9L5 9Z";
    svg.append(element("path", { class: `mark ${kind}`, d, transform: `translate(${cx.toFixed(1)} ${(cy + side * 2).toFixed(1)})` }));
    const anchor = cx < s.box.left + 40 ? "start" : cx > s.box.right - 60 ? "end" : "middle";
    let ty = Math.min(s.box.bottom - 3, cy + (side < 0 ? -15 : 24));
    while (taken.some(([tx, y]) => Math.abs(tx - cx) < 64 && Math.abs(y - ty) < 14)) ty += side < 0 ? -14 : 14;
    taken.push([cx, ty]);
    svg.append(element("text", { class: "mark-text", x: cx, y: ty, "text-anchor": anchor }, kind));
  }
}

function drawDrawdown() {
  const r = state.report, host = byId("drawdown"), { times, drawdowns } = r.series;
  const below = drawdowns.map((d) => (d === 0 ? 0 : -d));
  const s = scales(host, below, 190, true);
  const svg = frame(s, `Drawdown of ${r.symbol}: at worst ${money(r.drawdown)} on ${moment(r.trough_time)}`);
  const points = times.map((t, i) => [s.x(Date.parse(t)), s.y(below[i])]);
  const zero = s.y(0);
  svg.append(element("path", { class: "fall-area", d: `${path([[points[0][0], zero], ...points, [points[points.length - 1][0], zero]])}Z` }));
  svg.append(element("path", { class: "fall-line", d: path(points) }));
  if (r.drawdown > 0) {
    const cx = s.x(Date.parse(r.trough_time)), cy = s.y(-r.drawdown);
    svg.append(element("circle", { class: "mark trough", cx, cy, r: 5 }));
  }
  host.replaceChildren(svg);
  follow(host, svg, s, below, (i) => `${moment(times[i])}  ${drawdowns[i] === 0 ? "at its highest" : `${money(drawdowns[i])} below`}`);
}

// The day under the pointer, or under the arrow keys.
function follow(host, svg, s, values, words) {
  const xs = state.report.series.times.map((t) => s.x(Date.parse(t)));
  const cross = element("line", { class: "cross", y1: s.box.top, y2: s.box.bottom, visibility: "hidden" });
  const dot = element("circle", { class: "dot", r: 4, visibility: "hidden" });
  const tip = tag("div", "tip");
  tip.hidden = true;
  svg.append(cross, dot);
  host.append(tip);
  let at = xs.length - 1;
  const show = (index) => {
    at = Math.max(0, Math.min(xs.length - 1, index));
    cross.setAttribute("x1", xs[at]);
    cross.setAttribute("x2", xs[at]);
    dot.setAttribute("cx", xs[at]);
    dot.setAttribute("cy", s.y(values[at]));
    for (const part of [cross, dot]) part.setAttribute("visibility", "visible");
    tip.hidden = false;
    tip.textContent = words(at);
    const scale = host.clientWidth / s.width, half = tip.offsetWidth / 2;
    tip.style.left = `${Math.max(half, Math.min(host.clientWidth - half, xs[at] * scale))}px`;
    svg.setAttribute("aria-description", tip.textContent);
  };
  const hide = () => {
    tip.hidden = true;
    for (const part of [cross, dot]) part.setAttribute("visibility", "hidden");
  };
  const nearest = (x) => {
    let low = 0, high = xs.length - 1;
    while (low < high) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle + 1; else high = middle; }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  };
  svg.addEventListener("pointermove", (e) => {
    const rect = svg.getBoundingClientRect();
    show(nearest(((e.clientX - rect.left) / rect.width) * s.width));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (e) => {
    const steps = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: xs.length - 1, PageUp: at - 20, PageDown: at + 20 };
    if (!(e.key in steps)) return;
    e.preventDefault();
    show(steps[e.key]);
  });
}

// The page

function options(select, values, chosen) {
  select.replaceChildren(...values.map((value) => {
    const option = tag("option", "", value);
    option.value = value;
    return option;
  }));
  select.value = values.includes(chosen) ? chosen : values[values.length - 1];
}

function fail(text) {
  const place = byId("sentence");
  place.textContent = text;
  place.classList.add("wrong");
  byId("figures").replaceChildren();
  byId("price").replaceChildren();
  byId("drawdown").replaceChildren();
}

async function ask(url) {
  let response;
  try {
    response = await fetch(url);
  } catch {
    throw new Error("The page's server does not answer: is it still running?");
  }
  const body = await response.json();
  if (!response.ok) throw new Error(body.error);
  return body;
}

function draw() {
  if (!state.report) return;
  drawPrice();
  drawDrawdown();
}

async function load(symbol, period) {
  const url = `api/report/${encodeURIComponent(symbol)}?period=${encodeURIComponent(period)}`;
  const link = byId("json");
  link.href = url;
  link.textContent = decodeURIComponent(url);
  const asked = state.asked += 1;
  const answer = await ask(url).catch((error) => error);
  if (asked !== state.asked) return; // somebody has chosen something else meanwhile
  if (answer instanceof Error) {
    state.report = null;
    fail(answer.message);
    return;
  }
  const r = state.report = answer;
  document.title = `Drawdown of ${r.symbol}, ${r.period}`;
  history.replaceState(null, "", `#${encodeURIComponent(symbol)}/${encodeURIComponent(period)}`);
  const place = byId("sentence");
  place.classList.remove("wrong");
  place.replaceChildren(...unbroken(sentence(r)));
  byId("figures").replaceChildren(...figures(r).map(([kind, name, value, note]) => {
    const card = tag("div", kind);
    const shown = tag("dd");
    shown.append(tag("span", "value", value), tag("span", "note", note));
    card.append(tag("dt", "", name), shown);
    return card;
  }));
  draw();
}

function choose(symbol, period) {
  const found = state.symbols.find((s) => s.symbol === symbol) || state.symbols[0];
  options(byId("symbol"), state.symbols.map((s) => s.symbol), found.symbol);
  options(byId("period"), found.periods, period);
  return load(found.symbol, byId("period").value);
}

function fromAddress() {
  try {
    return location.hash.slice(1).split("/").map(decodeURIComponent);
  } catch {
    return [];
  }
}

async function start() {
  try {
    state.symbols = (await ask("api/symbols")).symbols;
  } catch (error) {
    fail(error.message);
    return;
  }
  if (!state.symbols.length) {
    fail("There are no results yet: run the demo to its end, then load this page again.");
    return;
  }
  const change = () => choose(byId("symbol").value, byId("period").value);
  byId("symbol").addEventListener("change", change);
  byId("period").addEventListener("change", change);
  byId("choice").addEventListener("submit", (e) => e.preventDefault());
  window.addEventListener("hashchange", () => choose(...fromAddress()));
  let width = 0;
  new ResizeObserver(() => {
    if (byId("price").clientWidth !== width) { width = byId("price").clientWidth; draw(); }
  }).observe(byId("price"));
  await choose(...fromAddress());
}

start();
