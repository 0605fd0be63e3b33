// The cluster's screen is fetched anew every 5 s, while it is seen and not paused: there is no stream of such news.
"use strict";
(() => {
  const pause = document.querySelector("#pause"), told = document.querySelector("#live-state");
  const paused = () => "paused" in pause.dataset;
  const tell = () => {
    told.textContent = paused() ? "Paused" : "Every 5 s";
    told.dataset.kind = paused() ? "paused" : "on";
  };
  new MutationObserver(tell).observe(pause, { attributes: true, attributeFilter: ["data-paused"] });
  tell();
  setInterval(() => { if (!document.hidden && !paused()) window.console_page.refresh(); }, 5000);
})();
