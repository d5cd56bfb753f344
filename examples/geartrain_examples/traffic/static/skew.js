// How unevenly keys are dealt over the slots of the data centre, as Spark says it beside its micro-batches.
import { ask, byId, count, Refused, tag } from "./dom.js";

const NO_SUCH = 404;
const percent = (share) => `${Math.round(100 * share)} %`;

export class Skew {
  constructor() {
    this.isThere = true; // until the server says that nobody tells it
  }

  async poll() {
    if (!this.isThere) return;
    try {
      this.show((await ask("api/skew")).streams);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== NO_SUCH) throw error;
      this.isThere = false;
    }
  }

  show(streams) {
    byId("skew").hidden = !streams.length;
    byId("skew-rows").replaceChildren(...streams.map(row));
  }
}

function row({ step, slots, slot, share, keys }) {
  const line = document.createElement("tr"), name = tag("th", "", step);
  name.scope = "row";
  const most = keys.map((one) => `${one.key} ${percent(one.share)}`).join(", ");
  line.append(name, tag("td", "number", `${count(slot)} of ${count(slots)}`), tag("td", "number", percent(share)), tag("td", "keys", most || "none above 1 %"));
  return line;
}
