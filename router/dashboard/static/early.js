// Before the first paint: the theme and the language that were chosen, so that nothing flashes.
{
  let chosen = {};
  try {
    chosen = { theme: localStorage.getItem("router-theme"), lang: localStorage.getItem("router-lang") };
  } catch {
    // A browser that keeps nothing follows the system.
  }
  const root = document.documentElement;
  if (chosen.theme === "light" || chosen.theme === "dark") root.dataset.theme = chosen.theme;
  root.lang = chosen.lang || (navigator.language.startsWith("zh") ? "zh" : "en");
}
