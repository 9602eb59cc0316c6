// Templates without a build step: Preact's elements, written as tagged strings.
//
// Values are always text or attributes, never markup: what a client, a model or a log says cannot
// become HTML here. Nothing in this folder may set innerHTML.

import { h } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { render, Fragment } from "./vendor/preact.js";
export { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { batch, computed, effect, signal } from "./vendor/signals.js";

/** Class names, those that hold. */
export const cls = (...names) => names.filter(Boolean).join(" ");
