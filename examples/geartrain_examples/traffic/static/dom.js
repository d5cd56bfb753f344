// Elements and words. Whatever comes from a table is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
export const locale = "en-GB";
export const byId = (id) => document.getElementById(id);

export function element(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

export function tag(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

// The answer to one question; a `Refused` with the server's sentence, status 0 where there is no server.
export async function ask(url) {
  let response;
  try {
    response = await fetch(url);
  } catch {
    throw new Refused(0, "The page's server does not answer: is it still running?");
  }
  const body = await response.json();
  if (!response.ok) throw new Refused(response.status, body.error);
  return body;
}

export const count = (number) => number.toLocaleString(locale);
export const decimal = (number, digits) => number.toLocaleString(locale, { minimumFractionDigits: digits, maximumFractionDigits: digits });
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;
export const kmh = (metresPerSecond) => count(Math.round(3.6 * metresPerSecond));
export const speed = (metresPerSecond) => (metresPerSecond === null ? "no time at all" : `${kmh(metresPerSecond)} km/h`);

// 2026-01-01T00:05:08.580000Z as 00:05:08, and as 00:05.
export const clock = (time) => time.slice(11, 19);
export const minuteOf = (time) => time.slice(11, 16);
export const day = (time) => time.slice(0, 10);

// What a camera is named after, its street or crossing: cam_A0A1_0 as A0A1.
export const spot = (detector) => detector.replace(/^[A-Za-z]+_/, "").replace(/_\d+$/, "") || detector;

export function metres(value) {
  return value >= 1000 ? `${decimal(value / 1000, 1)} km` : `${count(Math.round(value))} m`;
}
