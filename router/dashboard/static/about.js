// What the router says of itself and its log: names to filter by, how far the log is read.

import { signal, useEffect } from "./dom.js";
import { getJson, keyWanted } from "./api.js";
import { hidden } from "./refresh.js";

const UNKNOWN = {
  version: "", policy: "", offline: false, bodies: "off", can_explain: false, can_label: false,
  log: { dir: "", files: 0, records: 0, first: null, last: null, reading: { done: 0, total: 0 }, skipped_lines: 0, dropped: null },
  scenarios: [], backends: [], outcomes: [], sources: [], keys: [], experiments: [], finish_reasons: [], policy_scenarios: null,
};

export const about = signal(UNKNOWN);
export const isAbout = signal(false);

const SECONDS = 20;
const WHILE_READING = 1;
/** The policy is read a moment after the dashboard starts; a broken one is not waited for. */
const POLICY_TRIES = 10;

export const isReading = ({ log }) => Boolean(log.reading && log.reading.done < log.reading.total);

/** Keep `about` true while the page is open. */
export const useAbout = () => {
  const locked = keyWanted.value;
  useEffect(() => {
    if (locked) return undefined;
    const control = new AbortController();
    let timer = 0;
    let tries = 0;
    const ask = async () => {
      if (!hidden.peek() || !isAbout.peek()) {
        try {
          about.value = { ...UNKNOWN, ...await getJson("meta", { signal: control.signal }) };
          isAbout.value = true;
        } catch {
          // The view that is open asks the same router and says what is wrong.
        }
      }
      if (control.signal.aborted) return;
      tries += 1;
      const { can_explain, policy_scenarios } = about.peek();
      const isSoon = isReading(about.peek()) || can_explain && !policy_scenarios && tries < POLICY_TRIES;
      timer = setTimeout(ask, 1000 * (isSoon ? WHILE_READING : SECONDS));
    };
    ask();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [locked]);
};
