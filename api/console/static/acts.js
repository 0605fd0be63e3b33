// Dialogs of acts: they are filled in by what opens them, and what is refused is said inside.
"use strict";
(() => {
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];

  // what the opener knows goes into fields and texts of those names

  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-dialog]");
    if (!opener) return;
    const dialog = $(opener.dataset.dialog);
    for (const told of $$(".told", dialog)) told.replaceChildren();
    for (const [name, value] of Object.entries(JSON.parse(opener.dataset.fill || "{}"))) {
      for (const field of $$(`input[name="${name}"]`, dialog)) field.value = value;
      for (const text of $$(`[data-text="${name}"]`, dialog)) text.textContent = value;
      for (const form of $$(`form[data-action-of="${name}"]`, dialog)) form.setAttribute("hx-post", value);
    }
  });

  // an answer that refuses is told in the dialog that asked

  document.addEventListener("htmx:before:response", (event) => {
    const { ctx } = event.detail;
    const told = $("dialog[open] .told");
    if (told && ctx.response.status >= 400) ctx.target = told;
  });

  // what is said on the page is seen, wherever its reader was

  document.addEventListener("htmx:after:swap", (event) => {
    const notice = $("#notice");
    if (event.detail.ctx?.target !== notice || !notice.firstElementChild) return;
    notice.scrollIntoView({ block: "nearest" });
    if (document.activeElement === document.body) { // what had the focus is gone with what it did
      notice.tabIndex = -1;
      notice.focus({ preventScroll: true });
    }
  });
  document.addEventListener("acted", () => { const seen = $("#preview"); if (seen) seen.replaceChildren(); });

  // an end at a time: asked for when it is chosen, sent as an instant

  document.addEventListener("change", (event) => {
    const select = event.target.closest("[data-lasts]");
    if (!select) return;
    const at = $(select.dataset.lasts);
    at.hidden = select.value !== "at";
    $("[data-instant]", at).required = !at.hidden;
  });
  document.addEventListener("input", (event) => {
    const time = event.target.closest("[data-instant]");
    if (!time) return;
    const ms = Date.parse(time.value + (window.console_page.utc() ? "Z" : ""));
    $(time.dataset.instant).value = Number.isNaN(ms) ? "" : String(ms);
  });

  // rows of a form: one more, one less

  document.addEventListener("click", (event) => {
    const adder = event.target.closest("[data-add]");
    if (adder) {
      const list = $(adder.dataset.add);
      const rows = $$("[data-row]", list);
      if (rows.length >= Number(list.dataset.most)) return;
      const row = rows[0].cloneNode(true);
      for (const field of $$("input", row)) field.value = "";
      list.append(row);
      $("input", row).focus();
    }
    const remover = event.target.closest("[data-remove]");
    if (remover) {
      const row = remover.closest("[data-row]");
      if (row.parentElement.querySelectorAll("[data-row]").length > 1) row.remove();
      else for (const field of $$("input", row)) field.value = "";
    }
  });
})();
