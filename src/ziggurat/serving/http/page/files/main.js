// The page: loads the model, polls the status, and shows a version that arrives.

import { call, Refused, useToken } from "./api.js";
import { byId, say } from "./dom.js";
import { Live } from "./live.js";
import { showModel, subtitle } from "./model.js";
import { PredictForm } from "./predict.js";
import { RankForm } from "./rank.js";

const EVERY_MS = 2000, AGAIN_MS = 1000;

const live = new Live();
let model = null, timer = 0, paused = false, loading = false;

const look = () => { clearTimeout(timer); timer = setTimeout(poll, 0); };
const answered = ({ version }) => { if (model && version !== model.model.version) look(); };
const form = new PredictForm({ answered, changed: () => rank?.contextShown() });
const rank = new RankForm(form, { answered });

async function load() {
  model = await call("/v1/model");
  showModel(model);
  byId("main").hidden = false;
  form.show(model);
  rank.show(model);
}

async function poll() {
  if (loading) return;
  loading = true;
  let wait = EVERY_MS;
  try {
    if (!model) await load();
    const status = await call("/v1/status");
    connected("");
    live.take(status);
    live.version(status.model, status.at);
    if (status.model.version !== model.model.version) await load();
    subtitle(model, status.at);
  } catch (error) {
    wait = failed(error);
  }
  loading = false;
  clearTimeout(timer);
  if (wait && !paused) timer = setTimeout(poll, wait);
}

/** Shows why nothing came, and returns after how many milliseconds to ask again; 0: after a token was given. */
function failed(error) {
  if (error instanceof Refused && error.status === 401) {
    const first = byId("token-form").hidden;
    byId("token-form").hidden = false;
    say("token-error", first ? "" : "The server does not know this token.");
    say("subtitle", "A token is needed.");
    byId("token").focus();
    return 0;
  }
  connected(error instanceof Refused ? `${error.message}. ${error.hint}` : "No connection to the server; the page tries again.");
  return Math.max(AGAIN_MS, 1000 * (error.retryAfter || 0));
}

function connected(problem) {
  say("connection", problem);
  byId("connection").hidden = !problem;
  if (!problem) byId("token-form").hidden = true;
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value);
  byId("token").value = "";
  look();
});

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  if (paused) clearTimeout(timer);
  else look();
});

byId("theme").addEventListener("change", () => {
  const { value } = byId("theme");
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
});

poll();
