// The page: what stands around, the view that the address names, the request that is open.

import { cls, html, render, useEffect, useErrorBoundary, useState } from "./dom.js";
import { useAbout } from "./about.js";
import { keyWanted } from "./api.js";
import { VIEWS, go, route } from "./route.js";
import { paused, refreshNow } from "./refresh.js";
import { Help, KeyForm, Side, Top } from "./shell.js";
import { Fault, Toast } from "./parts.js";
import { Now } from "./views/now.js";
import { Scenarios } from "./views/scenarios.js";
import { Savings } from "./views/savings.js";
import { Backends } from "./views/backends.js";
import { Sessions } from "./views/sessions.js";
import { Experiments } from "./views/experiments.js";
import { Requests } from "./views/requests.js";
import { OneRequest } from "./views/request.js";

const SHOWN = {
  now: Now, scenarios: Scenarios, savings: Savings, backends: Backends, sessions: Sessions,
  experiments: Experiments, requests: Requests,
};

const isTyping = (target) => target.matches("input, textarea, select, [contenteditable]");

const onKey = (event, showHelp) => {
  if (event.key === "Escape" && route.value.open && !document.querySelector("dialog[open]")) {
    go({ open: "" });
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  const view = VIEWS[Number(event.key) - 1];
  if (event.key === "/") document.getElementById("filter")?.focus();
  else if (event.key === "?") showHelp();
  else if (event.key === "r") refreshNow();
  else if (event.key === "p") paused.value = !paused.value;
  else if (view) go({ view });
  else return;
  event.preventDefault();
};

/** A fault of ours in one view leaves the others, and the way to them. */
const Held = ({ children }) => {
  const [error] = useErrorBoundary((fault) => console.error(fault));
  return error ? html`<${Fault} error=${{ kind: "page", message: String(error) }} />` : children;
};

const App = () => {
  const [help, setHelp] = useState(false);
  useAbout();
  useEffect(() => {
    const listen = (event) => onKey(event, () => setHelp(true));
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
  if (keyWanted.value) return html`<${KeyForm} />`;
  const { view, open } = route.value;
  return html`
    <div class=${cls("app", open && "has-drawer")}>
      <${Side} showHelp=${() => setHelp(true)} />
      <main class="body" id="body">
        <${Top} />
        <div id="view" tabindex="-1" data-view=${view}><${Held} key=${view}><${SHOWN[view]} /><//></div>
      </main>
      ${open && html`<${Held} key=${open}><${OneRequest} id=${open} /><//>`}
      ${help && html`<${Help} close=${() => setHelp(false)} />`}
      <${Toast} />
    </div>`;
};

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
