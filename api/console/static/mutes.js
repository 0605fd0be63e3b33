// The form of a mute: rows that come and go, the reader's own zone, and a look at what it matches as it is typed.
"use strict";
(() => {
  const form = document.querySelector("form[data-mute]");
  if (!form) return;
  let number = 100, soon = 0;

  const look = () => {
    clearTimeout(soon);
    soon = setTimeout(() => form.querySelector("[data-preview]").dispatchEvent(new Event("look")), 500);
  };

  form.addEventListener("click", (event) => {
    const add = event.target.closest("[data-add]");
    const remove = event.target.closest("[data-remove]");
    if (add) {
      const rows = form.querySelector(`[data-rows="${add.dataset.add}"]`);
      const made = document.createElement("template");
      made.innerHTML = form.querySelector(`[data-template="${add.dataset.add}"]`).innerHTML.replaceAll("__N__", String(number++));
      rows.append(made.content);
      rows.lastElementChild.querySelector("input").focus();
    }
    if (remove) {
      const next = remove.closest("fieldset").querySelector("[data-add]");
      remove.closest("[data-row]").remove();
      next.focus();
      look();
    }
  });

  const all = form.querySelector("[data-all]");
  const shown = () => { form.querySelector('[data-rows="matchers"]').hidden = form.querySelector('[data-add="matchers"]').hidden = all.checked; };
  all.addEventListener("change", shown);
  shown();
  form.addEventListener("input", (event) => { if (/^(all$|field-|op-|value-)/.test(event.target.name)) look(); });

  const lasts = form.querySelector("#lasts"), ends = form.querySelector("#ends");
  const until = [ends, form.querySelector('label[for="ends"]'), form.querySelector("#ends-hint")];
  const counts = () => { ends.disabled = lasts.value !== "until"; for (const one of until) one.hidden = ends.disabled; };
  lasts.addEventListener("change", counts);
  counts();

  const zone = form.querySelector("[data-own-zone]");
  if (zone) zone.value = Intl.DateTimeFormat().resolvedOptions().timeZone || zone.value;
})();
