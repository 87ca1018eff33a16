// Reads a file of psctl trace with the reader of Chromium's developer tools, and prints as JSON what
// their panel "Performance" shows of it.
//
//   node timeline.mjs FOLDER TRACE    FOLDER has the packages of third_party/trace_engine
import fs from 'node:fs';
import path from 'node:path';
import {pathToFileURL} from 'node:url';

const [, , folder, file] = process.argv;
const engine = path.join(path.resolve(folder), '@paulirish/trace_engine');
const load = (name) => import(pathToFileURL(path.join(engine, name)));
const {polyfillDOMRect} = await load('analyze-trace.mjs');
const Trace = await load('models/trace/trace.js');

polyfillDOMRect();
const events = JSON.parse(fs.readFileSync(file)).traceEvents;
const model = Trace.TraceModel.Model.createWithAllHandlers();
await model.parse(events);
const {Flows, Meta, Renderer} = model.parsedTrace().data;

const nameOf = (pid) => Meta.processNames.get(pid).args.name;
// Of each thread, all spans, each with the names of those that it is in.
const threads = [];
for (const [pid, {threads: ofProcess}] of Renderer.processes) {
  for (const {name, tree} of ofProcess.values()) {
    const spans = [];
    const walk = (node, outer) => {
      const {name, ts, dur, args} = node.entry;
      spans.push({name, begin: ts, duration: dur, args, within: outer});
      for (const child of node.children) walk(child, [...outer, name]);
    };
    for (const root of tree.roots) walk(root, []);
    threads.push({process: nameOf(pid), thread: name, spans});
  }
}
// Spans that overlap, on tracks of their own.
const overlapping = Trace.Helpers.Trace.createMatchedSortedSyntheticEvents(
    events.filter(({ph}) => ph === 'b' || ph === 'e'));
console.log(JSON.stringify({
  threads,
  tracks: overlapping.map(({name, pid, ts, dur}) => (
      {name, process: nameOf(pid), begin: ts, duration: dur})),
  // The ends of arrows.
  arrows: Flows.flows.map((flow) => flow.map(({name, pid, ts}) => (
      {name, process: nameOf(pid), begin: ts}))),
}));
