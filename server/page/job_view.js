// What the page shows of one job: its workers, slowest first, and its curves. The rules
// are those of `psctl top` (client/psctl/job_view.cc) and of the alert SyncgradsStraggler
// (deploy/monitoring/rules.yml).

// In seconds: what is kept, over which time steps per second are averaged, and the alert's window.
export const KEPT = 600;
const RATE_WINDOW = 5;
const ALERT_WINDOW = 300;

const shortened = (name) => name.length > 20 ? name.slice(0, 19) + "\u2026" : name;
const came = {look: "joined", label: ({worker}) => `+ ${shortened(worker)}`};
const went = {look: "fault", label: ({worker}) => `\u2212 ${shortened(worker)}`};
const fault = (label) => ({look: "fault", label: () => label});
// How the time axis shows an event, by the event's kind (docs/psctl.md). A checkpoint has no label.
const MARKS = new Map([
  ["joined", came], ["left", went], ["dropped", went], ["evicted", went],
  ["epoch", {look: "epoch", label: ({text}) => /epoch \d+/.exec(text)?.[0] ?? "epoch"}],
  ["checkpoint", {look: "checkpoint", label: () => ""}],
  ["checkpoint_failed", fault("checkpoint failed")],
  ["learning_rate", {look: "epoch", label: () => "learning rate"}],
  ["waiting", fault("waits for workers")], ["stalled", fault("stalled")],
  ["non_finite", fault("not finite")], ["server_lost", fault("server lost")],
  ["server_connected", {look: "joined", label: () => "server connected"}],
  ["restored", fault("server 0 was started again")],
]);
// Of events that concern the server, those that are shown with every job.
const OF_SERVERS = ["server_lost", "server_connected"];

// The client library begins the names of the groups that it makes with these.
const NOT_TRAINING = ["all_gather/", "all_reduce/", "all_reduce_with/", "barrier/", "broadcast/",
                      "broadcast_all/", "reduce/", "state/"];

const isCollective = (group) => NOT_TRAINING.some((prefix) => group.name.startsWith(prefix));

// Returns the group of the model: of the groups that are no collectives, the one in which most
// rounds have closed. Returns undefined if the job has no group.
export function trainingGroup(groups) {
  const key = (group) => [isCollective(group) ? 0 : 1, Number(group.rounds_closed), group.chunks];
  const isLess = (a, b) => {
    const differs = a.findIndex((value, i) => value !== b[i]);
    return differs >= 0 && a[differs] < b[differs];
  };
  return groups.reduce(
      (best, group) => best === undefined || isLess(key(best), key(group)) ? group : best,
      undefined);
}

// The phases of a step, in the order in which a bar shows them: the fields of StepTimes.
export const PHASES = ["read", "compute", "push", "wait", "apply"];

function countsOf(histogram) {
  return {
    count: (histogram?.counts ?? []).reduce((sum, count) => sum + Number(count), 0),
    sumUs: Number(histogram?.sum_us ?? 0),
  };
}

// Whether the others wait for a worker: not for one that is not in the epoch, follows or is gone.
const isAwaited = (worker) => worker.rank !== undefined && !worker.follows && !worker.gone;

// Whether the open round of a group waits for a worker: all members share the group's rounds, and
// the worker has not contributed.
function waitsFor(group, worker) {
  const own = group.contributors.find((one) => one.member === worker.member);
  return group.open_chunks > 0 && isAwaited(worker) &&
      group.contributors.some((one) => countsOf(one.arrival_lag).count > 0) &&
      Number(own?.round ?? 0) < Number(group.open_round);
}

// Moves the workers that the others wait for longest to the front: by lag, or, if no lag is known,
// by step. Returns whether the first one is slow: its lag is at least 1 ms and more than twice that
// of the next one, or it is behind in its step.
export function sortSlowestFirst(workers) {
  const anyLag = workers.some((worker) => worker.lag !== undefined);
  const lag = (worker) => worker.lag ?? -1;
  workers.sort((a, b) => {
    if (isAwaited(a) !== isAwaited(b)) return isAwaited(a) ? -1 : 1;
    if (anyLag && lag(a) !== lag(b)) return lag(b) - lag(a);
    return a.step - b.step;
  });
  if (workers.length < 2 || !isAwaited(workers[0]) || !isAwaited(workers[1])) return false;
  if (anyLag) return lag(workers[0]) >= 1 && lag(workers[0]) > 2 * lag(workers[1]);
  return workers[0].step < workers[1].step;
}

// The mean of the numbers of a list; undefined if it has none.
function mean(values) {
  const numbers = values.filter((value) => value !== null && value !== undefined);
  if (numbers.length === 0) return undefined;
  return numbers.reduce((sum, value) => sum + value, 0) / numbers.length;
}

// The points of a score in a list of validations.
const pointsOf = (validation, name) => validation.flatMap(({at, scores}) =>
    scores.filter((score) => score.name === name).map(({value}) => ({at, value})));

// Returns the points of the steps per second. While no step is made, the server keeps one point: the
// curve stays at 0 until the next one.
function ratesOf(training) {
  const points = [];
  for (const {at, rate} of training) {
    const before = points.at(-1);
    if (before?.value === 0 && at - before.at > 2) points.push({at: at - 1, value: 0});
    points.push({at, value: rate});
  }
  return points;
}

export class JobView {
  constructor(job) {
    this.name = job.job;
    this.generation = job.generation;
    // When the job was not in the status any more, in seconds since 1970.
    this.ended = undefined;
    // One element for each poll: when it was, the server's uptime, and what was seen. A null is a
    // gap in a curve.
    this.times = [];
    this.rates = [];
    // By the name of a worker: its lag, and the mean lag of what has arrived.
    this.lags = new Map();
    this._means = new Map();
    // What the log has about the job since it was opened: when it was (in seconds since 1970), the
    // line, the kind, and the mark on the time axis.
    this.events = [];
    this.workers = [];
    this.slow = false;
    // The mean loss of the members, and their validations, since the job was opened. And the steps
    // per second that the server has kept.
    this.training = [];
    this._history = [];
    // Sentences about what open rounds wait for.
    this.waits = [];
    this._validation = [];
    this._timesBefore = new Map();
    this._lagsBefore = new Map();
    this._opens = [];
    this._members = undefined;
    this._left = [];
    this._drops = new Map();
  }

  // Takes the job of a new status. `now` is in seconds since 1970; `uptime` is that of the server,
  // in seconds.
  add(job, now, uptime) {
    this.ended = undefined;
    this.epoch = Number(job.epoch?.number ?? 0);
    this.worldSize = job.epoch?.members?.length ?? 0;
    this.checkpoints = job.checkpoints;
    this.joins = Number(job.joins ?? 0);
    this.waits = job.waits ?? [];
    this.group = trainingGroup(job.groups);
    this.workers = this._workersOf(job);
    this._compareMembers(job, now);
    const stepsPerSecond = this._stepsPerSecond(uptime);
    this.stepsPerSecond = stepsPerSecond;
    for (const worker of this.workers) {
      this._addLag(worker, job.groups);
      this._addShares(worker);
    }
    this.slow = sortSlowestFirst(this.workers);
    this._record(now, stepsPerSecond);
    this.slowsJob = this.slow && this._isStraggler(this.workers[0].name, now);
    this.left = this._left;
  }

  // Takes the job's curves: a JobCurves message that was read at `now`.
  setCurves(curves, now) {
    const at = (point) => now - Number(point.age_ms) / 1000;
    // A point without a loss has NaN, which is text in JSON.
    this.training = curves.training.filter(({loss}) => Number.isFinite(loss))
        .map((point) => ({at: at(point), value: point.loss}));
    this._history = ratesOf(curves.training.map((point) =>
        ({at: at(point), rate: point.steps_per_second ?? 0})));
    this._validation = curves.validation.map((point) =>
        ({at: at(point), scores: point.validation.scores}));
  }

  // Takes the events of a server, oldest first. `ahead`: by how many seconds the clock of this
  // browser is ahead of the server's.
  setLog(events, ahead) {
    const own = events.filter(({kind, job}) =>
        job === this.name || (job === "" && OF_SERVERS.includes(kind)));
    const opened = own.findLastIndex(({kind}) => kind === "opened");
    this.events = own.slice(Math.max(opened, 0)).map((event) => {
      const mark = MARKS.get(event.kind);
      return {at: Number(event.date_ms) / 1000 + ahead, text: event.text, kind: event.kind,
              look: mark?.look, label: mark?.label(event)};
    });
  }

  // The steps per second since the job was opened: those that the server has kept, and from the first
  // poll on those that were seen. A null is a gap.
  get steps() {
    // The first poll may have none.
    const seen = Math.max(0, this.rates.findIndex((rate) => rate !== null));
    const before = this._history.filter(({at}) => at < (this.times[seen] ?? Infinity));
    return {
      times: [...before.map(({at}) => at), ...this.times.slice(seen)],
      values: [...before.map(({value}) => value), ...this.rates.slice(seen)],
    };
  }

  // When the charts of the last ten minutes begin: at the first point that is known of this time.
  get recent() {
    const from = (this.times.at(-1) ?? 0) - KEPT;
    return Math.min(this.times[0] ?? 0, this._history.find(({at}) => at >= from)?.at ?? Infinity);
  }

  // The curves of the loss, each with its name and its points; without those that have no points.
  get losses() {
    return [{name: "training", points: this.training},
            {name: "validation", points: pointsOf(this._validation, "loss")}]
        .filter(({points}) => points.length > 0);
  }

  // The curves of the other scores of the validations.
  get scores() {
    const names = new Set(this._validation.flatMap(({scores}) => scores.map(({name}) => name)));
    names.delete("loss");
    return [...names].map((name) => ({name, points: pointsOf(this._validation, name)}));
  }

  // Ends the curves here: the status could not be read.
  addGap(now) {
    if (this.times.length > 0 && this.rates.at(-1) === null) return;
    this.workers = this.workers.map((worker) => ({...worker, lag: undefined, mean: undefined}));
    this._record(now, undefined);
  }

  _workersOf(job) {
    if (job.members.length > 0) {
      return job.members.map((member) => ({
        member: member.member, name: member.name, host: member.host, rank: member.rank,
        silentMs: Number(member.silent_ms), leaseMs: Number(member.lease_ms),
        follows: member.follows, gone: member.gone, step: 0,
        device: member.figures?.device ?? "", loss: member.figures?.loss,
        times: member.figures?.times}));
    }
    // A server that is not the coordinator reports the names only.
    return (job.epoch?.members ?? []).map((member, rank) => ({
      member: member.member, name: member.name, host: "", rank, follows: false, gone: false,
      step: 0, device: ""}));
  }

  _stepsPerSecond(uptime) {
    if (this.group === undefined || this.group.chunks === 0) return undefined;
    // What the server has counted, until there are two polls.
    const counted = this.group.rounds_per_second > 0 ? this.group.rounds_per_second : undefined;
    const open = Number(this.group.open_round);
    const last = this._opens.at(-1);
    const isNewSeries = last !== undefined &&
        (last.group !== this.group.group || last.open > open || last.uptime > uptime);
    if (isNewSeries) this._opens = [];
    this._opens.push({group: this.group.group, open, uptime});
    while (this._opens.length > 2 && this._opens[1].uptime <= uptime - RATE_WINDOW) {
      this._opens.shift();
    }
    const first = this._opens[0];
    if (uptime <= first.uptime) return counted;
    return (open - first.open) / (uptime - first.uptime);
  }

  // Sets the worker's step and its lag in milliseconds: the mean of what has arrived since the poll
  // before. If nothing has, the last mean remains. A worker that the open step or a collective
  // waits for has at least the time of this wait.
  _addLag(worker, groups) {
    const group = this.group;
    const now = group?.contributors.find((one) => one.member === worker.member);
    if (group === undefined || group.chunks === 0) return;
    worker.step = Number(now?.round ?? 0);
    const before = this._lagsBefore.get(worker.member);
    const counts = countsOf(now?.arrival_lag);
    let {count, sumUs} = counts;
    const goesOn = before?.group === group.group && before.count <= count && before.sumUs <= sumUs;
    if (goesOn) {
      count -= before.count;
      sumUs -= before.sumUs;
    }
    worker.lag = count > 0 ? sumUs / count / 1000 : goesOn ? before.lag : undefined;
    worker.mean = worker.lag;
    this._lagsBefore.set(worker.member, {group: group.group, ...counts, lag: worker.lag});
    worker.isBehind = waitsFor(group, worker);
    for (const one of groups) {
      const waited = Number(one.oldest_open_ms);
      if (one !== group && !isCollective(one)) continue;
      if (waitsFor(one, worker) && waited > (worker.lag ?? 0)) {
        worker.lag = waited;
        worker.isWaitedFor = true;
      }
    }
  }

  // Sets the parts of its time that the worker was in each phase, in the order of PHASES, since the
  // report before. If there is no new report, the last parts remain.
  _addShares(worker) {
    if (worker.times === undefined) return;
    const times = PHASES.map((phase) => Number(worker.times[`${phase}_us`] ?? 0));
    const before = this._timesBefore.get(worker.member);
    const goesOn = before !== undefined && times.every((time, i) => time >= before.times[i]);
    const passed = times.map((time, i) => goesOn ? time - before.times[i] : time);
    const sum = passed.reduce((total, time) => total + time, 0);
    worker.shares = sum > 0 ? passed.map((time) => time / sum) : goesOn ? before.shares : undefined;
    this._timesBefore.set(worker.member, {times, shares: worker.shares});
  }

  // Remembers the members that have gone since the poll before.
  _compareMembers(job, now) {
    const members = new Map(
        this.workers.filter((worker) => !worker.gone).map((worker) => [worker.member, worker]));
    const drops = new Map((job.drops ?? []).map((drop) => [drop.reason, Number(drop.count)]));
    if (this._members !== undefined) {
      const gone = [...this._members.values()].filter((worker) => !members.has(worker.member));
      const reasons = [...drops].filter(
          ([reason, count]) => count > (this._drops.get(reason) ?? 0));
      const dropped = reasons.reduce(
          (sum, [reason, count]) => sum + count - (this._drops.get(reason) ?? 0), 0);
      const why = reasons.map(([reason]) => reason).join(", ");
      for (const worker of gone) {
        let what = "was dropped or has left";
        if (job.members.length === 0) what = "is not in the epoch any more";
        else if (dropped === 0) what = "has left";
        else if (dropped >= gone.length) what = `was dropped (${why})`;
        this._left.push({...worker, at: now, what});
      }
    }
    const returned = new Set([...members.values()].map((worker) => worker.name));
    this._left = this._left.filter((one) => one.at > now - KEPT && !returned.has(one.name));
    this._members = members;
    this._drops = drops;
  }

  _record(now, stepsPerSecond) {
    const length = this.times.length;
    this.times.push(now);
    this.rates.push(stepsPerSecond ?? null);
    for (const worker of this.workers) {
      if (worker.gone) continue;
      for (const [curves, value] of [[this.lags, worker.lag], [this._means, worker.mean]]) {
        if (!curves.has(worker.name)) curves.set(worker.name, Array(length).fill(null));
        curves.get(worker.name)[length] = value ?? null;
      }
    }
    for (const values of [...this.lags.values(), ...this._means.values()]) {
      if (values.length === length) values.push(null);
    }
    const old = this.times.findIndex((time) => time > now - KEPT);
    if (old <= 0) return;
    this.times.splice(0, old);
    this.rates.splice(0, old);
    for (const curves of [this.lags, this._means]) {
      for (const [name, values] of curves) {
        values.splice(0, old);
        if (values.every((value) => value === null)) curves.delete(name);
      }
    }
  }

  // Applies the rule of the alert to the last five minutes, or to the time since the page was
  // opened.
  _isStraggler(name, now) {
    const from = this.times.findIndex((time) => time > now - ALERT_WINDOW);
    const meanOf = (worker) => mean(this._means.get(worker)?.slice(from) ?? []);
    const own = meanOf(name);
    const others = mean(this.workers.filter((worker) => isAwaited(worker) && worker.name !== name)
                            .map((worker) => meanOf(worker.name)));
    const rate = mean(this.rates.slice(from));
    if (own === undefined || others === undefined || rate === undefined) return false;
    return own / 1000 * rate > 0.2 && own > 10 && own > 4 * others;
  }
}
