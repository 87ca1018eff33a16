// Shows the server's status once a second: the events of /events, or, while the server refuses
// them, /status.json. Text from the status is set as text only, never as HTML.

import {align, Chart, clockTime} from "./charts.js";
import {JobView, PHASES} from "./job_view.js";

// The time between the end of a poll and the next one.
const POLL_MS = 1000;
const TIMEOUT_MS = 5000;
// How long the page polls before it requests events again.
const EVENTS_RETRY_MS = 15000;
// The time between two requests of the curves and the log.
const MORE_MS = 3000;
// What a worker does in each phase of PHASES.
const PHASE_NAMES = ["reads", "computes", "pushes", "waits", "applies"];
// A chart with more curves cannot be read.
const MOST_CURVES = 8;
// A step that is open for less is not reported as waiting.
const LONG_WAIT_MS = 1000;
// In seconds: how long a job is shown after its end.
const ENDED_SHOWN = 600;
const MOST_EVENTS_SHOWN = 10;

const byId = (id) => document.getElementById(id);

// Makes an element with text and a class.
function element(tag, text, className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

function show(node, text) {
  node.hidden = text === "";
  if (node.textContent !== text) node.textContent = text;
}

function duration(ms) {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120e3) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 7200e3) return `${(ms / 60e3).toFixed(1)} min`;
  return `${(ms / 3600e3).toFixed(1)} h`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; count >= 1024 && unit + 1 < units.length; ++unit) count /= 1024;
  return `${unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

function number(value) {
  if (value >= 100) return value.toFixed(0);
  return value.toFixed(value >= 10 ? 1 : 2);
}

// Returns a loss or another score as text.
function score(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(1);
  return Number(value.toPrecision(3)).toString();
}

const percent = (part) => `${(part * 100).toFixed(0)} %`;

// A job's section of the page.
class JobSection {
  constructor(job) {
    this.view = new JobView(job);
    this.root = byId("job").content.cloneNode(true).firstElementChild;
    this._steps = new Chart(this.root.querySelector(".steps"), number);
    this._lags = new Chart(this.root.querySelector(".lags"), duration);
    this._loss = new Chart(this.root.querySelector("figure.loss"), score);
    this._scores = new Chart(this.root.querySelector(".scores"), score);
    this._numbers = new Map();
    const legend = this.root.querySelector(".legend.phases");
    legend.append(...PHASES.map((phase, i) => {
      const entry = element("span", "");
      entry.append(element("span", "", `swatch ${phase}`), PHASE_NAMES[i]);
      return entry;
    }));
  }

  show() {
    const view = this.view;
    const find = (selector) => this.root.querySelector(selector);
    find("h2").textContent = `job \u201c${view.name}\u201d`;
    find(".progress").textContent = this._progress();
    show(find(".verdict"), this._verdict());
    find(".verdict").classList.toggle("slow", view.slow && view.ended === undefined);
    show(find(".waits"), this._waits());
    find("tbody").replaceChildren(...this._rows());
    const steps = view.steps;
    this._steps.update(steps.times, [{name: "steps/s", values: steps.values, number: 0}],
                       view.events);
    this._showLags();
    this._showPoints(find("figure.loss"), this._loss, view.losses);
    this._showPoints(find(".scores"), this._scores, view.scores);
    find(".legend.phases").hidden = !view.workers.some((worker) => worker.shares !== undefined);
    find(".events").replaceChildren(...this._newestEvents().map(
        (event) => element("li", `${clockTime(event.at)} ${event.text}`)));
    find(".marks").hidden = !view.events.some(({kind}) => kind === "checkpoint");
  }

  // The newest events first. Of the checkpoints, which may be many, only the last one.
  _newestEvents() {
    const {events} = this.view;
    const last = events.findLast(({kind}) => kind === "checkpoint");
    return events.filter((event) => event.kind !== "checkpoint" || event === last)
        .slice(-MOST_EVENTS_SHOWN).reverse();
  }

  // Shows curves of points in a chart, and hides the chart if there are none.
  _showPoints(figure, chart, curves) {
    figure.hidden = curves.length === 0;
    const {times, values} = align(curves.map(({points}) => points));
    chart.update(times, curves.map(({name}, i) => ({
      name, values: values[i], number: i, spansGaps: true,
    })), this.view.events);
  }

  // The lags are known since the page was opened. The chart begins earlier, so that it has the events
  // of this time.
  _showLags() {
    const {times, recent, events} = this.view;
    if (!(recent < times[0])) return this._lags.update(times, this._curves(), events);
    this._lags.update([recent, ...times], this._curves().map((curve) => (
        {...curve, values: [null, ...curve.values]})), events);
  }

  _progress() {
    const view = this.view;
    if (view.ended !== undefined) {
      return `This job is not on this server any more. It was last seen before ` +
          `${clockTime(view.ended)}.`;
    }
    const parts = [`generation ${view.generation}`,
                   `epoch ${view.epoch} of ${view.worldSize} workers`];
    const losses = view.workers.flatMap(({loss}) => loss ?? []);
    if (losses.length > 0) {
      parts.push(`loss ${score(losses.reduce((sum, loss) => sum + loss / losses.length, 0))}`);
    }
    if (view.group !== undefined) {
      parts.push(`group \u201c${view.group.name}\u201d: step ${view.group.open_round} is open`);
      if (view.stepsPerSecond !== undefined) parts.push(`${number(view.stepsPerSecond)} steps/s`);
      const chunks = view.group.chunks;
      parts.push(chunks === 1 ? "1 chunk is here" : `${chunks} chunks are here`);
      const late = Number(view.group.late_contributions);
      if (late > 0) parts.push(`${late} late contributions`);
    }
    const checkpoints = view.checkpoints;
    if (Number(checkpoints?.written ?? 0) > 0) {
      parts.push(`last checkpoint after step ${checkpoints.last_step}`);
    }
    if (Number(checkpoints?.failed ?? 0) > 0) {
      parts.push(`${checkpoints.failed} checkpoints failed: ${checkpoints.last_error}`);
    }
    return parts.join(" \u00b7 ");
  }

  // Returns a sentence about the slowest worker.
  _verdict() {
    const {workers, slow, slowsJob, stepsPerSecond, ended} = this.view;
    if (ended !== undefined || workers.length === 0) return "";
    const first = workers[0];
    if (!slow) {
      return workers.some((worker) => worker.lag !== undefined) ?
          "No worker arrives much later than the others." : "";
    }
    if (first.lag === undefined) {
      return `${first.name} is behind: its newest step is ${first.step}.`;
    }
    if (first.isWaitedFor) {
      return `${first.name} is last: the others have waited for it for ${duration(first.lag)}.`;
    }
    let text = `${first.name} arrives last, ${duration(first.lag)} after the first worker`;
    if (stepsPerSecond > 0) {
      text += `; ${percent(Math.min(1, first.lag / 1000 * stepsPerSecond))} of a step`;
    }
    return text + (slowsJob ? ". It slows down the job." : ".");
  }

  // Returns sentences about what the oldest open round of each group waits for, as the server
  // reports them; for a moment it has none.
  _waits() {
    const {group, workers, waits, ended} = this.view;
    if (ended === undefined && waits.length > 0) {
      return waits.map((text) => `${text[0].toUpperCase()}${text.slice(1)}.`).join("\n");
    }
    const waited = Number(group?.oldest_open_ms ?? 0);
    if (ended !== undefined || waited < LONG_WAIT_MS) return "";
    const behind = workers.filter((worker) => worker.isBehind);
    const text = `Step ${group.open_round} has been open for ${duration(waited)}`;
    if (behind.length === 0) return `${text}; every worker has contributed to it.`;
    const named = behind.slice(0, 5).map((worker) => `${worker.name} (newest step ${worker.step})`);
    if (behind.length > 5) named.push(`${behind.length - 5} more`);
    return `${text}; it waits for ${named.join(", ")}.`;
  }

  _rows() {
    const {workers, slow, left} = this.view;
    const longest = Math.max(1, ...workers.map((worker) => worker.lag ?? 0));
    return [...workers.map((worker, i) => this._row(worker, longest, slow && i === 0)),
            ...left.map((worker) => this._row({...worker, gone: true, lag: undefined}, longest,
                                              false))];
  }

  _row(worker, longest, isSlowest) {
    const row = element("tr", "", isSlowest ? "slowest" : worker.gone ? "gone" : "");
    row.append(element("td", worker.rank ?? "\u2013", "number rank"));
    const name = row.appendChild(element("td", "", "worker"));
    name.append(element("span", worker.name, "name"));
    let mark = "";
    if (isSlowest) mark = "slowest";
    else if (worker.gone) mark = worker.what ?? "is gone";
    else if (worker.follows) mark = "has no more data";
    else if (worker.rank === undefined) mark = "is joining";
    if (mark !== "") name.append(" ", element("span", mark, "mark"));
    row.append(element("td", worker.host, "host"), element("td", worker.device, "device"),
               element("td", worker.step, "number"),
               element("td", worker.loss === undefined ? "" : score(worker.loss), "number loss"));
    const silent = worker.gone && worker.at !== undefined ? `at ${clockTime(worker.at)}` :
        worker.silentMs === undefined ? "" : duration(worker.silentMs);
    row.append(element("td", silent, "number"));
    const lag = row.appendChild(element("td", "", "lag"));
    if (worker.lag !== undefined) {
      lag.append(element("span", duration(worker.lag)));
      const bar = lag.appendChild(element("div", "", "bar"));
      bar.style.width = `${(worker.lag / longest * 100).toFixed(1)}%`;
    }
    row.append(this._times(worker));
    return row;
  }

  // Returns the cell with the bar of what the worker does with its time.
  _times({shares, gone}) {
    const cell = element("td", "", "times");
    if (shares === undefined || gone) return cell;
    const texts = shares.map((share, i) => `${PHASE_NAMES[i]} ${percent(share)}`);
    cell.append(element("span", `${texts[1]}, ${texts[3]}`, "text"));
    const bar = cell.appendChild(element("div", "", "phases"));
    bar.title = texts.join(", ");
    bar.role = "img";
    bar.ariaLabel = bar.title;
    shares.forEach((share, i) => {
      const part = bar.appendChild(element("div", "", PHASES[i]));
      part.style.width = `${(share * 100).toFixed(2)}%`;
      // Tests read these.
      bar.dataset[PHASES[i]] = share.toFixed(4);
    });
    return cell;
  }

  // The curves of the workers with the longest lags, in the order of their names.
  _curves() {
    const total = (values) => values.reduce((sum, value) => sum + (value ?? 0), 0);
    const all = [...this.view.lags];
    if (all.length > MOST_CURVES) {
      all.sort((a, b) => total(b[1]) - total(a[1]));
      all.length = MOST_CURVES;
    }
    all.sort((a, b) => a[0].localeCompare(b[0], undefined, {numeric: true}));
    for (const [name] of all) {
      if (!this._numbers.has(name)) this._numbers.set(name, this._numbers.size);
    }
    return all.map(([name, values]) => ({name, values, number: this._numbers.get(name)}));
  }
}

const keyOf = ({job, generation}) => JSON.stringify([job, generation]);

class Page {
  constructor() {
    this._sections = new Map();
    this._moreAt = -Infinity;
    // By how many seconds this browser's clock is ahead of the server's.
    this._ahead = 0;
    this._lastSeen = undefined;
    this._failedSince = undefined;
    this._before = undefined;
    // By the index of a server: its newest report of its load, and the one before.
    this._loads = new Map();
  }

  show(status) {
    const now = Date.now() / 1000;
    const server = status.server;
    const uptime = Number(server.uptime_ms) / 1000;
    this._lastSeen = now;
    this._ahead = now - Number(server.date_ms) / 1000;
    this._failedSince = undefined;
    show(byId("unreachable"), "");
    this._showServer(status, uptime);
    const open = new Set();
    for (const job of status.jobs) {
      const key = keyOf(job);
      open.add(key);
      if (!this._sections.has(key)) {
        this._sections.set(key, new JobSection(job));
        byId("jobs").append(this._sections.get(key).root);
      }
      this._sections.get(key).view.add(job, now, uptime);
    }
    for (const [key, section] of this._sections) {
      if (!open.has(key)) section.view.ended ??= now;
      if (section.view.ended < now - ENDED_SHOWN) {
        section.root.remove();
        this._sections.delete(key);
      } else {
        section.show();
      }
    }
    byId("no-jobs").hidden = status.jobs.length > 0;
    if (status.jobs.length > 0) this._readMore();
  }

  // Reads the curves of all jobs and the log if it is time. The next status shows them. If they
  // cannot be read, the ones before remain.
  async _readMore() {
    if (Date.now() < this._moreAt + MORE_MS) return;
    this._moreAt = Infinity;
    try {
      const curves = await readJson("curves.json");
      for (const job of curves.jobs) {
        this._sections.get(keyOf(job))?.view.setCurves(job, Date.now() / 1000);
      }
      const log = await readJson("log.json");
      for (const section of this._sections.values()) {
        if (section.view.ended === undefined) section.view.setLog(log.events, this._ahead);
      }
    } catch {
      // The next status shows whether the server is unreachable.
    }
    this._moreAt = Date.now();
  }

  // Shows that the status could not be read; `why` is for people.
  showFailure(why) {
    const now = Date.now() / 1000;
    this._failedSince ??= now;
    const seconds = (now - this._failedSince).toFixed(0);
    let text = `This server has been unreachable since ${clockTime(this._failedSince)} ` +
        `(${seconds} s): ${why}.`;
    if (this._lastSeen !== undefined) {
      text += ` The values below are those of ${clockTime(this._lastSeen)}.`;
    }
    show(byId("unreachable"), text);
    for (const section of this._sections.values()) {
      if (section.view.ended === undefined) section.view.addGap(now);
    }
  }

  _showServer(status, uptime) {
    const server = status.server;
    const isCoordinator = status.server_index === 0;
    const title = `ps-server ${status.server_index}${isCoordinator ? ", the coordinator" : ""}`;
    document.title = title;
    byId("title").textContent = title;
    const parts = [`up ${duration(uptime * 1000)}`];
    if (server.draining) parts.push("refuses new jobs");
    if (!server.coordinator_reached) parts.push("has no connection to the coordinator");
    byId("summary").textContent = parts.join(" \u00b7 ");
    show(byId("coordinator"), isCoordinator ? "" :
        "Hosts, heartbeats, joins and drops of workers are known to the coordinator only. It is " +
        `server 0, which listens for workers on ${server.coordinator}. Its page is at the ` +
        "address of its own --metrics.");
    byId("servers").hidden = false;
    this._showFacts(server);
    this._showPaths(server, uptime);
    byId("known").hidden = server.servers.length < 2;
    byId("known-servers").replaceChildren(...server.servers.map((one) => {
      const row = element("tr", "");
      const state = one.index === status.server_index ? "this server" :
          one.connected ? "connected" : one.address === "" ? "has never connected" :
          "not connected";
      row.append(element("td", one.index), element("td", one.address || "\u2013"),
                 element("td", state), ...this._loadOf(one).map((text) => element("td", text)));
      return row;
    }));
  }

  // Returns texts: the memory of a server, and what it has received and sent each second between
  // its last two reports.
  _loadOf(server) {
    if (server.load === undefined) return ["\u2013", "", ""];
    const load = {
      uptime: Number(server.load.uptime_ms) / 1000,
      received: Number(server.load.received_bytes),
      sent: Number(server.load.sent_bytes),
    };
    const seen = this._loads.get(server.index) ?? {};
    if (seen.newest?.uptime !== load.uptime) {
      this._loads.set(server.index, {before: seen.newest, newest: load});
    }
    const {before, newest} = this._loads.get(server.index);
    const rate = (way) => {
      const passed = before === undefined ? 0 : newest.uptime - before.uptime;
      return passed > 0 ? `${bytes((newest[way] - before[way]) / passed)}/s` : "";
    };
    const memory = Number(server.load.memory_bytes);
    return [`${bytes(memory)} of ${bytes(memory + Number(server.load.memory_free_bytes))}`,
            rate("received"), rate("sent")];
  }

  _showFacts(server) {
    const memory = Number(server.memory_bytes);
    const facts = [
      ["connections", `${server.connections} of ${server.max_connections}`],
      ["memory", `${bytes(memory)} of ${bytes(memory + Number(server.memory_free_bytes))}`],
    ];
    if (server.state_directory !== "") {
      facts.push(["state", `${server.state_directory}, ${bytes(Number(server.state_free_bytes))} ` +
                           "free"]);
    }
    byId("facts").replaceChildren(...facts.map(([name, value]) => {
      const row = element("tr", "");
      row.append(element("th", name), element("td", value));
      return row;
    }));
  }

  _showPaths(server, uptime) {
    const counts = new Map();
    for (const way of ["received", "sent"]) {
      for (const {path, bytes} of server[way]) {
        const key = `${way} ${path}`;
        counts.set(key, (counts.get(key) ?? 0) + Number(bytes));
      }
    }
    const before = this._before;
    this._before = {counts, uptime};
    const rate = (key) => {
      const passed = before === undefined ? 0 : uptime - before.uptime;
      const more = (counts.get(key) ?? 0) - (before?.counts.get(key) ?? 0);
      return passed > 0 && more >= 0 ? `${bytes(more / passed)}/s` : "";
    };
    byId("paths").replaceChildren(...[...new Set(server.received.map(({path}) => path))].map((path) => {
      const row = element("tr", "");
      row.append(element("td", path.replaceAll("_", " ")), element("td", rate(`received ${path}`)),
                 element("td", rate(`sent ${path}`)));
      return row;
    }));
  }
}

// Reads a page that is JSON. Throws an Error with the reason if it cannot be read.
async function readJson(path) {
  let answer;
  try {
    answer = await fetch(path, {signal: AbortSignal.timeout(TIMEOUT_MS)});
  } catch (error) {
    throw new Error(error.name === "TimeoutError" ?
        `it has not answered within ${duration(TIMEOUT_MS)}` : "the connection fails");
  }
  if (!answer.ok) throw new Error(`it answers ${answer.status}`);
  try {
    return await answer.json();
  } catch {
    throw new Error("its answer ends too early");
  }
}

// Shows the server's events. Returns when the server refuses the stream or ends it, or when no event
// has arrived for TIMEOUT_MS.
function followEvents(page) {
  return new Promise((resolve) => {
    const source = new EventSource("events");
    let timer = undefined;
    const end = () => {
      clearTimeout(timer);
      source.close();
      resolve();
    };
    const awaitNext = () => {
      clearTimeout(timer);
      timer = setTimeout(end, TIMEOUT_MS);
    };
    source.onmessage = ({data}) => {
      awaitNext();
      page.show(JSON.parse(data));
    };
    source.onerror = end;
    awaitNext();
  });
}

async function poll(page) {
  let status;
  try {
    status = await readJson("status.json");
  } catch (error) {
    page.showFailure(error.message);
  }
  if (status !== undefined) page.show(status);
}

const page = new Page();
for (;;) {
  // Tests read this.
  document.documentElement.dataset.source = "events";
  await followEvents(page);
  document.documentElement.dataset.source = "polls";
  const end = Date.now() + EVENTS_RETRY_MS;
  while (Date.now() < end) {
    await poll(page);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
