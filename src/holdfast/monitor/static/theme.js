// Runs before the first paint, so that a chosen theme doesn't flash in the other one.
(() => {
  const chosen = localStorage.getItem("holdfast-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
