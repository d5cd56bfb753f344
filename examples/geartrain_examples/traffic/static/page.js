// The page of the traffic demo: asks /api what the tables hold, again and again while the flow runs.
import { ask, byId, count, day, many, minuteOf, Refused, speed } from "./dom.js";
import { Lists } from "./lists.js";
import { legend, StreetMap } from "./map.js";
import { Move } from "./move.js";
import { noPlan, showPlan } from "./plan.js";
import { Skew } from "./skew.js";
import { Timeline } from "./timeline.js";
import { Trail } from "./trail.js";

const POLL_MS = 2000;
const POLL_MAX_MS = 15000; // after a server that does not answer
const MINUTES_KEPT = 240;

const map = new StreetMap(byId("map"), byId("reading"));
const timeline = new Timeline(() => showMinute());
const trail = new Trail(map, timeline);
const move = new Move();
const skew = new Skew();
const lists = new Lists((plate) => search(plate));
const state = { minutes: new Map(), asked: 0, searched: 0, wait: POLL_MS, streets: 0, planned: false };

function say(text, wrong = false) {
  const place = byId("sentence");
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle("wrong", wrong);
}

function sentence(one) {
  const known = one.free + one.congested + one.silent;
  const silent = one.silent ? ` and ${count(one.silent)} fell silent` : "";
  const traffic = one.passes ? `${many(one.passes, "pass", "passes")} at a mean of ${speed(one.mean_speed_mps)}` : "no passes";
  return `${day(one.minute)} ${minuteOf(one.minute)}: ${count(one.congested)} of ${many(known, "street")} ${one.congested === 1 ? "was" : "were"} congested${silent}; ${traffic}.`;
}

// The shown minute: from memory if its figures have not changed since.
async function showMinute() {
  const one = timeline.shown;
  if (!one) return;
  say(sentence(one));
  const link = byId("json");
  link.href = `api/streets?minute=${encodeURIComponent(one.minute)}`;
  link.textContent = `api/streets?minute=${one.minute}`;
  map.flag(lists.fakes.filter((row) => row.time.slice(0, 16) === one.minute.slice(0, 16)));
  const mine = state.asked += 1, figures = JSON.stringify(one);
  let held = state.minutes.get(one.minute);
  if (held?.figures !== figures) {
    try {
      held = { figures, streets: (await ask(link.href)).streets };
    } catch (error) {
      if (mine === state.asked) say(error.message, true);
      return;
    }
    state.minutes.delete(one.minute);
    state.minutes.set(one.minute, held);
    if (state.minutes.size > MINUTES_KEPT) state.minutes.delete(state.minutes.keys().next().value);
  }
  if (mine === state.asked) map.colour(held.streets, one.minute); // else somebody has moved on meanwhile
}

async function search(plate) {
  const mine = state.searched += 1;
  byId("plate").value = plate;
  history.replaceState(null, "", `#plate=${encodeURIComponent(plate)}`);
  const found = await ask(`api/trace/${encodeURIComponent(plate)}`).catch((error) => error);
  if (mine !== state.searched) return;
  if (found instanceof Error) trail.fail(`${found.message.charAt(0).toUpperCase()}${found.message.slice(1)}.`.replace(/[.?]\.$/, (end) => end[0]));
  else trail.show(found);
}

async function refresh() {
  if (!state.planned) await plan();
  await move.poll();
  await skew.poll();
  const { minutes } = await ask("api/minutes");
  const streets = minutes.reduce((most, one) => Math.max(most, one.free + one.congested + one.silent), 0);
  if (streets > state.streets) {
    const data = await ask("api/map");
    state.streets = streets;
    lists.limits = data;
    map.show(data);
  }
  const grown = await lists.poll();
  const changed = timeline.update(minutes);
  if (!minutes.length) say("There is no whole minute yet: the first results are on their way.");
  else if (changed || grown || byId("sentence").classList.contains("wrong")) await showMinute();
}

async function plan() {
  state.planned = true;
  try {
    const found = await ask("api/plan");
    showPlan(found);
    move.plan = found;
  } catch (error) {
    noPlan(error.message);
  }
}

async function poll() {
  if (!document.hidden) {
    const begun = performance.now();
    try {
      await refresh();
      state.wait = Math.max(POLL_MS, 4 * (performance.now() - begun)); // a large city is asked less often
    } catch (error) {
      const early = error instanceof Refused && error.status === 503;
      say(early ? `There are no results yet (${error.message}).` : error.message, !early);
      state.wait = Math.min(POLL_MAX_MS, 1.5 * state.wait);
    }
  }
  setTimeout(poll, state.wait);
}

function fromAddress() {
  const found = /^#plate=(.+)$/.exec(location.hash);
  if (!found) return;
  try {
    search(decodeURIComponent(found[1]));
  } catch (error) {
    if (!(error instanceof URIError)) throw error;
    trail.fail("The address holds a plate that cannot be read.");
  }
}

legend(byId("legend"));
byId("search").addEventListener("submit", (e) => {
  e.preventDefault();
  const plate = byId("plate").value.trim();
  if (plate) search(plate);
});
window.addEventListener("hashchange", fromAddress);
let width = 0;
new ResizeObserver(() => {
  if (byId("map").clientWidth === width) return;
  width = byId("map").clientWidth;
  map.draw();
  timeline.draw();
  move.draw();
  map.flag(lists.fakes.filter((row) => row.time.slice(0, 16) === timeline.shown?.minute.slice(0, 16)));
}).observe(byId("map"));
poll().then(fromAddress);
