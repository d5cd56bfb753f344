// The flow with its cut: the drawing of the planner, with the colours of this page.
import { byId, element, many, tag } from "./dom.js";

const KEPT = {
  svg: ["viewBox", "width", "height"], g: [], title: [], defs: [],
  text: ["class", "x", "y"], rect: ["class", "x", "y", "width", "height", "rx"],
  line: ["class", "x1", "y1", "x2", "y2"], path: ["d", "marker-end"],
  marker: ["id", "viewBox", "refX", "refY", "markerWidth", "markerHeight", "orient"],
};

// A copy with nothing but shapes and text: no styles, no scripts, whatever the drawing holds.
function copied(source) {
  const made = element(source.localName);
  for (const name of KEPT[source.localName]) {
    if (source.hasAttribute(name)) made.setAttribute(name, source.getAttribute(name));
  }
  for (const child of source.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) made.append(child.data);
    else if (child.nodeType === Node.ELEMENT_NODE && child.localName in KEPT) made.append(copied(child));
  }
  return made;
}

export function showPlan(plan) {
  const drawing = new DOMParser().parseFromString(plan.svg, "image/svg+xml").documentElement;
  if (drawing.localName !== "svg") throw new Error("The drawing of the flow cannot be read.");
  const svg = copied(drawing);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Flow ${plan.flow}: ${plan.edge.join(", ")} on the devices; ${plan.cloud.join(", ")} in the data centre`);
  const words = `${many(plan.edge.length, "step")} on the devices, ${plan.cloud.length} in the data centre. Point at a step to read why it stands there.`;
  const host = byId("plan");
  host.replaceChildren(svg);
  host.scrollLeft = (host.scrollWidth - host.clientWidth) / 2; // where it is wider than the screen, its middle
  byId("plan").after(tag("p", "soft note", words));
}

export function noPlan(sentence) {
  byId("plan").replaceChildren(tag("p", "soft", sentence));
}
