// Before the page is painted: the theme its reader chose.
"use strict";
document.documentElement.dataset.scripts = "";
const theme = localStorage.getItem("theme");
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
