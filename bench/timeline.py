"""A part of a timeline that `psctl trace` has written, as a picture for people: what one worker
computes in a step and in the next one, and when the gradients and the results of each layer travel.
"""

import bisect
import json
import re


class Trace:
    """The spans of a trace. Times are in milliseconds."""

    def __init__(self, path):
        with open(path) as file:
            events = json.load(file)["traceEvents"]
        processes = {event["pid"]: event["args"]["name"] for event in events
                     if event["ph"] == "M" and event["name"] == "process_name"}
        self.spans = []
        open_spans = {}
        for event in events:
            # Spans that overlap with others of their thread have a begin and an end.
            if event["ph"] in ("X", "b"):
                span = {"process": processes[event["pid"]], "name": event["name"],
                        "begin": event["ts"] / 1e3,
                        "end": (event["ts"] + event.get("dur", 0)) / 1e3,
                        **event.get("args", {})}
                self.spans.append(span)
                if event["ph"] == "b":
                    open_spans[event["id"]] = span
            elif event["ph"] == "e":
                open_spans[event["id"]]["end"] = event["ts"] / 1e3
        self.spans.sort(key=lambda span: span["begin"])

    def of(self, process, *names):
        """The spans of a process whose name begins with one of the names."""
        return [span for span in self.spans
                if span["process"].startswith(process) and span["name"].startswith(names)]

    def typical_step(self, worker):
        """Returns two consecutive steps that together last as long as the median pair."""
        steps = [span for span in self.of(worker, "step") if "step" in span]
        pairs = sorted(zip(steps, steps[1:]), key=lambda pair: pair[1]["end"] - pair[0]["begin"])
        return pairs[len(pairs) // 2]


def chunk_layers(trace, worker):
    """Returns the layer of each chunk: that of the tensor whose push completes the chunk."""
    tensors = trace.of(worker, "push ")
    begins = [span["begin"] for span in tensors]
    layers = {}
    for push in trace.of(worker, "push"):
        if "chunk" in push:
            tensor = tensors[bisect.bisect_right(begins, push["begin"]) - 1]["name"]
            layers[push["chunk"]] = layer_of(tensor)
    return layers


def layer_of(name):
    """Returns the number in the name of a layer: 3 for "push dense3/kernel"."""
    return int(re.search(r"\w*?(\d+)(/\w+)?$", name)[1])


def picture_of(trace):
    """Returns what results.draw needs for a picture from a backward pass to the next one."""
    worker = "worker 0"
    step, following = trace.typical_step(worker)
    layers = chunk_layers(trace, worker)
    begin = min(span["begin"] for span in trace.of(worker, "backward")
                if span["begin"] >= step["begin"])
    end = min((span["begin"] for span in trace.of(worker, "backward")
               if span["begin"] >= following["begin"]), default=following["end"])

    def bars(spans, label):
        return [{"x": span["begin"] - begin, "width": span["end"] - span["begin"],
                 "colour": layers[span["chunk"]] if "chunk" in span else layer_of(span["name"]),
                 "label": label(span)}
                for span in spans if span["end"] > begin and span["begin"] < end]

    def by_layer(letter):
        return lambda span: f"{letter}{layer_of(span['name'])}"

    def of_chunk(span):
        return str(layers[span["chunk"]])

    def chunks(process, name):
        return [span for span in trace.of(process, name)
                if span["name"] == name and span.get("chunk") in layers]

    def computes(process):
        waits = [{"x": span["begin"] - begin, "width": span["end"] - span["begin"]}
                 for span in trace.of(process, "wait for ")
                 if span["end"] > begin and span["begin"] < end]
        return {"name": f"{process}\ncomputes", "waits": waits,
                "bars": (bars(trace.of(process, "backward"), by_layer("B")) +
                         bars(trace.of(process, "forward"), by_layer("F")))}

    rows = [computes(worker),
            {"name": f"{worker}\npushes", "bars": bars(chunks(worker, "push"), of_chunk)}]
    servers = sorted({span["process"] for span in trace.spans
                      if span["process"].startswith("server")})
    for server in servers:
        rows.append({"name": f"{server}\nrounds", "stacked": True,
                     "bars": bars(chunks(server, "round"), of_chunk)})
    rows.append({"name": f"{worker}\nresults", "bars": bars(chunks(worker, "result"), of_chunk)})
    rows.append(computes("worker 1"))
    return {"rows": rows, "length": end - begin,
            "mark": {"x": following["begin"] - begin,
                     "before": f"step {step['step']}", "after": f"step {following['step']}"}}
