// The dashboard begins here: follows the node, hands each look to what shows it, asks for the key.

import { follow, key } from "./events.js";
import { JobList } from "./jobs.js";
import { showNodes } from "./nodes.js";
import { openJob, startPanel } from "./panel.js";
import { showClasses, showPlaces, showPools, showPrograms, showTiers, showTiles } from "./pools.js";
import { $ } from "./shown.js";

const THEMES = ["", "dark", "light"]; // "": as the system has it
const SIGN = { "": "◐", dark: "●", light: "○" };
const SAYS = { "": "as the system has them", dark: "dark", light: "light" };

let classes = [];
const open = (job) => openJob(job, classes);
const lists = {
  running: new JobList("running", "Nothing runs.", open),
  ended: new JobList("ended", "Nothing has ended yet.", open),
  failed: new JobList("failed", "Nothing has failed.", open),
};

function show(look) {
  classes = look.classes.map((row) => row.sla);
  $("model").textContent = look.model;
  showNodes(look);
  showPools(look);
  showTiles(look);
  showClasses(look);
  showPlaces(look);
  showTiers(look);
  showPrograms(look);
  for (const [name, list] of Object.entries(lists)) list.show(look[name], look.at_ms);
  state(look.routers ? "live" : "away", look.routers ? "live" : "no router runs");
}

function state(kind, words) {
  if ($("state").textContent === words) return;
  $("state").dataset.state = kind;
  $("state").textContent = words;
}

function watch() {
  follow("/v1/node/events", {
    onEvent: ({ event, data }) => (event === "node" ? show(data) : state("away", data.error)),
    onState: (kind, error) => {
      if (kind === "refused") askForKey(error);
      if (kind === "away") state("away", "the node does not answer");
    },
  });
}

function askForKey(error) {
  state("away", "an API key is needed");
  $("key-error").textContent = key.get() ? error.message : "";
  $("key-button").hidden = false;
  if (!$("key").open) $("key").showModal();
}

$("key-form").addEventListener("submit", () => {
  key.set($("key-input").value.trim());
  $("key-input").value = "";
  watch();
});
$("key-button").addEventListener("click", () => $("key").showModal());

function theme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("lockstep-theme", name);
  $("theme").textContent = SIGN[name];
  $("theme").setAttribute("aria-label", `Colors: ${SAYS[name]}`);
}
$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "";
  theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
theme(localStorage.getItem("lockstep-theme") ?? "");

startPanel();
watch();
