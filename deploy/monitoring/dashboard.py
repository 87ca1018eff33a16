#!/usr/bin/env python3
"""Writes the Grafana dashboard of syncgrads to dashboard.json, beside this file.

With --check, only fails if the file is not what would be written. With --expressions, prints the
PromQL expression of each panel on one line: the panel's title, a tab, the expression.
"""

import json
import pathlib
import sys

FILE = pathlib.Path(__file__).resolve().with_name("dashboard.json")

# Each row has a title and its panels. Each panel has a title, a unit of Grafana, an explanation,
# and pairs of a PromQL expression and the legend of its lines.
ROWS = [
    ("Training", [
        ("Steps per second", "ops", "Rounds that close, divided by chunks.", [
            ("sum by (training_job, group) (rate(syncgrads_rounds_closed_total{$job}[$interval]))"
             " / (sum by (training_job, group) (syncgrads_chunks{$job}) > 0)",
             "{{training_job}} {{group}}")]),
        ("Loss", "none", "The loss of each worker's last batch.", [
            ("syncgrads_member_loss{$job}", "{{training_job}} {{member}}")]),
        ("Learning rate", "none", "The learning rate of the last step.", [
            ("max by (training_job) (syncgrads_member_learning_rate{$job})", "{{training_job}}")]),
        ("Samples per second", "ops", "Rows that the workers contribute.", [
            ("sum by (training_job) (rate(syncgrads_worker_samples_total{$job}[$interval]))",
             "{{training_job}}")]),
        ("Progress", "percentunit", "The last step, divided by the planned steps.", [
            ("max by (training_job) (syncgrads_worker_step{$job}"
             " / (syncgrads_worker_planned_steps{$job} > 0))",
             "{{training_job}}")]),
        ("Members", "none", "Members of the newest epoch.", [
            ("max by (training_job) (syncgrads_members{$job})", "{{training_job}}")]),
    ]),
    ("Who is slow?", [
        ("Arrival lag", "s",
         "The mean delay of each worker's contributions after the first one to the same round. The "
         "slow worker has the longest.", [
             ("sum by (training_job, group, member)"
              " (rate(syncgrads_member_arrival_lag_seconds_sum{$job}[$interval]))"
              " / (sum by (training_job, group, member)"
              " (rate(syncgrads_member_arrival_lag_seconds_count{$job}[$interval])) > 0)",
              "{{training_job}} {{group}} {{member}}")]),
        ("Arrival lag, 99th percentile", "s", "One in a hundred is later.", [
            ("histogram_quantile(0.99, sum by (training_job, group, member, le)"
             " (rate(syncgrads_member_arrival_lag_seconds_bucket{$job}[$interval])))",
             "{{training_job}} {{group}} {{member}}")]),
        ("Time that workers wait for results", "percentunit",
         "The part of its time that each worker waits for the servers. The slow one waits least.",
         [("rate(syncgrads_member_phase_seconds_total{$only, phase=\"wait\"}[$interval])",
           "{{training_job}} {{member}}")]),
        ("Time that workers wait for data", "percentunit",
         "The part of its time that each worker waits for its next batch.",
         [("rate(syncgrads_member_phase_seconds_total{$only, phase=\"read\"}[$interval])",
           "{{training_job}} {{member}}")]),
        ("Rounds behind", "none",
         "How far the newest contribution of each worker is behind that of the furthest.", [
             ("max by (training_job, group) (syncgrads_member_round{$job})"
              " - on (training_job, group) group_right ()"
              " max by (training_job, group, member) (syncgrads_member_round{$job})",
              "{{training_job}} {{group}} {{member}}")]),
        ("Time since the last heartbeat", "s", "A worker is dropped when its lease has passed.", [
            ("time() - syncgrads_member_last_heartbeat_timestamp_seconds{$job}",
             "{{training_job}} {{member}}")]),
    ]),
    ("Rounds", [
        ("Duration of rounds", "s",
         "From a round's first contribution until it closed: median and 99th percentile.", [
             ("histogram_quantile(0.5, sum by (training_job, group, le)"
              " (rate(syncgrads_round_duration_seconds_bucket{$job}[$interval])))",
              "{{training_job}} {{group}} median"),
             ("histogram_quantile(0.99, sum by (training_job, group, le)"
              " (rate(syncgrads_round_duration_seconds_bucket{$job}[$interval])))",
              "{{training_job}} {{group}} 99 %")]),
        ("Oldest open round", "s", "How long it has been open. It grows while a job is stalled.", [
            ("max by (training_job, group) (syncgrads_oldest_open_round_seconds{$job})",
             "{{training_job}} {{group}}")]),
        ("Open rounds", "none", "Rounds with contributions that are not closed.", [
            ("sum by (training_job, group) (syncgrads_open_rounds{$job})",
             "{{training_job}} {{group}}")]),
        ("Late contributions", "ops", "Contributions per second that are too late to count.", [
            ("max by (training_job, group)"
             " (rate(syncgrads_late_contributions_total{$job}[$interval]))",
             "{{training_job}} {{group}}")]),
        ("Contributions that are not finite", "ops",
         "Contributions per second in which an element is NaN or infinite, also of workers that have "
         "ended because of it.", [
             ("sum by (training_job, member)"
              " (rate(syncgrads_non_finite_contributions_total{$job}[$interval]))",
              "{{training_job}} {{member}}")]),
        ("Time since a round closed", "s", "It grows while a job is paused or stalled.", [
            ("time() - max by (training_job, group)"
             " (syncgrads_last_round_closed_timestamp_seconds{$job})",
             "{{training_job}} {{group}}")]),
    ]),
    ("Membership and checkpoints", [
        ("Epoch", "none", "The number of the newest epoch. It grows when members join or leave.", [
            ("max by (training_job) (syncgrads_epoch{$job})", "{{training_job}}")]),
        ("Joins", "none", "Workers that have joined the job.", [
            ("sum by (training_job) (syncgrads_joins_total{$job})", "{{training_job}}")]),
        ("Reconnections", "none", "Reconnections of workers, for example after a server's restart.", [
            ("sum by (training_job) (syncgrads_reconnects_total{$job})", "{{training_job}}")]),
        ("Dropped members", "none", "Members that the job has dropped, by the reason.", [
            ("sum by (training_job, reason) (syncgrads_members_dropped_total{$job})",
             "{{training_job}} {{reason}}")]),
        ("Checkpoints", "none", "Checkpoints that workers have reported.", [
            ("sum by (training_job, result) (syncgrads_checkpoints_total{$job})",
             "{{training_job}} {{result}}")]),
        ("Step of the last checkpoint", "none", "It is set once a checkpoint has been written.", [
            ("max by (training_job) (syncgrads_last_checkpoint_step{$job})", "{{training_job}}")]),
    ]),
    ("Servers", [
        ("Received payloads", "Bps", "Payloads of contributions, by their path.", [
            ("sum by (instance, path) (rate(syncgrads_received_bytes_total[$interval]))",
             "{{instance}} {{path}}")]),
        ("Sent payloads", "Bps", "Payloads of results, by their path.", [
            ("sum by (instance, path) (rate(syncgrads_sent_bytes_total[$interval]))",
             "{{instance}} {{path}}")]),
        ("Memory of jobs", "percentunit", "The memory that jobs take, and its limit.", [
            ("syncgrads_memory_bytes / (syncgrads_memory_limit_bytes > 0)", "{{instance}}")]),
        ("Space for the state", "bytes",
         "The files in the state directory, and the space that they may still take.", [
             ("syncgrads_state_bytes", "{{instance}} used"),
             ("syncgrads_state_free_bytes", "{{instance}} free")]),
        ("Free part of the state directory", "percentunit",
         "An alert is sent if less than 5 % of its file system is free.", [
             ("syncgrads_state_free_bytes / (syncgrads_state_filesystem_bytes > 0)",
              "{{instance}}")]),
        ("Recovery", "s",
         "The time from a server's start until a round of a job closed that it has read from its "
         "state; 0 if it has read none.", [
             ("syncgrads_recovery_duration_seconds", "{{instance}}")]),
        ("Starts", "none", "Starts on the state directory. They grow when a server is restarted.", [
            ("syncgrads_starts", "{{instance}}")]),
        ("Open connections", "percentunit", "Open connections, divided by their limit.", [
            ("syncgrads_connections / (syncgrads_max_connections > 0)", "{{instance}}")]),
        ("Connection to the coordinator", "none", "0 on a server that has none.", [
            ("syncgrads_coordinator_reached", "{{instance}}")]),
        ("Processors", "none", "Processors that each server uses.", [
            ("rate(process_cpu_seconds_total[$interval])"
             " and on (instance) syncgrads_build_info{program=\"ps-server\"}", "{{instance}}")]),
        ("Memory of the process", "bytes", "Resident memory, including shared memory.", [
            ("process_resident_memory_bytes"
             " and on (instance) syncgrads_build_info{program=\"ps-server\"}", "{{instance}}")]),
    ]),
]

SOURCE = {"type": "prometheus", "uid": "${source}"}
COLUMNS = 3
WIDTH, HEIGHT = 24 // COLUMNS, 8


def full(expression):
    """Returns an expression with the variables of the dashboard."""
    return (expression.replace("{$job}", "{$only}")
            .replace("$only", 'training_job=~"$training_job"')
            .replace("$interval", "$__rate_interval"))


def lines_of(lines):
    return [{"refId": chr(ord("A") + n), "datasource": SOURCE, "expr": full(expression),
             "legendFormat": legend, "range": True}
            for n, (expression, legend) in enumerate(lines)]


def panels():
    number = 0
    y = 0
    for row, contents in ROWS:
        number += 1
        yield {"id": number, "type": "row", "title": row, "collapsed": False, "panels": [],
               "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}}
        y += 1
        for i, (title, unit, explanation, lines) in enumerate(contents):
            number += 1
            yield {
                "id": number,
                "type": "timeseries",
                "title": title,
                "description": explanation,
                "datasource": SOURCE,
                "gridPos": {"x": i % COLUMNS * WIDTH, "y": y + i // COLUMNS * HEIGHT,
                            "w": WIDTH, "h": HEIGHT},
                "fieldConfig": {
                    "defaults": {"unit": unit, "custom": {"lineWidth": 1, "fillOpacity": 5,
                                                          "showPoints": "never"}},
                    "overrides": []},
                "options": {
                    "legend": {"displayMode": "list", "placement": "bottom", "calcs": []},
                    "tooltip": {"mode": "multi", "sort": "desc"}},
                "targets": lines_of(lines),
            }
        y += -(-len(contents) // COLUMNS) * HEIGHT


def dashboard():
    source = {"name": "source", "label": "Data source", "type": "datasource", "hide": 0,
              "query": "prometheus"}
    job = {"name": "training_job", "label": "Job", "type": "query", "hide": 0,
           "datasource": SOURCE,
           "query": {"query": "label_values(syncgrads_members, training_job)",
                     "refId": "training_job"},
           "refresh": 2, "sort": 1, "includeAll": True, "multi": True, "allValue": ".*",
           "current": {"text": "All", "value": "$__all"}}
    return {
        "uid": "syncgrads",
        "title": "syncgrads",
        "description": "Jobs, workers and servers of syncgrads.",
        "tags": ["syncgrads"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, job]},
        "annotations": {"list": []},
        "panels": list(panels()),
    }


def main():
    text = json.dumps(dashboard(), indent=1) + "\n"
    if sys.argv[1:] == ["--expressions"]:
        for _, contents in ROWS:
            for title, _, _, lines in contents:
                for expression, _ in lines:
                    print(f"{title}\t{full(expression)}")
    elif sys.argv[1:] == ["--check"]:
        if not FILE.exists() or FILE.read_text() != text:
            sys.exit(f"{FILE} is not up to date: run deploy/monitoring/dashboard.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        FILE.write_text(text)


main()
