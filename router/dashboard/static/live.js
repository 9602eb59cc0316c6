// The stream of the present: one event a second, read by fetch because an EventSource sends no key.

import { effect, signal } from "./dom.js";
import { ask, getJson, keyWanted } from "./api.js";
import { running } from "./refresh.js";

const KEPT_S = 150;
/** The present is told each second, the past in steps of ten. */
const GAP_S = 15;
const STEPS_BACK = 12;
const STALE_MS = 5000;

/** The last events, oldest first. */
export const beats = signal([]);
/** "off", "connecting", "live", "stale" (connected, but silent) or "lost" (trying again). */
export const liveState = signal("off");

/** Events of a stream that comes in any pieces. */
const eventReader = (onEvent) => {
  let rest = "";
  return (text) => {
    const lines = (rest + text).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) onEvent(JSON.parse(line.slice(5)));
    }
  };
};

/** A moment of which nothing is known: a curve across it would be a guess. */
const gap = (t) => ({ t });

const add = (events) => {
  const known = beats.peek();
  const missed = known.length > 0 && events[0].t - known.at(-1).t > GAP_S ? [gap(events[0].t - 1)] : [];
  const oldest = events.at(-1).t - KEPT_S;
  beats.value = [...known, ...missed, ...events].filter(({ t }) => t >= oldest);
};

/** What happened before the page was opened, from the log. */
const lookBack = async (signal) => {
  const { t, step_s, requests, errors, output_tokens, ...curves } = await getJson("series", { query: `from=-2m&points=${STEPS_BACK}`, signal });
  const pair = (name, i) => ({ p50: curves[`${name}_p50`][i], p95: curves[`${name}_p95`][i] });
  add(t.map((begin, i) => ({
    t: begin + step_s,
    requests_per_s: requests[i] / step_s,
    errors_per_s: errors[i] / step_s,
    ttft_ms: pair("ttft", i),
    total_ms: pair("total", i),
    overhead_ms: pair("overhead", i),
    output_tokens_per_s: output_tokens[i] / step_s,
  })).slice(0, -1));
};

const readStream = async (control, heard) => {
  const now = Date.now() / 1000;
  if (!beats.peek().length || now - beats.peek().at(-1).t > KEPT_S) {
    beats.value = [];
    await lookBack(control.signal);
  }
  const reply = await ask("live", { signal: control.signal });
  liveState.value = "connecting";
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  const feed = eventReader((event) => {
    heard();
    liveState.value = "live";
    add([event]);
  });
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    feed(value);
  }
};

const follow = (control) => {
  let tries = 0;
  let last = Date.now();
  const watch = setInterval(() => {
    if (liveState.peek() === "live" && Date.now() - last > STALE_MS) liveState.value = "stale";
  }, 1000);
  const wait = (ms) => new Promise((done) => {
    const wake = () => {
      clearTimeout(timer);
      removeEventListener("online", wake);
      control.signal.removeEventListener("abort", wake);
      done();
    };
    const timer = setTimeout(wake, ms);
    addEventListener("online", wake);
    control.signal.addEventListener("abort", wake);
  });
  const loop = async () => {
    while (!control.signal.aborted) {
      try {
        await readStream(control, () => {
          tries = 0;
          last = Date.now();
        });
      } catch {
        // Whatever it was, it is tried again; the state says so meanwhile.
      }
      if (control.signal.aborted || keyWanted.peek()) break;
      liveState.value = "lost";
      tries += 1;
      await wait(Math.min(1000 * 2 ** (tries - 1), 10_000));
    }
    clearInterval(watch);
  };
  loop();
};

/** Follow the stream while the page is seen and not paused; returns what ends it. */
export const followLive = () => {
  let control = null;
  const stop = effect(() => {
    const wanted = running.value && !keyWanted.value;
    if (wanted && !control) {
      control = new AbortController();
      liveState.value = "connecting";
      follow(control);
    } else if (!wanted && control) {
      control.abort();
      control = null;
      liveState.value = "off";
    }
  });
  return () => {
    stop();
    control?.abort();
    liveState.value = "off";
  };
};
