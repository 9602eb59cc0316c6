// When data is asked for again: by a clock that suits the range, not while paused or out of sight.

import { computed, effect, signal } from "./dom.js";
import { cost } from "./api.js";
import { ends, route } from "./route.js";

export const paused = signal(false);
export const hidden = signal(document.hidden);
/** Grows each time that what is shown should be asked for again. */
export const tick = signal(0);
export const running = computed(() => !paused.value && !hidden.value);

/** A view may take this share of a processor, however much it has to look through. */
const SHARE = 1 / 20;
const MOST_SECONDS = 600;

/** Seconds between two ticks; 0: a range that is over does not change. */
export const interval = computed(() => {
  const state = route.value;
  const now = Date.now() / 1000;
  const [from, to] = ends(state, now);
  if (state.to && to < now - 60) return 0;
  const span = to - from;
  const usual = span <= 3600 ? 5 : span <= 86400 ? 15 : 60;
  return Math.max(usual, Math.min(Math.ceil(cost.value / 1000 / SHARE), MOST_SECONDS));
});

export const refreshNow = () => {
  tick.value = tick.peek() + 1;
};

document.addEventListener("visibilitychange", () => {
  hidden.value = document.hidden;
});

let timer = 0;
let wasRunning = true;
effect(() => {
  clearInterval(timer);
  const every = interval.value * 1000;
  const isBack = running.value && !wasRunning;
  wasRunning = running.value;
  if (!running.value || !every) return;
  // Seen again, or let go on: what is shown is old.
  if (isBack) refreshNow();
  timer = setInterval(refreshNow, every);
});
