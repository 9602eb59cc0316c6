// Light, dark, or as the system has it.

import { computed, signal } from "./dom.js";
import { recall, remember } from "./keep.js";

export const THEMES = ["system", "light", "dark"];
export const theme = signal(THEMES.includes(recall("theme")) ? recall("theme") : "system");

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const systemIsDark = signal(darkSystem.matches);
darkSystem.addEventListener("change", (event) => {
  systemIsDark.value = event.matches;
});

export const isDark = computed(() => theme.value === "dark" || theme.value === "system" && systemIsDark.value);

export const setTheme = (name) => {
  const root = document.documentElement;
  if (name === "system") delete root.dataset.theme;
  else root.dataset.theme = name;
  // After the attribute: charts read their colours when this changes.
  theme.value = name;
  remember("theme", name === "system" ? null : name);
};
