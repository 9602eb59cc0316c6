// What a view shows, kept while its successor is on the way: numbers change in place, nothing blinks.

import { useEffect, useRef, useState } from "./dom.js";
import { getJson, keyWanted } from "./api.js";
import { tick } from "./refresh.js";

/**
 * Ask `path` with `query` now and at each tick, for as long as the component is there.
 *
 * Returns `data` (null before the first answer), `error`, `isOld` (it answers another query than
 * the present one) and `at` (when it came). A changed query or a closed view stops what is on its way.
 */
export const useData = (path, query, { once = false } = {}) => {
  const wanted = `${path}?${query}`;
  const [state, setState] = useState({ data: null, of: "", error: null, at: 0 });
  const current = useRef({ stop: () => {}, busy: false, of: "" });
  const beat = once ? 0 : tick.value;
  const locked = keyWanted.value;

  useEffect(() => {
    const mine = current.current;
    if (locked) return;
    // A slow answer is waited for: ticks do not pile up.
    if (mine.busy && mine.of === wanted) return;
    mine.stop();
    const control = new AbortController();
    Object.assign(mine, { stop: () => control.abort(), busy: true, of: wanted });
    getJson(path, { query, signal: control.signal })
      .then(
        (data) => setState({ data, of: wanted, error: null, at: Date.now() }),
        (error) => {
          if (!control.signal.aborted) setState((old) => ({ ...old, error }));
        },
      )
      .finally(() => {
        if (mine.of === wanted) mine.busy = false;
      });
  }, [wanted, beat, locked]);

  useEffect(() => () => current.current.stop(), []);

  return { ...state, isOld: state.data !== null && state.of !== wanted };
};
