// Has the live part of a page fetched anew every so many seconds: for what changes with time alone.
"use strict";
(() => {
  let since = 0;
  setInterval(() => {
    const live = document.getElementById("live"), pause = document.getElementById("pause");
    const every = Number(live && live.dataset.again);
    since += 1;
    if (!every || since < every || document.hidden || (pause && "paused" in pause.dataset)) return;
    since = 0;
    window.console_page.refresh();
  }, 1000);
})();
